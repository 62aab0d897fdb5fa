// noise.* (ops/distortions/noise.py): a thread makes one element; the loops of noise_cpu.py say what it does.
#include "convert.cuh"
#include "philox.cuh"

typedef unsigned long long Key;

__device__ __forceinline__ float unit(unsigned draw) { return __fmul_rn(static_cast<float>(draw), 2.3283064365386963e-10f); }

// grid (tiles * samples)
template <typename T>
__global__ void gaussian(Key key, Key low, int phase, const Key* sequences, int skip, const T* source,
                         const long long* base, int tiles, const long long* counts, const float* mean,
                         const float* stddev, T* target, const long long* out_base) {
    const int sample = blockIdx.x / tiles;
    const long long j = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (j >= counts[sample]) return;
    Draws draws(key, sequences[sample], low, phase, static_cast<Key>(j) * skip);
    float u = unit(draws.next()), v = unit(draws.next());
    if (u == 0) {
        const float other = u;
        u = v;
        v = other;
    }
    const float radius = sqrtf(-2.0f * logf(fmaxf(u, 1e-38f)));
    const double normal = radius * cosf(6.2831853071795865f * v);
    const float noise = static_cast<float>(normal * stddev[sample] + mean[sample]);
    const double value = static_cast<double>(plain(source[base[sample] + j])) + noise;
    target[out_base[sample] + j] = saturate<T>(value);
}

// grid (tiles * samples)
template <typename T>
__global__ void salt_and_pepper(Key key, Key low, int phase, const Key* sequences, int skip, const T* source,
                                const long long* base, int tiles, const long long* counts, const long long* steps, const long long* strides,
                                const float* prob, const float* salted, const T* salt, const T* pepper, T* target,
                                const long long* out_base) {
    const int sample = blockIdx.x / tiles;
    const long long j = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (j >= counts[sample]) return;
    const float u = unit(Draws(key, sequences[sample], low, phase, static_cast<Key>(j) * skip).next());
    const long long each = steps[sample], apart = strides[sample], start = apart == 1 ? j * each : j;
    for (long long k = 0; k < each; ++k) {
        const long long x = start + k * apart;
        target[out_base[sample] + x] =
            u < prob[sample] ? (u < salted[sample] ? salt[sample] : pepper[sample]) : source[base[sample] + x];
    }
}

__device__ double canonical(Draws& draws) {
    const double first = draws.next(), second = draws.next();
    return fmin((first + second * 4294967296.0) / 18446744073709551616.0, 0.9999999999999999);
}

// What follows from the mean of a Poisson number: for means below 12 the limit of `few`, for others the rest.
struct Mean {
    double limit, m, log_mean, log_m, root, d, cx, spread, one, c1, c2, c5, c;
    __device__ void of(double mean) {
        if (mean < 12) {
            m = -1;
            limit = exp(-mean);
            return;
        }
        const double quarter = 0.7853981633974483;
        m = floor(mean), log_mean = log(mean), log_m = lgamma(m + 1), root = sqrt(m);
        d = rint(fmax(6.0, fmin(m, sqrt(2 * m * log(32 * m / quarter)))));
        cx = 2 * m + d, spread = sqrt(cx / 2), one = 1 / cx;
        c1 = root * 1.2533141373155003, c2 = c1 + sqrt(quarter * cx) * exp(one);
        c5 = c2 + 2 + 1.0129030479320018;
        c = c5 + 2 * cx * exp(-d * one * (1 + d / 2)) / d;
    }
};

// A Poisson number of a mean below 12: products of uniform numbers.
__device__ double few(Draws& draws, double limit) {
    double product = 1;
    for (int count = 0;; ++count) {
        product *= canonical(draws);
        if (!(product > limit)) return count;
    }
}

enum { FACTORIALS = 512 };  // logarithms of factorials that are known beforehand

// A Poisson number of a mean of 12 or more: rejection (Devroye), see noise_cpu.py.
__device__ double many(Draws& draws, const Mean& mean, const double* factorials) {
    const double m = mean.m, d = mean.d, root = mean.root, cx = mean.cx, one = mean.one;
    const double c1 = mean.c1, c2 = mean.c2, c3 = c2 + 1, c4 = c2 + 2, c5 = mean.c5, c = mean.c;
    const double log_mean = mean.log_mean, log_m = mean.log_m, spread = mean.spread;
    double saved = 0;
    bool has_saved = false;
    while (true) {
        const double u = c * canonical(draws), e = -log(1.0 - canonical(draws));
        double w = 0, x, y;
        if (u <= c2) {
            double n;
            if (has_saved) {
                n = saved;
                has_saved = false;
            } else {
                double a, b, r;
                do {
                    a = 2 * canonical(draws) - 1;
                    b = 2 * canonical(draws) - 1;
                    r = a * a + b * b;
                } while (!(r > 0 && r <= 1));
                const double scale = sqrt(-2 * log(r) / r);
                saved = a * scale;
                has_saved = true;
                n = b * scale;
            }
            if (u <= c1) {
                y = -fabs(n) * root - 1;
                x = floor(y);
                w = -n * n / 2;
                if (x < -m) continue;
            } else {
                y = 1 + fabs(n) * spread;
                x = ceil(y);
                w = y * (2 - y) * one;
                if (x > d) continue;
            }
        } else if (u <= c3) {
            x = -1;
        } else if (u <= c4) {
            x = 0;
        } else if (u <= c5) {
            x = 1;
            w = 1.0 / 78;
        } else {
            const double v = -log(1.0 - canonical(draws));
            y = d + v * 2 * cx / d;
            x = ceil(y);
            w = -d * one * (1 + y / 2);
        }
        const double n = x + m, log_n = n < FACTORIALS ? factorials[static_cast<int>(n)] : lgamma(n + 1);
        if (!(w - e - x * log_mean > log_m - log_n)) return n;
    }
}

enum { EACH = 16 };  // elements that a thread of `shot` makes

// grid (tiles * samples). Bytes have few means: what follows from each is worked out once a block.
template <typename T>
__global__ void shot(Key key, Key low, int phase, const Key* sequences, int skip, const T* source,
                     const long long* base, int tiles, const long long* counts, const float* factor,
                     const double* factorials, T* target, const long long* out_base) {
    enum { KNOWN = sizeof(T) == 1 ? 256 : 1 };
    __shared__ Mean means[KNOWN];
    const int sample = blockIdx.x / tiles;
    const long long first = static_cast<long long>(blockIdx.x % tiles) * blockDim.x * EACH;
    if (first >= counts[sample]) return;
    const float f = factor[sample], events_of_one = __fdiv_rn(1.0f, f);
    if (KNOWN > 1) {
        for (int k = threadIdx.x; k < KNOWN; k += blockDim.x) {
            const unsigned char byte = static_cast<unsigned char>(k);
            T value;
            memcpy(&value, &byte, 1);
            means[k].of(fmaxf(0.0f, __fmul_rn(static_cast<float>(plain(value)), events_of_one)));
        }
        __syncthreads();
    }
    // Of bytes, equal values are made one after the other: threads of a warp then take about as long.
    enum { ROOM = KNOWN > 1 ? 256 * EACH : 1 };
    __shared__ unsigned short order[ROOM];
    __shared__ int places[KNOWN];
    const long long left = counts[sample] - first;
    const int mine = static_cast<int>(left < blockDim.x * EACH ? left : blockDim.x * EACH);
    const T* from = source + base[sample] + first;
    T* to = target + out_base[sample] + first;
    if (KNOWN > 1) {
        const unsigned char* bytes = reinterpret_cast<const unsigned char*>(from);
        for (int k = threadIdx.x; k < KNOWN; k += blockDim.x) places[k] = 0;
        __syncthreads();
        for (int j = threadIdx.x; j < mine; j += blockDim.x) atomicAdd(&places[bytes[j]], 1);
        __syncthreads();
        if (threadIdx.x == 0) {
            int before = 0;
            for (int k = 0; k < KNOWN; ++k) {
                const int own = places[k];
                places[k] = before;
                before += own;
            }
        }
        __syncthreads();
        for (int j = threadIdx.x; j < mine; j += blockDim.x)
            order[atomicAdd(&places[bytes[j]], 1)] = static_cast<unsigned short>(j);
        __syncthreads();
    }
    for (int n = threadIdx.x; n < mine; n += blockDim.x) {
        const int j = KNOWN > 1 ? order[n] : n;
        const T value = from[j];
        if (f == 0) {
            to[j] = value;
            continue;
        }
        const float mean = fmaxf(0.0f, __fmul_rn(static_cast<float>(plain(value)), events_of_one));
        Mean own;
        const Mean* about = &own;
        if (KNOWN > 1) {
            unsigned char byte;
            memcpy(&byte, &value, 1);
            about = means + byte;
        } else {
            own.of(mean);
        }
        Draws draws(key, sequences[sample], low, phase, static_cast<Key>(first + j) * skip);
        const double events = mean >= 12 ? many(draws, *about, factorials) : mean > 0 ? few(draws, about->limit) : 0;
        to[j] = saturate<T>(static_cast<double>(__fmul_rn(static_cast<float>(events), f)));
    }
}
