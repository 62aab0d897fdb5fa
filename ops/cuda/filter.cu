// filter (ops/filters/filter.py): correlation with a window for each picture; a thread makes one value.
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
    if (i >= size[0] * size[1] * size[2] * size[3] * size[4]) return;
    const Spot spot(in, size, i);
    const int height = static_cast<int>(extent[1]), width = static_cast<int>(extent[2]);
    const int top = spot.y - static_cast<int>(pad[1]), left = spot.x - static_cast<int>(pad[2]);
    const long long plane = static_cast<long long>(spot.rows) * spot.columns * spot.channels;
    const In* image = source + base[picture] + spot.start;
    const float* w = weights + places[picture];
    const float fill = fills[picture];
    float sum = 0;
    for (int a = 0; a < extent[0]; ++a) {
        const int slice = place(spot.z + a - static_cast<int>(pad[0]), spot.slices, border);
        const auto outside = [&] { sum += *w++ * fill; };
        if (slice < 0) {
            for (int n = height * width; n > 0; --n) outside();
            continue;
        }
        each(image + slice * plane, spot, top, left, height, width, border,
             [&](In v) { sum += *w++ * static_cast<float>(plain(v)); }, outside);
    }
    target[out_base[picture] + i] = saturate<Out>(sum);
}
