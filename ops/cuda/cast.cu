// cast (ops/arrays/cast.py) of adjacent values.
#include "convert.cuh"

enum { PER_THREAD = 16 };  // values per thread

// Values that are read and written at once, if their address is aligned for that.
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Some { T v[N]; };

template <typename T, int N> __device__ __forceinline__ bool aligned_for(const T* at) {
    return reinterpret_cast<unsigned long long>(at) % alignof(Some<T, N>) == 0;
}

// grid (tiles) for `count` values from `start` on. A thread processes only 16 bytes of the larger type at a time: with
// 32, a warp would first write every other 16 bytes.
template <typename In, typename Out>
__global__ void cast(const In* source, long long start, long long count, Out* target) {
    constexpr int EACH = sizeof(In) == 8 || sizeof(Out) == 8 ? 2 : 4, GROUPS = PER_THREAD / EACH;
    typedef Some<In, EACH> Given;
    typedef Some<Out, EACH> Made;
    const In* from = source + start;
    const bool whole = aligned_for<In, EACH>(from) && aligned_for<Out, EACH>(target);
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x * GROUPS + threadIdx.x;
    if (whole && EACH * (first + (GROUPS - 1ll) * blockDim.x) + EACH <= count) {
        Given read[GROUPS];
        #pragma unroll
        for (int g = 0; g < GROUPS; ++g)
            read[g] = *reinterpret_cast<const Given*>(from + EACH * (first + g * blockDim.x));
        #pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            Made made;
            #pragma unroll
            for (int e = 0; e < EACH; ++e) made.v[e] = saturate<Out>(read[g].v[e]);
            *reinterpret_cast<Made*>(target + EACH * (first + g * blockDim.x)) = made;
        }
        return;
    }
    for (int g = 0; g < GROUPS; ++g)
        for (int e = 0; e < EACH; ++e) {
            const long long i = EACH * (first + g * blockDim.x) + e;
            if (i < count) target[i] = saturate<Out>(from[i]);
        }
}
