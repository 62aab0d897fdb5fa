// filter (ops/filters/filter.py): correlation with a separate window for each image.
#include "convert.cuh"
#include "strips.cuh"
#include "window.cuh"

// grid (tiles * images): `before` and `after` [5] are images, depth, height, width, channels; the filter begins at
// `places` and has the lengths `extents` [3]; `pads` [4] is its element that lies on the value.
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

enum { DOWN = 16 };  // rows per thread of `correlate_strips`

// Correlation with filters of H x W for all images, in one slice: grid (tiles * images). A thread computes four bytes
// of a row if its input is bytes with a known number of CHANNELS, or one value (CHANNELS 0: any number). The sums of
// all H results that contain a row are in progress at the same time.
template <typename In, int CHANNELS> constexpr int strip_width = CHANNELS > 0 && sizeof(In) == 1 ? 4 : 1;
template <typename In, typename Out, int H, int W, int CHANNELS>
__global__ void __launch_bounds__(256, H * W <= 25 ? 3 : H * W <= 49 ? 2 : 1)
    correlate_strips(const In* source, const long long* base, const long long* before, const long long* after, int tiles,
                     const float* weights, const long long* places, const long long* pads, int border,
                     const float* fills, Out* target, const long long* out_base) {
    constexpr int WIDTH = strip_width<In, CHANNELS>, SPAN = WIDTH == 4 ? WIDTH + (W - 1) * CHANNELS : W;
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
        row = top + j;
        if (static_cast<unsigned>(row) >= static_cast<unsigned>(strip.rows)) row = place(row, strip.rows, border);
        return image + static_cast<long long>(row < 0 ? 0 : row) * strip.length;
    };
    const auto add = [&](int j, const float* v) {  // add row j of the windows
        #pragma unroll
        for (int b = H - 1; b >= 0; --b) {
            #pragma unroll
            for (int e = 0; e < WIDTH; ++e) {
                float sum = b ? sums[b - 1][e] : 0.0f;
                #pragma unroll
                for (int k = 0; k < W; ++k) sum += w[b * W + k] * v[e + k * (WIDTH == 4 ? CHANNELS : 1)];
                sums[b][e] = sum;
            }
        }
        if (j < H - 1) return;
        if constexpr (WIDTH == 4 && sizeof(Out) == 1) {
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
    if (left >= 0 && left + (WIDTH - 1) + (W - 1) * channels < strip.length) {  // the columns are in the image
        if constexpr (WIDTH == 4) {
            unsigned words[(SPAN + 3) / 4];
            bytes_at<SPAN>(line(0, row) + left, words);
            #pragma unroll 1
            for (int j = 0; j < count; ++j) {
                float v[SPAN];
                #pragma unroll
                for (int k = 0; k < SPAN; ++k) v[k] = row < 0 ? fill : byte_of(words[k / 4], k % 4);
                if (j + 1 < count) bytes_at<SPAN>(line(j + 1, row) + left, words);  // while the previous row is added
                add(j, v);
            }
        } else {
            // The neighbours of a thread's values are read by adjacent threads: few loads are in progress at a time,
            // and rows are read long before they are added.
            constexpr int AHEAD = W <= 7 ? 3 : 1;
            In values[AHEAD][W];
            bool fillers[AHEAD];  // rows that are the constant
            const In* next = image + static_cast<long long>(top) * strip.length + left;
            const auto read = [&](int j, int d) {
                const In* from = next;
                next += strip.length, row = top + j;
                if (static_cast<unsigned>(row) >= static_cast<unsigned>(strip.rows)) from = line(j, row) + left;
                fillers[d] = row < 0;
                #pragma unroll
                for (int k = 0; k < W; ++k) values[d][k] = from[k * channels];
            };
            #pragma unroll
            for (int d = 0; d < AHEAD; ++d)
                if (d < count) read(d, d);
            #pragma unroll 1
            for (int first = 0; first < count; first += AHEAD) {
                #pragma unroll
                for (int d = 0; d < AHEAD; ++d) {
                    const int j = first + d;
                    if (j >= count) break;
                    float v[W];
                    #pragma unroll
                    for (int k = 0; k < W; ++k) v[k] = fillers[d] ? fill : static_cast<float>(plain(values[d][k]));
                    if (j + AHEAD < count) read(j + AHEAD, d);
                    add(j, v);
                }
            }
        }
        return;
    }
    int at[SPAN];
    #pragma unroll
    for (int k = 0; k < SPAN; ++k)
        at[k] = continued(left + k * (WIDTH == 4 ? 1 : channels), strip.columns, channels, border);
    #pragma unroll 1
    for (int j = 0; j < count; ++j) {
        const In* from = line(j, row);
        float v[SPAN];
        #pragma unroll
        for (int k = 0; k < SPAN; ++k) v[k] = row < 0 || at[k] < 0 ? fill : static_cast<float>(plain(from[at[k]]));
        add(j, v);
    }
}
