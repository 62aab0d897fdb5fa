// Access to several values at a time.
#pragma once

// Four values that are read and written at once, if their address is aligned for that.
template <typename T> struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Fours { T v[4]; };

template <typename T> __device__ __forceinline__ bool aligned(const T* at) {
    return reinterpret_cast<unsigned long long>(at) % alignof(Fours<T>) == 0;
}

// Load four values; `whole`: the address is aligned.
template <typename T> __device__ __forceinline__ Fours<T> four(const T* at, bool whole) {
    if (whole) return *reinterpret_cast<const Fours<T>*>(at);
    Fours<T> found;
    #pragma unroll
    for (int e = 0; e < 4; ++e) found.v[e] = at[e];
    return found;
}

template <typename T> __device__ __forceinline__ void put_four(T* to, const Fours<T>& values) {
    if (aligned(to)) {
        *reinterpret_cast<Fours<T>*>(to) = values;
        return;
    }
    #pragma unroll
    for (int e = 0; e < 4; ++e) to[e] = values.v[e];
}

// Return byte `i` of a word as a number: it is put into the mantissa of 2^23, which is then subtracted. Conversion
// instructions have a quarter of the rate of additions.
__device__ __forceinline__ float byte_of(unsigned word, int i) {
    return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440u + i)) - 8388608.0f;
}
