// Features of audio (ops/audio/mel.py, levels.py; their CPU kernels are features_cpu.py).
#include "convert.cuh"

enum Row { OUTER, EXTENT, INNER, FIELDS };

// grid (tiles, samples): weighted sums of runs along an axis; `filters` [M][3]: first element, how many, first weight.
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

// A block for each sample: its largest value, 1 where there is none above 0.
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

// grid (tiles, samples). `factor` counts binary logarithms; `below`: the distance from the largest result, or negative.
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

// grid (tiles, samples). border: 0 the first sample, 1 zero, 2 the second sample.
template <typename In, typename Out>
__global__ void preemphasis(const In* data, const long long* base, const long long* sizes, const float* factors,
                            int border, Out* out, const long long* out_base) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, n = sizes[blockIdx.y];
    if (i >= n) return;
    const In* signal = data + base[blockIdx.y];
    const long long before = i ? i - 1 : border == 2 && n > 1 ? 1 : 0;
    const float last = i == 0 && border == 1 ? 0.0f : static_cast<float>(plain(signal[before]));
    const float value = static_cast<float>(plain(signal[i])) - factors[blockIdx.y] * last;
    out[out_base[blockIdx.y] + i] = saturate<Out>(value);
}

// A block for each sample. `sums` has room for n + 1 numbers of each: the squares before a place, added up.
template <typename In>
__global__ void nonsilent(const In* data, const long long* base, const long long* sizes, const long long* starts,
                          double* sums, int length, double cutoff, double reference, int* begin, int* count) {
    __shared__ double parts[256];
    __shared__ int first[256], last[256];
    const int sample = blockIdx.x, me = threadIdx.x;
    const long long n = sizes[sample];
    const In* signal = data + base[sample];
    double* sum = sums + starts[sample];
    const long long each = (n + blockDim.x - 1) / blockDim.x;
    const long long low = each * me < n ? each * me : n, high = low + each < n ? low + each : n;
    double total = 0;
    for (long long k = low; k < high; ++k) {
        const double x = static_cast<double>(plain(signal[k]));
        total += x * x;
    }
    parts[me] = total;
    __syncthreads();
    double before = 0;
    for (int k = 0; k < me; ++k) before += parts[k];
    __syncthreads();
    if (me == 0) sum[0] = 0;
    for (long long k = low; k < high; ++k) {
        const double x = static_cast<double>(plain(signal[k]));
        before += x * x;
        sum[k + 1] = before;
    }
    __syncthreads();
    const long long window = length < n ? length : n;
    double best = 0;
    for (long long k = low; k < high; ++k) {
        const double power = (sum[k + 1] - sum[k + 1 < window ? 0 : k + 1 - window]) / window;
        best = power > best ? power : best;
    }
    parts[me] = best;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (me < half && parts[me + half] > parts[me]) parts[me] = parts[me + half];
    }
    __syncthreads();
    const double threshold = (reference == 0 ? parts[0] : reference) * cutoff;
    first[me] = -1, last[me] = -1;
    for (long long k = low; k < high; ++k) {
        const double power = (sum[k + 1] - sum[k + 1 < window ? 0 : k + 1 - window]) / window;
        if (power >= threshold) {
            if (first[me] < 0) first[me] = static_cast<int>(k);
            last[me] = static_cast<int>(k);
        }
    }
    __syncthreads();
    if (me == 0) {
        int from = -1, to = -1;
        for (int k = 0; k < static_cast<int>(blockDim.x); ++k) {
            if (from < 0) from = first[k];
            if (last[k] >= 0) to = last[k];
        }
        const int start = from <= 0 ? 0 : from - (static_cast<int>(window) - 1) > 0 ? from - (static_cast<int>(window) - 1) : 0;
        begin[sample] = from < 0 ? 0 : start;
        count[sample] = from < 0 ? 0 : to + 1 - start;
    }
}
