// Copies of images with three bytes per pixel (ops/copies/pixels.py): cropped, mirrored, normalised, converted to any
// type, with the channels last or first. A thread processes eight pixels of a line, from aligned words to aligned
// words.
#include "affine.cuh"
#include "convert.cuh"

// FROM is the element of the first pixel, LINE and ACROSS the distances of lines and pixels; TO is the offset of the
// packed output of HEIGHT x WIDTH pixels. CHANNEL is the distance between a pixel's channels: 1, or -1 for reverse
// order (FROM is then the last of them), both with pixels 3 or -3 apart; or any distance, with pixels 1 or -1 apart:
// planes, or one plane for all three if it is 0. UNEVEN is 1 if lines of the output may begin within a word.
enum Column { FROM, LINE, ACROSS, HEIGHT, WIDTH, TO, CHANNEL, UNEVEN, COLUMNS };
constexpr int PIXELS = 8;

// Load eight bytes from `from` on, out of aligned words that each contain at least one of them.
__device__ __forceinline__ uint2 eight_at(const unsigned char* from) {
    const unsigned int shift = static_cast<unsigned int>(reinterpret_cast<unsigned long long>(from) & 3);
    const unsigned int* aligned = reinterpret_cast<const unsigned int*>(from - shift);
    const unsigned int selector = 0x3210u + 0x1111u * shift, a = aligned[0], b = aligned[1], c = shift ? aligned[2] : 0;
    return make_uint2(__byte_perm(a, b, selector), __byte_perm(b, c, selector));
}

// without conversion instructions, which are slow
__device__ __forceinline__ float byte_of(unsigned int pixel, int channel) {
    return __fsub_rn(__uint_as_float(__byte_perm(pixel, 0x4b000000u, 0x7650 + channel)), 8388608.0f);
}

template <typename Out, bool AFFINE> struct Made {
    static __device__ __forceinline__ Out of(unsigned int pixel, int channel, const float* factors) {
        const float value = byte_of(pixel, channel);
        if constexpr (AFFINE) return saturate<Out>(affine(value, factors + 3 * channel));
        else return saturate<Out>(value);
    }
};

template <> struct Made<unsigned char, false> {
    static __device__ __forceinline__ unsigned char of(unsigned int pixel, int channel, const float*) {
        return static_cast<unsigned char>(pixel >> (8 * channel));
    }
};

// Store N values from registers, in pieces as large as their alignment allows.
template <typename Out, int N> __device__ __forceinline__ void put(const Out* from, Out* to, int n) {
    constexpr int words = N * sizeof(Out) / 4, pairs = words / 2, quads = words / 4;
    const unsigned long long at = reinterpret_cast<unsigned long long>(to);
    if (n == N && words % 4 == 0 && at % 16 == 0) {
        #pragma unroll
        for (int k = 0; k < quads; ++k) reinterpret_cast<uint4*>(to)[k] = reinterpret_cast<const uint4*>(from)[k];
    } else if (n == N && at % 8 == 0) {
        #pragma unroll
        for (int k = 0; k < pairs; ++k) reinterpret_cast<uint2*>(to)[k] = reinterpret_cast<const uint2*>(from)[k];
    } else if (n == N && at % 4 == 0) {
        #pragma unroll
        for (int k = 0; k < words; ++k) reinterpret_cast<unsigned int*>(to)[k] = reinterpret_cast<const unsigned int*>(from)[k];
    } else {
        #pragma unroll
        for (int k = 0; k < N; ++k)
            if (k < n) to[k] = from[k];
    }
}

// grid (tiles, images); `factors` [1 or N][1 or 3][3] as in strided.cu, for samples of `frames` frames.
template <typename Out, bool PLANAR, bool AFFINE>
__global__ void __launch_bounds__(256) pixels(const unsigned char* source, Out* target, const long long* table, int frames,
                                              const float* factors, int factor_width, int factor_rows) {
    table += static_cast<long long>(blockIdx.y) * COLUMNS;
    const unsigned int height = static_cast<unsigned int>(table[HEIGHT]), width = static_cast<unsigned int>(table[WIDTH]);
    const unsigned int groups = (width + PIXELS - 1) / PIXELS + static_cast<unsigned int>(table[UNEVEN]);
    const unsigned int u = blockIdx.x * blockDim.x + threadIdx.x;
    if (u >= groups * height) return;
    const unsigned int y = u / groups, group = u - y * groups;
    target += table[TO];
    const long long line = static_cast<long long>(y) * width, plane = static_cast<long long>(height) * width;
    unsigned int before = PIXELS;  // pixels of a line up to the end of the first group: later groups begin at a word
    if (sizeof(Out) < 4 && table[UNEVEN]) {
        const unsigned int place = static_cast<unsigned int>(reinterpret_cast<unsigned long long>(target + (PLANAR ? line : 3 * line)) & 3);
        const unsigned int odd = place / sizeof(Out), whole = 4 / sizeof(Out);
        before = (PLANAR ? whole - odd : odd) % whole;  // 3 is -1 modulo 4: as many pixels as excess bytes
        if (before == 0) before = PIXELS;
    }
    const unsigned int end = min(group * PIXELS + before, width), x = group ? (group - 1) * PIXELS + before : 0;
    if (x >= width) return;
    const int n = static_cast<int>(end - x);

    const long long apart = table[CHANNEL];
    const bool mirrored = table[ACROSS] < 0, planes = table[ACROSS] == 1 || table[ACROSS] == -1;
    const long long first = mirrored ? static_cast<long long>(x) + n - 1 : x;
    const unsigned char* from = source + table[FROM] + static_cast<long long>(y) * table[LINE] + first * table[ACROSS];
    unsigned int read[PIXELS];
    if (n == PIXELS && planes) {
        const uint2 red = eight_at(from), green = eight_at(from + apart), blue = eight_at(from + 2 * apart);
        #pragma unroll
        for (int k = 0; k < PIXELS; ++k) {
            const unsigned int pair = __byte_perm(k < 4 ? red.x : red.y, k < 4 ? green.x : green.y, k % 4 | (4 + k % 4) << 4);
            read[k] = __byte_perm(pair, k < 4 ? blue.x : blue.y, 0x0010 | (4 + k % 4) << 8) & 0xffffff;
        }
    } else if (n == PIXELS) {
        const unsigned int shift = static_cast<unsigned int>(reinterpret_cast<unsigned long long>(from) & 3);
        const unsigned int* aligned = reinterpret_cast<const unsigned int*>(from - shift);
        const unsigned int selector = 0x3210u + 0x1111u * shift;
        unsigned int words[7];
        #pragma unroll
        for (int k = 0; k < 6; ++k) words[k] = aligned[k];
        words[6] = shift ? aligned[6] : 0;
        #pragma unroll
        for (int k = 0; k < 6; ++k) words[k] = __byte_perm(words[k], words[k + 1], selector);
        #pragma unroll
        for (int k = 0; k < 2; ++k) {
            read[4 * k] = words[3 * k];
            read[4 * k + 1] = __byte_perm(words[3 * k], words[3 * k + 1], 0x6543);
            read[4 * k + 2] = __byte_perm(words[3 * k + 1], words[3 * k + 2], 0x5432);
            read[4 * k + 3] = words[3 * k + 2] >> 8;
        }
    } else {
        const long long across = mirrored ? -table[ACROSS] : table[ACROSS], next = planes ? apart : 1;
        #pragma unroll
        for (int k = 0; k < PIXELS; ++k) {
            const unsigned char* at = from + (mirrored ? n - 1 - k : k) * across;
            read[k] = k < n ? at[0] | static_cast<unsigned int>(at[next]) << 8 | static_cast<unsigned int>(at[2 * next]) << 16 : 0;
        }
    }
    if (mirrored && n == PIXELS) {
        #pragma unroll
        for (int k = 0; k < PIXELS / 2; ++k) {
            const unsigned int other = read[k];
            read[k] = read[PIXELS - 1 - k];
            read[PIXELS - 1 - k] = other;
        }
    }
    if (!planes && apart == -1) {
        #pragma unroll
        for (int k = 0; k < PIXELS; ++k) read[k] = __byte_perm(read[k], 0, 0x4012);
    }

    float own[9];
    if constexpr (AFFINE) {
        factors += static_cast<long long>(factor_rows) * (blockIdx.y / frames) * factor_width * 3;
        #pragma unroll
        for (int k = 0; k < 9; ++k) own[k] = factors[factor_width > 1 ? k : k % 3];
    }
    const long long place = line + x;
    if constexpr (PLANAR) {
        #pragma unroll
        for (int c = 0; c < 3; ++c) {
            alignas(16) Out made[PIXELS];
            #pragma unroll
            for (int k = 0; k < PIXELS; ++k) made[k] = Made<Out, AFFINE>::of(read[k], c, own);
            put<Out, PIXELS>(made, target + c * plane + place, n);
        }
    } else {
        alignas(16) Out made[3 * PIXELS];
        #pragma unroll
        for (int k = 0; k < 3 * PIXELS; ++k) made[k] = Made<Out, AFFINE>::of(read[k / 3], k % 3, own);
        put<Out, 3 * PIXELS>(made, target + 3 * place, 3 * n);
    }
}

constexpr int SPREAD = 4;  // 16-byte words per thread of `spread`, `blockDim.x` words apart

// For channels last, a fourth of which may lie outside of the source: threads write adjacent words, if output values
// are larger than source values. `fill[last]` is the fourth channel.
template <typename Out, int CHANNELS, bool AFFINE>
__global__ void __launch_bounds__(256)
    spread(const unsigned char* __restrict__ source, Out* __restrict__ target, const long long* __restrict__ table, int frames,
           const float* __restrict__ factors, int factor_width, int factor_rows, const Out* __restrict__ fill, int last) {
    constexpr int V = 16 / sizeof(Out);
    table += static_cast<long long>(blockIdx.y) * COLUMNS;
    const unsigned int width = static_cast<unsigned int>(table[WIDTH]);
    const unsigned int total = static_cast<unsigned int>(table[HEIGHT]) * width * CHANNELS;
    target += table[TO];
    const unsigned int lead = static_cast<unsigned int>(reinterpret_cast<unsigned long long>(target) % 16 / sizeof(Out));
    const unsigned int begin = (blockIdx.x * SPREAD * blockDim.x + threadIdx.x) * V;
    if (total == 0 || begin >= total + lead) return;

    const long long across = table[ACROSS], apart = table[CHANNEL], line = table[LINE];
    const bool swapped = apart == -1 && across != 1 && across != -1;
    source += table[FROM] + (swapped ? 2 : 0);
    const Out fourth = CHANNELS == 4 ? fill[last] : Out();
    float own[9];
    if constexpr (AFFINE) {
        factors += static_cast<long long>(factor_rows) * (blockIdx.y / frames) * factor_width * 3;
        #pragma unroll
        for (int k = 0; k < 9; ++k) own[k] = factors[factor_width > 1 ? k : k % 3];
    }
    #pragma unroll 1
    for (int run = 0; run < SPREAD; ++run) {
        const unsigned int word = begin + run * blockDim.x * V;
        if (word >= total + lead) return;
        const int skip = word < lead ? static_cast<int>(lead - word) : 0;
        const unsigned int first = word + skip - lead;
        const int count = total - first < V - skip ? static_cast<int>(total - first) + skip : V;
        const unsigned int pixel = first / CHANNELS, y = pixel / width;
        unsigned int c = first - pixel * CHANNELS, x = pixel - y * width;
        const unsigned char* from_line = source + static_cast<long long>(y) * line;
        const unsigned char* from = from_line + static_cast<long long>(x) * across;
        Out* to = target + first - skip;
        alignas(16) Out values[V];
        const auto next_pixel = [&] {
            from += across;
            if (++x < width) return;
            x = 0;
            from_line += line;
            from = from_line;
        };
        if (V % CHANNELS == 0 && c == 0 && skip == 0 && count == V) {  // whole pixels
            #pragma unroll
            for (int v = 0; v < V; v += CHANNELS) {
                #pragma unroll
                for (int k = 0; k < 3; ++k) {
                    const float value = byte_of(from[k * apart], 0);
                    if constexpr (AFFINE) values[(v + k) % V] = saturate<Out>(affine(value, own + 3 * k));
                    else values[(v + k) % V] = saturate<Out>(value);
                }
                if (CHANNELS == 4) values[(v + 3) % V] = fourth;
                next_pixel();
            }
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
            continue;
        }
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            if (v < skip || v >= count) continue;
            if (CHANNELS == 4 && c == 3) {
                values[v] = fourth;
            } else {
                const float value = byte_of(from[c == 0 ? 0 : c == 1 ? apart : 2 * apart], 0);
                if constexpr (AFFINE) {
                    const float factor[3] = {c == 0 ? own[0] : c == 1 ? own[3] : own[6], c == 0 ? own[1] : c == 1 ? own[4] : own[7],
                                             c == 0 ? own[2] : c == 1 ? own[5] : own[8]};
                    values[v] = saturate<Out>(affine(value, factor));
                } else {
                    values[v] = saturate<Out>(value);
                }
            }
            if (++c < CHANNELS) continue;
            c = 0;
            next_pixel();
        }
        if (skip == 0 && count == V) {
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
        } else {
            #pragma unroll
            for (int v = 0; v < V; ++v)
                if (v >= skip && v < count) to[v] = values[v];
        }
    }
}
