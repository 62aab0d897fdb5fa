// reductions.* (ops/statistics/reductions.py): GROUP threads make one result of one sample. `rows` is [N][D][COLUMNS] as
// in strided.cu; column RESULT is the step between results, 0 along reduced dimensions; the first `kept` dimensions are
// not reduced.
#include "convert.cuh"

enum Column { SHAPE, STRIDE, ANCHOR, EXTENT, RESULT, COLUMNS };
enum Kind { SUM, SQUARES, DEVIATIONS, MIN, MAX };

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

// The type that values are combined in: float16 and bool have no arithmetic of their own, nor need they any.
template <typename T> struct Combined { typedef T type; };
template <> struct Combined<half> { typedef float type; };
template <> struct Combined<boolean> { typedef unsigned char type; };

template <typename T> __device__ __forceinline__ T combine(T a, T b, int kind) {
    if (kind == MIN) return b < a || b != b ? b : a;
    if (kind == MAX) return b > a || b != b ? b : a;
    return a + b;
}

// grid (tiles, samples).
template <typename In, typename Acc, typename Out, int GROUP>
__global__ void reduce(const In* source, const long long* rows, int ndim, int kept, const long long* base,
                       const long long* start, const long long* results, int kind, const double* center,
                       const double* divisors, int divide, int root, Out* target) {
    typedef typename Combined<Acc>::type T;
    __shared__ T shared[256];
    const int sample = blockIdx.y, lane = threadIdx.x % GROUP;
    const long long k = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / GROUP;
    const bool present = k < results[sample];
    rows += static_cast<long long>(sample) * ndim * COLUMNS;
    T total = T(0);
    long long count = 1;
    for (int d = kept; d < ndim; ++d) count *= rows[d * COLUMNS + SHAPE];
    const long long place = start[sample] + (present ? offset(k, rows, 0, kept, RESULT) : 0);
    if (present && count > 0) {
        const In* at = source + base[sample] + offset(k, rows, 0, kept, STRIDE);
        if (kind >= MIN) total = static_cast<T>(plain(at[0]));
        const double c = kind == DEVIATIONS ? center[place] : 0;
        for (long long i = lane; i < count; i += GROUP) {
            const In v = at[offset(i, rows, kept, ndim, STRIDE)];
            if (kind == SQUARES || kind == DEVIATIONS) {
                const double difference = static_cast<double>(plain(v)) - c;
                total += static_cast<T>(difference * difference);
            } else {
                total = combine(total, static_cast<T>(plain(v)), kind);
            }
        }
    }
    shared[threadIdx.x] = total;
    for (int half_group = GROUP / 2; half_group > 0; half_group /= 2) {
        __syncthreads();
        if (lane < half_group)
            shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half_group], kind);
    }
    if (lane != 0 || !present) return;
    if (!divide) {
        target[place] = saturate<Out>(shared[threadIdx.x]);
        return;
    }
    const double divisor = divisors[sample];
    const double value = divisor > 0 ? static_cast<double>(shared[threadIdx.x]) / divisor : 0;
    target[place] = saturate<Out>(root ? sqrt(value) : value);
}
