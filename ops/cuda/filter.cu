// filter (ops/filters/filter.py): correlation with a window for each picture.
#include "convert.cuh"
#include "window.cuh"

// grid (tiles * pictures): `before` and `after` [5] are pictures, depth, height, width, channels; the filter begins at
// `places` and has `extents` [3]; `pads` [4] is its element that lies on the value.
template <typename In, typename Out>
__global__ void correlate(const In* source, const long long* base, const long long* before, const long long* after,
                          int tiles, const float* weights, const long long* places, const long long* extents,
                          const long long* pads, int border, const float* fills, Out* target,
                          const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long *in = before + 5ll * picture, *size = after + 5ll * picture;
    const long long *extent = extents + 3ll * picture, *pad = pads + 4ll * picture;
    const long long i = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (i >= spots(size)) return;
    const Spot spot(in, size, i);
    const int height = static_cast<int>(extent[1]), width = static_cast<int>(extent[2]);
    const int top = spot.y - static_cast<int>(pad[1]), left = spot.x - static_cast<int>(pad[2]);
    const long long plane = static_cast<long long>(spot.rows) * spot.columns * spot.channels;
    const In* image = source + base[picture] + spot.start;
    const float* w = weights + places[picture];
    const float fill = fills[picture];
    float sums[ROWS] = {};
    for (int a = 0; a < extent[0]; ++a, w += height * width) {
        const auto add = [&](int j, int k, float v) {
            #pragma unroll
            for (int q = 0; q < ROWS; ++q)
                if (j >= q && j - q < height) sums[q] += w[(j - q) * width + k] * v;
        };
        const auto outside = [&](int j, int k) { add(j, k, fill); };
        const int slice = place(spot.z + a - static_cast<int>(pad[0]), spot.slices, border);
        if (slice < 0) {
            for (int j = 0; j < height + spot.count - 1; ++j)
                for (int k = 0; k < width; ++k) outside(j, k);
            continue;
        }
        each(image + slice * plane, spot, top, left, height, width, border,
             [&](int j, int k, In v) { add(j, k, static_cast<float>(plain(v))); }, outside);
    }
    Out* out = target + out_base[picture] + spot.first;
    #pragma unroll
    for (int q = 0; q < ROWS; ++q)
        if (q < spot.count) out[q * spot.pitch] = saturate<Out>(sums[q]);
}
