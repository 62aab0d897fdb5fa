// Functions of the generated kernels of `expr`: DALI's arithmetic on one value. Integers wrap around, division
// truncates toward zero, and operations that C++ leaves undefined (x / 0, too large shifts) yield 0, as in NumPy.
#pragma once
#include "convert.cuh"

typedef unsigned long long wide;

template <typename T> struct is_real { static constexpr bool value = false; };
template <> struct is_real<float> { static constexpr bool value = true; };
template <> struct is_real<double> { static constexpr bool value = true; };
template <typename T> constexpr bool real = is_real<T>::value;

// COUNT values, of 16 bytes together or less, that are read and written at once; and whether an address allows that.
template <typename T, int COUNT> struct alignas(COUNT * sizeof(T)) Several { T v[COUNT]; };
template <int COUNT, typename T> __device__ __forceinline__ bool together(const T* at) {
    return reinterpret_cast<wide>(at) % (COUNT * sizeof(T)) == 0;
}

// bool is computed as bool, and stored as `boolean`.
template <typename T> __device__ __forceinline__ T load(T v) { return v; }
__device__ __forceinline__ bool load(boolean v) { return v.value != 0; }
template <typename Out, typename In> __device__ __forceinline__ Out store(In v) { return v; }
template <> __device__ __forceinline__ boolean store<boolean, bool>(bool v) { return {static_cast<unsigned char>(v)}; }
template <typename Out, typename In> __device__ __forceinline__ Out converted(In v) { return saturate<Out>(v); }
template <typename Out> __device__ __forceinline__ Out converted(bool v) { return saturate<Out>(static_cast<unsigned char>(v)); }

template <typename T> __device__ __forceinline__ T op_add(T a, T b) {
    if constexpr (real<T>) return a + b;
    else return static_cast<T>(static_cast<wide>(a) + static_cast<wide>(b));
}
template <typename T> __device__ __forceinline__ T op_sub(T a, T b) {
    if constexpr (real<T>) return a - b;
    else return static_cast<T>(static_cast<wide>(a) - static_cast<wide>(b));
}
template <typename T> __device__ __forceinline__ T op_mul(T a, T b) {
    if constexpr (real<T>) return a * b;
    else return static_cast<T>(static_cast<wide>(a) * static_cast<wide>(b));
}
template <typename T> __device__ __forceinline__ T op_neg(T a) {
    if constexpr (real<T>) return -a;
    else return static_cast<T>(0ULL - static_cast<wide>(a));
}
template <typename T> __device__ __forceinline__ T op_fdiv(T a, T b) {
    if constexpr (real<T>) return a / b;
    else if (b == 0) return 0;
    else if (static_cast<T>(-1) < 0 && b == static_cast<T>(-1)) return op_neg(a);
    else return static_cast<T>(a / b);
}
template <typename T> __device__ __forceinline__ T op_mod(T a, T b) {
    if (b == 0 || (static_cast<T>(-1) < 0 && b == static_cast<T>(-1))) return 0;
    return static_cast<T>(a % b);
}
template <> __device__ __forceinline__ float op_mod(float a, float b) { return fmodf(a, b); }
template <> __device__ __forceinline__ double op_mod(double a, double b) { return fmod(a, b); }

template <typename T> __device__ __forceinline__ T op_pow(T a, T b) {
    if (b < 0) return 0;
    wide result = 1, base = static_cast<wide>(a);
    for (wide n = static_cast<wide>(b); n; n >>= 1, base *= base)
        if (n & 1) result *= base;
    return static_cast<T>(result);
}
template <> __device__ __forceinline__ float op_pow(float a, float b) { return powf(a, b); }
template <> __device__ __forceinline__ double op_pow(double a, double b) { return pow(a, b); }

template <typename T> __device__ __forceinline__ T op_shl(T a, T b) {
    if (b < 0 || static_cast<wide>(b) >= 8 * sizeof(T)) return 0;
    return static_cast<T>(static_cast<wide>(a) << static_cast<int>(b));
}
template <typename T> __device__ __forceinline__ T op_shr(T a, T b) {
    if (b < 0 || static_cast<wide>(b) >= 8 * sizeof(T)) return a < 0 ? static_cast<T>(-1) : static_cast<T>(0);
    return static_cast<T>(a >> static_cast<int>(b));
}

template <typename T> __device__ __forceinline__ T op_abs(T a) {
    return a < 0 ? op_neg(a) : a;
}
template <> __device__ __forceinline__ float op_abs(float a) { return fabsf(a); }
template <> __device__ __forceinline__ double op_abs(double a) { return fabs(a); }
template <typename T> __device__ __forceinline__ T op_min(T a, T b) { return a < b ? a : b; }
template <typename T> __device__ __forceinline__ T op_max(T a, T b) { return a > b ? a : b; }
template <typename T> __device__ __forceinline__ T op_clamp(T v, T low, T high) {
    T raised = v < low ? low : v;
    return high < raised ? high : raised;
}

// Sign of a - b, exact for integers of any two types.
template <typename A, typename B> __device__ __forceinline__ int order(A a, B b) {
    bool negative = a < 0;
    if (negative != (b < 0)) return negative ? -1 : 1;
    // both have the same sign: two's complement keeps their order
    wide x = static_cast<wide>(a), y = static_cast<wide>(b);
    return x < y ? -1 : x > y;
}
