// Signals at other rates (ops/audio/resample.py, whose CPU kernels are resample_cpu.py). grid (tiles of frames, samples):
// a thread makes one frame of the output, channel by channel.
#include "convert.cuh"

enum Row { INPUTS, OUTPUTS, CHANNELS, UP, DOWN, TAPS, TABLE, FIRST, FIELDS };
enum { DALI_BLOCK = 256 };

// Weights of all phases lie beside each other, for threads of consecutive frames.
template <typename In, typename Out>
__global__ void by_phases(const In* data, const long long* base, const long long* rows, const float* taps,
                          const long long* first, float size_in, float size_out, Out* out, const long long* out_base) {
    const long long* row = rows + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long k = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, channels = row[CHANNELS];
    if (k >= row[OUTPUTS]) return;
    const unsigned up = static_cast<unsigned>(row[UP]), turn = static_cast<unsigned>(k) / up;  // k is below 2^31
    const unsigned phase = static_cast<unsigned>(k) - turn * up;
    const long long start = turn * row[DOWN] + first[row[FIRST] + phase];
    const float* weights = taps + row[TABLE] + phase;
    const int low = static_cast<int>(start < 0 ? (-start < row[TAPS] ? -start : row[TAPS]) : 0);
    const int high = static_cast<int>(row[TAPS] < row[INPUTS] - start ? row[TAPS] : row[INPUTS] - start);
    const In* signal = data + base[blockIdx.y] + start * channels;
    for (long long c = 0; c < channels; ++c) {
        float total = 0;
        for (int j = low; j < high; ++j)
            total += weights[static_cast<long long>(j) * up] * (static_cast<float>(plain(signal[j * channels + c])) * size_in);
        out[out_base[blockIdx.y] + k * channels + c] = saturate<Out>(total * size_out);
    }
}

enum { LARGEST_TABLE = 8200, FRAMES = 8 };  // floats of a table that a block copies; frames that a thread makes

// Distances from a frame are sums of a whole number and a fraction, both in float, and never those of large places. A
// thread makes FRAMES frames, blockDim.x apart: the entries that it needs are all over the table, which is therefore
// copied once for them to where that costs little.
template <typename In, typename Out>
__global__ void by_table(const In* data, const long long* base, const long long* rows, const double* ratios,
                         const float* table, long long lobes, long long steps, float size_in, float size_out, Out* out,
                         const long long* out_base) {
    __shared__ float copied[LARGEST_TABLE];
    const long long* row = rows + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long frames = row[OUTPUTS], block = static_cast<long long>(blockIdx.x) * blockDim.x * FRAMES;
    if (block >= frames) return;
    const int entries = static_cast<int>(lobes * steps) + 2;
    const float* weights = table;
    if (entries <= LARGEST_TABLE) {
        for (int i = threadIdx.x; i < entries; i += blockDim.x) copied[i] = table[i];
        __syncthreads();
        weights = copied;
    }
    const long long channels = row[CHANNELS], inputs = row[INPUTS];
    const double ratio = ratios[blockIdx.y], shrink = ratio > 1 ? 1 / ratio : 1.0;
    const int half = static_cast<int>(ceil(lobes / shrink));
    const float scale = static_cast<float>(shrink * steps), end = static_cast<float>(lobes * steps);
    const In* signal = data + base[blockIdx.y];
    for (int f = 0; f < FRAMES; ++f) {
        const long long k = block + f * blockDim.x + threadIdx.x;
        if (k >= frames) return;
        const double at = k * ratio;
        const long long middle = static_cast<long long>(floor(at));
        const float fraction = static_cast<float>(at - middle);
        for (long long c = 0; c < channels; ++c) {
            float total = 0, all = 0;
            for (int m = -half; m <= half; ++m) {
                const float place = fminf(fabsf(static_cast<float>(m) - fraction) * scale, end);
                const int entry = static_cast<int>(place);
                const float part = place - static_cast<float>(entry);
                const float weight = weights[entry] + part * (weights[entry + 1] - weights[entry]);
                all += weight;
                const long long j = middle + m;
                if (j >= 0 && j < inputs) total += weight * (static_cast<float>(plain(signal[j * channels + c])) * size_in);
            }
            out[out_base[blockIdx.y] + k * channels + c] = saturate<Out>(total / all * size_out);
        }
    }
}

template <typename In, typename Out>
__global__ void as_dali(const In* data, const long long* base, const long long* rows, const double* ratios,
                        const float* table, long long lobes, float center, float scale, float size_in, float size_out,
                        Out* out, const long long* out_base) {
    const long long* row = rows + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long k = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, channels = row[CHANNELS];
    if (k >= row[OUTPUTS]) return;
    const double start = static_cast<double>(k / DALI_BLOCK * DALI_BLOCK) * ratios[blockIdx.y];
    const long long whole = static_cast<long long>(floor(start));
    const float step = static_cast<float>(ratios[blockIdx.y]);
    float place = static_cast<float>(start - whole);
    for (int i = 0; i < k % DALI_BLOCK; ++i) place = __fadd_rn(place, step);
    const long long middle = static_cast<long long>(ceilf(place));
    const long long low = middle - lobes > -whole ? middle - lobes : -whole;
    const long long high = middle + lobes < row[INPUTS] - whole ? middle + lobes : row[INPUTS] - whole;
    const In* signal = data + base[blockIdx.y];
    for (long long c = 0; c < channels; ++c) {
        float total = 0;
        for (long long j = low; j < high; ++j) {
            const float at = __fadd_rn(__fmul_rn(__fsub_rn(static_cast<float>(j), place), scale), center);
            const long long entry = static_cast<long long>(floorf(at));
            const float part = __fsub_rn(at, static_cast<float>(entry));
            const float weight = table[entry] + part * (table[entry + 1] - table[entry]);
            total += weight * (static_cast<float>(plain(signal[(whole + j) * channels + c])) * size_in);
        }
        out[out_base[blockIdx.y] + k * channels + c] = saturate<Out>(total * size_out);
    }
}
