// Signals at other rates (ops/audio/resample.py, whose CPU kernels are resample_cpu.py). grid (tiles of frames, samples):
// a block makes frames of the output, channel by channel.
#include "convert.cuh"

enum Row { INPUTS, OUTPUTS, CHANNELS, UP, DOWN, TAPS, TABLE, FIRST, FIELDS };
enum { DALI_BLOCK = 256 };

// Inputs that a block reads often, `count` from `from` on, go to `near`: of places outside of the signal 0. Every 32nd
// place is left out, so that threads whose inputs are a power of two apart take them from different banks.
enum { NEAR = 8192, SKEWED = NEAR + NEAR / 32 + 1 };
__device__ __forceinline__ int skewed(int i) { return i + static_cast<int>(static_cast<unsigned>(i) >> 5); }
template <typename In>
__device__ __forceinline__ float frame(const In* signal, long long j, long long inputs, long long channels, float size_in) {
    return j < 0 || j >= inputs ? 0.0f : static_cast<float>(plain(signal[j * channels])) * size_in;
}

// grid (tiles of TURNS turns through all phases, samples). A thread makes GROUP phases of two turns, which share inputs
// and weights: `taps` [inputs][phases], in groups of GROUP phases whose first inputs `first` says (filters.grouped).
enum { TURNS = 16, GROUP = 4, ALIGNED = 16 };
template <typename In, typename Out>
__global__ void __launch_bounds__(256) by_phases(const In* data, const long long* base, const long long* rows,
                                                 const float* taps, const long long* first, float size_in,
                                                 float size_out, Out* out, const long long* out_base) {
    __shared__ float near[SKEWED];
    const long long* row = rows + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long frames = row[OUTPUTS], inputs = row[INPUTS], channels = row[CHANNELS];
    const long long begin = static_cast<long long>(blockIdx.x) * TURNS;
    const int up = static_cast<int>(row[UP]), down = static_cast<int>(row[DOWN]), width = static_cast<int>(row[TAPS]);
    if (frames == 0 || begin * up >= frames) return;
    if (width == 1) {  // the same rate
        const long long most = frames < (begin + TURNS) * up ? frames : (begin + TURNS) * up, end = most * channels;
        for (long long k = begin * up * channels + threadIdx.x; k < end; k += blockDim.x)
            out[out_base[blockIdx.y] + k] = saturate<Out>(static_cast<float>(plain(data[base[blockIdx.y] + k])) * size_in * size_out);
        return;
    }
    const long long left = (frames - begin * up + up - 1) / up;
    const int all = left < TURNS ? static_cast<int>(left) : TURNS;
    first += row[FIRST];
    const int groups = (up + GROUP - 1) / GROUP, phases = (up + ALIGNED - 1) / ALIGNED * ALIGNED;
    const long long beyond = first[groups - 1] - first[0] + width;  // inputs of one turn
    const float* table = taps + row[TABLE];
    // half of the turns at a time where their inputs are too many
    const int step = (all - 1) * static_cast<long long>(down) + beyond <= NEAR ? TURNS : TURNS / 2;
    for (long long part = 0; part < channels * TURNS; part += step) {
        const long long c = part / TURNS, turn = begin + part % TURNS;
        const int rest = all - static_cast<int>(part % TURNS), turns = rest < step ? rest : step;
        if (turns <= 0) continue;
        const In* signal = data + base[blockIdx.y] + c;
        Out* to = out + out_base[blockIdx.y] + c;
        const long long from = turn * down + first[0], count = static_cast<long long>(turns - 1) * down + beyond;
        const bool fits = count <= NEAR;
        if (fits) {
            __syncthreads();
            for (int i = threadIdx.x; i < count; i += blockDim.x)
                near[skewed(i)] = frame(signal, from + i, inputs, channels, size_in);
            __syncthreads();
        }
        const int lane = threadIdx.x % 32, mine = lane / 4;
        if (mine >= turns) continue;
        const bool both = mine + TURNS / 2 < turns;
        for (int g = threadIdx.x / 32 * 4 + lane % 4; g < groups; g += blockDim.x / 32 * 4) {
            const float* weights = table + g * GROUP;
            float total[2][GROUP] = {};
            if (fits) {
                const int a = mine * down + static_cast<int>(first[g] - first[0]), b = both ? a + TURNS / 2 * down : a;
#pragma unroll 4
                for (int j = 0; j < width; ++j) {
                    const float4 w = *reinterpret_cast<const float4*>(weights + static_cast<long long>(j) * phases);
                    const float x = near[skewed(a + j)], y = near[skewed(b + j)];
                    total[0][0] += w.x * x, total[0][1] += w.y * x, total[0][2] += w.z * x, total[0][3] += w.w * x;
                    total[1][0] += w.x * y, total[1][1] += w.y * y, total[1][2] += w.z * y, total[1][3] += w.w * y;
                }
            } else {
                const long long a = (turn + mine) * down + first[g], b = both ? a + static_cast<long long>(TURNS / 2) * down : a;
                for (int j = 0; j < width; ++j) {
                    const float4 w = *reinterpret_cast<const float4*>(weights + static_cast<long long>(j) * phases);
                    const float x = frame(signal, a + j, inputs, channels, size_in);
                    const float y = frame(signal, b + j, inputs, channels, size_in);
                    total[0][0] += w.x * x, total[0][1] += w.y * x, total[0][2] += w.z * x, total[0][3] += w.w * x;
                    total[1][0] += w.x * y, total[1][1] += w.y * y, total[1][2] += w.z * y, total[1][3] += w.w * y;
                }
            }
            for (int r = 0; r < (both ? 2 : 1); ++r) {
                const long long k = (turn + mine + r * (TURNS / 2)) * up + g * GROUP;
#pragma unroll
                for (int p = 0; p < GROUP; ++p)
                    if (g * GROUP + p < up && k + p < frames) to[(k + p) * channels] = saturate<Out>(total[r][p] * size_out);
            }
        }
    }
}

enum { LARGEST_TABLE = 8200, LARGEST_DALI = 4104, FRAMES = 8 };  // floats of a table that a block copies; frames that a thread makes

// The kernel (filters._kernel) at `u`, and its continuation beyond `lobes`.
__device__ __forceinline__ float bessel(float quarter) {
    float term = 1, sum = 1;
    for (int k = 1; k <= 20; ++k) term *= quarter / static_cast<float>(k * k), sum += term;
    return sum;
}
__device__ __forceinline__ float kernel_at(float u, float lobes) {
    const float quarter = 18.299165f, rolloff = fmaxf(0.75f, 1 - 2.4f / lobes);  // a quarter of the square of BETA
    const float x = rolloff * u, turn = x - 2 * rintf(x / 2), y = 3.14159265f * x;
    const float wave = fabsf(y) < 1e-4f ? 1.0f : sinf(3.14159265f * turn) / y;
    return rolloff * wave * bessel(quarter * (1 - u / lobes * (u / lobes))) / bessel(quarter);
}

// One of a thread's frames in `by_polynomials`: the polynomial of each tap at `t`.
enum { POWERS = 8, LARGEST_WIDTH = 168, NEAR_TABLE = 4096, ABREAST = 4 };
__device__ __forceinline__ float polynomial(const float4& a, const float4& b, float t) {
    return ((((((b.w * t + b.z) * t + b.y) * t + b.x) * t + a.w) * t + a.z) * t + a.y) * t + a.x;
}

// Rates that are not far apart: from one frame of the input to the next, the weight of a tap is a polynomial in where a
// frame of the output lies between them, the same for all frames. Weights end in a small step, which is taken out of the
// two taps that may see it, as a ramp as wide as a line of the table.
template <typename In, typename Out>
__device__ void by_polynomials(const In* data, const long long* row, double ratio, double shrink, const double* nodes,
                               int half, float lobes, float steps, long long block, int frames, long long from, int count,
                               float* room, float size_in, float size_out, Out* out) {
    const int width = 2 * half + 1;
    float *near = room, *powers = room + NEAR_TABLE, *sums = powers + LARGEST_WIDTH * POWERS;
    const float small = static_cast<float>(shrink);
    for (int i = threadIdx.x; i < width * POWERS; i += blockDim.x) {  // values at the nodes
        const float f = 0.5f * static_cast<float>(nodes[i % POWERS]) + 0.5f;
        near[i] = kernel_at((static_cast<float>(i / POWERS - half) - f) * small, lobes);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < width * POWERS; i += blockDim.x) {
        double sum = 0;
        for (int k = 0; k < POWERS; ++k) sum += nodes[POWERS + i % POWERS * POWERS + k] * near[i / POWERS * POWERS + k];
        powers[i] = static_cast<float>(sum);
    }
    __syncthreads();
    if (threadIdx.x < POWERS) {
        float sum = 0;
        for (int j = 2; j < width - 1; ++j) sum += powers[j * POWERS + threadIdx.x];
        sums[threadIdx.x] = sum;
    }
    const long long channels = row[CHANNELS], inputs = row[INPUTS];
    const float4* weights = reinterpret_cast<const float4*>(powers);
    for (long long c = 0; c < channels; ++c) {
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += blockDim.x) near[i] = frame(data + c, from + i, inputs, channels, size_in);
        __syncthreads();
        for (int first = threadIdx.x; first < frames; first += ABREAST * blockDim.x) {
            float t[ABREAST], total[ABREAST] = {}, all[ABREAST];
            const float* x[ABREAST];
#pragma unroll
            for (int r = 0; r < ABREAST; ++r) {
                const int f = first + r * static_cast<int>(blockDim.x);
                const double at = static_cast<double>(block + (f < frames ? f : first)) * ratio;
                const long long middle = static_cast<long long>(floor(at));
                t[r] = static_cast<float>(2 * (at - static_cast<double>(middle)) - 1);
                x[r] = near + static_cast<int>(middle - half - from);
                all[r] = polynomial(*reinterpret_cast<const float4*>(sums), *reinterpret_cast<const float4*>(sums + 4), t[r]);
            }
#pragma unroll 2
            for (int j = 2; j < width - 1; ++j) {
                const float4 a = weights[2 * j], b = weights[2 * j + 1];
#pragma unroll
                for (int r = 0; r < ABREAST; ++r) total[r] += polynomial(a, b, t[r]) * x[r][j];
            }
            for (int j = 1; j < width; j += width - 2) {  // the two outermost; that before them weighs nothing
                const float4 a = weights[2 * j], b = weights[2 * j + 1];
#pragma unroll
                for (int r = 0; r < ABREAST; ++r) {
                    const float u = fabsf(static_cast<float>(j - half) - (0.5f * t[r] + 0.5f)) * small;
                    const float weight = polynomial(a, b, t[r]) * fminf(fmaxf((lobes - u) * steps, 0.0f), 1.0f);
                    total[r] += weight * x[r][j], all[r] += weight;
                }
            }
#pragma unroll
            for (int r = 0; r < ABREAST; ++r) {
                const int f = first + r * static_cast<int>(blockDim.x);
                if (f < frames) out[(block + f) * channels + c] = saturate<Out>(total[r] / all[r] * size_out);
            }
        }
    }
}

// Distances from a frame are sums of a whole number and a fraction, both in float, and never those of large places. A
// thread makes FRAMES frames, blockDim.x apart: the entries that it needs are all over the table, which is therefore
// copied once for them to where that costs little.
template <typename In, typename Out>
__global__ void by_table(const In* data, const long long* base, const long long* rows, const double* ratios,
                         const float* table, const double* nodes, long long lobes, long long steps, float size_in, float size_out, Out* out,
                         const long long* out_base) {
    __shared__ __align__(16) float copied[LARGEST_TABLE];
    const long long* row = rows + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long frames = row[OUTPUTS], block = static_cast<long long>(blockIdx.x) * blockDim.x * FRAMES;
    if (block >= frames) return;
    const double ratio = ratios[blockIdx.y], shrink = ratio > 1 ? 1 / ratio : 1.0;
    const int half = static_cast<int>(ceil(lobes / shrink));
    const long long left = frames - block, tile = static_cast<long long>(blockDim.x) * FRAMES, many = left < tile ? left : tile;
    const long long from = static_cast<long long>(floor(block * ratio)) - half;
    const long long count = static_cast<long long>(floor((block + many - 1) * ratio)) + half + 1 - from;
    if (2 * half + 1 <= LARGEST_WIDTH && count <= NEAR_TABLE) {
        by_polynomials(data + base[blockIdx.y], row, ratio, shrink, nodes, half, static_cast<float>(lobes),
                       static_cast<float>(steps), block, static_cast<int>(many), from, static_cast<int>(count), copied,
                       size_in, size_out, out + out_base[blockIdx.y]);
        return;
    }
    const int entries = static_cast<int>(lobes * steps) + 2;
    const float* weights = table;
    if (entries <= LARGEST_TABLE) {
        for (int i = threadIdx.x; i < entries; i += blockDim.x) copied[i] = table[i];
        __syncthreads();
        weights = copied;
    }
    const long long channels = row[CHANNELS], inputs = row[INPUTS];
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

enum { BLOCKS = 4, STEP = 32, NEAR_DALI = 4096 };  // DALI's blocks of a block of threads; entries of a lobe; inputs

// A frame's taps are STEP entries apart, each as far between two of them as the next: sums of both entries are made
// beside each other. Entries of a frame's taps lie in one bank, which is another one for another distance.
template <typename In, typename Out>
__global__ void __launch_bounds__(256) as_dali(const In* data, const long long* base, const long long* rows,
                                               const double* ratios, const float* table, long long lobes, float center,
                                               float scale, float size_in, float size_out, Out* out,
                                               const long long* out_base) {
    __shared__ float near[NEAR_DALI], copied[LARGEST_DALI], places[BLOCKS * DALI_BLOCK];
    const long long* row = rows + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long begin = static_cast<long long>(blockIdx.x) * (BLOCKS * DALI_BLOCK), inputs = row[INPUTS];
    if (begin >= row[OUTPUTS]) return;
    const int frames = row[OUTPUTS] - begin < BLOCKS * DALI_BLOCK ? static_cast<int>(row[OUTPUTS] - begin) : BLOCKS * DALI_BLOCK;
    const double ratio = ratios[blockIdx.y];
    if (threadIdx.x < BLOCKS) {  // places are summed up in float32 within DALI's blocks
        const double start = static_cast<double>(begin + threadIdx.x * DALI_BLOCK) * ratio;
        const float step = static_cast<float>(ratio);
        float place = static_cast<float>(start - floor(start));
        for (int i = 0; i < DALI_BLOCK; ++i) {
            places[threadIdx.x * DALI_BLOCK + i] = place;
            place = __fadd_rn(place, step);
        }
    } else {
        const int entries = static_cast<int>(2 * STEP * lobes) + 6;
        for (int i = threadIdx.x - BLOCKS; i < entries; i += blockDim.x - BLOCKS) copied[i] = table[i];
    }
    __syncthreads();
    const int width = static_cast<int>(2 * lobes);
    const long long origin = static_cast<long long>(floor(static_cast<double>(begin) * ratio));
    const long long from = origin + static_cast<long long>(ceilf(places[0])) - lobes;
    const int last = (frames - 1) / DALI_BLOCK * DALI_BLOCK;
    const long long end = static_cast<long long>(floor(static_cast<double>(begin + last) * ratio)) +
                          static_cast<long long>(ceilf(places[frames - 1])) + lobes;
    long long span = end - from;  // where a block ends beyond the next one's first inputs, its last ones count
    for (int f = DALI_BLOCK - 1; f < frames - 1; f += DALI_BLOCK) {
        const long long other = static_cast<long long>(floor(static_cast<double>(begin + f / DALI_BLOCK * DALI_BLOCK) * ratio)) +
                                static_cast<long long>(ceilf(places[f])) + lobes - from;
        span = other > span ? other : span;
    }
    const bool fits = span <= NEAR_DALI;
    const long long channels = row[CHANNELS];
    for (long long c = 0; c < channels; ++c) {
        const In* signal = data + base[blockIdx.y] + c;
        if (fits) {
            if (c) __syncthreads();
            for (int i = threadIdx.x; i < span; i += blockDim.x) near[i] = frame(signal, from + i, inputs, channels, size_in);
            __syncthreads();
        }
        for (int f = threadIdx.x; f < frames; f += blockDim.x) {
            const long long whole = static_cast<long long>(floor(static_cast<double>(begin + f / DALI_BLOCK * DALI_BLOCK) * ratio));
            const float place = places[f], middle = ceilf(place);
            const float at = __fmul_rn(__fsub_rn(middle, place), scale), entry = floorf(at), part = at - entry;
            const float* weights = copied + static_cast<int>(center + entry) - STEP * static_cast<int>(lobes);
            const long long start = whole + static_cast<long long>(middle) - lobes;
            float low = 0, high = 0;
            if (fits) {
                const float* x = near + static_cast<int>(start - from);
#pragma unroll 8
                for (int j = 0; j < width; ++j) low += weights[STEP * j] * x[j], high += weights[STEP * j + 1] * x[j];
            } else {
                for (int j = 0; j < width; ++j) {
                    const float x = frame(signal, start + j, inputs, channels, size_in);
                    low += weights[STEP * j] * x, high += weights[STEP * j + 1] * x;
                }
            }
            out[out_base[blockIdx.y] + (begin + f) * channels + c] = saturate<Out>((low + part * (high - low)) * size_out);
        }
    }
}
