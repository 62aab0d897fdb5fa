// Signals at other rates (ops/audio/resample.py, whose CPU kernels are resample_cpu.py). grid (tiles of frames, samples):
// a thread makes one frame of the output, channel by channel.
#include "convert.cuh"

enum Row { INPUTS, OUTPUTS, CHANNELS, UP, DOWN, TAPS, TABLE, FIRST, FIELDS };
enum { DALI_BLOCK = 256 };

template <typename In, typename Out>
__global__ void by_phases(const In* data, const long long* base, const long long* rows, const float* taps,
                          const long long* first, float size_in, float size_out, Out* out, const long long* out_base) {
    const long long* row = rows + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long k = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, channels = row[CHANNELS];
    if (k >= row[OUTPUTS]) return;
    const long long phase = k % row[UP], start = k / row[UP] * row[DOWN] + first[row[FIRST] + phase];
    const float* weights = taps + row[TABLE] + phase * row[TAPS];
    const long long low = start < 0 ? -start : 0;
    const long long high = row[TAPS] < row[INPUTS] - start ? row[TAPS] : row[INPUTS] - start;
    const In* signal = data + base[blockIdx.y];
    for (long long c = 0; c < channels; ++c) {
        float total = 0;
        for (long long j = low; j < high; ++j)
            total += weights[j] * (static_cast<float>(plain(signal[(start + j) * channels + c])) * size_in);
        out[out_base[blockIdx.y] + k * channels + c] = saturate<Out>(total * size_out);
    }
}

template <typename In, typename Out>
__global__ void by_table(const In* data, const long long* base, const long long* rows, const double* ratios,
                         const float* table, long long lobes, long long steps, float size_in, float size_out, Out* out,
                         const long long* out_base) {
    const long long* row = rows + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long k = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, channels = row[CHANNELS];
    if (k >= row[OUTPUTS]) return;
    const double ratio = ratios[blockIdx.y], shrink = ratio > 1 ? 1 / ratio : 1.0, at = k * ratio;
    const long long half = static_cast<long long>(ceil(lobes / shrink)), middle = static_cast<long long>(floor(at));
    const In* signal = data + base[blockIdx.y];
    for (long long c = 0; c < channels; ++c) {
        float total = 0, all = 0;
        for (long long j = middle - half; j <= middle + half; ++j) {
            const double away = fabs(j - at) * shrink, place = (away < lobes ? away : lobes) * steps;
            const long long entry = static_cast<long long>(place);
            const float part = static_cast<float>(place - entry);
            const float weight = table[entry] + part * (table[entry + 1] - table[entry]);
            all += weight;
            if (j >= 0 && j < row[INPUTS])
                total += weight * (static_cast<float>(plain(signal[j * channels + c])) * size_in);
        }
        out[out_base[blockIdx.y] + k * channels + c] = saturate<Out>(total / all * size_out);
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
