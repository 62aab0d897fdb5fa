// one_hot (ops/arrays/one_hot.py): a thread writes one element of the output.
#include "convert.cuh"

// grid (tiles, samples). Output element (outer, class, inner) is values[1] if the input's element (outer, inner) equals
// the class, else values[0]; `inner` [N]: number of elements after the new axis, `sizes` [N]: elements of the output.
template <typename In, typename Out>
__global__ void one_hot(const In* source, Out* target, const long long* offsets, const long long* out_offsets,
                        const long long* inner, const long long* sizes, long long classes, const Out* values) {
    const int sample = blockIdx.y;
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= sizes[sample]) return;
    const long long step = inner[sample];
    const long long at = i / step, outer = at / classes;
    const long long value = static_cast<long long>(plain(source[offsets[sample] + outer * step + i % step]));
    target[out_offsets[sample] + i] = values[value == at % classes];
}
