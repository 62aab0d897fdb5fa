// filter (ops/filters/filter.py): correlation with a window for each picture; a thread makes one value.
#include "border.cuh"
#include "convert.cuh"

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
    const int channels = static_cast<int>(size[4]), c = static_cast<int>(i % channels);
    const int slices = static_cast<int>(in[1]), rows = static_cast<int>(in[2]), columns = static_cast<int>(in[3]);
    long long rest = i / channels;
    const int x = static_cast<int>(rest % size[3] - pad[2]);
    rest /= size[3];
    const int y = static_cast<int>(rest % size[2] - pad[1]);
    rest /= size[2];
    const int z = static_cast<int>(rest % size[1] - pad[0]);
    const In* image = source + base[picture] + rest / size[1] * slices * rows * columns * channels;
    const float* w = weights + places[picture];
    const float fill = fills[picture];
    float sum = 0;
    for (int a = 0; a < extent[0]; ++a) {
        const int slice = place(z + a, slices, border);
        for (int b = 0; b < extent[1]; ++b) {
            const int row = place(y + b, rows, border);
            const In* line = image + (static_cast<long long>(slice) * rows + row) * columns * channels;
            for (int k = 0; k < extent[2]; ++k, ++w) {
                const int column = place(x + k, columns, border);
                const bool inside = slice >= 0 && row >= 0 && column >= 0;
                sum += *w * (inside ? static_cast<float>(plain(line[column * channels + c])) : fill);
            }
        }
    }
    target[out_base[picture] + i] = saturate<Out>(sum);
}
