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
    const int count = total - first < V ? static_cast<int>(total - first) : V;
    long long at = first, left = pixel - split(at, pixel);
    long long x = split(at, columns), y = split(at, rows);
    const float cosine = g[0], sine = g[1], shift_x = g[2], shift_y = g[3], ratio = g[4];
    const auto kept = [&] {
        const float u = static_cast<float>(x), v = static_cast<float>(y);
        const float fx = __fsub_rn(__fsub_rn(__fmul_rn(u, cosine), __fmul_rn(v, sine)), shift_x);
        const float fy = __fsub_rn(__fadd_rn(__fmul_rn(u, sine), __fmul_rn(v, cosine)), shift_y);
        return fx - floorf(fx) >= ratio || fy - floorf(fy) >= ratio;
    };
    bool keep = kept();
    const T* from = source + first;
    T* to = target + first;
    const bool aligned = count == V && ((reinterpret_cast<unsigned long long>(from) | reinterpret_cast<unsigned long long>(to)) & 15) == 0;
    alignas(16) T values[V];
    if (aligned) *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(from);
    #pragma unroll
    for (int i = 0; i < V; ++i) {
        if (!aligned && i < count) values[i] = from[i];
        if (!keep) values[i] = T(0);
        if (--left > 0) continue;
        left = pixel;
        if (++x == columns) {
            x = 0;
            if (++y == rows) y = 0;
        }
        keep = kept();
    }
    if (aligned) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
    } else {
        #pragma unroll
        for (int i = 0; i < V; ++i)
            if (i < count) to[i] = values[i];
    }
}
