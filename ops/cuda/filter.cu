// filter (ops/filters/filter.py): correlation with a window for each picture.
#include "convert.cuh"
#include "strips.cuh"
#include "window.cuh"

// grid (tiles * pictures): `before` and `after` [5] are pictures, depth, height, width, channels; the filter begins at
// `places` and has `extents` [3]; `pads` [4] is its element that lies on the value.
template <typename In, typename Out>
__global__ void correlate(const In* source, const long long* base, const long long* before, const long long* after,
                          int tiles, const float* weights, const long long* places, const long long* extents,
                          const long long* pads, int border, const float* fills, Out* target,
                          const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long *in = before + 5ll * picture, *size = after + 5ll * picture;
    const long long *extent = extents + 3ll * picture, *pad = pads + 4ll * picture;
    const long long i = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (i >= spots(size)) return;
    const Spot spot(in, size, i);
    const int height = static_cast<int>(extent[1]), width = static_cast<int>(extent[2]);
    const int top = spot.y - static_cast<int>(pad[1]), left = spot.x - static_cast<int>(pad[2]);
    const long long plane = static_cast<long long>(spot.rows) * spot.columns * spot.channels;
    const In* image = source + base[picture] + spot.start;
    const float* w = weights + places[picture];
    const float fill = fills[picture];
    float sums[ROWS] = {};
    for (int a = 0; a < extent[0]; ++a, w += height * width) {
        const auto add = [&](int j, int k, float v) {
            #pragma unroll
            for (int q = 0; q < ROWS; ++q)
                if (j >= q && j - q < height) sums[q] += w[(j - q) * width + k] * v;
        };
        const auto outside = [&](int j, int k) { add(j, k, fill); };
        const int slice = place(spot.z + a - static_cast<int>(pad[0]), spot.slices, border);
        if (slice < 0) {
            for (int j = 0; j < height + spot.count - 1; ++j)
                for (int k = 0; k < width; ++k) outside(j, k);
            continue;
        }
        each(image + slice * plane, spot, top, left, height, width, border,
             [&](int j, int k, In v) { add(j, k, static_cast<float>(plain(v))); }, outside);
    }
    Out* out = target + out_base[picture] + spot.first;
    #pragma unroll
    for (int q = 0; q < ROWS; ++q)
        if (q < spot.count) out[q * spot.pitch] = saturate<Out>(sums[q]);
}

enum { DOWN = 16 };  // rows that a thread of `correlate_strips` makes

// The same with filters of H x W for all pictures, in one slice: grid (tiles * pictures). A thread makes four bytes of a
// row where the number of CHANNELS is known (its input is bytes), or one value (0). The sums of the H results that a row
// is part of are all on their way.
template <typename In, typename Out, int H, int W, int CHANNELS>
__global__ void __launch_bounds__(256, H * W <= 25 ? 3 : H * W <= 49 ? 2 : 1)
    correlate_strips(const In* source, const long long* base, const long long* before, const long long* after, int tiles,
                     const float* weights, const long long* places, const long long* pads, int border,
                     const float* fills, Out* target, const long long* out_base) {
    constexpr int WIDTH = CHANNELS ? 4 : 1, SPAN = CHANNELS ? WIDTH + (W - 1) * CHANNELS : W;
    const int picture = blockIdx.x / tiles;
    const long long* pad = pads + 4ll * picture;
    const Strip<WIDTH, DOWN> strip(before + 5ll * picture, after + 5ll * picture,
                                   static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x);
    if (!strip.present) return;
    const int channels = CHANNELS ? CHANNELS : strip.channels;
    const int left = strip.x - static_cast<int>(pad[2]) * channels, top = strip.y - static_cast<int>(pad[1]);
    const In* image = source + base[picture] + strip.start;
    Out* out = target + out_base[picture] + strip.first;
    const float fill = fills[picture];
    float w[H * W], sums[H][WIDTH] = {};
    #pragma unroll
    for (int k = 0; k < H * W; ++k) w[k] = weights[places[picture] + k];
    const auto line = [&](int j, int& row) {
        row = place(top + j, strip.rows, border);
        return image + static_cast<long long>(row < 0 ? 0 : row) * strip.length;
    };
    const auto add = [&](int j, const float* v) {  // row j of the windows
        #pragma unroll
        for (int b = H - 1; b >= 0; --b) {
            #pragma unroll
            for (int e = 0; e < WIDTH; ++e) {
                float sum = b ? sums[b - 1][e] : 0.0f;
                #pragma unroll
                for (int k = 0; k < W; ++k) sum += w[b * W + k] * v[e + k * (CHANNELS ? CHANNELS : 1)];
                sums[b][e] = sum;
            }
        }
        if (j < H - 1) return;
        if constexpr (CHANNELS > 0 && sizeof(Out) == 1) {
            unsigned word = 0;
            #pragma unroll
            for (int e = 0; e < WIDTH; ++e) word |= static_cast<unsigned>(saturate<Out>(sums[H - 1][e])) << 8 * e;
            put_bytes(out, word, strip.wide);
        } else {
            #pragma unroll
            for (int e = 0; e < WIDTH; ++e)
                if (e < strip.wide) out[e] = saturate<Out>(sums[H - 1][e]);
        }
        out += strip.pitch;
    };
    const int count = strip.count + H - 1;
    int row;
    if (left >= 0 && left + (WIDTH - 1) + (W - 1) * channels < strip.length) {  // columns are in the picture
        constexpr int WORDS = (SPAN + 3) / 4;
        unsigned words[WORDS];
        In values[W];
        const auto read = [&](int j) {  // while the row before is added
            const In* from = line(j, row) + left;
            if constexpr (CHANNELS > 0) {
                bytes_at<SPAN>(from, words);
            } else {
                #pragma unroll
                for (int k = 0; k < W; ++k) values[k] = from[k * channels];
            }
        };
        read(0);
        #pragma unroll 1
        for (int j = 0; j < count; ++j) {
            float v[SPAN];
            #pragma unroll
            for (int k = 0; k < SPAN; ++k) {
                if constexpr (CHANNELS > 0) v[k] = byte_of(words[k / 4], k % 4);
                else v[k] = static_cast<float>(plain(values[k]));
            }
            if (row < 0) {
                #pragma unroll
                for (int k = 0; k < SPAN; ++k) v[k] = fill;
            }
            if (j + 1 < count) read(j + 1);
            add(j, v);
        }
        return;
    }
    int at[SPAN];
    #pragma unroll
    for (int k = 0; k < SPAN; ++k)
        at[k] = continued(left + k * (CHANNELS ? 1 : channels), strip.columns, channels, border);
    #pragma unroll 1
    for (int j = 0; j < count; ++j) {
        const In* from = line(j, row);
        float v[SPAN];
        #pragma unroll
        for (int k = 0; k < SPAN; ++k) v[k] = row < 0 || at[k] < 0 ? fill : static_cast<float>(plain(from[at[k]]));
        add(j, v);
    }
}
