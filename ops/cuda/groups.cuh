// Elements of a sample that form one result: elements that agree in the dimensions that are kept. `rows` is
// [D][COLUMNS] as in strided.cu, kept dimensions first; column RESULT is the step between results, 0 along other
// dimensions.
#pragma once
#include "convert.cuh"

enum Column { SHAPE, STRIDE, ANCHOR, EXTENT, RESULT, COLUMNS };

// Return the offset of row-major index `i` over dimensions [first, last), in steps of `column`. A sample has fewer than
// 2^31 elements, and a single dimension needs no division.
__device__ __forceinline__ long long offset(unsigned i, const long long* rows, int first, int last, Column column) {
    long long at = 0;
    for (int d = last - 1; d > first; --d) {
        const unsigned n = static_cast<unsigned>(rows[d * COLUMNS + SHAPE]), rest = i / n;
        at += (i - rest * n) * rows[d * COLUMNS + column];
        i = rest;
    }
    return first < last ? at + i * rows[first * COLUMNS + column] : at;
}

// Call `use` for every GROUPth of the `n` elements of a result that begins at `at`, from `lane` on, in order.
template <int GROUP, typename In, typename Use>
__device__ __forceinline__ void each_of_group(const In* at, const long long* rows, int kept, int ndim, unsigned n,
                                              unsigned lane, Use use) {
    constexpr unsigned MANY = GROUP == 32 && sizeof(In) <= 4 ? 16 : 8;  // loads in progress at a time
    if (ndim - kept != 1) {
        for (unsigned i = lane; i < n; i += GROUP) use(at[offset(i, rows, kept, ndim, STRIDE)]);
        return;
    }
    const long long step = rows[kept * COLUMNS + STRIDE];
    unsigned i = lane;
    for (; i + (MANY - 1) * GROUP < n; i += MANY * GROUP) {
        In v[MANY];
        #pragma unroll
        for (unsigned j = 0; j < MANY; ++j) v[j] = at[(i + j * GROUP) * step];
        #pragma unroll
        for (unsigned j = 0; j < MANY; ++j) use(v[j]);
    }
    if (i >= n) return;
    In v[MANY - 1];
    #pragma unroll
    for (unsigned j = 0; j < MANY - 1; ++j)
        if (i + j * GROUP < n) v[j] = at[(i + j * GROUP) * step];
    #pragma unroll
    for (unsigned j = 0; j < MANY - 1; ++j)
        if (i + j * GROUP < n) use(v[j]);
}

// Combine the results of GROUP adjacent threads with `join`, for the first of them; `shared` has space for a block. If
// a group spans several warps, all threads of the block must call this.
template <int GROUP, typename T, typename Join>
__device__ __forceinline__ T together(T own, T* shared, Join join) {
    if (GROUP == 1) return own;
    const int lane = threadIdx.x % GROUP;
    shared[threadIdx.x] = own;
    #pragma unroll
    for (int half = GROUP / 2; half > 0; half /= 2) {
        if (GROUP > 32) __syncthreads();
        else __syncwarp();
        if (lane < half) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    return shared[threadIdx.x];
}
