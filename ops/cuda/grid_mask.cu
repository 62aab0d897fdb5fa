// grid_mask (ops/regions/grid_mask.py): a thread writes 16 bytes of a sample.
#include "division.cuh"

enum Geometry { PLANES, ROWS, COLUMNS, PIXEL, FIELDS };

// grid (tiles, samples); `grids` [N][5]: cos, sin and the shifts in tiles, and the ratio. Products are rounded before
// they are added, as on the CPU.
template <typename T>
__global__ void grid_mask(const T* source, const long long* base, const long long* geometry, const float* grids,
                          T* target, const long long* out_base) {
    constexpr int V = 16 / sizeof(T);
    const int sample = blockIdx.y;
    geometry += static_cast<long long>(sample) * FIELDS;
    const float* g = grids + 5LL * sample;
    const long long rows = geometry[ROWS], columns = geometry[COLUMNS], pixel = geometry[PIXEL];
    const long long total = geometry[PLANES] * rows * columns * pixel;
    source += base[sample];
    target += out_base[sample];
    const long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
    if (first >= total) return;
    const long long last = first + V < total ? first + V : total;
    long long at = first, left = pixel - split(at, pixel);
    long long x = split(at, columns), y = split(at, rows);
    bool keep = false, fresh = true;
    for (long long i = first; i < last; ++i) {
        if (fresh) {
            const float u = static_cast<float>(x), v = static_cast<float>(y);
            const float fx = __fsub_rn(__fsub_rn(__fmul_rn(u, g[0]), __fmul_rn(v, g[1])), g[2]);
            const float fy = __fsub_rn(__fadd_rn(__fmul_rn(u, g[1]), __fmul_rn(v, g[0])), g[3]);
            keep = fx - floorf(fx) >= g[4] || fy - floorf(fy) >= g[4];
            fresh = false;
        }
        target[i] = keep ? source[i] : T(0);
        if (--left == 0) {
            left = pixel;
            fresh = true;
            if (++x == columns) {
                x = 0;
                if (++y == rows) y = 0;
            }
        }
    }
}
