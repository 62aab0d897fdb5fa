// Statistics of parts of samples and their use (ops/statistics/normalize.py). `dims` is [N][D][COLUMNS] as in strided.cu; column
// STAT is the step between statistics, 0 along reduced dimensions; the first `kept` dimensions are not reduced.
#include "convert.cuh"

enum Column { SHAPE, STRIDE, ANCHOR, EXTENT, STAT, COLUMNS };

// Where the row-major index `i` over dimensions [first, last) lies, in steps of `column`.
__device__ long long offset(long long i, const long long* dims, int first, int last, Column column) {
    long long at = 0;
    for (int d = last - 1; d >= first; --d) {
        const long long n = dims[d * COLUMNS + SHAPE];
        at += i % n * dims[d * COLUMNS + column];
        i /= n;
    }
    return at;
}

// grid (tiles, samples): GROUP threads add up x, or (x - center)^2, for one statistic of one sample.
template <typename In, int GROUP>
__global__ void sums(const In* source, const long long* dims, int ndim, int kept, const long long* base,
                     const long long* start, const long long* stats, const double* center, int square,
                     const long long* partial_start, double* partial) {
    __shared__ double shared[256];
    const int sample = blockIdx.y, lane = threadIdx.x % GROUP;
    const long long k = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / GROUP;
    dims += static_cast<long long>(sample) * ndim * COLUMNS;
    double total = 0;
    if (k < stats[sample]) {
        const In* at = source + base[sample] + offset(k, dims, 0, kept, STRIDE);
        const double c = square ? center[start[sample] + offset(k, dims, 0, kept, STAT)] : 0;
        long long count = 1;
        for (int d = kept; d < ndim; ++d) count *= dims[d * COLUMNS + SHAPE];
        for (long long i = lane; i < count; i += GROUP) {
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

// grid (tiles, samples): (x - mean) * factor + shift of one element, in the order of memory.
template <typename In, typename Out>
__global__ void apply(const In* source, const long long* dims, int ndim, const long long* base, const long long* start,
                      const double* mean, const double* factor, float shift, Out* target, const long long* out_base) {
    const int sample = blockIdx.y;
    dims += static_cast<long long>(sample) * ndim * COLUMNS;
    long long size = 1;
    for (int d = 0; d < ndim; ++d) size *= dims[d * COLUMNS + SHAPE];
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= size) return;
    const long long stat = start[sample] + offset(i, dims, 0, ndim, STAT);
    const float value = static_cast<float>(plain(source[base[sample] + i]));
    target[out_base[sample] + i] =
        saturate<Out>((value - static_cast<float>(mean[stat])) * static_cast<float>(factor[stat]) + shift);
}
