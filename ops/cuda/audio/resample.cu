// Signals at other sampling rates (ops/audio/resample.py; the CPU loops are in resample_cpu.py). grid (tiles of frames,
// samples): a block computes frames of the output, channel by channel.
#include "convert.cuh"

enum Row { INPUTS, OUTPUTS, CHANNELS, UP, DOWN, TAPS, TABLE, FIRST, FIELDS };
enum { DALI_BLOCK = 256 };

// Return an input times size_in and plus shift; 0 for positions outside of the signal.
template <typename In>
__device__ __forceinline__ float frame(const In* signal, long long j, long long inputs, long long channels, float size_in, float shift) {
    return j < 0 || j >= inputs ? 0.0f : __fadd_rn(__fmul_rn(static_cast<float>(plain(signal[j * channels])), size_in), shift);
}

// grid (tiles of TURNS cycles through all phases, each in parts of up to WARPS groups of phases; samples). A warp
// computes a group of GROUP phases: `taps` [groups][inputs][GROUP], from input number `first` on (filters.grouped). Its
// threads compute two cycles each: all read the same weights, and inputs that are PITCH apart, which is odd, so that
// each comes from a bank of its own. Eight phases of two cycles are 16 sums for two inputs and 32 bytes of weights.
enum { WARPS = 8, TURNS = 64, GROUP = 8, PITCH = 191, ROWS = TURNS / WARPS };
template <typename In, typename Out>
__global__ void __launch_bounds__(32 * WARPS, 4) by_phases(const In* data, const long long* base, const long long* rows,
                                                           const float* taps, const long long* first, float size_in, float shift,
                                                           float size_out, Out* out, const long long* out_base) {
    __shared__ float near[TURNS * PITCH];
    const long long* row = rows + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long frames = row[OUTPUTS], inputs = row[INPUTS], channels = row[CHANNELS];
    if (frames == 0) return;
    const int up = static_cast<int>(row[UP]), down = static_cast<int>(row[DOWN]), width = static_cast<int>(row[TAPS]);
    const int groups = (up + GROUP - 1) / GROUP, parts = (groups + WARPS - 1) / WARPS, each = (groups + parts - 1) / parts;
    const int tile = static_cast<int>(blockIdx.x) / parts, part = static_cast<int>(blockIdx.x) % parts;
    const long long begin = static_cast<long long>(tile) * TURNS;
    if (begin * up >= frames) return;
    if (width == 1) {  // the same rate
        const long long most = frames < (begin + TURNS) * up ? frames : (begin + TURNS) * up, end = most * channels;
        for (long long k = begin * up * channels + threadIdx.x; k < end; k += blockDim.x)
            out[out_base[blockIdx.y] + k] = saturate<Out>((static_cast<float>(plain(data[base[blockIdx.y] + k])) * size_in + shift) * size_out);
        return;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = part * each + warp;
    const int last = (part + 1) * each < groups ? (part + 1) * each - 1 : groups - 1;
    first += row[FIRST];
    const long long lowest = first[part * each], from = begin * down + lowest;
    const int span = static_cast<int>(first[last] - lowest) + width;  // inputs of a cycle, loaded in portions
    const int times = (span + PITCH - 1) / PITCH, step = (span + times - 1) / times;
    const int start = mine <= last ? static_cast<int>(first[mine] - lowest) : span, end = start + width;
    const float4* weights = reinterpret_cast<const float4*>(taps + row[TABLE]) + static_cast<long long>(mine) * width * (GROUP / 4);
    // positions between which there is a signal, counted from the block's first one
    const long long before = from < 0 ? -from : 0, after = inputs - from;
    const unsigned most = 1u << 30, there = after <= before ? 0 : after - before < most ? static_cast<unsigned>(after - before) : most;
    const int skipped = before < most ? static_cast<int>(before) : static_cast<int>(most);
    for (long long c = 0; c < channels; ++c) {
        const In* signal = data + base[blockIdx.y] + c + from * channels;
        Out* to = out + out_base[blockIdx.y] + c;
        float total[2][GROUP] = {};
        for (int at = 0; at < span; at += step) {
            const int many = span - at < step ? span - at : step;
            __syncthreads();
            for (int o = lane; o < many; o += 32) {  // load for all rows of a warp at once: they are far away
                float found[ROWS];
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const int place = (warp + r * WARPS) * down + at + o;
                    found[r] = 0;
                    if (static_cast<unsigned>(place - skipped) < there)
                        found[r] = static_cast<float>(plain(signal[place * channels])) * size_in + shift;
                }
#pragma unroll
                for (int r = 0; r < ROWS; ++r) near[(warp + r * WARPS) * PITCH + o] = found[r];
            }
            __syncthreads();
            const int low = start > at ? start : at, high = end < at + many ? end : at + many;
            const float* x = near + lane * PITCH - at;
#pragma unroll 4
            for (int j = low; j < high; ++j) {
                const float4 v = weights[2 * (j - start)], w = weights[2 * (j - start) + 1];
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float one = x[j + r * (32 * PITCH)];
                    total[r][0] += v.x * one, total[r][1] += v.y * one, total[r][2] += v.z * one, total[r][3] += v.w * one;
                    total[r][4] += w.x * one, total[r][5] += w.y * one, total[r][6] += w.z * one, total[r][7] += w.w * one;
                }
            }
        }
        __syncthreads();
        enum { LINE = WARPS * GROUP + 1 };  // phases of a cycle are adjacent
        if (mine <= last)
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int p = 0; p < GROUP; ++p) near[(lane + 32 * r) * LINE + warp * GROUP + p] = total[r][p];
        __syncthreads();
        const int phase = part * each * GROUP, phases = ((last + 1) * GROUP < up ? (last + 1) * GROUP : up) - phase;
        for (int t = warp; t < TURNS; t += WARPS) {
            const long long k = (begin + t) * up + phase;
            for (int p = lane; p < phases && k + p < frames; p += 32)
                to[(k + p) * channels] = saturate<Out>(near[t * LINE + p] * size_out);
        }
    }
}

enum { LARGEST_TABLE = 8200, LARGEST_DALI = 4104, FRAMES = 8 };  // table entries that a block copies; frames per thread

// Compute the kernel (filters._kernel) at `u`, and its continuation beyond `lobes`.
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

// Rates with a small ratio: from one frame of the input to the next, the weight of a tap is a polynomial in the
// position of the output frame between them, t from -1 to 1, the same for all frames. Taps m and 1 - m lie on opposite
// sides of the kernel: where one weighs even(t^2) + t odd(t^2), the other weighs even(t^2) - t odd(t^2). Weights end in
// a small step, which is removed from the two taps that may contain it, as a ramp as wide as a line of the table.
enum { POWERS = 8, LARGEST_WIDTH = 168, NEAR_TABLE = 4096 };
__device__ __forceinline__ float cubic(const float4& a, float s) { return ((a.w * s + a.z) * s + a.y) * s + a.x; }

template <typename In, typename Out>
__device__ void by_polynomials(const In* data, const long long* row, double ratio, double shrink, const double* nodes,
                               int half, float lobes, float steps, long long block, int frames, long long from, int count,
                               float* room, float size_in, float shift, float size_out, Out* out) {
    float *near = room, *powers = room + NEAR_TABLE, *sums = powers + LARGEST_WIDTH / 2 * POWERS;
    const float small = static_cast<float>(shrink);
    for (int i = threadIdx.x; i < half * POWERS; i += blockDim.x) {  // values of the taps from 1 on at the nodes
        const float f = 0.5f * static_cast<float>(nodes[i % POWERS]) + 0.5f;
        near[i] = kernel_at((static_cast<float>(i / POWERS + 1) - f) * small, lobes);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < half * POWERS; i += blockDim.x) {  // even powers before odd ones
        const int power = i % POWERS < 4 ? 2 * (i % POWERS) : 2 * (i % POWERS) - 7;
        double sum = 0;
        for (int k = 0; k < POWERS; ++k) sum += nodes[POWERS + power * POWERS + k] * near[i / POWERS * POWERS + k];
        powers[i] = static_cast<float>(sum);
    }
    __syncthreads();
    if (threadIdx.x < 4) {
        float sum = 0;
        for (int m = 0; m < half - 1; ++m) sum += powers[m * POWERS + threadIdx.x];
        sums[threadIdx.x] = 2 * sum;
    }
    const long long channels = row[CHANNELS], inputs = row[INPUTS];
    const float4* weights = reinterpret_cast<const float4*>(powers);
    for (long long c = 0; c < channels; ++c) {
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += blockDim.x) near[i] = frame(data + c, from + i, inputs, channels, size_in, shift);
        __syncthreads();
        float t[FRAMES], even[FRAMES] = {}, odd[FRAMES] = {};
        const float* x[FRAMES];
#pragma unroll
        for (int r = 0; r < FRAMES; ++r) {
            const int f = threadIdx.x + r * static_cast<int>(blockDim.x);
            const double at = static_cast<double>(block + (f < frames ? f : 0)) * ratio;
            const long long middle = static_cast<long long>(floor(at));
            t[r] = static_cast<float>(2 * (at - static_cast<double>(middle)) - 1);
            x[r] = near + static_cast<int>(middle - from);
        }
#pragma unroll 2
        for (int m = 1; m < half; ++m) {
            const float4 a = weights[2 * (m - 1)], b = weights[2 * (m - 1) + 1];
#pragma unroll
            for (int r = 0; r < FRAMES; ++r) {
                const float s = t[r] * t[r], after = x[r][m], before = x[r][1 - m];
                even[r] += cubic(a, s) * (after + before);
                odd[r] += cubic(b, s) * (after - before);
            }
        }
        const float4 a = weights[2 * (half - 1)], b = weights[2 * (half - 1) + 1];
        const float4 all = *reinterpret_cast<const float4*>(sums);
#pragma unroll
        for (int r = 0; r < FRAMES; ++r) {
            const int f = threadIdx.x + r * static_cast<int>(blockDim.x);
            const float s = t[r] * t[r], part = 0.5f * t[r] + 0.5f, far = static_cast<float>(half);
            const float e = cubic(a, s), o = t[r] * cubic(b, s);
            const float after = (e + o) * fminf(fmaxf((lobes - (far - part) * small) * steps, 0.0f), 1.0f);
            const float before = (e - o) * fminf(fmaxf((lobes - (far - 1 + part) * small) * steps, 0.0f), 1.0f);
            const float total = even[r] + t[r] * odd[r] + after * x[r][half] + before * x[r][1 - half];
            if (f < frames) out[(block + f) * channels + c] = saturate<Out>(total / (cubic(all, s) + after + before) * size_out);
        }
    }
}

// Distances from a frame are sums of an integer and a fraction, both in float, and never differences of large
// positions. A thread computes FRAMES frames, blockDim.x apart: the entries that it needs are scattered over the table,
// which is therefore copied once to fast memory.
template <typename In, typename Out>
__global__ void __launch_bounds__(256, 4) by_table(const In* data, const long long* base, const long long* rows, const double* ratios,
                         const float* table, const double* nodes, long long lobes, long long steps, float size_in, float shift, float size_out, Out* out,
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
                       size_in, shift, size_out, out + out_base[blockIdx.y]);
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
                if (j >= 0 && j < inputs) total += weight * (static_cast<float>(plain(signal[j * channels + c])) * size_in + shift);
            }
            out[out_base[blockIdx.y] + k * channels + c] = saturate<Out>(total / all * size_out);
        }
    }
}

enum { BLOCKS = 4, STEP = 32, NEAR_DALI = 4096 };  // DALI's blocks per block of threads; entries per lobe; inputs

// A frame's taps are STEP entries apart, at equal fractions between two entries: sums of both entries are accumulated
// in parallel. Entries of a frame's taps are in one bank; other distances use other banks.
template <typename In, typename Out>
__global__ void __launch_bounds__(256) as_dali(const In* data, const long long* base, const long long* rows,
                                               const double* ratios, const float* table, long long lobes, float center,
                                               float scale, float size_in, float shift, float size_out, Out* out,
                                               const long long* out_base) {
    __shared__ float near[NEAR_DALI], copied[LARGEST_DALI], places[BLOCKS * DALI_BLOCK];
    const long long* row = rows + static_cast<long long>(blockIdx.y) * FIELDS;
    const long long begin = static_cast<long long>(blockIdx.x) * (BLOCKS * DALI_BLOCK), inputs = row[INPUTS];
    if (begin >= row[OUTPUTS]) return;
    const int frames = row[OUTPUTS] - begin < BLOCKS * DALI_BLOCK ? static_cast<int>(row[OUTPUTS] - begin) : BLOCKS * DALI_BLOCK;
    const double ratio = ratios[blockIdx.y];
    if (threadIdx.x < BLOCKS) {  // positions are accumulated in float32 within DALI's blocks
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
    long long span = end - from;  // if a block extends beyond the next one's first inputs, its last inputs count
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
            for (int i = threadIdx.x; i < span; i += blockDim.x) near[i] = frame(signal, from + i, inputs, channels, size_in, shift);
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
                    const float x = frame(signal, start + j, inputs, channels, size_in, shift);
                    low += weights[STEP * j] * x, high += weights[STEP * j + 1] * x;
                }
            }
            out[out_base[blockIdx.y] + (begin + f) * channels + c] = saturate<Out>((low + part * (high - low)) * size_out);
        }
    }
}
