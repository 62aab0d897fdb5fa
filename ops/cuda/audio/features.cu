// Audio features (ops/audio/mel.py, levels.py; the CPU loops are in features_cpu.py).
#include "convert.cuh"

enum Row { OUTER, EXTENT, INNER, FIELDS };

// grid (tiles, samples): weighted sums of runs along an axis; `filters` [M][3]: first element, number of elements,
// index of the first weight.
extern "C" __global__ void filter_bank(const float* data, const long long* base, const long long* rows,
                                       const int* filters, const float* weights, int many, float* out,
                                       const long long* out_base) {
    const long long* row = rows + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, inner = row[INNER];
    if (i >= row[OUTER] * many * inner) return;
    const long long x = i % inner, outer = i / inner / many;
    const int* filter = filters + i / inner % many * 3;
    const float* at = data + base[blockIdx.y] + (outer * row[EXTENT] + filter[0]) * inner + x;
    const float* weight = weights + filter[2];
    float total = 0;
    for (int k = 0; k < filter[1]; ++k) total += weight[k] * at[k * inner];
    out[out_base[blockIdx.y] + i] = total;
}

// One block per sample: its largest value, 1 if none is above 0.
extern "C" __global__ void largest(const float* data, const long long* base, const long long* sizes, float* out) {
    __shared__ float best[256];
    const float* values = data + base[blockIdx.x];
    float mine = 0;
    for (long long k = threadIdx.x; k < sizes[blockIdx.x]; k += blockDim.x) mine = fmaxf(mine, values[k]);
    best[threadIdx.x] = mine;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) best[threadIdx.x] = fmaxf(best[threadIdx.x], best[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) out[blockIdx.x] = best[0] > 0 ? best[0] : 1.0f;
}

// grid (tiles, samples). `factor` is for binary logarithms; `below`: maximum distance from the largest result, or
// negative for none.
extern "C" __global__ void decibels(const float* data, const long long* base, const long long* sizes,
                                    const float* references, const float* most, float factor, float least, float below,
                                    float* out, const long long* out_base) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= sizes[blockIdx.y]) return;
    const float scale = 1.0f / references[blockIdx.y];
    float value = log2f(fmaxf(least, data[base[blockIdx.y] + i] * scale)) * factor;
    if (below >= 0) {
        const float top = log2f(fmaxf(least, most[blockIdx.y] * scale)) * factor;
        value = fmaxf(value, top - below);
    }
    out[out_base[blockIdx.y] + i] = value;
}

// grid (tiles, samples). border: 0 the first sample, 1 zero, 2 the second sample. A thread computes FOUR values, which
// it reads and writes at once if both signals begin at multiples of four.
enum { FOUR = 4 };
template <typename T> struct __align__(FOUR * sizeof(T)) Four { T values[FOUR]; };
template <typename In, typename Out>
__global__ void preemphasis(const In* data, const long long* base, const long long* sizes, const float* factors,
                            int border, Out* out, const long long* out_base) {
    const long long i = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * FOUR, n = sizes[blockIdx.y];
    if (i >= n) return;
    const In* signal = data + base[blockIdx.y];
    Out* to = out + out_base[blockIdx.y];
    const float factor = factors[blockIdx.y];
    const long long before = i ? i - 1 : border == 2 && n > 1 ? 1 : 0;
    float last = i == 0 && border == 1 ? 0.0f : static_cast<float>(plain(signal[before]));
    if (i + FOUR <= n && reinterpret_cast<unsigned long long>(signal) % sizeof(Four<In>) == 0 &&
        reinterpret_cast<unsigned long long>(to) % sizeof(Four<Out>) == 0) {
        const Four<In> now = *reinterpret_cast<const Four<In>*>(signal + i);
        Four<Out> made;
#pragma unroll
        for (int k = 0; k < FOUR; ++k) {
            const float value = static_cast<float>(plain(now.values[k]));
            made.values[k] = saturate<Out>(value - factor * last);
            last = value;
        }
        *reinterpret_cast<Four<Out>*>(to + i) = made;
        return;
    }
    for (long long k = i; k < n && k < i + FOUR; ++k) {
        const float value = static_cast<float>(plain(signal[k]));
        to[k] = saturate<Out>(value - factor * last);
        last = value;
    }
}

// Return the value of the thread that is `d` before this one in its warp.
__device__ __forceinline__ double earlier(double v, int d) {
    unsigned words[2];
    memcpy(words, &v, 8);
    words[0] = __shfl_up_sync(~0u, words[0], d);
    words[1] = __shfl_up_sync(~0u, words[1], d);
    memcpy(&v, words, 8);
    return v;
}

enum { BLOCK = 1024, TOGETHER = 4 };

// One block of BLOCK threads per sample. `sums` has space for n + 1 numbers per sample: the sums of squares before each
// position; a thread adds TOGETHER at a time.
template <typename In>
__global__ void nonsilent(const In* data, const long long* base, const long long* sizes, const long long* starts,
                          double* sums, int length, double cutoff, double reference, int* begin, int* count) {
    __shared__ double parts[BLOCK], totals[BLOCK / 32];
    __shared__ int first[BLOCK], last[BLOCK];
    const int sample = blockIdx.x, me = threadIdx.x;
    const long long n = sizes[sample];
    const In* signal = data + base[sample];
    double* sum = sums + starts[sample];
    double before = 0;
    if (me == 0) sum[0] = 0;
    for (long long tile = 0; tile < n; tile += BLOCK * TOGETHER) {
        const long long own = tile + me * TOGETHER;
        double inside[TOGETHER], total = 0;
        for (int k = 0; k < TOGETHER; ++k) {
            const double x = own + k < n ? static_cast<double>(plain(signal[own + k])) : 0;
            inside[k] = total += x * x;
        }
        double up_to = total;  // including those of the previous warp
        for (int d = 1; d < 32; d *= 2) {
            const double other = earlier(up_to, d);
            if (me % 32 >= d) up_to += other;
        }
        if (me % 32 == 31) totals[me / 32] = up_to;
        __syncthreads();
        double offset = before + up_to - total;
        for (int w = 0; w < BLOCK / 32; ++w) {
            if (w < me / 32) offset += totals[w];
            before += totals[w];
        }
        for (int k = 0; k < TOGETHER; ++k)
            if (own + k < n) sum[own + k + 1] = offset + inside[k];
        __syncthreads();
    }
    const long long window = length < n ? length : n;
    double best = 0;
    for (long long k = me; k < n; k += BLOCK) {
        const double power = (sum[k + 1] - sum[k + 1 < window ? 0 : k + 1 - window]) / window;
        best = power > best ? power : best;
    }
    parts[me] = best;
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (me < half && parts[me + half] > parts[me]) parts[me] = parts[me + half];
    }
    __syncthreads();
    const double threshold = (reference == 0 ? parts[0] : reference) * cutoff;
    first[me] = 0x7FFFFFFF, last[me] = -1;
    for (long long k = me; k < n; k += BLOCK) {
        const double power = (sum[k + 1] - sum[k + 1 < window ? 0 : k + 1 - window]) / window;
        if (power >= threshold) {
            if (last[me] < 0) first[me] = static_cast<int>(k);
            last[me] = static_cast<int>(k);
        }
    }
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (me < half) {
            if (first[me + half] < first[me]) first[me] = first[me + half];
            if (last[me + half] > last[me]) last[me] = last[me + half];
        }
    }
    if (me == 0) {
        const int from = first[0], to = last[0], lead = static_cast<int>(window) - 1;
        const int start = to < 0 || from == 0 || from < lead ? 0 : from - lead;
        begin[sample] = start;
        count[sample] = to < 0 ? 0 : to + 1 - start;
    }
}
