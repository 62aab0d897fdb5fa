// Statistics of parts of samples and their use (ops/statistics/normalize.py). `dims` is [N][D][COLUMNS] as in strided.cu; column
// STAT is the step between statistics, 0 along reduced dimensions; the first `kept` dimensions are not reduced.
#include "convert.cuh"

enum Column { SHAPE, STRIDE, ANCHOR, EXTENT, STAT, COLUMNS };

// Where the row-major index `i` over dimensions [first, last) lies, in steps of `column`. A sample has fewer than 2^31
// elements, and one dimension takes no division.
__device__ __forceinline__ long long offset(unsigned i, const long long* dims, int first, int last, Column column) {
    long long at = 0;
    for (int d = last - 1; d > first; --d) {
        const unsigned n = static_cast<unsigned>(dims[d * COLUMNS + SHAPE]), rest = i / n;
        at += (i - rest * n) * dims[d * COLUMNS + column];
        i = rest;
    }
    return first < last ? at + i * dims[first * COLUMNS + column] : at;
}

// grid (tiles, samples), of 256 threads or GROUP where that is more: GROUP threads add up x, or (x - center)^2, for one statistic of one sample.
template <typename In, int GROUP>
__global__ void sums(const In* source, const long long* dims, int ndim, int kept, const long long* base,
                     const long long* start, const long long* stats, const double* center, int square,
                     const long long* partial_start, double* partial) {
    __shared__ double shared[GROUP > 256 ? GROUP : 256];
    const int sample = blockIdx.y, lane = threadIdx.x % GROUP;
    const long long k = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / GROUP;
    dims += static_cast<long long>(sample) * ndim * COLUMNS;
    double total = 0;
    if (k < stats[sample]) {
        const In* at = source + base[sample] + offset(k, dims, 0, kept, STRIDE);
        const double c = square ? center[start[sample] + offset(k, dims, 0, kept, STAT)] : 0;
        long long count = 1;
        for (int d = kept; d < ndim; ++d) count *= dims[d * COLUMNS + SHAPE];
        const unsigned n = static_cast<unsigned>(count);
        unsigned i = lane;
        if (ndim - kept == 1) {
            const long long step = dims[kept * COLUMNS + STRIDE];
            for (; i + 7u * GROUP < n; i += 8 * GROUP) {  // eight loads on their way at a time
                In x[8];
                for (int j = 0; j < 8; ++j) x[j] = at[(i + j * GROUP) * step];
                for (int j = 0; j < 8; ++j) {
                    const double v = static_cast<double>(plain(x[j])) - c;
                    total += square ? v * v : v;
                }
            }
        }
        for (; i < n; i += GROUP) {
            const double v = static_cast<double>(plain(at[offset(i, dims, kept, ndim, STRIDE)])) - c;
            total += square ? v * v : v;
        }
    }
    shared[threadIdx.x] = total;
    for (int half_group = GROUP / 2; half_group > 0; half_group /= 2) {
        __syncthreads();
        if (lane < half_group) shared[threadIdx.x] += shared[threadIdx.x + half_group];
    }
    if (lane == 0 && k < stats[sample]) partial[partial_start[sample] + k] = shared[threadIdx.x];
}

// grid (tiles, groups): the mean of each statistic, or scale / sqrt(variance + epsilon); a group is the samples
// [first[g], first[g + 1]), added in their order.
extern "C" __global__ void statistics(const double* partial, const long long* partial_start, const long long* stats,
                                      const long long* first, const long long* start, const double* count, int square,
                                      double ddof, double epsilon, double scale, double* out) {
    const long long k = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int group = blockIdx.y;
    const long long begin = first[group], end = first[group + 1];
    double total = 0;
    bool any = false;
    for (long long i = begin; i < end; ++i) {
        if (k >= stats[i]) continue;
        total += partial[partial_start[i] + k];
        any = true;
    }
    if (!any) return;
    const double n = count[begin];
    double result = n > 0 ? total / n : 0;
    if (square) {
        const double variance = (n > ddof ? total / (n - ddof) : 0) + epsilon;
        result = variance > 0 ? scale / sqrt(variance) : 0;
    }
    out[start[begin] + k] = result;
}

// grid (tiles, samples): (x - mean) * factor + shift of four elements, in the order of memory.
template <typename In, typename Out>
__global__ void apply(const In* source, const long long* dims, int ndim, const long long* base, const long long* start,
                      const double* mean, const double* factor, float shift, Out* target, const long long* out_base) {
    const int sample = blockIdx.y;
    dims += static_cast<long long>(sample) * ndim * COLUMNS;
    long long size = 1;
    for (int d = 0; d < ndim; ++d) size *= dims[d * COLUMNS + SHAPE];
    const long long own = start[sample];
    const In* from = source + base[sample];
    Out* to = target + out_base[sample];
    for (int j = 0; j < 4; ++j) {
        const long long i = (blockIdx.x * 4ll + j) * blockDim.x + threadIdx.x;
        if (i >= size) return;
        const long long stat = own + offset(static_cast<unsigned>(i), dims, 0, ndim, STAT);
        const float value = static_cast<float>(plain(from[i]));
        to[i] = saturate<Out>((value - static_cast<float>(mean[stat])) * static_cast<float>(factor[stat]) + shift);
    }
}
