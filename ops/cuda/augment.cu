// Steps of AutoAugment and related operators (ops/augment/on_gpu.py) for all images of a batch at once: one operation
// code per image.
#include "convert.cuh"

enum Kind {
    IDENTITY, BRIGHTNESS, POSTERIZE, SOLARIZE, SOLARIZE_ADD, INVERT, CONTRAST, EQUALIZE, AUTO_CONTRAST, COLOR,
    SHARPNESS, WARP
};
typedef unsigned char byte;

struct Job {
    long long source, target;  // offsets of the image in the memory before and after the step
    long long from, to;        // 0: the input, 1 and 2: buffers between steps, 3: the output
    long long rows, columns, channels;
    long long step;  // kind x 2^32 + row of its parameters
    __device__ int kind() const { return static_cast<int>(step >> 32); }
    __device__ const float* parameters(const float* all) const { return all + (step & 0xFFFFFFFFll) * 9; }
};

__device__ __forceinline__ byte level(float v) { return saturate<byte>(v); }

__device__ __forceinline__ const byte* before(const Job& job, const byte* input, const byte* between, long long size) {
    return (job.from == 0 ? input : between + (job.from - 1) * size) + job.source;
}

// Return the new value for operations that depend on no other value.
__device__ __forceinline__ byte changed(int kind, float p, int v) {
    if (kind == BRIGHTNESS) return level(p * static_cast<float>(v));
    if (kind == POSTERIZE) return v & static_cast<int>(p);
    if (kind == SOLARIZE) return static_cast<float>(v) < p ? v : 255 - v;
    if (kind == SOLARIZE_ADD) return v < 128 ? v + static_cast<int>(p) : v;
    return 255 - v;
}

// grid (images whose operation needs a histogram): compute their `tables` [4][256].
extern "C" __global__ void __launch_bounds__(512)
    augment_tables(const byte* input, byte* between, long long size, byte* output, const Job* jobs, const float* parameters,
           byte* tables) {
    const int COPIES = 4;  // copies of the histogram, so that threads rarely collide
    __shared__ unsigned counts[COPIES][4][256];
    __shared__ float center;
    const Job job = jobs[blockIdx.x];
    const int channels = static_cast<int>(job.channels), kind = job.kind(), copy = threadIdx.x % COPIES;
    const byte* image = before(job, input, between, size);
    const long long pixels = job.rows * job.columns, values = pixels * channels;
    byte* table = tables + static_cast<long long>(blockIdx.x) * 4 * 256;
    for (int i = threadIdx.x; i < COPIES * 4 * 256; i += blockDim.x) (&counts[0][0][0])[i] = 0;
    __syncthreads();
    const long long lead = (4 - reinterpret_cast<unsigned long long>(image) % 4) % 4;
    const long long words = values > lead ? (values - lead) / 4 : 0;
    // channel of the first value, see below
    int start = (static_cast<int>(lead) + 4 * static_cast<int>(threadIdx.x)) % channels;
    for (long long i = threadIdx.x; i < words; i += blockDim.x) {
        const unsigned four = *reinterpret_cast<const unsigned*>(image + lead + 4 * i);
        int c = start;
        start = (start + 4 * static_cast<int>(blockDim.x)) % channels;  // 64-bit divisions would take longer
        for (int k = 0; k < 4; ++k) {
            atomicAdd(&counts[copy][c][four >> 8 * k & 255], 1u);
            c = c + 1 == channels ? 0 : c + 1;
        }
    }
    if (threadIdx.x == 0) {
        for (long long i = 0; i < lead && i < values; ++i) atomicAdd(&counts[0][i % channels][image[i]], 1u);
        for (long long i = lead + 4 * words; i < values; ++i) atomicAdd(&counts[0][i % channels][image[i]], 1u);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < channels * 256; i += blockDim.x)
        for (int k = 1; k < COPIES; ++k) (&counts[0][0][0])[i] += (&counts[k][0][0])[i];
    __syncthreads();
    const float p = job.parameters(parameters)[0];
    if (kind == CONTRAST) {
        if (threadIdx.x == 0) {
            const float weights[3] = {0.299f, 0.587f, 0.114f};
            float mean = 0;
            for (int c = 0; c < channels; ++c) {
                unsigned long long sum = 0;
                for (int v = 0; v < 256; ++v) sum += static_cast<unsigned long long>(counts[0][c][v]) * v;
                const float one = static_cast<float>(static_cast<double>(sum) / static_cast<double>(pixels));
                mean = __fadd_rn(mean, __fmul_rn(one, channels == 3 ? weights[c] : 1.0f / static_cast<float>(channels)));
            }
            center = mean;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < channels * 256; i += blockDim.x)
            table[i] = level(__fadd_rn(center, __fmul_rn(__fsub_rn(static_cast<float>(i % 256), center), p)));
        return;
    }
    if (threadIdx.x % 32 != 0 || threadIdx.x / 32 >= channels) return;
    const int c = threadIdx.x / 32;  // one channel per warp
    const unsigned* count = counts[0][c];
    byte* own = table + 256 * c;
    int low = 0, high = 255;
    while (low < 255 && count[low] == 0) ++low;
    while (high > 0 && count[high] == 0) --high;
    if (kind == AUTO_CONTRAST) {
        const float scale = 255.0f / static_cast<float>(high - low);
        for (int v = 0; v < 256; ++v)
            own[v] = high <= low ? v : level(__fmul_rn(static_cast<float>(v > low ? v - low : 0), scale));
        return;
    }
    if (count[low] == pixels) {
        for (int v = 0; v < 256; ++v) own[v] = low;
        return;
    }
    const float scale = 255.0f / static_cast<float>(pixels - count[low]);
    unsigned long long sum = 0;
    for (int v = 0; v < 256; ++v) {
        if (v > low) sum += count[v];
        own[v] = v <= low ? 0 : static_cast<byte>(fminf(rintf(__fmul_rn(static_cast<float>(sum), scale)), 255.0f));
    }
}

__device__ __forceinline__ int cell(float value, int limit) {
    return static_cast<int>(floorf(fminf(fmaxf(value, -2.0f), limit + 1.0f)));
}

__device__ __forceinline__ int clamp(int i, int limit) { return i < 0 ? 0 : i >= limit ? limit - 1 : i; }

// Take one pixel from the position to which the map `m` maps its centre.
__device__ void moved(const byte* image, int rows, int columns, int channels, const float* m, int x, int y, int linear,
                      int fill, byte* out) {
    const float u = x + 0.5f, v = y + 0.5f;
    const float sx = m[0] * u + (m[1] * v + m[2]), sy = m[3] * u + (m[4] * v + m[5]);
    const long long line = static_cast<long long>(columns) * channels;
    if (!linear) {
        const int i = cell(sx, columns), j = cell(sy, rows);
        const bool outside = fill >= 0 && (i < 0 || j < 0 || i >= columns || j >= rows);
        const byte* at = image + clamp(j, rows) * line + clamp(i, columns) * channels;
        for (int c = 0; c < channels; ++c) out[c] = outside ? fill : at[c];
        return;
    }
    const float px = sx - 0.5f, py = sy - 0.5f;
    const int i = cell(px, columns), j = cell(py, rows);
    const float fx = fminf(fmaxf(px - i, 0.0f), 1.0f), fy = fminf(fmaxf(py - j, 0.0f), 1.0f);
    const bool west = fill < 0 || (i >= 0 && i < columns), east = fill < 0 || (i + 1 >= 0 && i + 1 < columns);
    const bool north = fill < 0 || (j >= 0 && j < rows), south = fill < 0 || (j + 1 >= 0 && j + 1 < rows);
    const byte* top = image + clamp(j, rows) * line;
    const byte* bottom = image + clamp(j + 1, rows) * line;
    const int left = clamp(i, columns) * channels, right = clamp(i + 1, columns) * channels;
    for (int c = 0; c < channels; ++c) {
        const float a = west && north ? top[left + c] : fill, b = east && north ? top[right + c] : fill;
        const float d = west && south ? bottom[left + c] : fill, e = east && south ? bottom[right + c] : fill;
        const float upper = a + (b - a) * fx, lower = d + (e - d) * fx;
        out[c] = level(upper + (lower - upper) * fy);
    }
}

// Return the index of position i, -1 ... n, in a line that is mirrored at its ends without repeating them.
__device__ __forceinline__ int mirrored(int i, int n) { return n == 1 ? 0 : i < 0 ? -i : i >= n ? 2 * n - 2 - i : i; }

// Compute one pixel of the correlation with the 3x3 filter k.
__device__ void filtered(const byte* image, int rows, int columns, int channels, const float* k, int x, int y,
                         byte* out) {
    const int xs[3] = {mirrored(x - 1, columns) * channels, x * channels, mirrored(x + 1, columns) * channels};
    float sums[4] = {0, 0, 0, 0};
    for (int j = 0; j < 3; ++j) {
        const byte* line = image + static_cast<long long>(mirrored(y + j - 1, rows)) * columns * channels;
        for (int c = 0; c < channels; ++c)
            sums[c] += k[3 * j] * line[xs[0] + c] + k[3 * j + 1] * line[xs[1] + c] + k[3 * j + 2] * line[xs[2] + c];
    }
    for (int c = 0; c < channels; ++c) out[c] = level(sums[c]);
}

// grid (tiles * images): a block computes `tile` values, whole pixels, of one image.
extern "C" __global__ void __launch_bounds__(256)
    augment_step(const byte* input, byte* between, long long size, byte* output, const Job* jobs, int tiles, int tile,
         const float* parameters, const byte* tables, int linear, int fill) {
    __shared__ byte table[4 * 256];
    const int picture = blockIdx.x / tiles;
    const Job job = jobs[picture];
    const int kind = job.kind(), channels = static_cast<int>(job.channels);
    const int rows = static_cast<int>(job.rows), columns = static_cast<int>(job.columns);
    const long long values = job.rows * job.columns * channels;
    const long long first = static_cast<long long>(blockIdx.x % tiles) * tile;
    const long long last = first + tile < values ? first + tile : values;
    if (first >= values) return;
    const byte* image = before(job, input, between, size);
    byte* out = (job.to == 3 ? output : between + (job.to - 1) * size) + job.target;
    const float* p = job.parameters(parameters);
    if (kind < COLOR) {
        const byte* given = tables + static_cast<long long>(picture) * 4 * 256;
        for (int i = threadIdx.x; i < channels * 256; i += blockDim.x)
            table[i] = kind == IDENTITY ? i % 256 : kind < CONTRAST ? changed(kind, p[0], i % 256) : given[i];
        __syncthreads();
        const bool words = reinterpret_cast<unsigned long long>(image) % 4 == 0 &&
                           reinterpret_cast<unsigned long long>(out) % 4 == 0;
        if (!words) {
            for (long long i = first + threadIdx.x; i < last; i += blockDim.x)
                out[i] = table[static_cast<int>(i % channels) * 256 + image[i]];
            return;
        }
        int start = 4 * static_cast<int>(threadIdx.x) % channels;  // tiles begin at a pixel
        for (long long i = first + 4ll * threadIdx.x; i < last; i += 4ll * blockDim.x) {
            int c = start;
            start = (start + 4 * static_cast<int>(blockDim.x)) % channels;
            if (i + 4 > last) {
                for (long long j = i; j < last; ++j) out[j] = table[static_cast<int>(j % channels) * 256 + image[j]];
                break;
            }
            const unsigned four = *reinterpret_cast<const unsigned*>(image + i);
            unsigned made = 0;
            for (int k = 0; k < 4; ++k) {
                made |= static_cast<unsigned>(table[c * 256 + (four >> 8 * k & 255)]) << 8 * k;
                c = c + 1 == channels ? 0 : c + 1;
            }
            *reinterpret_cast<unsigned*>(out + i) = made;
        }
        return;
    }
    float m[9];
    for (int k = 0; k < 9; ++k) m[k] = p[k];
    const int end = static_cast<int>(last / channels);
    for (int i = static_cast<int>(first / channels) + threadIdx.x; i < end; i += blockDim.x) {
        byte made[4];
        if (kind == COLOR) {
            const float u = image[3 * i], v = image[3 * i + 1], w = image[3 * i + 2];
            for (int k = 0; k < 3; ++k) made[k] = level(m[3 * k] * u + m[3 * k + 1] * v + m[3 * k + 2] * w);
        } else if (kind == SHARPNESS) {
            filtered(image, rows, columns, channels, m, i % columns, i / columns, made);
        } else {
            moved(image, rows, columns, channels, m, i % columns, i / columns, linear, fill, made);
        }
        byte* o = out + static_cast<long long>(i) * channels;
        for (int c = 0; c < channels; ++c) o[c] = made[c];
    }
}
