// image_scores (ops/scores/image_scores.py), in the same integers and roundings as the loop of image_scores_cpu.py.
#include "groups.cuh"

typedef unsigned char byte;
typedef unsigned long long u64;

// Bits of `wanted`, as in image_scores_cpu.py.
enum Score { PHASH = 1, DHASH = 2, SHARPNESS = 4, ENTROPY = 8, BRIGHTNESS = 16, SATURATION = 32, BORDER = 64 };

enum { LARGE = 32 * 32, SMALL = 8 * 9, CELLS = LARGE + SMALL };  // gray cells of an image: for phash, then for dhash

// Sums of a strip: 256 counts of gray levels, then these; borders as rows - top, columns - left, bottom + 1, right + 1,
// of which 0 says that no pixel differs from its corner.
enum Part { LAPLACIAN = 256, SQUARES, COLOUR, TOP, LEFT, BOTTOM, RIGHT, PARTS = 264 };

__device__ __forceinline__ int gray(const byte* image, long long pixel, int channels) {
    if (channels == 1) return image[pixel];
    const byte* at = image + 3 * pixel;
    return (at[0] * 19595 + at[1] * 38470 + at[2] * 7471 + 32768) >> 16;
}

// grid (CELLS / 8, samples), 256 threads: a warp makes the mean gray level of one cell.
extern "C" __global__ void __launch_bounds__(256)
    gray_cells(const byte* source, const long long* base, const long long* sizes, int wanted, byte* cells) {
    __shared__ long long shared[256];
    const int sample = blockIdx.y, lane = threadIdx.x % 32, cell = blockIdx.x * 8 + threadIdx.x / 32;
    const long long rows = sizes[3 * sample], columns = sizes[3 * sample + 1];
    const int channels = static_cast<int>(sizes[3 * sample + 2]);
    const bool large = cell < LARGE;
    const byte* image = source + base[sample];
    long long total = 0;
    if ((wanted & (large ? PHASH : DHASH)) && rows > 0 && columns > 0) {
        const int down = large ? 32 : 8, across = large ? 32 : 9, k = large ? cell : cell - LARGE;
        const int i = k / across, j = k % across;
        // In units of 1 / down of a row and 1 / across of a column a cell reaches from here ...
        const long long top = i * rows, left = j * columns, bottom = top + rows, right = left + columns;
        const long long first = top / down, begin = left / across;  // ... and these pixels have a part in it
        const unsigned height = static_cast<unsigned>((bottom + down - 1) / down - first);
        const unsigned width = static_cast<unsigned>((right + across - 1) / across - begin);
        for (unsigned at = lane; at < height * width; at += 32) {  // a sample has fewer than 2^31 elements
            const unsigned line = at / width;
            const long long y = first + line, x = begin + (at - line * width);
            const int tall = static_cast<int>(min(bottom, (y + 1) * down) - max(top, y * down));
            const int wide = static_cast<int>(min(right, (x + 1) * across) - max(left, x * across));
            total += tall * wide * gray(image, y * columns + x, channels);
        }
    }
    total = together<32>(total, shared, [](long long a, long long b) { return a + b; });
    const long long area = rows * columns;
    if (lane == 0) cells[static_cast<long long>(sample) * CELLS + cell] = area > 0 ? (total + area / 2) / area : 0;
}

// grid (samples), 64 threads: one bit of each hash.
extern "C" __global__ void __launch_bounds__(64)
    hashes(const byte* cells, const int* cosines, int wanted, u64* phash, u64* dhash) {
    __shared__ long long lines[256], found[64];
    __shared__ byte bits[64];
    const int sample = blockIdx.x, t = threadIdx.x;
    cells += static_cast<long long>(sample) * CELLS;
    if (wanted & PHASH) {
        for (int at = t; at < 256; at += 64) {
            long long total = 0;
            for (int x = 0; x < 32; ++x) total += static_cast<long long>(cells[at / 8 * 32 + x]) * cosines[at % 8 * 32 + x];
            lines[at] = total;
        }
        __syncthreads();
        long long own = 0;
        for (int y = 0; y < 32; ++y) own += lines[8 * y + t % 8] * cosines[t / 8 * 32 + y];
        found[t] = own;
        __syncthreads();
        int smaller = 0;
        for (int k = 0; k < 64; ++k) smaller += found[k] < own;
        bits[t] = smaller >= 32;
        __syncthreads();
        if (t == 0) {
            u64 hash = 0;
            for (int k = 0; k < 64; ++k) hash = hash << 1 | bits[k];
            phash[sample] = hash;
        }
        __syncthreads();
    }
    if (wanted & DHASH) {
        const byte* at = cells + LARGE + t / 8 * 9 + t % 8;
        bits[t] = at[1] > at[0];
        __syncthreads();
        if (t == 0) {
            u64 hash = 0;
            for (int k = 0; k < 64; ++k) hash = hash << 1 | bits[k];
            dhash[sample] = hash;
        }
    }
}

// Mirrors without repeating the edge.
__device__ __forceinline__ int within(int i, int n) { return n == 1 ? 0 : i < 0 ? 1 : i >= n ? n - 2 : i; }

// grid (strips, samples), 256 threads: what a strip of rows adds to the scores of its image.
extern "C" __global__ void __launch_bounds__(256)
    image_sums(const byte* source, const long long* base, const long long* sizes, int wanted, int tolerance,
               long long* parts) {
    __shared__ unsigned counts[256];
    __shared__ u64 sums[3];
    __shared__ int reach[4];
    const int sample = blockIdx.y, t = threadIdx.x;
    const int rows = static_cast<int>(sizes[3 * sample]), columns = static_cast<int>(sizes[3 * sample + 1]);
    const int channels = static_cast<int>(sizes[3 * sample + 2]), per = (rows + gridDim.x - 1) / gridDim.x;
    const int first = min(rows, static_cast<int>(blockIdx.x) * per), last = min(rows, first + per);
    const byte* image = source + base[sample];
    counts[t] = 0;
    if (t < 3) sums[t] = 0;
    if (t < 4) reach[t] = 0;
    __syncthreads();
    const bool some = rows > 0 && columns > 0;
    const int begin = some ? gray(image, 0, channels) : 0;
    const int end = some ? gray(image, static_cast<long long>(rows) * columns - 1, channels) : 0;
    long long laplacian = 0, squares = 0, colour = 0;
    int top = 0, left = 0, bottom = 0, right = 0;
    const unsigned stop = static_cast<unsigned>(last) * columns;  // a sample has fewer than 2^31 elements
    for (unsigned at = static_cast<unsigned>(first) * columns + t; at < stop; at += 256) {
        const int y = static_cast<int>(at / columns), x = static_cast<int>(at) - y * columns;
        const int level = gray(image, at, channels);
        if (wanted & (ENTROPY | BRIGHTNESS)) atomicAdd(&counts[level], 1u);
        if (wanted & SHARPNESS) {
            const int line = y * columns, up = within(y - 1, rows) * columns, down = within(y + 1, rows) * columns;
            const int v = gray(image, up + x, channels) + gray(image, down + x, channels) +
                          gray(image, line + within(x - 1, columns), channels) +
                          gray(image, line + within(x + 1, columns), channels) - 4 * level;
            laplacian += v;
            squares += v * v;
        }
        if ((wanted & SATURATION) && channels == 3) {
            const byte* pixel = image + 3ll * at;
            const int most = max(max(static_cast<int>(pixel[0]), static_cast<int>(pixel[1])), static_cast<int>(pixel[2]));
            const int least = min(min(static_cast<int>(pixel[0]), static_cast<int>(pixel[1])), static_cast<int>(pixel[2]));
            if (most > 0) colour += (510 * (most - least) + most) / (2 * most);
        }
        if (wanted & BORDER) {
            if (abs(level - begin) > tolerance) top = max(top, rows - y), left = max(left, columns - x);
            if (abs(level - end) > tolerance) bottom = max(bottom, y + 1), right = max(right, x + 1);
        }
    }
    if (wanted & SHARPNESS) {
        atomicAdd(&sums[0], static_cast<u64>(laplacian));
        atomicAdd(&sums[1], static_cast<u64>(squares));
    }
    if (wanted & SATURATION) atomicAdd(&sums[2], static_cast<u64>(colour));
    if (wanted & BORDER) {
        atomicMax(&reach[0], top);
        atomicMax(&reach[1], left);
        atomicMax(&reach[2], bottom);
        atomicMax(&reach[3], right);
    }
    __syncthreads();
    parts += (static_cast<long long>(sample) * gridDim.x + blockIdx.x) * PARTS;
    parts[t] = counts[t];
    if (t < 3) parts[LAPLACIAN + t] = static_cast<long long>(sums[t]);
    if (t < 4) parts[TOP + t] = reach[t];
}

// log2 of a whole number above 0, in units of 2^-24, as image_scores_cpu.py has it.
__device__ __forceinline__ long long log2_of(long long n, const int* logs) {
    int exponent = 0;
    while (n >> exponent > 1) ++exponent;
    const long long mantissa = n << (40 - exponent), rest = mantissa & ((1ll << 30) - 1);
    const int k = static_cast<int>(mantissa >> 30) & 1023;
    const long long low = logs[k], high = logs[k + 1];
    return (static_cast<long long>(exponent) << 24) + low + (((high - low) * rest + (1ll << 29)) >> 30);
}

// grid (samples), 256 threads: the scores of an image, from the sums of its strips.
extern "C" __global__ void __launch_bounds__(256)
    scores_of_sums(const long long* parts, int strips, const long long* sizes, int wanted, const int* logs,
                   float* sharpness, float* entropy, float* brightness, float* saturation, float* border) {
    __shared__ u64 light, spread;
    __shared__ long long sums[7];
    const int sample = blockIdx.x, t = threadIdx.x;
    const long long rows = sizes[3 * sample], columns = sizes[3 * sample + 1], pixels = rows * columns;
    parts += static_cast<long long>(sample) * strips * PARTS;
    if (t == 0) light = 0, spread = 0;
    __syncthreads();
    long long count = 0;
    for (int k = 0; k < strips; ++k) count += parts[static_cast<long long>(k) * PARTS + t];
    if (count > 0) {
        atomicAdd(&light, static_cast<u64>(t * count));
        if (wanted & ENTROPY) atomicAdd(&spread, static_cast<u64>(count * log2_of(count, logs)));
    }
    if (t < 7) {
        long long total = 0;
        for (int k = 0; k < strips; ++k) {
            const long long part = parts[static_cast<long long>(k) * PARTS + LAPLACIAN + t];
            total = LAPLACIAN + t < TOP ? total + part : max(total, part);
        }
        sums[t] = total;
    }
    __syncthreads();
    if (t != 0) return;
    const double size = static_cast<double>(max(pixels, 1ll));
    if (wanted & SHARPNESS) {
        const double mean = static_cast<double>(sums[0]) / size, square = static_cast<double>(sums[1]) / size;
        sharpness[sample] = static_cast<float>(__dadd_rn(square, -__dmul_rn(mean, mean)));
    }
    if (wanted & ENTROPY) {
        const long long total = pixels > 0 ? pixels * log2_of(pixels, logs) - static_cast<long long>(spread) : 0;
        entropy[sample] = static_cast<float>(static_cast<double>(max(total, 0ll)) / size / 16777216.0);
    }
    if (wanted & BRIGHTNESS) brightness[sample] = static_cast<float>(static_cast<double>(light) / size);
    if (wanted & SATURATION) saturation[sample] = static_cast<float>(static_cast<double>(sums[2]) / size);
    if (wanted & BORDER) {
        const long long* reach = sums + (TOP - LAPLACIAN);
        const long long tall = reach[2] - (rows - reach[0]), wide = reach[3] - (columns - reach[1]);
        const long long kept = max(tall, 0ll) * max(wide, 0ll);
        border[sample] = static_cast<float>(static_cast<double>(pixels - kept) / size);
    }
}
