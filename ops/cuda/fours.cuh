// Several values at a time.
#pragma once

// Four values that are read and written at once, where they are aligned for that.
template <typename T> struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Fours { T v[4]; };

template <typename T> __device__ __forceinline__ bool aligned(const T* at) {
    return reinterpret_cast<unsigned long long>(at) % alignof(Fours<T>) == 0;
}

// `whole`: the place is aligned.
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

// Byte `i` of a word as a number: put into the mantissa of 2^23, which is then taken away. The units that convert
// integers have a quarter of the rate of those that add.
__device__ __forceinline__ float byte_of(unsigned word, int i) {
    return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440u + i)) - 8388608.0f;
}
