// Normalisation: factor is (mean, mul, add). Without a fused multiply-add, so that CPU and GPU results are equal.
#pragma once

__device__ __forceinline__ float affine(float v, const float* factor) {
    return __fadd_rn(__fmul_rn(__fsub_rn(v, factor[0]), factor[1]), factor[2]);
}
