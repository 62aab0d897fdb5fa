// reductions.* (ops/statistics/reductions.py): GROUP threads make one result of one sample. `rows` is [N][D][COLUMNS] as
// in strided.cu; column RESULT is the step between results, 0 along reduced dimensions; the first `kept` dimensions are
// not reduced.
#include "convert.cuh"

enum Column { SHAPE, STRIDE, ANCHOR, EXTENT, RESULT, COLUMNS };
enum Kind { SUM, SQUARES, DEVIATIONS, MIN, MAX };

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

// The type that values are combined in: float16 and bool have no arithmetic of their own, nor need they any.
template <typename T> struct Combined { typedef T type; };
template <> struct Combined<half> { typedef float type; };
template <> struct Combined<boolean> { typedef unsigned char type; };

template <typename T> __device__ __forceinline__ T combine(T a, T b, int kind) {
    if (kind == MIN) return b < a || b != b ? b : a;
    if (kind == MAX) return b > a || b != b ? b : a;
    return a + b;
}

template <typename In, typename T> __device__ __forceinline__ T with(T total, In v, double center, int kind) {
    if (kind == SQUARES || kind == DEVIATIONS) {
        const double difference = static_cast<double>(plain(v)) - center;
        return total + static_cast<T>(difference * difference);
    }
    return combine(total, static_cast<T>(plain(v)), kind);
}

enum { ALONE = 4 };  // results that a thread makes where it makes them alone

// grid (tiles, samples) of 256 threads, or GROUP where that is more. Deviations are from `means`, one for each result of
// a sample, or one (`single`). With `divide` 1 sums are multiplied by `parts`, with 2 divided, of which the halves of
// integers are exact; 0 makes the result 0.
template <typename In, typename Acc, typename Out, int GROUP>
__global__ void reduce(const In* source, const long long* rows, int ndim, int kept, const long long* base,
                       const long long* start, const long long* results, int kind, const float* means,
                       const long long* mean_base, const long long* single, const double* parts, int divide,
                       int root, Out* target) {
    typedef typename Combined<Acc>::type T;
    __shared__ T shared[GROUP > 256 ? GROUP : 256];
    const int sample = blockIdx.y, lane = threadIdx.x % GROUP;
    rows += static_cast<long long>(sample) * ndim * COLUMNS;
    long long count = 1;
    for (int d = kept; d < ndim; ++d) count *= rows[d * COLUMNS + SHAPE];
    const double part = divide ? parts[sample] : 0;
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x, most = results[sample];
    for (int turn = 0; turn < (GROUP > 1 ? 1 : ALONE); ++turn) {
        const long long k = GROUP > 1 ? (first + threadIdx.x) / GROUP : first * ALONE + turn * blockDim.x + threadIdx.x;
        const bool present = k < most;
        if (GROUP == 1 && !present) return;
        T total = T(0);
        const long long within = present ? offset(k, rows, 0, kept, RESULT) : 0, place = start[sample] + within;
        if (present && count > 0) {
            const In* at = source + base[sample] + offset(k, rows, 0, kept, STRIDE);
            if (kind >= MIN) total = static_cast<T>(plain(at[0]));
            const double c = kind == DEVIATIONS ? means[mean_base[sample] + (single[sample] ? 0 : within)] : 0;
            const unsigned n = static_cast<unsigned>(count);
            unsigned i = lane;
            if (ndim - kept == 1) {
                const long long step = rows[kept * COLUMNS + STRIDE];
                for (; i + 7u * GROUP < n; i += 8 * GROUP) {  // eight loads on their way at a time
                    In v[8];
                    for (int j = 0; j < 8; ++j) v[j] = at[(i + j * GROUP) * step];
                    for (int j = 0; j < 8; ++j) total = with(total, v[j], c, kind);
                }
                for (; i < n; i += GROUP) total = with(total, at[i * step], c, kind);
            }
            for (; i < n; i += GROUP) total = with(total, at[offset(i, rows, kept, ndim, STRIDE)], c, kind);
        }
        if (GROUP > 1) {
            shared[threadIdx.x] = total;
            for (int half_group = GROUP / 2; half_group > 0; half_group /= 2) {
                __syncthreads();
                if (lane < half_group)
                    shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half_group], kind);
            }
            if (lane != 0) return;
            total = shared[threadIdx.x];
        }
        if (!present) return;
        if (divide) {
            const double sum = static_cast<double>(total), value = !(part > 0) ? 0 : divide == 1 ? sum * part : sum / part;
            target[place] = saturate<Out>(root ? sqrt(value) : value);
        } else {
            target[place] = saturate<Out>(total);
        }
    }
}
