// cast (ops/arrays/cast.py) of values that follow each other.
#include "convert.cuh"
#include "fours.cuh"

enum { GROUPS = 4 };  // of four values, that a thread converts

// grid (tiles) for `count` values from `start` on.
template <typename In, typename Out>
__global__ void cast(const In* source, long long start, long long count, Out* target) {
    const In* from = source + start;
    const bool whole = aligned(from);
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x * GROUPS + threadIdx.x;
    if (whole && 4 * (first + (GROUPS - 1ll) * blockDim.x) + 4 <= count) {
        Fours<In> read[GROUPS];
        #pragma unroll
        for (int g = 0; g < GROUPS; ++g) read[g] = four(from + 4 * (first + g * blockDim.x), true);
        #pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            Fours<Out> made;
            #pragma unroll
            for (int e = 0; e < 4; ++e) made.v[e] = saturate<Out>(read[g].v[e]);
            put_four(target + 4 * (first + g * blockDim.x), made);
        }
        return;
    }
    for (int g = 0; g < GROUPS; ++g)
        for (int e = 0; e < 4; ++e) {
            const long long i = 4 * (first + g * blockDim.x) + e;
            if (i < count) target[i] = saturate<Out>(from[i]);
        }
}
