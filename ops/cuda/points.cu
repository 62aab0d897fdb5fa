// coord_flip and coord_transform (ops/geometry/points.py).
#include "convert.cuh"

// grid (tiles, samples); a thread mirrors one coordinate: times `factors` [N][n], plus `shifts` [N][n].
extern "C" __global__ void coord_flip(const float* source, const long long* base, const long long* sizes, int n,
                                      const float* factors, const float* shifts, float* target, const long long* out_base) {
    const int sample = blockIdx.y;
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= sizes[sample]) return;
    const int at = sample * n + static_cast<int>(i % n);
    target[out_base[sample] + i] = __fadd_rn(__fmul_rn(source[base[sample] + i], factors[at]), shifts[at]);
}

// grid (tiles, samples); a thread computes one point; `matrices` [N][m][n], `shifts` [N][m]. Products are rounded
// before they are added, as on the CPU.
template <typename In, typename Out>
__global__ void transform(const In* source, const long long* base, const long long* counts, int n, int m,
                          const float* matrices, const float* shifts, Out* target, const long long* out_base) {
    const int sample = blockIdx.y;
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= counts[sample]) return;
    const float* row = matrices + static_cast<long long>(sample) * m * n;
    const float* shift = shifts + static_cast<long long>(sample) * m;
    const In* point = source + base[sample] + i * n;
    Out* out = target + out_base[sample] + i * m;
    for (int r = 0; r < m; ++r, row += n) {
        float total = 0.0f;
        for (int c = 0; c < n; ++c) total = __fadd_rn(total, __fmul_rn(row[c], static_cast<float>(plain(point[c]))));
        out[r] = saturate<Out>(__fadd_rn(total, shift[r]));
    }
}
