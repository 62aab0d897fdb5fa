// Statistics of parts of samples and their application (ops/statistics/normalize.py): `dims` is [N][D][COLUMNS], as in
// groups.cuh.
#include "fours.cuh"
#include "groups.cuh"

// grid (tiles, samples), of 256 threads or GROUP if that is more: GROUP threads sum x, or (x - center)^2, for one
// statistic of one sample.
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
        const double c = square ? center[start[sample] + offset(k, dims, 0, kept, RESULT)] : 0;
        long long count = 1;
        for (int d = kept; d < ndim; ++d) count *= dims[d * COLUMNS + SHAPE];
        each_of_group<GROUP>(at, dims, kept, ndim, static_cast<unsigned>(count), lane, [&](In x) {
            const double v = static_cast<double>(plain(x)) - c;
            total += square ? v * v : v;
        });
    }
    total = together<GROUP>(total, shared, [](double a, double b) { return a + b; });
    if (lane == 0 && k < stats[sample]) partial[partial_start[sample] + k] = total;
}

// grid (tiles, groups): compute the mean of each statistic, or scale / sqrt(variance + epsilon); a group is the samples
// [first[g], first[g + 1]), summed in order.
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

// grid (tiles, samples): compute (x - mean) * factor + shift for 16 elements, in memory order.
template <typename In, typename Out>
__global__ void apply(const In* source, const long long* dims, int ndim, const long long* base, const long long* start,
                      const double* mean, const double* factor, float shift, Out* target, const long long* out_base) {
    const int sample = blockIdx.y;
    dims += static_cast<long long>(sample) * ndim * COLUMNS;
    long long size = 1;
    for (int d = 0; d < ndim; ++d) size *= dims[d * COLUMNS + SHAPE];
    mean += start[sample], factor += start[sample];
    const In* from = source + base[sample];
    Out* to = target + out_base[sample];
    const long long* last = dims + (ndim - 1) * COLUMNS;
    const unsigned width = ndim > 0 ? static_cast<unsigned>(last[SHAPE]) : 1;
    const bool whole = aligned(from);
    const auto make = [&](long long i) {
        const long long stat = offset(static_cast<unsigned>(i), dims, 0, ndim, RESULT);
        const float x = static_cast<float>(plain(from[i]));
        to[i] = saturate<Out>((x - static_cast<float>(mean[stat])) * static_cast<float>(factor[stat]) + shift);
    };
    if (ndim > 0 && last[RESULT] != 0) {
        for (int j = 0; j < 16; ++j) {
            const long long i = (blockIdx.x * 16ll + j) * blockDim.x + threadIdx.x;
            if (i >= size) return;
            make(i);
        }
        return;
    }
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
        const long long i = 4 * ((blockIdx.x * 4ll + j) * blockDim.x + threadIdx.x);
        if (i >= size) return;
        if (i + 4 <= size && static_cast<unsigned>(i) % width + 3 < width) {  // all belong to one result
            const long long stat = offset(static_cast<unsigned>(i), dims, 0, ndim, RESULT);
            const float m = static_cast<float>(mean[stat]), f = static_cast<float>(factor[stat]);
            const Fours<In> x = four(from + i, whole);
            Fours<Out> made;
            #pragma unroll
            for (int e = 0; e < 4; ++e) made.v[e] = saturate<Out>((static_cast<float>(plain(x.v[e])) - m) * f + shift);
            put_four(to + i, made);
            continue;
        }
        for (int e = 0; e < 4 && i + e < size; ++e) make(i + e);
    }
}
