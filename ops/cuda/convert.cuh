// Conversion between element types by DALI's rules: saturating, halves away from zero, NaN to 0 (ops/conversion.py
// implements the same for the CPU). Compiles without host headers, so that float16 is a separate struct here.
#pragma once

struct half {
    unsigned short bits;
};

struct boolean {
    unsigned char value;
};

#ifndef EMULATED
__device__ __forceinline__ float half_to_float(half h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
    return f;
}

__device__ __forceinline__ half float_to_half(float f) {
    half h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
    return h;
}

__device__ __forceinline__ half double_to_half(double f) {
    half h;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(h.bits) : "d"(f));
    return h;
}

// Round a number between 0 and 65535 to the nearest integer, halves up. The sum is truncated, so that a number just
// below a half is not rounded up; above 2^23 only the integer remains, in the last bits. Conversion instructions are
// slow.
__device__ __forceinline__ unsigned nearest(float v) {
    return __float_as_uint(__fadd_rz(__fadd_rz(v, 0.5f), 8388608.0f)) & 0xFFFFu;
}
__device__ __forceinline__ unsigned nearest(double v) {
    return __double2loint(__dadd_rz(__dadd_rz(v, 0.5), 4503599627370496.0)) & 0xFFFFu;  // 2^52
}
#else  // compiled for the CPU by the tests
inline unsigned nearest(double v) { return static_cast<unsigned>(v) + (v - static_cast<unsigned>(v) >= 0.5); }

inline float half_to_float(half h) {
    _Float16 f;
    __builtin_memcpy(&f, &h, 2);
    return f;
}

template <typename T> half rounded_to_half(T value) {
    const _Float16 f = static_cast<_Float16>(value);
    half h;
    __builtin_memcpy(&h, &f, 2);
    return h;
}

inline half float_to_half(float f) { return rounded_to_half(f); }
inline half double_to_half(double f) { return rounded_to_half(f); }
#endif

template <typename T> struct limits;
template <> struct limits<unsigned char> { static constexpr unsigned long long high = 255; static constexpr long long low = 0; };
template <> struct limits<unsigned short> { static constexpr unsigned long long high = 65535; static constexpr long long low = 0; };
template <> struct limits<unsigned int> { static constexpr unsigned long long high = 4294967295ULL; static constexpr long long low = 0; };
template <> struct limits<unsigned long long> { static constexpr unsigned long long high = ~0ULL; static constexpr long long low = 0; };
template <> struct limits<signed char> { static constexpr unsigned long long high = 127; static constexpr long long low = -128; };
template <> struct limits<short> { static constexpr unsigned long long high = 32767; static constexpr long long low = -32768; };
template <> struct limits<int> { static constexpr unsigned long long high = 2147483647; static constexpr long long low = -2147483648LL; };
template <> struct limits<long long> { static constexpr unsigned long long high = 9223372036854775807ULL; static constexpr long long low = -9223372036854775807LL - 1; };

// Return a value in a type with arithmetic: float16 and bool have none.
__device__ __forceinline__ float plain(half v) { return half_to_float(v); }
__device__ __forceinline__ unsigned char plain(boolean v) { return v.value; }
template <typename T> __device__ __forceinline__ T plain(T v) { return v; }

template <typename Out> struct Saturate {  // integers
    template <typename In> static __device__ __forceinline__ Out from(In v) {
        if (v < 0) return static_cast<long long>(v) < limits<Out>::low ? static_cast<Out>(limits<Out>::low) : static_cast<Out>(v);
        return static_cast<unsigned long long>(v) > limits<Out>::high ? static_cast<Out>(limits<Out>::high) : static_cast<Out>(v);
    }
    static __device__ __forceinline__ Out from(float v) {
        if constexpr (limits<Out>::low == 0 && sizeof(Out) < 4)  // of NaN and 0, fmaxf returns 0
            return static_cast<Out>(nearest(fminf(fmaxf(v, 0.0f), static_cast<float>(limits<Out>::high))));
        if (!(v == v)) return 0;
        if (v <= static_cast<float>(limits<Out>::low)) return static_cast<Out>(limits<Out>::low);
        if (v >= static_cast<float>(limits<Out>::high)) return static_cast<Out>(limits<Out>::high);
        return static_cast<Out>(roundf(v));
    }
    static __device__ __forceinline__ Out from(double v) {
        if constexpr (limits<Out>::low == 0 && sizeof(Out) < 4)
            return static_cast<Out>(nearest(fmin(fmax(v, 0.0), static_cast<double>(limits<Out>::high))));
        if (!(v == v)) return 0;
        if (v <= static_cast<double>(limits<Out>::low)) return static_cast<Out>(limits<Out>::low);
        if (v >= static_cast<double>(limits<Out>::high)) return static_cast<Out>(limits<Out>::high);
        return static_cast<Out>(round(v));
    }
};

template <> struct Saturate<float> {
    template <typename In> static __device__ __forceinline__ float from(In v) { return static_cast<float>(v); }
};

template <> struct Saturate<double> {
    template <typename In> static __device__ __forceinline__ double from(In v) { return static_cast<double>(v); }
};

template <> struct Saturate<half> {
    template <typename In> static __device__ __forceinline__ half from(In v) { return float_to_half(static_cast<float>(v)); }
    static __device__ __forceinline__ half from(double v) { return double_to_half(v); }
};

template <> struct Saturate<boolean> {
    template <typename In> static __device__ __forceinline__ boolean from(In v) { return {static_cast<unsigned char>(v != 0)}; }
    static __device__ __forceinline__ boolean from(float v) { return {static_cast<unsigned char>(!(fabsf(v) < 0.5f))}; }
    static __device__ __forceinline__ boolean from(double v) { return {static_cast<unsigned char>(!(fabs(v) < 0.5))}; }
};

// Convert `v` to `Out`.
template <typename Out, typename In> __device__ __forceinline__ Out saturate(In v) { return Saturate<Out>::from(plain(v)); }
