// Interpolation between four pixels.
#pragma once
#include "convert.cuh"

// Interpolate between `a` and `b`, and `d` and `e` below them.
__device__ __forceinline__ float between(float a, float b, float d, float e, float fx, float fy) {
    const float upper = a + (b - a) * fx, lower = d + (e - d) * fx;
    return upper + (lower - upper) * fy;
}

// Load two adjacent pixels of three channels.
template <typename In> __device__ __forceinline__ void pair(const In* at, float* left, float* right) {
    #pragma unroll
    for (int c = 0; c < 3; ++c) {
        left[c] = static_cast<float>(plain(at[c]));
        right[c] = static_cast<float>(plain(at[3 + c]));
    }
}

// For bytes, load aligned words; only words that contain one of the six bytes are read.
__device__ __forceinline__ void pair(const unsigned char* at, float* left, float* right) {
    const unsigned shift = static_cast<unsigned>(reinterpret_cast<unsigned long long>(at) & 3);
    const unsigned* words = reinterpret_cast<const unsigned*>(at - shift);
    const unsigned second = words[1], third = shift == 3 ? words[2] : 0;
    const unsigned low = __funnelshift_r(words[0], second, 8 * shift), high = __funnelshift_r(second, third, 8 * shift);
    left[0] = static_cast<float>(low & 255), left[1] = static_cast<float>(low >> 8 & 255);
    left[2] = static_cast<float>(low >> 16 & 255), right[0] = static_cast<float>(low >> 24);
    right[1] = static_cast<float>(high & 255), right[2] = static_cast<float>(high >> 8 & 255);
}

// Interpolate a pixel of three channels between four existing pixels, two and two of which are adjacent.
template <typename In, typename Out>
__device__ __forceinline__ void pixel_between(const In* upper, const In* lower, float fx, float fy, Out* out) {
    float a[3], b[3], d[3], e[3];
    pair(upper, a, b);
    pair(lower, d, e);
    #pragma unroll
    for (int c = 0; c < 3; ++c) out[c] = saturate<Out>(between(a[c], b[c], d[c], e[c], fx, fy));
}
