// gaussian_blur and laplacian (ops/filters/separable.py): a window along one axis of all pictures. The neighbours that
// threads of a block share come from the L1 cache, which reads of bytes and of whole lines do not exhaust.
#include "border.cuh"
#include "convert.cuh"

// grid (tiles * pictures): `sizes` [5] is pictures, depth, height, width, channels. Windows are [terms][3][longest], of
// `counts` [terms][3]. In the last pass of a term, sums are scaled, and `total` is added where `more`.
template <typename In, typename Out>
__global__ void along(const In* source, const long long* base, const long long* sizes, int tiles, const float* windows,
                      const int* counts, const float* factors, int terms, int term, int longest, int axis, int last,
                      const float* total, int more, Out* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long* size = sizes + 5ll * picture;
    const long long i = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (i >= size[0] * size[1] * size[2] * size[3] * size[4]) return;
    long long step = size[4];  // from a value to the next along the axis
    for (int a = 2; a > axis; --a) step *= size[a + 1];
    const int length = static_cast<int>(size[axis + 1]), at = static_cast<int>(i / step % length);
    const long long row = static_cast<long long>(picture) * terms + term;
    const int count = counts[row * 3 + axis], radius = count / 2;
    const float* window = windows + (row * 3 + axis) * longest;
    const In* line = source + base[picture] + i;
    float sum = 0;
    if (at >= radius && at + radius < length)
        for (int k = 0; k < count; ++k) sum += window[k] * static_cast<float>(plain(line[(k - radius) * step]));
    else
        for (int k = 0; k < count; ++k) {
            const int from = place(at + k - radius, length, REFLECT_101);
            sum += window[k] * static_cast<float>(plain(line[(from - at) * step]));
        }
    if (last) sum *= factors[row];
    if (more) sum += total[out_base[picture] + i];
    target[out_base[picture] + i] = saturate<Out>(sum);
}
