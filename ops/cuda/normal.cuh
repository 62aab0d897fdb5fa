// Normal numbers, by the same operations as in draws/normal_cpu.py: equal to the CPU's to the bit.
#pragma once

__device__ __forceinline__ float unit(unsigned draw) { return __fmul_rn(static_cast<float>(draw), 2.3283064365386963e-10f); }

// Return a b + c, rounded twice.
__device__ __forceinline__ float twice_rounded(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }

// Return a standard normal number from two draws (Box-Muller); the logarithm is that of the draw that is not 0.
__device__ __forceinline__ float standard_normal(unsigned first, unsigned second) {
    const float a = unit(first), b = unit(second), u = fmaxf(a == 0 ? b : a, 1.17549435e-38f), v = a == 0 ? a : b;
    const int exponent = (__float_as_int(u) - 0x3F3504F3) >> 23;
    const float m = __fsub_rn(__int_as_float(__float_as_int(u) - exponent * (1 << 23)), 1.0f);
    const float e = static_cast<float>(exponent), square = __fmul_rn(m, m);
    float y = twice_rounded(7.0376836292e-2f, m, -1.1514610310e-1f);
    y = twice_rounded(y, m, 1.1676998740e-1f);
    y = twice_rounded(y, m, -1.2420140846e-1f);
    y = twice_rounded(y, m, 1.4249322787e-1f);
    y = twice_rounded(y, m, -1.6668057665e-1f);
    y = twice_rounded(y, m, 2.0000714765e-1f);
    y = twice_rounded(y, m, -2.4999993993e-1f);
    y = twice_rounded(y, m, 3.3333331174e-1f);
    y = __fmul_rn(__fmul_rn(y, m), square);
    y = __fsub_rn(y, __fmul_rn(e, 2.12194440e-4f));
    y = __fadd_rn(__fadd_rn(m, __fsub_rn(y, __fmul_rn(0.5f, square))), __fmul_rn(e, 0.693359375f));
    const float radius = __fsqrt_rn(__fmul_rn(-2.0f, y));
    const float quarters = __fmul_rn(v, 4.0f);
    const int quarter = static_cast<int>(__fadd_rn(quarters, 0.5f));
    const float x = __fmul_rn(__fsub_rn(quarters, static_cast<float>(quarter)), 1.5707963267948966f), z = __fmul_rn(x, x);
    float sine = __fsub_rn(8.3321608736e-3f, __fmul_rn(1.9515295891e-4f, z));
    sine = twice_rounded(__fmul_rn(twice_rounded(sine, z, -1.6666654611e-1f), z), x, x);
    float cosine = twice_rounded(2.443315711809948e-5f, z, -1.388731625493765e-3f);
    cosine = __fmul_rn(__fmul_rn(twice_rounded(cosine, z, 4.166664568298827e-2f), z), z);
    cosine = __fadd_rn(__fsub_rn(cosine, __fmul_rn(0.5f, z)), 1.0f);
    const float found = quarter & 1 ? sine : cosine;
    return __fmul_rn(radius, (quarter + 1) & 2 ? -found : found);
}
