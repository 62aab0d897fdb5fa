// gaussian_blur and laplacian (ops/filters/separable.py): a window along one axis of all pictures. The neighbours that
// threads of a block share come from the L1 cache, which reads of bytes and of whole lines do not exhaust.
//
// `plane` does both axes of 8-bit pictures at once, by windows that are symmetric.
#include "border.cuh"
#include "convert.cuh"

// grid (tiles * pictures): `sizes` [5] is pictures, depth, height, width, channels. Windows are [terms][3][longest], of
// `counts` [terms][3]. In the last pass of a term, sums are scaled, and `total` is added where `more`. A thread makes
// FOLD values, a block's width apart. Index counts the values of a picture: divisions of 64 bits took most of the time.
constexpr int FOLD = 4;

template <typename In, typename Out, typename Index>
__global__ void along(const In* source, const long long* base, const long long* sizes, int tiles, const float* windows,
                      const int* counts, const float* factors, int terms, int term, int longest, int axis, int last,
                      const float* total, int more, Out* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long* size = sizes + 5ll * picture;
    Index step = static_cast<Index>(size[4]);  // from a value to the next along the axis
    for (int a = 2; a > axis; --a) step *= static_cast<Index>(size[a + 1]);
    const Index length = static_cast<Index>(size[axis + 1]);
    const Index values = static_cast<Index>(size[0] * size[1] * size[2] * size[3] * size[4]);
    const long long row = static_cast<long long>(picture) * terms + term;
    const int count = counts[row * 3 + axis], radius = count / 2;
    const float* window = windows + (row * 3 + axis) * longest;
    const float factor = factors[row];
    source += base[picture];
    target += out_base[picture];
    total += more ? out_base[picture] : 0;
    const Index first = static_cast<Index>(blockIdx.x % tiles) * blockDim.x * FOLD + threadIdx.x;
    for (int f = 0; f < FOLD; ++f) {
        const Index i = first + static_cast<Index>(f) * blockDim.x;
        if (i >= values) return;
        const int at = static_cast<int>(i / step % length);
        const In* line = source + i;
        float sum = 0;
        if (at >= radius && at + radius < static_cast<int>(length)) {
            line -= static_cast<long long>(radius) * step;
            for (int k = 0; k < count; ++k, line += step) sum += window[k] * static_cast<float>(plain(*line));
        } else {
            for (int k = 0; k < count; ++k) {
                const int from = place(at + k - radius, static_cast<int>(length), REFLECT_101);
                sum += window[k] * static_cast<float>(plain(line[(from - at) * static_cast<long long>(step)]));
            }
        }
        if (last) sum *= factor;
        if (more) sum += total[i];
        target[i] = saturate<Out>(sum);
    }
}

constexpr int ACROSS = 4;   // pixels next to each other that a thread makes
constexpr int LINES = 4;    // lines between two barriers
constexpr int MOST = 192;   // threads of a block
constexpr int STRIP = 64;   // lines of the result that a block makes
constexpr int MARGIN = 96;  // values of a line on both sides of a block's: 2 * 12 pixels of 4 channels

__device__ __forceinline__ float byte_of(unsigned int word, unsigned int selector) {  // without a conversion: those are slow
    return __fsub_rn(__uint_as_float(__byte_perm(word, 0x4b000000u, selector)), 8388608.0f);
}

// Values next to each other, from shared to global memory, four at a time where they lie so.
template <typename Out> __device__ __forceinline__ void put(const Out* from, Out* to, int n) {
    int done = 0;
    if (sizeof(Out) == 1 && reinterpret_cast<unsigned long long>(to) % 4 == 0) {
        for (int k = threadIdx.x; k < n / 4; k += blockDim.x)
            reinterpret_cast<unsigned int*>(to)[k] = reinterpret_cast<const unsigned int*>(from)[k];
        done = n / 4 * 4;
    }
    for (int k = done + threadIdx.x; k < n; k += blockDim.x) to[k] = from[k];
}

// A line of bytes from pixel `left` to pixel `right`, beyond the ends as well, as floats. Aligned words of bytes become
// aligned groups of floats: returns by how many floats the line begins later for that.
__device__ __forceinline__ int take(const unsigned char* line, int width, int channels, int left, int right, float* to) {
    const int low = max(left, 0), high = min(right, width), n = (high - low) * channels;
    const unsigned char* from = line + static_cast<long long>(low) * channels;
    const int head = min(n, static_cast<int>(-reinterpret_cast<unsigned long long>(from) & 3)), words = (n - head) / 4;
    const int first = (low - left) * channels, pad = -(first + head) & 3;
    float* inside = to + pad + first;
    for (int k = threadIdx.x; k < words; k += blockDim.x) {
        const unsigned int word = reinterpret_cast<const unsigned int*>(from + head)[k];
        reinterpret_cast<float4*>(inside + head)[k] =
            make_float4(byte_of(word, 0x7650), byte_of(word, 0x7651), byte_of(word, 0x7652), byte_of(word, 0x7653));
    }
    const int rest = n - 4 * words;  // those before the words, and those after
    for (int k = threadIdx.x; k < rest; k += blockDim.x) {
        const int at = k < head ? k : k + 4 * words;
        inside[at] = static_cast<float>(from[at]);
    }
    for (int k = threadIdx.x; k < first; k += blockDim.x)
        to[pad + k] = static_cast<float>(line[static_cast<long long>(place(left + k / channels, width, REFLECT_101)) * channels + k % channels]);
    for (int k = threadIdx.x; k < (right - high) * channels; k += blockDim.x)
        inside[n + k] = static_cast<float>(line[static_cast<long long>(place(high + k / channels, width, REFLECT_101)) * channels + k % channels]);
    return pad;
}

// Windows of one term, symmetric, of at most 2 R + 1. `pieces` blocks for each picture: `across` beside each other, strips
// below, then frames. Lines come one by one: each thread sums ACROSS of its pixels along the line, and adds those sums to
// the 2 R + 1 results above and below that they are part of, which stay in registers.
template <typename Out, int R>
__global__ void __launch_bounds__(MOST)
    plane(const unsigned char* source, const long long* base, const long long* sizes, int pieces, int across, int strips,
          const float* windows, const int* counts, const float* factors, int longest, Out* target, const long long* out_base) {
    __shared__ __align__(16) float lines[LINES][ACROSS * MOST + MARGIN + 4];
    __shared__ __align__(16) Out made[LINES][ACROSS * MOST];
    const int picture = blockIdx.x / pieces, piece = blockIdx.x % pieces;
    const long long* size = sizes + 5ll * picture;
    const int height = static_cast<int>(size[2]), width = static_cast<int>(size[3]), channels = static_cast<int>(size[4]);
    const int frame = piece / (across * strips), tile = ACROSS * (static_cast<int>(blockDim.x) / channels);
    const int left = piece % across * tile, top = piece / across % strips * STRIP;
    if (frame >= size[0] * size[1] || left >= width || top >= height) return;
    const long long values = size[2] * size[3] * size[4];
    source += base[picture] + frame * values;
    target += out_base[picture] + frame * values;

    float along[R + 1], down[R + 1];  // by the distance
    const int* count = counts + 3ll * picture;
    const float* window = windows + 3ll * picture * longest;
    const int radius_along = count[2] / 2, radius_down = count[1] / 2;
    #pragma unroll
    for (int k = 0; k <= R; ++k) {
        along[k] = k <= radius_along ? window[2 * longest + radius_along + k] : 0.0f;
        down[k] = k <= radius_down ? window[longest + radius_down + k] : 0.0f;
    }
    const float factor = factors[picture];
    const int right = min(left + tile, width), bottom = min(top + STRIP, height), n = (right - left) * channels;
    const int place_of = threadIdx.x / channels * ACROSS * channels + threadIdx.x % channels;
    const bool busy = static_cast<int>(threadIdx.x) < tile / ACROSS * channels && place_of < n;

    float sums[ACROSS][2 * R];
    #pragma unroll
    for (int j = 0; j < ACROSS; ++j)
        #pragma unroll
        for (int t = 0; t < 2 * R; ++t) sums[j][t] = 0.0f;
    for (int y = top - R; y < bottom + R; y += LINES) {
        int pads[LINES];
        #pragma unroll
        for (int l = 0; l < LINES; ++l)
            pads[l] = y + l < bottom + R
                ? take(source + static_cast<long long>(place(y + l, height, REFLECT_101)) * width * channels, width, channels, left - R, right + R, lines[l])
                : 0;
        __syncthreads();
        if (busy) {
            #pragma unroll
            for (int l = 0; l < LINES; ++l) {
                if (y + l >= bottom + R) break;
                const float* from = lines[l] + pads[l] + place_of;
                float near[ACROSS + 2 * R];
                #pragma unroll
                for (int k = 0; k < ACROSS + 2 * R; ++k) near[k] = from[k * channels];
                #pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    float sum = 0.0f;
                    #pragma unroll
                    for (int k = 0; k <= 2 * R; ++k) sum += along[k < R ? R - k : k - R] * near[j + k];
                    const float last = sums[j][0] + down[R] * sum;
                    #pragma unroll
                    for (int t = 0; t < 2 * R - 1; ++t) {
                        const int away = 2 * R - 1 - t;
                        sums[j][t] = sums[j][t + 1] + down[away < R ? R - away : away - R] * sum;
                    }
                    sums[j][2 * R - 1] = down[R] * sum;
                    if (place_of + j * channels < n) made[l][place_of + j * channels] = saturate<Out>(last * factor);
                }
            }
        }
        __syncthreads();
        #pragma unroll
        for (int l = 0; l < LINES; ++l) {
            const int to = y + l - R;
            if (to >= top && to < bottom) put(made[l], target + (static_cast<long long>(to) * width + left) * channels, n);
        }
    }
}
