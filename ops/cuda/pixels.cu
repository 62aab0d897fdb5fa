// Copies of pictures of three bytes a pixel (ops/copies/pixels.py): cut out, mirrored, normalised, of any type, and with
// the channels last or first. A thread makes eight pixels of a line, from aligned words to aligned words.
#include "affine.cuh"
#include "convert.cuh"

// FROM is the element of the first pixel, LINE and ACROSS how far apart lines and pixels (3 or -3) are; TO is where the
// packed picture of HEIGHT x WIDTH begins.
enum Column { FROM, LINE, ACROSS, HEIGHT, WIDTH, TO, COLUMNS };
constexpr int PIXELS = 8;

__device__ __forceinline__ float byte_of(unsigned int pixel, int channel) {  // without a conversion: those are slow
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

// N values from registers to memory, in pieces as large as they are aligned.
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

// grid (tiles, samples); `factors` [1 or N][1 or 3][3] as in strided.cu.
template <typename Out, bool PLANAR, bool AFFINE>
__global__ void __launch_bounds__(256) pixels(const unsigned char* source, Out* target, const long long* table,
                                              const float* factors, int factor_width, int factor_rows) {
    table += static_cast<long long>(blockIdx.y) * COLUMNS;
    const unsigned int height = static_cast<unsigned int>(table[HEIGHT]), width = static_cast<unsigned int>(table[WIDTH]);
    const unsigned int groups = (width + PIXELS - 1) / PIXELS, u = blockIdx.x * blockDim.x + threadIdx.x;
    if (u >= groups * height) return;
    const unsigned int y = u / groups, x = (u - y * groups) * PIXELS;
    const int n = static_cast<int>(min(width - x, static_cast<unsigned int>(PIXELS)));
    const bool mirrored = table[ACROSS] < 0;
    const unsigned char* from = source + table[FROM] + static_cast<long long>(y) * table[LINE];
    from += mirrored ? -3ll * (static_cast<long long>(x) + n - 1) : 3ll * x;

    unsigned int read[PIXELS];
    if (n == PIXELS) {
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
        #pragma unroll
        for (int k = 0; k < PIXELS; ++k)
            read[k] = k < n ? from[3 * k] | static_cast<unsigned int>(from[3 * k + 1]) << 8 | static_cast<unsigned int>(from[3 * k + 2]) << 16 : 0;
    }
    if (mirrored) {
        if (n == PIXELS) {
            #pragma unroll
            for (int k = 0; k < PIXELS / 2; ++k) {
                const unsigned int other = read[k];
                read[k] = read[PIXELS - 1 - k];
                read[PIXELS - 1 - k] = other;
            }
        } else {
            #pragma unroll
            for (int k = 0; k < PIXELS; ++k) {
                const unsigned char* at = from + 3 * (n - 1 - k);
                if (k < n) read[k] = at[0] | static_cast<unsigned int>(at[1]) << 8 | static_cast<unsigned int>(at[2]) << 16;
            }
        }
    }

    float own[9];
    if constexpr (AFFINE) {
        factors += static_cast<long long>(factor_rows) * blockIdx.y * factor_width * 3;
        #pragma unroll
        for (int k = 0; k < 9; ++k) own[k] = factors[factor_width > 1 ? k : k % 3];
    }
    target += table[TO];
    const long long place = static_cast<long long>(y) * width + x, plane = static_cast<long long>(height) * width;
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
