// noise.* (ops/distortions/noise.py). The loops of noise_cpu.py implement the same algorithms for the CPU.
#include "convert.cuh"
#include "fours.cuh"
#include "normal.cuh"
#include "philox.cuh"

typedef unsigned long long Key;

template <typename T> __device__ __forceinline__ T stored(double value) { return saturate<T>(value); }
template <> __device__ __forceinline__ unsigned char stored(double value) {  // rounds as noise_cpu.py does
    return saturate<unsigned char>(static_cast<float>(value));
}

// Add a normal number, made from two draws, times `stddev` plus `mean`, to `v`.
template <typename T> __device__ __forceinline__ T disturbed(T v, unsigned first, unsigned second, float mean, float stddev) {
    const double normal = static_cast<double>(standard_normal(first, second));
    const float noise = static_cast<float>(__dadd_rn(__dmul_rn(normal, stddev), mean));
    return stored<T>(static_cast<double>(plain(v)) + noise);
}

// grid (tiles * samples); a thread computes four elements, from two blocks of draws if the elements are adjacent.
template <typename T>
__global__ void gaussian(Key key, Key low, int phase, const Key* sequences, int skip, const T* source,
                         const long long* base, int tiles, const long long* counts, const float* mean,
                         const float* stddev, T* target, const long long* out_base) {
    const int sample = blockIdx.x / tiles;
    const bool close = skip == 2 && phase % 2 == 0;
    const long long group = 4 * (static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x);
    const long long j = close ? group - phase / 2 : group, left = counts[sample] - j;
    if (left <= 0) return;
    const float m = mean[sample], s = stddev[sample];
    const T* from = source + base[sample] + j;
    T* to = target + out_base[sample] + j;
    unsigned draws[8];
    if (close) {
        const Draws one(key, sequences[sample], low, 0, 2 * group), two(key, sequences[sample], low, 0, 2 * group + 4);
        #pragma unroll
        for (int i = 0; i < 4; ++i) draws[i] = one.four.word[i], draws[4 + i] = two.four.word[i];
    } else {
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            Draws own(key, sequences[sample], low, phase, static_cast<Key>(j + e) * skip);
            draws[2 * e] = own.next(), draws[2 * e + 1] = own.next();
        }
    }
    if (j >= 0 && left >= 4) {
        Fours<T> values = four(from, aligned(from));
        #pragma unroll
        for (int e = 0; e < 4; ++e) values.v[e] = disturbed(values.v[e], draws[2 * e], draws[2 * e + 1], m, s);
        put_four(to, values);
        return;
    }
    #pragma unroll
    for (int e = 0; e < 4; ++e)
        if (j + e >= 0 && e < left) to[e] = disturbed(from[e], draws[2 * e], draws[2 * e + 1], m, s);
}

// Compute four elements of EACH adjacent values: one draw decides on an element.
template <int EACH, typename T>
__device__ __forceinline__ void four_elements(const T* from, const float* draws, float prob, float salted, T salt,
                                              T pepper, T* to) {
    const bool whole = aligned(from);
    Fours<T> values[EACH];
    #pragma unroll
    for (int i = 0; i < EACH; ++i) values[i] = four(from + 4 * i, whole);
    #pragma unroll
    for (int e = 0; e < 4; ++e) {
        const T other = draws[e] < salted ? salt : pepper;
        #pragma unroll
        for (int k = EACH * e; k < EACH * (e + 1); ++k)
            if (draws[e] < prob) values[k / 4].v[k % 4] = other;
    }
    #pragma unroll
    for (int i = 0; i < EACH; ++i) put_four(to + 4 * i, values[i]);
}

// grid (tiles * samples); a thread computes four elements, from one block of draws if the elements are adjacent.
template <typename T>
__global__ void salt_and_pepper(Key key, Key low, int phase, const Key* sequences, int skip, const T* source,
                                const long long* base, int tiles, const long long* counts, const long long* steps, const long long* strides,
                                const float* prob, const float* salted, const T* salt, const T* pepper, T* target,
                                const long long* out_base) {
    const int sample = blockIdx.x / tiles;
    const long long group = 4 * (static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x);
    const long long j = skip == 1 ? group - phase : group, left = counts[sample] - j;
    if (left <= 0) return;
    float u[4];
    if (skip == 1) {
        const Draws draws(key, sequences[sample], low, 0, group);
        #pragma unroll
        for (int e = 0; e < 4; ++e) u[e] = unit(draws.four.word[e]);
    } else {
        #pragma unroll
        for (int e = 0; e < 4; ++e) u[e] = unit(Draws(key, sequences[sample], low, phase, static_cast<Key>(j + e) * skip).next());
    }
    const long long each = steps[sample], apart = strides[sample];
    const T* from = source + base[sample];
    T* to = target + out_base[sample];
    const float p = prob[sample], s = salted[sample];
    if (j >= 0 && left >= 4 && apart == 1 && (each == 1 || each == 3)) {
        from += j * each, to += j * each;
        if (each == 3) four_elements<3>(from, u, p, s, salt[sample], pepper[sample], to);
        else four_elements<1>(from, u, p, s, salt[sample], pepper[sample], to);
        return;
    }
    #pragma unroll
    for (int e = 0; e < 4; ++e) {
        if (j + e < 0 || e >= left) continue;
        const long long start = apart == 1 ? (j + e) * each : j + e;
        for (long long k = 0; k < each; ++k) {
            const long long x = start + k * apart;
            to[x] = u[e] < p ? (u[e] < s ? salt[sample] : pepper[sample]) : from[x];
        }
    }
}

// Compute libstdc++'s generate_canonical<double> from two draws. Integers are converted to numbers by assembling their
// bits: conversion instructions are slow. (2^84 + second * 2^32) - (2^84 + 2^52) + (2^52 + first) is rounded once.
__device__ __forceinline__ double canonical(unsigned first, unsigned second) {
    const double sum = (__hiloint2double(0x45300000, second) - 19342813118337666422669312.0) + __hiloint2double(0x43300000, first);
    const double value = sum * 5.42101086242752217e-20;
    return value < 1.0 ? value : 0.9999999999999999;
}

enum { FACTORIALS = 512 };  // number of tabulated logarithms of factorials

__device__ __forceinline__ double log_factorial(double n, const double* factorials) {
    return n < FACTORIALS ? factorials[static_cast<int>(n)] : lgamma(n + 1);
}

// Constants that depend on the mean of a Poisson number: only the limit `c` for means below 12 (`few`), all of them
// otherwise.
struct Mean {
    double m, log_mean, log_m, root, d, cx, spread, one, c1, c2, c5, c;
    __device__ void of(double mean, const double* factorials) {
        if (mean < 12) {
            m = -1;
            c = exp(-mean);
            return;
        }
        const double quarter = 0.7853981633974483;
        m = floor(mean), log_mean = log(mean), log_m = log_factorial(m, factorials), root = sqrt(m);
        d = rint(fmax(6.0, fmin(m, sqrt(2 * m * log(32 * m / quarter)))));
        cx = 2 * m + d, spread = sqrt(cx / 2), one = 1 / cx;
        c1 = root * 1.2533141373155003, c2 = c1 + sqrt(quarter * cx) * exp(one);
        c5 = c2 + 2 + 1.0129030479320018;
        c = c5 + 2 * cx * exp(-d * one * (1 + d / 2)) / d;
    }
    __device__ bool few() const { return m < 0; }
};

// One attempt of the rejection method for Poisson numbers with a mean of 12 or more (Devroye), see noise_cpu.py.
struct Try {
    double u, v;     // first draws: position (times `c`), and height
    double side, r;  // if a normal number is needed: a point of the unit disk, and its squared distance
    double tail;     // if an exponential number is needed: its draw
};

enum { NO, YES, UNSURE };

// Decide whether an attempt succeeds; `number` is its result. EXACT computes as the CPU does. Otherwise logarithms and
// roots are computed in float32, and the result is UNSURE if their errors could change the decision. Errors of normal
// numbers are then below 3e-5: the logarithm's error of 1e-6 is divided by twice the root, which is at least 0.04 for
// `r` up to 0.999; those of exponential numbers are below 1e-5.
template <bool EXACT>
__device__ __forceinline__ int tried(const Try& t, const Mean& mean, const double* factorials, double& number) {
    const double m = mean.m, c2 = mean.c2;
    double w = 0, x, e, n = 0;
    if (EXACT) e = -log(1.0 - t.v);
    else e = -__logf(static_cast<float>(1.0 - t.v));
    if (t.u <= c2) {
        if (EXACT) {
            n = t.side * sqrt(-2 * log(t.r) / t.r);
        } else {
            if (t.r > 0.999) return UNSURE;
            const float r = static_cast<float>(t.r);
            n = t.side * static_cast<double>(sqrtf(__fdividef(-2.0f * __logf(r), r)));
        }
        const bool left = t.u <= mean.c1;
        const double scale = left ? mean.root : mean.spread, y = 1 + fabs(n) * scale, whole = ceil(y);
        if (!EXACT) {
            const double over = whole - y, off = 3e-5 * scale;
            if (over < off || over > 1 - off) return UNSURE;
        }
        if (left) {
            x = -whole;
            w = -n * n / 2;
            if (x < -m) return NO;
        } else {
            x = whole;
            w = y * (2 - y) * mean.one;
            if (x > mean.d) return NO;
        }
    } else if (t.u <= c2 + 1) {
        x = -1;
    } else if (t.u <= c2 + 2) {
        x = 0;
    } else if (t.u <= mean.c5) {
        x = 1;
        w = 1.0 / 78;
    } else {
        const double v = EXACT ? -log(1.0 - t.tail) : -__logf(static_cast<float>(1.0 - t.tail));
        const double wide = 2 * mean.cx / mean.d, y = mean.d + v * 2 * mean.cx / mean.d, off = 1e-5 * wide;
        x = ceil(y);
        if (!EXACT && (x - y < off || x - y > 1 - off)) return UNSURE;
        w = -mean.d * mean.one * (1 + y / 2);
    }
    number = x + m;
    const double more = (w - e - x * mean.log_mean) - (mean.log_m - log_factorial(number, factorials));
    if (!EXACT && fabs(more) < 2e-3) return UNSURE;
    if (EXACT) return !(w - e - x * mean.log_mean > mean.log_m - log_factorial(number, factorials)) ? YES : NO;
    return more > 0 ? NO : YES;
}

__device__ __noinline__ int tried_exactly(const Try& t, const Mean& mean, const double* factorials, double& number) {
    return tried<true>(t, mean, factorials, number);
}

enum { EACH = 16 };  // elements per thread of `shot`

// Return byte `byte` of type T as an integer in the order of values.
template <typename T> __device__ __forceinline__ int ordered(unsigned char byte) {
    return static_cast<T>(-1) < static_cast<T>(0) ? byte ^ 0x80 : byte;
}

// grid (tiles * samples), 256 threads. Bytes have few different means: their constants are computed once per block, and
// equal values are processed consecutively, so that the threads of a warp do the same. Each iteration of the loop takes
// a block of four draws; a thread whose element is complete starts its next one, without waiting for others.
template <typename T>
__global__ void __launch_bounds__(256)
    shot(Key key, Key low, int phase, const Key* sequences, int skip, const T* source, const long long* base, int tiles,
         const long long* counts, const float* factor, const double* factorials, T* target, const long long* out_base) {
    enum { KNOWN = sizeof(T) == 1 ? 256 : 1, ROOM = KNOWN > 1 ? 256 * EACH : 1 };
    __shared__ Mean means[KNOWN];
    __shared__ int places[KNOWN];
    __shared__ int before[8];
    __shared__ unsigned short order[ROOM];
    __shared__ T values[ROOM];
    const int sample = blockIdx.x / tiles;
    const long long first = static_cast<long long>(blockIdx.x % tiles) * blockDim.x * EACH;
    if (first >= counts[sample]) return;
    const float f = factor[sample], events_of_one = __fdiv_rn(1.0f, f);
    const long long left = counts[sample] - first;
    const int mine = static_cast<int>(left < blockDim.x * EACH ? left : blockDim.x * EACH);
    const T* from = source + base[sample] + first;
    T* to = target + out_base[sample] + first;
    if (f == 0) {
        for (int j = threadIdx.x; j < mine; j += blockDim.x) to[j] = from[j];
        return;
    }
    if constexpr (KNOWN > 1) {
        places[threadIdx.x] = 0;
        for (int j = threadIdx.x; j < mine; j += blockDim.x) values[j] = from[j];
        __syncthreads();
        const unsigned char* bytes = reinterpret_cast<const unsigned char*>(values);
        for (int j = threadIdx.x; j < mine; j += blockDim.x) atomicAdd(&places[ordered<T>(bytes[j])], 1);
        __syncthreads();
        const int own = places[threadIdx.x], lane = threadIdx.x % 32;
        int sum = own;
        for (int apart = 1; apart < 32; apart *= 2) {
            const int other = __shfl_up_sync(~0u, sum, apart);
            if (lane >= apart) sum += other;
        }
        if (lane == 31) before[threadIdx.x / 32] = sum;
        __syncthreads();
        for (int w = 0; w < threadIdx.x / 32; ++w) sum += before[w];
        places[threadIdx.x] = sum - own;
        if (own > 0) {
            const unsigned char byte = static_cast<unsigned char>(ordered<T>(threadIdx.x));
            T value;
            memcpy(&value, &byte, 1);
            means[threadIdx.x].of(fmaxf(0.0f, __fmul_rn(static_cast<float>(plain(value)), events_of_one)), factorials);
        }
        __syncthreads();
        for (int j = threadIdx.x; j < mine; j += blockDim.x)
            order[atomicAdd(&places[ordered<T>(bytes[j])], 1)] = static_cast<unsigned short>(j);
        __syncthreads();
    }
    Mean own;
    const Mean* about = &own;
    Four four = {};             // the last block of draws
    Key number = 0;             // number of the next block
    int j = 0, offset = 0, count = 0;
    bool busy = false, fresh = false, few = false, polar = false, has_saved = false;
    double product = 1, saved = 0, saved_r = 0;
    Try t = {};
    const Key sequence = sequences[sample];
    int n = static_cast<int>(threadIdx.x) - static_cast<int>(blockDim.x);
    while (true) {
        if (!busy) {
            n += blockDim.x;
            if (n >= mine) break;
            j = KNOWN > 1 ? order[n] : n;
            const T value = KNOWN > 1 ? values[j] : from[j];
            const float mean = fmaxf(0.0f, __fmul_rn(static_cast<float>(plain(value)), events_of_one));
            if (!(mean > 0)) {
                (KNOWN > 1 ? values : to)[j] = saturate<T>(0.0);
                continue;
            }
            if constexpr (KNOWN > 1) {
                unsigned char byte;
                memcpy(&byte, &value, 1);
                about = means + ordered<T>(byte);
            } else {
                own.of(mean, factorials);
            }
            const Key at = static_cast<Key>(first + j) * skip + phase;
            number = low + (at >> 2), offset = static_cast<int>(at & 3);
            busy = fresh = true, polar = has_saved = false, few = about->few(), product = 1, count = 0;
        }
        const Four next = philox(key, sequence + (number < low), number);
        const Four last = four;
        four = next;
        ++number;
        if (fresh && offset) {
            fresh = false;
            continue;
        }
        fresh = false;
        const unsigned a = offset == 0 ? next.word[0] : offset == 1 ? last.word[1] : offset == 2 ? last.word[2] : last.word[3];
        const unsigned b = offset == 0 ? next.word[1] : offset == 1 ? last.word[2] : offset == 2 ? last.word[3] : next.word[0];
        const unsigned c = offset == 0 ? next.word[2] : offset == 1 ? last.word[3] : offset == 2 ? next.word[0] : next.word[1];
        const unsigned d = offset == 0 ? next.word[3] : offset == 1 ? next.word[0] : offset == 2 ? next.word[1] : next.word[2];
        const double p = canonical(a, b), q = canonical(c, d);
        double events;
        if (few) {  // products of uniform numbers
            product *= p;
            if (product > about->c) {
                ++count;
                product *= q;
                if (product > about->c) {
                    ++count;
                    continue;
                }
            }
            events = count;
        } else {
            if (polar) {
                const double x = 2 * p - 1, y = 2 * q - 1, r = x * x + y * y;
                if (!(r > 0 && r <= 1)) continue;
                polar = false, has_saved = true, saved = x, saved_r = r;
                t.side = y, t.r = r;
            } else {
                t.u = about->c * p, t.v = q;
                if (t.u <= about->c2) {
                    if (!has_saved) {
                        polar = true;
                        continue;
                    }
                    has_saved = false, t.side = saved, t.r = saved_r;
                } else if (t.u > about->c5) {  // two more draws
                    if (offset == 1) t.tail = canonical(four.word[1], four.word[2]), offset = 3;
                    else if (offset == 2) t.tail = canonical(four.word[2], four.word[3]), offset = 0;
                    else {
                        const Four more = philox(key, sequence + (number < low), number);
                        ++number;
                        t.tail = offset == 0 ? canonical(more.word[0], more.word[1]) : canonical(four.word[3], more.word[0]);
                        four = more, offset = offset == 0 ? 2 : 1;
                    }
                }
            }
            int found = tried<false>(t, *about, factorials, events);
            if (found == UNSURE) {  // copies: arrays that are indexed at run time are in memory
                const Try same = t;
                double exact;
                found = tried_exactly(same, *about, factorials, exact), events = exact;
            }
            if (found == NO) continue;
        }
        (KNOWN > 1 ? values : to)[j] = saturate<T>(static_cast<double>(__fmul_rn(static_cast<float>(events), f)));
        busy = false;
    }
    if constexpr (KNOWN > 1) {
        __syncthreads();
        for (int k = threadIdx.x; k < mine; k += blockDim.x) to[k] = values[k];
    }
}
