// clahe (ops/color/clahe.py): the algorithm of clahe_cpu.py, one block per tile, then one thread per pixel.
#include "division.cuh"

typedef unsigned char byte;

__device__ __forceinline__ int clipped(int v) { return v < 0 ? 0 : v > 255 ? 255 : v; }

struct Lab { int l, a, b; };

// Return Lab of a pixel as three bytes, as in OpenCV.
__device__ Lab lab(const byte* p, const int* gamma, const int* root) {
    const int r = gamma[p[0]], g = gamma[p[1]], b = gamma[p[2]];
    const int fx = root[(r * 1777 + g * 1541 + b * 778 + 2048) >> 12];
    const int fy = root[(r * 871 + g * 2929 + b * 296 + 2048) >> 12];
    const int fz = root[(r * 73 + g * 448 + b * 3575 + 2048) >> 12];
    return {clipped((296 * fy - 1336934 + 16384) >> 15), clipped((500 * (fx - fy) + (128 << 15) + 16384) >> 15),
            clipped((200 * (fy - fz) + (128 << 15) + 16384) >> 15)};
}

__device__ __forceinline__ float cubed(float f) { return f > 6.0f / 29 ? f * f * f : (f - 16.0f / 116) / 7.787f; }

__device__ __forceinline__ byte level(float v) {
    v = fminf(fmaxf(v, 0.0f), 1.0f);
    v = v <= 0.0031308f ? v * 12.92f : 1.055f * powf(v, 1 / 2.4f) - 0.055f;
    return static_cast<byte>(v * 255 + 0.5f);
}

__device__ void rgb(int lightness, int a, int b, byte* out) {
    const float l = lightness * (100.0f / 255);
    const float y = l <= 8 ? l / 903.3f : (l + 16) / 116 * ((l + 16) / 116) * ((l + 16) / 116);
    const float fy = l <= 8 ? 7.787f * y + 16.0f / 116 : (l + 16) / 116;
    const float x = 0.950456f * cubed(fy + (a - 128) / 500.0f), z = 1.088754f * cubed(fy - (b - 128) / 200.0f);
    out[0] = level(3.240479f * x - 1.53715f * y - 0.498535f * z);
    out[1] = level(-0.969256f * x + 1.875991f * y + 0.041556f * z);
    out[2] = level(0.055648f * x - 0.204043f * y + 1.057311f * z);
}

// Return the value of a pixel that is equalised.
__device__ __forceinline__ int value(const byte* image, long long pixel, int channels, int channel, bool luma,
                                     const int* gamma, const int* root) {
    return luma ? lab(image + 3 * pixel, gamma, root).l : image[pixel * channels + channel];
}

struct Grid {
    int height, width;  // size of a tile
    __device__ Grid(int rows, int columns, int down, int across) {
        const bool fits = rows % down == 0 && columns % across == 0;
        height = fits ? rows / down : (rows + down - rows % down) / down;
        width = fits ? columns / across : (columns + across - columns % across) / across;
    }
};

// grid (samples * tiles * 3 channels), 256 threads: compute the new values of a tile's values.
extern "C" __global__ void __launch_bounds__(256)
    tile_tables(const byte* source, const long long* base, const long long* sizes, int down, int across, double clip,
                int luma_only, const int* gamma, const int* root, byte* tables) {
    __shared__ unsigned counts[256];
    __shared__ byte found[256];
    const int channel = blockIdx.x % 3, tile = blockIdx.x / 3 % (down * across), sample = blockIdx.x / 3 / (down * across);
    const int rows = static_cast<int>(sizes[3 * sample]), columns = static_cast<int>(sizes[3 * sample + 1]);
    const int channels = static_cast<int>(sizes[3 * sample + 2]);
    const bool luma = luma_only && channels == 3;
    if (rows == 0 || columns == 0 || channel >= (luma ? 1 : channels)) return;
    const Grid grid(rows, columns, down, across);
    const int top = tile / across * grid.height, left = tile % across * grid.width, total = grid.height * grid.width;
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < total; i += blockDim.x) {
        int y = top + i / grid.width, x = left + i % grid.width;
        y = y < rows ? y : 2 * rows - 2 - y;
        x = x < columns ? x : 2 * columns - 2 - x;
        y = y < 0 ? 0 : y > rows - 1 ? rows - 1 : y;
        x = x < 0 ? 0 : x > columns - 1 ? columns - 1 : x;
        const long long pixel = static_cast<long long>(y) * columns + x;
        atomicAdd(&counts[value(source + base[sample], pixel, channels, channel, luma, gamma, root)], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        if (clip > 0) {
            int limit = static_cast<int>(clip * total / 256);
            limit = limit < 1 ? 1 : limit;
            int cut = 0;
            for (int v = 0; v < 256; ++v)
                if (counts[v] > static_cast<unsigned>(limit)) {
                    cut += counts[v] - limit;
                    counts[v] = limit;
                }
            const int each = cut / 256;
            int rest = cut - each * 256;
            for (int v = 0; v < 256; ++v) counts[v] += each;
            const int step = rest == 0 ? 256 : 256 / rest < 1 ? 1 : 256 / rest;
            for (int v = 0; v < 256 && rest > 0; v += step, --rest) ++counts[v];
        }
        const float scale = 255.0f / static_cast<float>(total);
        unsigned sum = 0;
        for (int v = 0; v < 256; ++v) {
            sum += counts[v];
            found[v] = static_cast<byte>(fminf(rintf(__fmul_rn(static_cast<float>(sum), scale)), 255.0f));
        }
    }
    __syncthreads();
    tables[256ll * blockIdx.x + threadIdx.x] = found[threadIdx.x];
}

// grid (blocks * samples): interpolate every pixel between the tables of the four nearest tiles.
extern "C" __global__ void blend(const byte* source, const long long* base, const long long* sizes, int blocks,
                                 int down, int across, int luma_only, const int* gamma, const int* root,
                                 const byte* tables, byte* target, const long long* out_base) {
    const int sample = blockIdx.x / blocks;
    const int rows = static_cast<int>(sizes[3 * sample]), columns = static_cast<int>(sizes[3 * sample + 1]);
    const int channels = static_cast<int>(sizes[3 * sample + 2]);
    const long long i = static_cast<long long>(blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (channels == 0 || i >= static_cast<long long>(rows) * columns) return;
    const bool luma = luma_only && channels == 3;
    const Grid grid(rows, columns, down, across);
    long long line = i;
    const long long column = split(line, columns);
    const float fy = __fsub_rn(__fmul_rn(static_cast<float>(line), 1.0f / static_cast<float>(grid.height)), 0.5f);
    const float fx = __fsub_rn(__fmul_rn(static_cast<float>(column), 1.0f / static_cast<float>(grid.width)), 0.5f);
    const int j = static_cast<int>(floorf(fy)), k = static_cast<int>(floorf(fx));
    const float ya = fy - j, xa = fx - k;
    const int upper = j < 0 ? 0 : j, lower = j + 1 < down - 1 ? j + 1 : down - 1;
    const int left = k < 0 ? 0 : k, right = k + 1 < across - 1 ? k + 1 : across - 1;
    const byte* image = source + base[sample];
    byte* out = target + out_base[sample] + i * channels;
    const byte* own = tables + 768ll * sample * down * across;
    for (int c = 0; c < (luma ? 1 : channels); ++c) {
        const int v = value(image, i, channels, c, luma, gamma, root);
        const float p = own[768 * (upper * across + left) + 256 * c + v], q = own[768 * (upper * across + right) + 256 * c + v];
        const float r = own[768 * (lower * across + left) + 256 * c + v], s = own[768 * (lower * across + right) + 256 * c + v];
        const float a = __fadd_rn(__fmul_rn(p, 1 - xa), __fmul_rn(q, xa));
        const float b = __fadd_rn(__fmul_rn(r, 1 - xa), __fmul_rn(s, xa));
        const float mixed = __fadd_rn(__fmul_rn(a, 1 - ya), __fmul_rn(b, ya));
        const int made = static_cast<int>(fminf(rintf(mixed), 255.0f));
        if (luma) {
            const Lab was = lab(image + 3 * i, gamma, root);
            rgb(made, was.a, was.b, out);
        } else {
            out[c] = made;
        }
    }
}
