// Separable resampling of a whole batch (ops/images/resampling/resample.py): one kernel computes the taps of every
// axis, then one kernel runs per pass. Products and sums are written without fused multiply-adds, so that results equal
// the CPU loops' to the bit.
#include "affine.cuh"
#include "convert.cuh"

enum Filter { NEAREST, TRIANGULAR };  // the other filters are only read from tables

// One axis of one sample.
enum AxisColumn { EXTENT, SIZE, ANCHOR, SHAPE, KIND, FLIP, KEPT, STARTS, WEIGHTS, AXIS_COLUMNS };

// Return the filter at `x`: linear between the entries of its table, zero outside.
__device__ __forceinline__ float filter_at(long long kind, const float* table, int last, float x) {
    if (kind == TRIANGULAR) return fmaxf(0.0f, __fsub_rn(1.0f, fabsf(__fsub_rn(x, 1.0f))));
    if (!(x > -1.0f && x < last + 1)) return 0.0f;
    const int below = static_cast<int>(floorf(x));
    const float a = below >= 0 ? table[below] : 0.0f;
    const float b = below < last ? table[below + 1] : 0.0f;
    return __fadd_rn(a, __fmul_rn(__fsub_rn(x, static_cast<float>(below)), __fsub_rn(b, a)));
}

// grid (tiles, axes of all samples); a thread computes the first source pixel and the weights of one output. `regions`
// [axes][3] is (lo, hi, support); `tables` [5][2] is the start and the length of each filter's table.
extern "C" __global__ void taps(const long long* axes, const float* regions, const long long* tables,
                                const float* table, int axes_a_sample, int* starts, float* weights) {
    const long long* axis = axes + static_cast<long long>(blockIdx.y) * AXIS_COLUMNS;
    const float lo = regions[3 * blockIdx.y], hi = regions[3 * blockIdx.y + 1], support = regions[3 * blockIdx.y + 2];
    const long long n = axis[EXTENT], shape = axis[SHAPE], kept = axis[KEPT], kind = axis[KIND];
    const float scale = __fdiv_rn(__fsub_rn(hi, lo), static_cast<float>(axis[SIZE]));
    for (long long j = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; j < shape;
         j += static_cast<long long>(gridDim.x) * blockDim.x) {
        const float output = static_cast<float>(axis[ANCHOR] + (axis[FLIP] ? shape - 1 - j : j));
        int* start_out = starts + axis[STARTS] + j;
        float* row = weights + axis[WEIGHTS] + j * kept;
        if (kind == NEAREST) {
            const float corner = fminf(fmaxf(floorf(fminf(lo, hi)), 0.0f), static_cast<float>(n));
            const float from = __fsub_rn(lo, corner);
            float place = __fadd_rn(from, __fmul_rn(__fadd_rn(output, 0.5f), scale));
            // summed up step by step, as on the CPU and in DALI
            if (output > 0.0f && blockIdx.y % axes_a_sample != axes_a_sample - 1) {
                place = __fadd_rn(from, __fmul_rn(0.5f, scale));
                for (float k = 0.0f; k < output; k += 1.0f) place = __fadd_rn(place, scale);
            }
            const float nearest = floorf(place) + corner;
            *start_out = static_cast<int>(fminf(fmaxf(nearest, 0.0f), static_cast<float>(n - 1)));
            row[0] = 1.0f;
            continue;
        }
        const float* values = table + tables[2 * kind];
        const int last = static_cast<int>(tables[2 * kind + 1]) - 1;
        const float density = __fdiv_rn(static_cast<float>(last), support);
        const float half_pixel = __fsub_rn(__fmul_rn(0.5f, scale), 0.5f);
        const float origin = __fsub_rn(__fadd_rn(lo, half_pixel), __fdiv_rn(last * 0.5f, density));
        const int count = static_cast<int>(fmaxf(1.0f, ceilf(support)));
        const float at = __fadd_rn(__fmul_rn(output, scale), origin);
        const long long start = static_cast<long long>(ceilf(at));
        float total = 0.0f;
        for (int k = 0; k < count; ++k)
            total = __fadd_rn(total, filter_at(kind, values, last, __fmul_rn(__fsub_rn(static_cast<float>(start + k), at), density)));
        const long long most = n - kept;
        const long long first = start < 0 ? 0 : start > most ? most : start;
        *start_out = static_cast<int>(first);
        if (first == start && kept == count) {  // no tap is outside
            for (int k = 0; k < count; ++k)
                row[k] = __fdiv_rn(filter_at(kind, values, last, __fmul_rn(__fsub_rn(static_cast<float>(start + k), at), density)), total);
            continue;
        }
        for (long long k = 0; k < kept; ++k) row[k] = 0.0f;
        for (int k = 0; k < count; ++k) {
            const float w = filter_at(kind, values, last, __fmul_rn(__fsub_rn(static_cast<float>(start + k), at), density));
            const long long pixel = start + k < 0 ? 0 : start + k > n - 1 ? n - 1 : start + k;
            row[pixel - first] = __fadd_rn(row[pixel - first], __fdiv_rn(w, total));
        }
    }
}

// One pass of one sample: lines of outputs along an axis, each output of `inner` adjacent elements.
enum PassColumn { SOURCE, TARGET, TOTAL, INNER, OUTPUTS, ROWS, FRAME_STRIDE, ROW_STRIDE, TAP_STRIDE, PASS_STARTS, PASS_WEIGHTS, PASS_KEPT, PASS_COLUMNS };

// Number of adjacent elements of a pass that share their taps and that a thread computes together.
constexpr int GROUP = 4;

struct Group {
    unsigned int size, inner, across, outputs, rows, count;

    __device__ __forceinline__ explicit Group(const long long* pass) {
        inner = static_cast<unsigned int>(pass[INNER]), outputs = static_cast<unsigned int>(pass[OUTPUTS]);
        rows = static_cast<unsigned int>(pass[ROWS]);
        size = inner % GROUP == 0 ? GROUP : inner < GROUP ? inner : 1;
        across = inner / size;
        count = static_cast<unsigned int>(pass[TOTAL]) / size;
    }
};

// Compute the elements of group `u` of the pass: sums over the taps.
template <typename In>
__device__ __forceinline__ void resampled(const In* source, const long long* pass, const Group& group, const int* starts,
                                          const float* weights, unsigned int u, float* sums) {
    const unsigned int line = group.across > 1 ? u / group.across : u, i = (u - line * group.across) * group.size;
    const unsigned int outer = line / group.outputs, j = line - outer * group.outputs;
    const unsigned int frame = group.rows > 1 ? outer / group.rows : outer, row = outer - frame * group.rows;
    const int kept = static_cast<int>(pass[PASS_KEPT]);
    const long long step = pass[TAP_STRIDE];
    const float* w = weights + pass[PASS_WEIGHTS] + static_cast<long long>(j) * kept;
    const In* at = source + pass[SOURCE] + frame * pass[FRAME_STRIDE] + row * pass[ROW_STRIDE] +
                   starts[pass[PASS_STARTS] + j] * step + i;
    #pragma unroll
    for (int g = 0; g < GROUP; ++g) sums[g] = g < group.size ? __fmul_rn(w[0], static_cast<float>(at[g])) : 0.0f;
    for (int k = 1; k < kept; ++k) {
        at += step;
        const float weight = w[k];
        #pragma unroll
        for (int g = 0; g < GROUP; ++g)
            if (g < group.size) sums[g] = __fadd_rn(sums[g], __fmul_rn(weight, static_cast<float>(at[g])));
    }
}

// grid (tiles, samples). Without `__restrict__` the description of the pass is read again for every group.
template <typename In, typename Out>
__global__ void resample_pass(const In* __restrict__ source, Out* __restrict__ target, const long long* __restrict__ passes,
                              const int* __restrict__ starts, const float* __restrict__ weights) {
    const long long* pass = passes + static_cast<long long>(blockIdx.y) * PASS_COLUMNS;
    target += pass[TARGET];
    const Group group(pass);
    for (unsigned int u = blockIdx.x * blockDim.x + threadIdx.x; u < group.count; u += gridDim.x * blockDim.x) {
        float sums[GROUP];
        resampled(source, pass, group, starts, weights, u, sums);
        Out* to = target + static_cast<long long>(u) * group.size;
        if (sizeof(Out) == 1 && group.size == 4 && reinterpret_cast<unsigned long long>(to) % 4 == 0) {
            alignas(4) Out values[GROUP];
            #pragma unroll
            for (int g = 0; g < GROUP; ++g) values[g] = saturate<Out>(sums[g]);
            *reinterpret_cast<unsigned int*>(to) = *reinterpret_cast<const unsigned int*>(values);
        } else {
            #pragma unroll
            for (int g = 0; g < GROUP; ++g)
                if (g < group.size) to[g] = saturate<Out>(sums[g]);
        }
    }
}

// The last pass over images [1, height, width, channels], rounded to `Rounded` and normalised: (v - mean) * mul + add.
// `places` [N][3] is (number of channels, distance between pixels, between channels in the output); `factors` as in
// strided.cu.
template <typename In, typename Rounded, typename Out>
__global__ void normalize_pass(const In* __restrict__ source, Out* __restrict__ target, const long long* __restrict__ passes,
                               const int* __restrict__ starts, const float* __restrict__ weights,
                               const long long* __restrict__ places, const float* __restrict__ factors, int factor_width,
                               int factor_rows) {
    const long long sample = blockIdx.y;
    const long long* pass = passes + sample * PASS_COLUMNS;
    const long long* place = places + sample * 3;
    target += pass[TARGET];
    factors += factor_rows * sample * factor_width * 3;
    const unsigned int channels = static_cast<unsigned int>(place[0]);
    const Group group(pass);
    for (unsigned int u = blockIdx.x * blockDim.x + threadIdx.x; u < group.count; u += gridDim.x * blockDim.x) {
        float sums[GROUP];
        resampled(source, pass, group, starts, weights, u, sums);
        unsigned int pixel = u * group.size / channels, c = u * group.size - pixel * channels;
        #pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            if (g >= group.size) break;
            const float* factor = factors + (factor_width > 1 ? 3 * c : 0);
            const float v = static_cast<float>(saturate<Rounded>(sums[g]));
            target[pixel * place[1] + c * place[2]] = saturate<Out>(affine(v, factor));
            if (++c == channels) c = 0, ++pixel;
        }
    }
}

// A pass of a resize with integer weights, as in ops/images/resampling/libraries_cpu.py: element `t` of an image is the
// rounded sum of `kept` products of bytes with weights of `bits` bits. Passes are described as above; the last column
// is taps + 2^32 bits. grid (tiles, images).
extern "C" __global__ void __launch_bounds__(256)
    fixed_pass(const unsigned char* source, unsigned char* target, const long long* passes, const int* starts, const int* weights) {
    const long long* pass = passes + 12LL * blockIdx.y;
    const long long inner = pass[3], outputs = pass[4], lines = pass[5], step = pass[8];
    const int kept = static_cast<int>(pass[11] & 0xFFFFFFFFLL), bits = static_cast<int>(pass[11] >> 32);
    for (long long t = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; t < pass[2];
         t += static_cast<long long>(gridDim.x) * blockDim.x) {
        const long long i = t % inner, j = t / inner % outputs, line = t / inner / outputs;
        const int* w = weights + pass[10] + j * kept;
        const unsigned char* at = source + pass[0] + line / lines * pass[6] + line % lines * pass[7] + starts[pass[9] + j] * step + i;
        int sum = (1 << bits) >> 1;
        for (int k = 0; k < kept; ++k) sum += w[k] * at[k * step];
        target[pass[1] + t] = static_cast<unsigned char>(min(max(sum >> bits, 0), 255));
    }
}
