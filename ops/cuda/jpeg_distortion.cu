// jpeg_compression_distortion (ops/distortions/jpeg.py): the arithmetic of libjpeg's encoder and decoder (jccolor.c,
// jcsample.c, jfdctint.c, jcdctmgr.c, jidctint.c, jdsample.c, jdcolor.c) for 4:2:0, without the entropy coding, which
// loses nothing.
#include "strips.cuh"

typedef unsigned char byte;

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int clipped(int v) { return v < 0 ? 0 : v > 255 ? 255 : v; }
__device__ __forceinline__ int scaled(int v, int bits) { return (v + (1 << (bits - 1))) >> bits; }

// Return luma (0), Cb (1) or Cr (2) of a pixel.
__device__ __forceinline__ int colour(int r, int g, int b, int which) {
    const int half = 1 << 15;
    if (which == 0) return (19595 * r + 38470 * g + 7471 * b + half) >> 16;
    if (which == 1) return (-11059 * r - 21709 * g + 32768 * b + (128 << 16) + half - 1) >> 16;
    return (32768 * r - 27439 * g - 5329 * b + (128 << 16) + half - 1) >> 16;
}
__device__ __forceinline__ int colour(const byte* p, int which) { return colour(p[0], p[1], p[2], which); }

// Transform eight values, `step` apart, to frequencies; the second pass removes the scale of the first.
__device__ __forceinline__ void forward(int* d, int step, bool second) {
    const int d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    const int d4 = d[4 * step], d5 = d[5 * step], d6 = d[6 * step], d7 = d[7 * step];
    int t0 = d0 + d7, t7 = d0 - d7, t1 = d1 + d6, t6 = d1 - d6, t2 = d2 + d5, t5 = d2 - d5, t3 = d3 + d4, t4 = d3 - d4;
    const int t10 = t0 + t3, t13 = t0 - t3, t11 = t1 + t2, t12 = t1 - t2, bits = second ? 15 : 11;
    d[0] = second ? scaled(t10 + t11, 2) : (t10 + t11) * 4;
    d[4 * step] = second ? scaled(t10 - t11, 2) : (t10 - t11) * 4;
    int z1 = (t12 + t13) * 4433;
    d[2 * step] = scaled(z1 + t13 * 6270, bits);
    d[6 * step] = scaled(z1 - t12 * 15137, bits);
    z1 = t4 + t7;
    int z2 = t5 + t6, z3 = t4 + t6, z4 = t5 + t7;
    const int z5 = (z3 + z4) * 9633;
    t4 *= 2446, t5 *= 16819, t6 *= 25172, t7 *= 12299;
    z1 *= -7373, z2 *= -20995, z3 = z3 * -16069 + z5, z4 = z4 * -3196 + z5;
    d[7 * step] = scaled(t4 + z1 + z3, bits);
    d[5 * step] = scaled(t5 + z2 + z4, bits);
    d[3 * step] = scaled(t6 + z2 + z3, bits);
    d[step] = scaled(t7 + z1 + z4, bits);
}

// The inverse transform; `bits` are those of the scale.
__device__ __forceinline__ void inverse(int* d, int step, int bits) {
    int z2 = d[2 * step], z3 = d[6 * step], z1 = (z2 + z3) * 4433;
    int t2 = z1 - z3 * 15137, t3 = z1 + z2 * 6270;
    int t0 = (d[0] + d[4 * step]) * 8192, t1 = (d[0] - d[4 * step]) * 8192;
    const int t10 = t0 + t3, t13 = t0 - t3, t11 = t1 + t2, t12 = t1 - t2;
    t0 = d[7 * step], t1 = d[5 * step], t2 = d[3 * step], t3 = d[step];
    z1 = t0 + t3, z2 = t1 + t2, z3 = t0 + t2;
    int z4 = t1 + t3;
    const int z5 = (z3 + z4) * 9633;
    t0 *= 2446, t1 *= 16819, t2 *= 25172, t3 *= 12299;
    z1 *= -7373, z2 *= -20995, z3 = z3 * -16069 + z5, z4 = z4 * -3196 + z5;
    t0 += z1 + z3, t1 += z2 + z4, t2 += z2 + z3, t3 += z1 + z4;
    d[0] = scaled(t10 + t3, bits), d[7 * step] = scaled(t10 - t3, bits);
    d[step] = scaled(t11 + t2, bits), d[6 * step] = scaled(t11 - t2, bits);
    d[2 * step] = scaled(t12 + t1, bits), d[5 * step] = scaled(t12 - t1, bits);
    d[3 * step] = scaled(t13 + t0, bits), d[4 * step] = scaled(t13 - t0, bits);
}

// Lines of a block are 9 values apart, so that accesses along lines and along columns use different banks.
enum { LINE = 9, BLOCK = 8 * LINE, BLOCKS = 12, WARPS = 4 };

// Convert a cell of 4 x 2 pixels of an image, at row `y` and column `x`: write its luma to `luma`, and the means of its
// chromas, two each, to `blue` and `red`, all minus 128. Positions outside repeat the image's border as libjpeg does.
__device__ __forceinline__ void cell(const byte* image, int height, int width, int y, int x, int* luma, int* blue,
                                     int* red) {
    int cb[2] = {}, cr[2] = {};
    if (y + 1 < height && x + 3 < width) {
        #pragma unroll
        for (int j = 0; j < 2; ++j) {
            unsigned words[3];
            bytes_at<12>(image + (static_cast<long long>(y + j) * width + x) * 3, words);
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                int p[3];
                #pragma unroll
                for (int c = 0; c < 3; ++c) p[c] = words[(3 * k + c) / 4] >> 8 * ((3 * k + c) % 4) & 255;
                luma[LINE * j + k] = colour(p[0], p[1], p[2], 0) - 128;
                cb[k / 2] += colour(p[0], p[1], p[2], 1);
                cr[k / 2] += colour(p[0], p[1], p[2], 2);
            }
        }
    } else {
        const int row = smaller(y / 2, (height + 1) / 2 - 1);  // the last row of chroma is repeated
        for (int j = 0; j < 2; ++j) {
            const byte* line = image + static_cast<long long>(smaller(y + j, height - 1)) * width * 3;
            const byte* pair = image + static_cast<long long>(smaller(2 * row + j, height - 1)) * width * 3;
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                const int at = 3 * smaller(x + k, width - 1);
                luma[LINE * j + k] = colour(line + at, 0) - 128;
                cb[k / 2] += colour(pair + at, 1);
                cr[k / 2] += colour(pair + at, 2);
            }
        }
    }
    #pragma unroll
    for (int k = 0; k < 2; ++k) {
        blue[k] = ((cb[k] + 1 + k) >> 2) - 128;
        red[k] = ((cr[k] + 1 + k) >> 2) - 128;
    }
}

// grid (tiles * images), WARPS warps. A warp computes two adjacent units of 16 x 16 pixels, each of four blocks of luma
// and one of each chroma: 96 lines in three turns, in each of which a thread computes one line of a block. The planes
// of an image consist of whole units, and are at `planes` of `scratch`. `tables` are quantisation steps and the numbers
// for dividing by eight of them; `which` selects one per image.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    compress(const byte* source, const long long* base, const long long* extents, int tiles, const uint2* tables,
             const long long* which, byte* planes, const long long* scratch) {
    __shared__ int shared[WARPS][BLOCKS * BLOCK];
    const int picture = blockIdx.x / tiles, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int height = static_cast<int>(extents[2 * picture]), width = static_cast<int>(extents[2 * picture + 1]);
    const int across = (width + 15) / 16, down = (height + 15) / 16, pairs = (across + 1) / 2;
    const int unit = (blockIdx.x % tiles) * WARPS + warp;
    if (unit >= pairs * down) return;  // all lanes of a warp return together
    const int top = unit / pairs * 16, left = unit % pairs * 32;
    const byte* image = source + base[picture];
    int* blocks = shared[warp];
    #pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
        const int y = 2 * (lane / 8 + 4 * turn), x = 4 * (lane % 8), own = x / 16;
        int* luma = blocks + (4 * own + 2 * turn + x / 8 % 2) * BLOCK + LINE * (y % 8) + x % 8;
        int* blue = blocks + (8 + 2 * own) * BLOCK + LINE * (y / 2) + x % 16 / 2;
        cell(image, height, width, top + y, left + x, luma, blue, blue + BLOCK);
    }
    __syncwarp();
    int* own = blocks + lane / 8 * BLOCK;
    const int line = lane % 8;
    #pragma unroll 1
    for (int turn = 0; turn < 3; ++turn) forward(own + 4 * turn * BLOCK + LINE * line, 1, false);
    __syncwarp();
    const uint2* table = tables + which[picture] * 128 + line;
    #pragma unroll 1
    for (int turn = 0; turn < 3; ++turn) {
        int* column = own + 4 * turn * BLOCK + line;
        const uint2* steps = table + (turn < 2 ? 0 : 64);
        int d[8];
        #pragma unroll
        for (int k = 0; k < 8; ++k) d[k] = column[LINE * k];
        forward(d, 1, true);
        #pragma unroll
        for (int k = 0; k < 8; ++k) {
            const uint2 step = steps[8 * k];
            const unsigned size = d[k] < 0 ? -d[k] : d[k];
            const int level = static_cast<int>(__umulhi(size + 4 * step.x, step.y) * step.x);
            d[k] = d[k] < 0 ? -level : level;
        }
        inverse(d, 1, 11);
        #pragma unroll
        for (int k = 0; k < 8; ++k) column[LINE * k] = d[k];
    }
    __syncwarp();
    byte* luma = planes + scratch[picture];
    byte* chroma = luma + 256ll * across * down;
    #pragma unroll 1
    for (int turn = 0; turn < 3; ++turn) {
        int d[8];
        #pragma unroll
        for (int k = 0; k < 8; ++k) d[k] = own[4 * turn * BLOCK + LINE * line + k];
        inverse(d, 1, 18);
        unsigned words[2] = {};
        #pragma unroll
        for (int k = 0; k < 8; ++k) words[k / 4] |= static_cast<unsigned>(clipped(d[k] + 128)) << 8 * (k % 4);
        const int b = lane / 8, x = left + 16 * (turn < 2 ? turn : b / 2);
        if (x >= 16 * across) continue;
        byte* to = turn < 2 ? luma + (top + b / 2 * 8 + line) * 16ll * across + x + b % 2 * 8
                            : chroma + b % 2 * (64ll * across * down) + (top / 2 + line) * 8ll * across + x / 2;
        *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    }
}

// Write two values for each of those at columns 1 and 2 of `own`, a line of half the size: three parts of the nearer,
// one of the farther. `first` and `last`: nothing is before column 1, or after column 1 or 2. `few`: column 2 does not
// use column 1 either.
__device__ __forceinline__ void wider(const int* own, bool first, bool last_one, bool last_two, bool few, int* out) {
    out[0] = first ? (own[1] * 4 + 8) >> 4 : (own[1] * 3 + own[0] + 8) >> 4;
    out[1] = last_one ? (own[1] * 4 + 7) >> 4 : (own[1] * 3 + own[2] + 7) >> 4;
    out[2] = few ? (own[2] * 4 + 8) >> 4 : (own[2] * 3 + own[1] + 8) >> 4;
    out[3] = last_two ? (own[2] * 4 + 7) >> 4 : (own[2] * 3 + own[3] + 7) >> 4;
}

// grid (tiles * images): a thread computes 4 x 2 pixels.
extern "C" __global__ void decompress(const byte* planes, const long long* scratch, const long long* extents, int tiles,
                                      byte* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const int height = static_cast<int>(extents[2 * picture]), width = static_cast<int>(extents[2 * picture + 1]);
    const unsigned i = (blockIdx.x % tiles) * blockDim.x + threadIdx.x;  // an image has fewer than 2^31 values
    const int cells = (width + 3) / 4, rows = (height + 1) / 2, columns = (width + 1) / 2;
    if (i >= static_cast<unsigned>(rows) * cells) return;
    const int row = static_cast<int>(i / cells), x = 4 * static_cast<int>(i - static_cast<unsigned>(row) * cells);
    const int across = (width + 15) / 16, down = (height + 15) / 16;
    const byte* luma = planes + scratch[picture];
    const byte* chroma = luma + 256ll * across * down;
    const int before = row > 0 ? row - 1 : 0, after = smaller(row + 1, rows - 1), column = x / 2;
    const bool few = columns < 3;  // libjpeg repeats each value if there are so few
    int own[2][2][4];  // three parts of the nearer line, one of the farther, by row of pixels and chroma
    #pragma unroll
    for (int c = 0; c < 2; ++c) {
        const byte* plane = chroma + c * (64ll * across * down) + column - 1;
        unsigned near, upper, lower;
        bytes_at<4>(plane + row * 8ll * across, &near);
        bytes_at<4>(plane + before * 8ll * across, &upper);
        bytes_at<4>(plane + after * 8ll * across, &lower);
        if (few) upper = lower = near;
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int middle = 3 * (near >> 8 * k & 255);
            own[0][c][k] = middle + (upper >> 8 * k & 255);
            own[1][c][k] = middle + (lower >> 8 * k & 255);
        }
    }
    #pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int y = 2 * row + j;
        if (y >= height) break;
        const unsigned four = *reinterpret_cast<const unsigned*>(luma + y * 16ll * across + x);
        int cb[4], cr[4];
        wider(own[j][0], x == 0, few || column + 1 >= columns, column + 2 >= columns, few, cb);
        wider(own[j][1], x == 0, few || column + 1 >= columns, column + 2 >= columns, few, cr);
        unsigned words[3] = {};
        const int half = 1 << 15;
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int l = four >> 8 * k & 255, b = cb[k] - 128, r = cr[k] - 128;
            const int rgb[3] = {clipped(l + ((91881 * r + half) >> 16)),
                                clipped(l + ((-46802 * r - 22554 * b + half) >> 16)),
                                clipped(l + ((116130 * b + half) >> 16))};
            #pragma unroll
            for (int c = 0; c < 3; ++c) words[(3 * k + c) / 4] |= static_cast<unsigned>(rgb[c]) << 8 * ((3 * k + c) % 4);
        }
        byte* to = target + out_base[picture] + (static_cast<long long>(y) * width + x) * 3;
        const int count = 3 * smaller(4, width - x);
        #pragma unroll
        for (int k = 0; k < 3; ++k)
            if (4 * k < count) put_bytes(to + 4 * k, words[k], smaller(4, count - 4 * k));
    }
}
