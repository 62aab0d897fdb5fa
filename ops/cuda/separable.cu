// gaussian_blur and laplacian (ops/filters/separable.py): a window along one axis of all pictures. The neighbours that
// threads of a block share come from the L1 cache, which reads of bytes and of whole lines do not exhaust.
#include "border.cuh"
#include "convert.cuh"

// grid (tiles * pictures): `sizes` [5] is pictures, depth, height, width, channels. Windows are [terms][3][longest], of
// `counts` [terms][3]. In the last pass of a term, sums are scaled, and `total` is added where `more`. A thread makes
// FOLD values, a block's width apart. Index counts the values of a picture: divisions of 64 bits took most of the time.
constexpr int FOLD = 4;

template <typename In, typename Out, typename Index>
__global__ void along(const In* source, const long long* base, const long long* sizes, int tiles, const float* windows,
                      const int* counts, const float* factors, int terms, int term, int longest, int axis, int last,
                      const float* total, int more, Out* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long* size = sizes + 5ll * picture;
    Index step = static_cast<Index>(size[4]);  // from a value to the next along the axis
    for (int a = 2; a > axis; --a) step *= static_cast<Index>(size[a + 1]);
    const Index length = static_cast<Index>(size[axis + 1]);
    const Index values = static_cast<Index>(size[0] * size[1] * size[2] * size[3] * size[4]);
    const long long row = static_cast<long long>(picture) * terms + term;
    const int count = counts[row * 3 + axis], radius = count / 2;
    const float* window = windows + (row * 3 + axis) * longest;
    const float factor = factors[row];
    source += base[picture];
    target += out_base[picture];
    total += more ? out_base[picture] : 0;
    const Index first = static_cast<Index>(blockIdx.x % tiles) * blockDim.x * FOLD + threadIdx.x;
    for (int f = 0; f < FOLD; ++f) {
        const Index i = first + static_cast<Index>(f) * blockDim.x;
        if (i >= values) return;
        const int at = static_cast<int>(i / step % length);
        const In* line = source + i;
        float sum = 0;
        if (at >= radius && at + radius < static_cast<int>(length)) {
            line -= static_cast<long long>(radius) * step;
            for (int k = 0; k < count; ++k, line += step) sum += window[k] * static_cast<float>(plain(*line));
        } else {
            for (int k = 0; k < count; ++k) {
                const int from = place(at + k - radius, static_cast<int>(length), REFLECT_101);
                sum += window[k] * static_cast<float>(plain(line[(from - at) * static_cast<long long>(step)]));
            }
        }
        if (last) sum *= factor;
        if (more) sum += total[i];
        target[i] = saturate<Out>(sum);
    }
}
