// reductions.* (ops/statistics/reductions.py): GROUP threads compute one result of one sample. `rows` is
// [N][D][COLUMNS] as in strided.cu; column RESULT is the step between results, 0 along reduced dimensions; the first
// `kept` dimensions are not reduced.
#include "fours.cuh"
#include "groups.cuh"

enum Kind { SUM, SQUARES, DEVIATIONS, MIN, MAX };

// The type in which values are combined: float16 and bool have no arithmetic, and need none.
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

// Return the square root of `v` as Out. For float32, a root of half the digits with one correction step has a relative
// error of at most 2^-44, which suffices unless its last bits are next to a tie.
template <typename Out> __device__ __forceinline__ Out root_of(double v) { return saturate<Out>(sqrt(v)); }
template <> __device__ __forceinline__ float root_of<float>(double v) {
    if (v > 1e-30 && v < 1e30) {
        const double inverse = rsqrtf(static_cast<float>(v)), near = v * inverse;
        const double root = fma(fma(-near, near, v), 0.5 * inverse, near);
        const unsigned rest = static_cast<unsigned>(__double2loint(root)) & 0x1FFFFFFFu;  // float32 has 29 bits fewer
        if (rest - 0x0FFFF000u > 0x2000u) return static_cast<float>(root);
    }
    return static_cast<float>(sqrt(v));
}

// Convert a sum to the result: with `divide` 1 it is multiplied by `part`, with 2 divided, which is exact for halves of
// integers; with 0 the result is 0.
template <typename Out, typename T> __device__ __forceinline__ Out ended(T total, int divide, double part, int root) {
    if (!divide) return saturate<Out>(total);
    const double sum = static_cast<double>(total), value = !(part > 0) ? 0 : divide == 1 ? sum * part : sum / part;
    return root ? root_of<Out>(value) : saturate<Out>(value);
}

enum { ALONE = 4 };  // results per thread if a thread computes its results alone

// grid (tiles, samples) of 256 threads, or GROUP if that is more. Deviations are taken from `means`, one per result of
// a sample, or one per sample (`single`).
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
            each_of_group<GROUP>(at, rows, kept, ndim, static_cast<unsigned>(count), lane,
                                 [&](In v) { total = with(total, v, c, kind); });
        }
        total = together<GROUP>(total, shared, [&](T a, T b) { return combine(a, b, kind); });
        if (lane != 0) return;
        if (!present) return;
        target[place] = ended<Out>(total, divide, part, root);
    }
}

// The type in which a few values are summed: 32 bits for bytes and their squares.
template <typename In, typename T, int KIND> struct Few { typedef T type; };
template <typename T, int KIND> struct FewBytes { typedef int type; };
template <typename T> struct FewBytes<T, MIN> { typedef T type; };
template <typename T> struct FewBytes<T, MAX> { typedef T type; };
template <typename T, int KIND> struct Few<unsigned char, T, KIND> : FewBytes<T, KIND> {};
template <typename T, int KIND> struct Few<signed char, T, KIND> : FewBytes<T, KIND> {};
template <typename T, int KIND> struct Few<boolean, T, KIND> : FewBytes<T, KIND> {};

template <int KIND, typename In, typename F> __device__ __forceinline__ F next(F total, In v) {
    if (KIND == SQUARES) {
        const F x = static_cast<F>(plain(v));
        return total + x * x;
    }
    return combine(total, static_cast<F>(plain(v)), KIND);
}

// Adjacent results of COUNT adjacent elements each, for example the channels of images. grid (tiles, samples); a thread
// computes four. ENDING is `divide`, plus 4 for roots.
template <typename In, typename Acc, typename Out, int KIND, int COUNT, int ENDING>
__global__ void reduce_few(const In* source, const long long* base, const long long* start, const long long* results,
                           const double* parts, Out* target) {
    constexpr int divide = ENDING % 4, root = ENDING / 4;
    typedef typename Few<In, typename Combined<Acc>::type, KIND>::type F;
    const int sample = blockIdx.y;
    const long long k = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x), left = results[sample] - k;
    if (left <= 0) return;
    const In* from = source + base[sample] + k * COUNT;
    Out* to = target + start[sample] + k;
    const double part = divide ? parts[sample] : 0;
    if (left < 4) {
        for (int r = 0; r < left; ++r) {
            F total = KIND >= MIN ? static_cast<F>(plain(from[r * COUNT])) : F(0);
            for (int i = 0; i < COUNT; ++i) total = next<KIND>(total, from[r * COUNT + i]);
            to[r] = ended<Out>(total, divide, part, root);
        }
        return;
    }
    In v[4 * COUNT];
    const bool whole = aligned(from);
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const Fours<In> read = four(from + 4 * i, whole);
        #pragma unroll
        for (int e = 0; e < 4; ++e) v[4 * i + e] = read.v[e];
    }
    Fours<Out> made;
    #pragma unroll
    for (int r = 0; r < 4; ++r) {
        F total = KIND >= MIN ? static_cast<F>(plain(v[r * COUNT])) : F(0);
        #pragma unroll
        for (int i = 0; i < COUNT; ++i) total = next<KIND>(total, v[r * COUNT + i]);
        made.v[r] = ended<Out>(total, divide, part, root);
    }
    put_four(to, made);
}

// Adjacent results of elements that are `step` [N] apart, `counts` [N] per result, for example the frames of videos.
// grid (tiles, samples); a thread computes four.
template <typename In, typename Acc, typename Out, int KIND, int ENDING>
__global__ void reduce_layers(const In* source, const long long* base, const long long* start, const long long* results,
                              const long long* counts, const long long* steps, const double* parts, Out* target) {
    constexpr int divide = ENDING % 4, root = ENDING / 4;
    typedef typename Combined<Acc>::type T;
    typedef typename Few<In, T, KIND>::type F;
    const int sample = blockIdx.y;
    const long long k = 4 * (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x), left = results[sample] - k;
    if (left <= 0) return;
    const long long step = steps[sample];
    const int count = static_cast<int>(counts[sample]);
    const In* from = source + base[sample] + k;
    Out* to = target + start[sample] + k;
    const double part = divide ? parts[sample] : 0;
    if (left < 4) {
        for (int r = 0; r < left; ++r) {
            T total = KIND >= MIN && count > 0 ? static_cast<T>(plain(from[r])) : T(0);
            for (int i = 0; i < count; ++i) total = with(total, from[r + i * step], 0, KIND);
            to[r] = ended<Out>(total, divide, part, root);
        }
        return;
    }
    const bool whole = aligned(from) && step % 4 == 0;
    const auto add = [&](int first, int end, F* totals) {
        #pragma unroll 8
        for (int i = first; i < end; ++i) {
            const Fours<In> read = four(from + i * step, whole);
            #pragma unroll
            for (int e = 0; e < 4; ++e) totals[e] = next<KIND>(totals[e], read.v[e]);
        }
    };
    constexpr int HELD = 1024;  // number of squares of bytes whose sum fits into 32 bits
    Fours<Out> made;
    F few[4];
    #pragma unroll
    for (int e = 0; e < 4; ++e) few[e] = KIND >= MIN && count > 0 ? plain(from[e]) : 0;
    if (sizeof(F) == sizeof(T) || KIND >= MIN || count <= HELD) {
        add(0, count, few);
        #pragma unroll
        for (int e = 0; e < 4; ++e) made.v[e] = ended<Out>(few[e], divide, part, root);
    } else {
        T total[4] = {};
        for (int first = 0; first < count; first += HELD) {
            add(first, min(count, first + HELD), few);
            #pragma unroll
            for (int e = 0; e < 4; ++e) total[e] += static_cast<T>(few[e]), few[e] = 0;
        }
        #pragma unroll
        for (int e = 0; e < 4; ++e) made.v[e] = ended<Out>(total[e], divide, part, root);
    }
    put_four(to, made);
}
