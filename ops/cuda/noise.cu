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

// A Poisson number of a mean below 12: products of uniform numbers.
__device__ double few(Draws& draws, double mean) {
    const double limit = exp(-mean);
    double product = 1;
    for (int count = 0;; ++count) {
        product *= canonical(draws);
        if (!(product > limit)) return count;
    }
}

// A Poisson number of a mean of 12 or more: rejection (Devroye), see noise_cpu.py.
__device__ double many(Draws& draws, double mean) {
    const double m = floor(mean), log_mean = log(mean), log_m = lgamma(m + 1), root = sqrt(m);
    const double quarter = 0.7853981633974483;
    const double d = rint(fmax(6.0, fmin(m, sqrt(2 * m * log(32 * m / quarter)))));
    const double cx = 2 * m + d, spread = sqrt(cx / 2), one = 1 / cx;
    const double c1 = root * 1.2533141373155003, c2 = c1 + sqrt(quarter * cx) * exp(one);
    const double c3 = c2 + 1, c4 = c2 + 2, c5 = c4 + 1.0129030479320018;
    const double c = c5 + 2 * cx * exp(-d * one * (1 + d / 2)) / d;
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
        if (!(w - e - x * log_mean > log_m - lgamma(x + m + 1))) return x + m;
    }
}

// grid (tiles * samples)
template <typename T>
__global__ void shot(Key key, Key low, int phase, const Key* sequences, int skip, const T* source,
                     const long long* base, int tiles, const long long* counts, const float* factor, T* target,
                     const long long* out_base) {
    const int sample = blockIdx.x / tiles;
    const long long j = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (j >= counts[sample]) return;
    const T value = source[base[sample] + j];
    const float f = factor[sample];
    if (f == 0) {
        target[out_base[sample] + j] = value;
        return;
    }
    const double mean = fmaxf(0.0f, __fmul_rn(static_cast<float>(plain(value)), __fdiv_rn(1.0f, f)));
    Draws draws(key, sequences[sample], low, phase, static_cast<Key>(j) * skip);
    const double events = mean >= 12 ? many(draws, mean) : mean > 0 ? few(draws, mean) : 0;
    target[out_base[sample] + j] = saturate<T>(static_cast<double>(__fmul_rn(static_cast<float>(events), f)));
}
