// jpeg_compression_distortion (ops/distortions/jpeg.py): the arithmetic of libjpeg's encoder and decoder (jccolor.c,
// jcsample.c, jfdctint.c, jcdctmgr.c, jidctint.c, jdsample.c, jdcolor.c) for 4:2:0, without the entropy coding, which
// loses nothing.
typedef unsigned char byte;

__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int clipped(int v) { return v < 0 ? 0 : v > 255 ? 255 : v; }
__device__ __forceinline__ int scaled(int v, int bits) { return (v + (1 << (bits - 1))) >> bits; }

// Luma (0), Cb (1) or Cr (2) of a pixel.
__device__ __forceinline__ int colour(const byte* p, int which) {
    const int r = p[0], g = p[1], b = p[2], half = 1 << 15;
    if (which == 0) return (19595 * r + 38470 * g + 7471 * b + half) >> 16;
    if (which == 1) return (-11059 * r - 21709 * g + 32768 * b + (128 << 16) + half - 1) >> 16;
    return (32768 * r - 27439 * g - 5329 * b + (128 << 16) + half - 1) >> 16;
}

// Eight values, `step` apart, to frequencies; the second pass takes the scale of the first away.
__device__ void forward(int* d, int step, bool second) {
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

// And back; `bits` are those of the scale.
__device__ void inverse(int* d, int step, int bits) {
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

// grid (units * pictures), 64 threads: a unit of 16 x 16 pixels is four blocks of luma and one of each chroma; a thread
// makes a line of a block. The planes of a picture, whole units, lie at `scratch` in `planes`.
extern "C" __global__ void __launch_bounds__(64)
    compress(const byte* source, const long long* base, const long long* extents, int units, const int* tables,
             const long long* quality, byte* planes, const long long* scratch) {
    __shared__ int blocks[6][72];  // lines are 9 apart, so that neither lines nor columns meet in a bank
    const int picture = blockIdx.x / units, unit = blockIdx.x % units;
    const int height = static_cast<int>(extents[2 * picture]), width = static_cast<int>(extents[2 * picture + 1]);
    const int across = (width + 15) / 16, down = (height + 15) / 16;
    if (unit >= across * down) return;
    const int top = unit / across * 16, left = unit % across * 16;
    const byte* image = source + base[picture];
    const int b = threadIdx.x / 8, line = threadIdx.x % 8;
    if (b < 4) {
        const int y = smaller(top + (b / 2) * 8 + line, height - 1), x = left + (b % 2) * 8;
        for (int k = 0; k < 8; ++k)
            blocks[b][9 * line + k] =
                colour(image + (static_cast<long long>(y) * width + smaller(x + k, width - 1)) * 3, 0) - 128;
    } else if (b < 6) {
        const int row = smaller(top / 2 + line, (height + 1) / 2 - 1);  // the last row of chroma is repeated
        const long long upper = static_cast<long long>(2 * row) * width;
        const long long lower = static_cast<long long>(smaller(2 * row + 1, height - 1)) * width;
        for (int k = 0; k < 8; ++k) {
            const int x = left + 2 * k, first = smaller(x, width - 1), second = smaller(x + 1, width - 1);
            const int sum = colour(image + (upper + first) * 3, b - 3) + colour(image + (upper + second) * 3, b - 3) +
                            colour(image + (lower + first) * 3, b - 3) + colour(image + (lower + second) * 3, b - 3);
            blocks[b][9 * line + k] = ((sum + 1 + (k & 1)) >> 2) - 128;
        }
    }
    if (b < 6) forward(&blocks[b][9 * line], 1, false);
    __syncthreads();
    if (b < 6) {
        int* column = &blocks[b][line];
        forward(column, 9, true);
        const int* table = tables + (quality[picture] * 2 + (b < 4 ? 0 : 1)) * 64;
        for (int k = 0; k < 8; ++k) {
            const int step = table[8 * k + line], c = column[9 * k], size = c < 0 ? -c : c;
            const int level = static_cast<unsigned>(size + 4 * step) / static_cast<unsigned>(8 * step);
            column[9 * k] = (c < 0 ? -level : level) * step;
        }
        inverse(column, 9, 11);
    }
    __syncthreads();
    if (b >= 6) return;
    inverse(&blocks[b][9 * line], 1, 18);
    const long long luma = 256ll * across * down;
    byte* plane = planes + scratch[picture] + (b < 4 ? 0 : luma + (b - 4) * (luma / 4));
    const int stride = b < 4 ? 16 * across : 8 * across;
    const int y = b < 4 ? top + (b / 2) * 8 + line : top / 2 + line, x = b < 4 ? left + (b % 2) * 8 : left / 2;
    for (int k = 0; k < 8; ++k)
        plane[static_cast<long long>(y) * stride + x + k] = clipped(blocks[b][9 * line + k] + 128);
}

// A value of a plane of half the size, between its neighbours: three parts of the nearer, one of the farther.
__device__ __forceinline__ int between(const byte* plane, int stride, int rows, int columns, int y, int x) {
    const int row = y / 2, other = y & 1 ? smaller(row + 1, rows - 1) : row > 0 ? row - 1 : 0;
    const byte *near = plane + static_cast<long long>(row) * stride, *far = plane + static_cast<long long>(other) * stride;
    const int column = x / 2, own = near[column] * 3 + far[column];
    const int next = x & 1 ? column + 1 : column - 1;
    if (next < 0) return (own * 4 + 8) >> 4;
    if (next >= columns) return (own * 4 + 7) >> 4;
    return (own * 3 + near[next] * 3 + far[next] + (x & 1 ? 7 : 8)) >> 4;
}

// grid (tiles * pictures): a thread makes a pixel.
extern "C" __global__ void decompress(const byte* planes, const long long* scratch, const long long* extents, int tiles,
                                      byte* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const int height = static_cast<int>(extents[2 * picture]), width = static_cast<int>(extents[2 * picture + 1]);
    const unsigned i = (blockIdx.x % tiles) * blockDim.x + threadIdx.x;  // a picture has fewer than 2^31 values
    if (i >= static_cast<unsigned>(height) * width) return;
    const int y = static_cast<int>(i / width), x = static_cast<int>(i - static_cast<unsigned>(y) * width);
    const int across = (width + 15) / 16, down = (height + 15) / 16;
    const byte* luma = planes + scratch[picture];
    const byte* blue = luma + 256ll * across * down;
    const byte* red = blue + 64ll * across * down;
    const int rows = (height + 1) / 2, columns = (width + 1) / 2, half = 1 << 15;
    const int l = luma[static_cast<long long>(y) * 16 * across + x];
    const int cb = between(blue, 8 * across, rows, columns, y, x) - 128;
    const int cr = between(red, 8 * across, rows, columns, y, x) - 128;
    byte* out = target + out_base[picture] + 3ll * i;
    out[0] = clipped(l + ((91881 * cr + half) >> 16));
    out[1] = clipped(l + ((-46802 * cr - 22554 * cb + half) >> 16));
    out[2] = clipped(l + ((116130 * cb + half) >> 16));
}
