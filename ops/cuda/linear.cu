// brightness, contrast, hsv, color_twist ... (ops/color/linear.py): a factor or a matrix, and an offset, for each
// image. A block computes a part of one image: `tiles` blocks per image. Bytes are read and written in words of 16 if
// both ends are aligned.
#include "convert.cuh"
#include "fours.cuh"

constexpr int VALUES = 16;  // values per thread; a quarter as many pixels in `mix`

__device__ __forceinline__ bool aligned(const void* p, int bytes) {
    return reinterpret_cast<unsigned long long>(p) % bytes == 0;
}

// Return value `k` of values that are stored in words.
template <typename In> __device__ __forceinline__ float number(const In* in, int k) {
    return static_cast<float>(plain(in[k]));
}
template <> __device__ __forceinline__ float number(const unsigned char* in, int k) {
    return byte_of(reinterpret_cast<const unsigned*>(in)[k / 4], k % 4);
}

// grid (tiles * images): `factor` times every value plus `offset`.
template <typename In, typename Out>
__global__ void scale(const In* source, const long long* base, const long long* sizes, int tiles, const float* factor,
                      const float* offset, Out* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long size = sizes[picture];
    const float a = factor[picture], b = offset[picture];
    const In* s = source + base[picture];
    Out* o = target + out_base[picture];
    const long long tile = static_cast<long long>(blockIdx.x % tiles) * blockDim.x;
    if constexpr (sizeof(In) == 1 && sizeof(Out) == 1) if (aligned(s, VALUES) && aligned(o, VALUES)) {
        const long long first = (tile + threadIdx.x) * VALUES;
        if (first + VALUES <= size) {
            __align__(16) In in[VALUES];
            __align__(16) Out out[VALUES];
            *reinterpret_cast<uint4*>(in) = *reinterpret_cast<const uint4*>(s + first);
            for (int k = 0; k < VALUES; ++k) out[k] = saturate<Out>(a * number(in, k) + b);
            *reinterpret_cast<uint4*>(o + first) = *reinterpret_cast<uint4*>(out);
            return;
        }
        for (long long k = first; k < size; ++k) o[k] = saturate<Out>(a * static_cast<float>(plain(s[k])) + b);
        return;
    }
    if (aligned(s) && aligned(o) && (tile + blockDim.x) * VALUES <= size) {
        Fours<In> in[VALUES / 4];
        for (int k = 0; k < VALUES / 4; ++k) in[k] = four(s + tile * VALUES + 4 * (k * blockDim.x + threadIdx.x), true);
        for (int k = 0; k < VALUES / 4; ++k) {
            Fours<Out> out;
            for (int e = 0; e < 4; ++e) out.v[e] = saturate<Out>(a * static_cast<float>(plain(in[k].v[e])) + b);
            put_four(o + tile * VALUES + 4 * (k * blockDim.x + threadIdx.x), out);
        }
        return;
    }
    for (int k = 0; k < VALUES; ++k) {
        const long long x = tile * VALUES + static_cast<long long>(k) * blockDim.x + threadIdx.x;
        if (x < size) o[x] = saturate<Out>(a * static_cast<float>(plain(s[x])) + b);
    }
}

template <typename In, typename Out>
__device__ __forceinline__ void mixed(const In* s, const float* m, const float* d, Out* o) {
    const float u = static_cast<float>(plain(s[0])), v = static_cast<float>(plain(s[1])), w = static_cast<float>(plain(s[2]));
    for (int k = 0; k < 3; ++k) o[k] = saturate<Out>(m[3 * k] * u + m[3 * k + 1] * v + m[3 * k + 2] * w + d[k]);
}

// grid (tiles * images): `matrices` [3][3] times every pixel of three values plus `offsets` [3].
template <typename In, typename Out>
__global__ void mix(const In* source, const long long* base, const long long* pixels, int tiles, const float* matrices,
                    const float* offsets, Out* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long count = pixels[picture];
    float m[9], d[3];
    for (int k = 0; k < 9; ++k) m[k] = matrices[9ll * picture + k];
    for (int k = 0; k < 3; ++k) d[k] = offsets[3ll * picture + k];
    const In* s = source + base[picture];
    Out* o = target + out_base[picture];
    const long long tile = static_cast<long long>(blockIdx.x % tiles) * blockDim.x;
    constexpr int PIXELS = VALUES / 4;
    if constexpr (sizeof(In) == 1 && sizeof(Out) == 1) if (aligned(s, 4) && aligned(o, 4)) {
        const long long first = (tile + threadIdx.x) * PIXELS;
        if (first + PIXELS <= count) {
            unsigned words[3];
            for (int k = 0; k < 3; ++k) words[k] = reinterpret_cast<const unsigned*>(s + 3 * first)[k];
            const In* in = reinterpret_cast<const In*>(words);
            __align__(4) Out out[3 * PIXELS];
            for (int k = 0; k < PIXELS; ++k) mixed(in + 3 * k, m, d, out + 3 * k);
            for (int k = 0; k < 3; ++k)
                reinterpret_cast<unsigned*>(o + 3 * first)[k] = reinterpret_cast<unsigned*>(out)[k];
            return;
        }
        for (long long k = first; k < count; ++k) mixed(s + 3 * k, m, d, o + 3 * k);
        return;
    }
    for (int k = 0; k < PIXELS; ++k) {
        const long long x = tile * PIXELS + static_cast<long long>(k) * blockDim.x + threadIdx.x;
        if (x < count) mixed(s + 3 * x, m, d, o + 3 * x);
    }
}

// grid (tiles * images): like `mix` for bytes, `steps` times, rounded after each step.
extern "C" __global__ void chain(const unsigned char* source, const long long* base, const long long* pixels, int tiles,
                                 int steps, const float* matrices, const float* offsets, unsigned char* target,
                                 const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long count = pixels[picture];
    const unsigned char* s = source + base[picture];
    unsigned char* o = target + out_base[picture];
    constexpr int PIXELS = VALUES / 4;
    const bool words = aligned(s, 4) && aligned(o, 4);
    const long long tile = static_cast<long long>(blockIdx.x % tiles) * blockDim.x;
    const long long first = (tile + threadIdx.x) * PIXELS;
    const int many = count - first < PIXELS ? static_cast<int>(count - first) : PIXELS;
    if (many <= 0) return;
    __align__(4) unsigned char made[3 * PIXELS];
    if (words && many == PIXELS)
        for (int k = 0; k < 3; ++k)
            reinterpret_cast<unsigned*>(made)[k] = reinterpret_cast<const unsigned*>(s + 3 * first)[k];
    else
        for (int k = 0; k < 3 * many; ++k) made[k] = s[3 * first + k];
    for (int step = 0; step < steps; ++step) {
        const float* m = matrices + (static_cast<long long>(picture) * steps + step) * 9;
        const float* d = offsets + (static_cast<long long>(picture) * steps + step) * 3;
        for (int k = 0; k < PIXELS; ++k) {
            unsigned char pixel[3];
            mixed(made + 3 * k, m, d, pixel);
            for (int c = 0; c < 3; ++c) made[3 * k + c] = pixel[c];
        }
    }
    if (words && many == PIXELS)
        for (int k = 0; k < 3; ++k)
            reinterpret_cast<unsigned*>(o + 3 * first)[k] = reinterpret_cast<unsigned*>(made)[k];
    else
        for (int k = 0; k < 3 * many; ++k) o[3 * first + k] = made[k];
}
