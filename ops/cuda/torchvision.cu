// Steps of the operator torchvision (ops/libraries/torchvision_on_gpu.py): one launch per step for all images of a
// batch, each with its own kind and numbers. Formulas and the order of float operations are those of
// ops/libraries/torchvision_cpu.py, with products and sums rounded at the same points: results are equal to the bit.

enum Kind {
    NOTHING, BRIGHTNESS, CONTRAST, SATURATION, HUE, POSTERIZE, SOLARIZE, INVERT, AUTOCONTRAST, EQUALIZE, SHARPNESS, GRAY,
    PERMUTE, BLUR, FLIP, TURN, WINDOW, AFFINE, PERSPECTIVE
};
typedef unsigned char byte;
const int NUMBERS = 16;

struct Job {
    long long source, target;  // offsets of the image in the memory before and after the step
    long long from, to;        // 0: the input, 1 and 2: buffers between steps, 3: the output
    long long kind, numbers;   // kind of step, and row of its numbers
    long long channels, rows, columns;
    long long channels_after, rows_after, columns_after;
    long long table;           // offset of its table: of bytes, or a blur's weights among `windows`
};

__device__ __forceinline__ byte level(float v) { return static_cast<byte>(static_cast<int>(fminf(fmaxf(v, 0.0f), 255.0f))); }

__device__ __forceinline__ byte rounded(double v) { return static_cast<byte>(static_cast<int>(rint(v))); }

__device__ __forceinline__ float gray_of(float r, float g, float b) {
    return fmaf(b, 0.114f, fmaf(g, 0.587f, __fmul_rn(r, 0.2989f)));
}

__device__ __forceinline__ const byte* before(const Job& job, const byte* input, const byte* between, long long size) {
    return (job.from == 0 ? input : between + (job.from - 1) * size) + job.source;
}

// An image, planar or with interleaved channels.
template <typename T> struct View {
    T* data;
    long long pixel, plane;
    __device__ View(T* data, long long channels, long long rows, long long columns, bool interleaved)
        : data(data), pixel(interleaved ? channels : 1), plane(interleaved ? 1 : rows * columns) {}
    __device__ T& at(long long c, long long i) const { return data[c * plane + i * pixel]; }
};
typedef View<const byte> Source;
typedef View<byte> Target;

// grid (entries): compute for each [job, channel] the facts that its step needs about all pixels: the mean of an image
// for CONTRAST (channel -1), else a table of 256 bytes.
extern "C" __global__ void __launch_bounds__(512)
    torchvision_tables(const byte* input, const byte* between, long long size, const Job* jobs, const long long* entries,
                       int interleaved, byte* tables) {
    __shared__ unsigned counts[256];
    __shared__ unsigned long long total;
    const Job job = jobs[entries[2 * blockIdx.x]];
    const long long c = entries[2 * blockIdx.x + 1], pixels = job.rows * job.columns;
    const Source s(before(job, input, between, size), job.channels, job.rows, job.columns, interleaved);
    for (int i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    byte* table = tables + job.table + (c < 0 ? 0 : 256 * c);
    if (job.kind == CONTRAST) {
        unsigned long long sum = 0;
        for (long long i = threadIdx.x; i < pixels; i += blockDim.x)
            sum += job.channels == 3 ? static_cast<int>(gray_of(s.at(0, i), s.at(1, i), s.at(2, i))) : s.at(0, i);
        atomicAdd(&total, sum);
        __syncthreads();
        if (threadIdx.x == 0)
            *reinterpret_cast<float*>(table) =
                __fdiv_rn(static_cast<float>(static_cast<long long>(total)), static_cast<float>(pixels));
        return;
    }
    for (long long i = threadIdx.x; i < pixels; i += blockDim.x) atomicAdd(&counts[s.at(c, i)], 1u);
    __syncthreads();
    if (threadIdx.x != 0) return;
    int low = 0, top = 255;
    while (low < 255 && counts[low] == 0) ++low;
    while (top > 0 && counts[top] == 0) --top;
    if (job.kind == AUTOCONTRAST) {
        const float base = low, span = __fmul_rn(__fsub_rn(top, low), static_cast<float>(1.0 / 255.0));
        for (int v = 0; v < 256; ++v)
            table[v] = low == top ? v : level(__fdiv_rn(__fsub_rn(v, base), span));
        return;
    }
    const long long step = (pixels - counts[top]) / 255;
    long long sum = 0;
    for (int v = 0; v < 256; ++v) {
        table[v] = step == 0 ? v : v == 0 ? 0 : static_cast<byte>(min((sum + step / 2) / step, 255LL));
        sum += counts[v];
    }
}

__device__ void hue(float shift, byte red, byte green, byte blue, byte* out) {
    const float scale = static_cast<float>(1.0 / 255.0), sixth = static_cast<float>(1.0 / 6.0);
    const float wide = static_cast<float>(255.0 + 1.0 - 1e-3);
    const float r = __fmul_rn(red, scale), g = __fmul_rn(green, scale), b = __fmul_rn(blue, scale);
    const float top = fmaxf(fmaxf(r, g), b), low = fminf(fminf(r, g), b);
    const bool flat = top == low;
    const float s = __fdiv_rn(__fsub_rn(top, low), flat ? 1.0f : top), span = flat ? 1.0f : __fsub_rn(top, low);
    const float rc = __fdiv_rn(__fsub_rn(top, r), span), gc = __fdiv_rn(__fsub_rn(top, g), span);
    const float bc = __fdiv_rn(__fsub_rn(top, b), span);
    float h = top == r ? __fsub_rn(bc, gc) : top == g ? __fsub_rn(__fadd_rn(rc, 2.0f), bc) : __fsub_rn(__fadd_rn(gc, 4.0f), rc);
    h = __fadd_rn(__fmul_rn(h, sixth), 1.0f);
    h = h >= 1.0f ? __fsub_rn(h, 1.0f) : h;
    h = __fadd_rn(h, shift);
    h = h >= 1.0f ? __fsub_rn(h, 1.0f) : h;
    h = h < 0.0f ? __fadd_rn(h, 1.0f) : h;
    h = __fmul_rn(h, 6.0f);
    const float whole = floorf(h), f = __fsub_rn(h, whole);
    const int k = static_cast<int>(whole == 6.0f ? 0.0f : whole);
    const float sf = __fmul_rn(s, f), rest = __fsub_rn(1.0f, s);
    const float q = fminf(fmaxf(__fmul_rn(__fsub_rn(1.0f, sf), top), 0.0f), 1.0f);
    const float t = fminf(fmaxf(__fmul_rn(__fadd_rn(sf, rest), top), 0.0f), 1.0f);
    const float p = fminf(fmaxf(__fmul_rn(rest, top), 0.0f), 1.0f);
    const float u = k == 0 || k == 5 ? top : k == 1 ? q : k == 4 ? t : p;
    const float v = k == 0 ? t : k == 1 || k == 2 ? top : k == 3 ? q : p;
    const float w = k == 0 || k == 1 ? p : k == 2 ? t : k == 5 ? q : top;
    out[0] = static_cast<byte>(static_cast<int>(__fmul_rn(u, wide)));
    out[1] = static_cast<byte>(static_cast<int>(__fmul_rn(v, wide)));
    out[2] = static_cast<byte>(static_cast<int>(__fmul_rn(w, wide)));
}

__device__ byte sharpened(const Source& s, long long rows, long long columns, long long c, long long y, long long x, float rest) {
    const long long at = y * columns + x;
    const byte middle = s.at(c, at);
    if (y == 0 || x == 0 || y == rows - 1 || x == columns - 1) return middle;
    unsigned total = 4u * middle;
    for (long long j = -columns; j <= columns; j += columns)
        for (int i = -1; i <= 1; ++i) total += s.at(c, at + j + i);
    const float smooth = static_cast<float>((2u * total + 13u) / 26u);
    return level(fmaf(__fsub_rn(smooth, middle), rest, middle));
}

__device__ __forceinline__ long long mirrored(long long i, long long n) {
    i = i < 0 ? -i : i;
    return i < n ? i : 2 * n - 2 - i;
}

// Sum a window in PyTorch's order; `fused`: product and sum are rounded once.
__device__ byte blurred(const Source& s, long long rows, long long columns, long long c, long long y, long long x, int kx,
                        int ky, const float* across, bool fused) {
    const float* down = across + kx;
    float total = 0.0f;
    for (int j = 0; j < ky; ++j) {
        const long long line = mirrored(y + j - ky / 2, rows) * columns;
        for (int i = 0; i < kx; ++i) {
            const float value = s.at(c, line + mirrored(x + i - kx / 2, columns)), weight = __fmul_rn(down[j], across[i]);
            total = fused ? fmaf(value, weight, total) : __fadd_rn(total, __fmul_rn(value, weight));
        }
    }
    return static_cast<byte>(static_cast<int>(rintf(total)));
}

// Return the index inside [0, n) that replaces `i`, or -1 for the fill value. `mode`: 0 constant, 1 edge, 2 reflect, 3
// symmetric.
__device__ __forceinline__ long long inside(long long i, long long n, int mode) {
    if (0 <= i && i < n) return i;
    if (mode == 0) return -1;
    if (mode == 1 || n == 1) return i < 0 ? 0 : n - 1;
    const long long period = mode == 2 ? 2 * n - 2 : 2 * n;
    i = (i % period + period) % period;
    return i < n ? i : period - i - (mode == 2 ? 0 : 1);
}

// Take a pixel from its position under an affine or perspective map.
__device__ void moved(const Source& s, const Job& job, const double* p, long long y, long long x, const Target& o, long long to) {
    const long long rows = job.rows, columns = job.columns;
    const float half_x = static_cast<float>(columns * 0.5), half_y = static_cast<float>(rows * 0.5);
    const float a = __fdiv_rn(p[2], half_x), b = __fdiv_rn(p[3], half_x), c = __fdiv_rn(p[4], half_x);
    const float d = __fdiv_rn(p[5], half_y), e = __fdiv_rn(p[6], half_y), f = __fdiv_rn(p[7], half_y);
    float sx, sy;
    if (job.kind == PERSPECTIVE) {
        const float u = __fadd_rn(x, 0.5f), v = __fadd_rn(y, 0.5f), g = p[8], h = p[9];
        const float below = __fadd_rn(__fadd_rn(__fmul_rn(u, g), __fmul_rn(v, h)), 1.0f);
        sx = __fsub_rn(__fdiv_rn(__fadd_rn(__fadd_rn(__fmul_rn(u, a), __fmul_rn(v, b)), c), below), 1.0f);
        sy = __fsub_rn(__fdiv_rn(__fadd_rn(__fadd_rn(__fmul_rn(u, d), __fmul_rn(v, e)), f), below), 1.0f);
    } else {
        const float u = __fsub_rn(x, __fmul_rn(job.columns_after - 1, 0.5f));
        const float v = __fsub_rn(y, __fmul_rn(job.rows_after - 1, 0.5f));
        sx = __fadd_rn(__fadd_rn(__fmul_rn(u, a), __fmul_rn(v, b)), c);
        sy = __fadd_rn(__fadd_rn(__fmul_rn(u, d), __fmul_rn(v, e)), f);
    }
    sx = fmaf(__fadd_rn(sx, 1.0f), half_x, -0.5f);
    sy = fmaf(__fadd_rn(sy, 1.0f), half_y, -0.5f);
    const bool filled = p[1] != 0;
    if (p[0] == 0) {
        const float i = rintf(sx), j = rintf(sy);
        const bool within = i >= 0 && i < columns && j >= 0 && j < rows;
        const long long at = within ? static_cast<long long>(j) * columns + static_cast<long long>(i) : 0;
        for (long long k = 0; k < job.channels; ++k)
            o.at(k, to) = within ? s.at(k, at) : filled ? rounded(p[12 + min(k, 3LL)]) : 0;
        return;
    }
    const float left = floorf(sx), top = floorf(sy);
    const float fx = __fsub_rn(sx, left), fy = __fsub_rn(sy, top), gx = __fsub_rn(1.0f, fx), gy = __fsub_rn(1.0f, fy);
    const float nw = __fmul_rn(gx, gy), ne = __fmul_rn(fx, gy), sw = __fmul_rn(gx, fy), se = __fmul_rn(fx, fy);
    if (!(left >= -1 && left < columns && top >= -1 && top < rows)) {
        for (long long k = 0; k < job.channels; ++k) o.at(k, to) = filled ? rounded(p[12 + min(k, 3LL)]) : 0;
        return;
    }
    const long long i = static_cast<long long>(left), j = static_cast<long long>(top), at = j * columns + i;
    const bool west = i >= 0, east = i < columns - 1, north = j >= 0, south = j < rows - 1;
    float mask = north && west ? nw : 0.0f;
    mask = fmaf(north && east ? 1.0f : 0.0f, ne, mask);
    mask = fmaf(south && west ? 1.0f : 0.0f, sw, mask);
    mask = fmaf(south && east ? 1.0f : 0.0f, se, mask);
    for (long long k = 0; k < job.channels; ++k) {
        float value = __fmul_rn(north && west ? s.at(k, at) : 0.0f, nw);
        value = fmaf(north && east ? s.at(k, at + 1) : 0.0f, ne, value);
        value = fmaf(south && west ? s.at(k, at + columns) : 0.0f, sw, value);
        value = fmaf(south && east ? s.at(k, at + columns + 1) : 0.0f, se, value);
        if (filled) {
            const float fill = p[12 + min(k, 3LL)];
            value = __fadd_rn(__fmul_rn(__fsub_rn(value, fill), mask), fill);
        }
        o.at(k, to) = static_cast<byte>(static_cast<int>(rintf(value)));
    }
}

// Compute a pixel whose channels depend on each other, or only on themselves.
__device__ void changed(const Source& s, const Job& job, const double* p, long long i, const byte* table, const Target& o) {
    const int kind = static_cast<int>(job.kind);
    const float factor = p[0], rest = static_cast<float>(1.0 - p[0]);
    if (kind == GRAY) {
        const byte v = job.channels == 1 ? s.at(0, i) : level(gray_of(s.at(0, i), s.at(1, i), s.at(2, i)));
        for (long long c = 0; c < job.channels_after; ++c) o.at(c, i) = v;
        return;
    }
    if (kind == HUE && job.channels == 3) {
        byte made[3];
        hue(factor, s.at(0, i), s.at(1, i), s.at(2, i), made);
        for (int c = 0; c < 3; ++c) o.at(c, i) = made[c];
        return;
    }
    float center = 0.0f;
    if (kind == CONTRAST) center = *reinterpret_cast<const float*>(table);
    if (kind == SATURATION && job.channels == 3) center = floorf(gray_of(s.at(0, i), s.at(1, i), s.at(2, i)));
    const int keep = kind == POSTERIZE && p[0] > 0 ? 256 - (1 << (8 - static_cast<int>(p[0]))) : 0;
    for (long long c = 0; c < job.channels; ++c) {
        const byte v = s.at(c, i);
        byte made = v;
        if (kind == BRIGHTNESS) made = level(__fmul_rn(v, factor));
        else if (kind == CONTRAST || (kind == SATURATION && job.channels == 3)) made = level(fmaf(center, rest, __fmul_rn(v, factor)));
        else if (kind == POSTERIZE) made = v & keep;
        else if (kind == SOLARIZE) made = static_cast<float>(v) >= factor ? 255 - v : v;
        else if (kind == INVERT) made = 255 - v;
        else if (kind == AUTOCONTRAST || kind == EQUALIZE) made = table[256 * c + v];
        else if (kind == PERMUTE) made = s.at(static_cast<long long>(p[c]), i);
        o.at(c, i) = made;
    }
}

// grid (tiles, jobs): apply one step to each job's image.
extern "C" __global__ void __launch_bounds__(256)
    torchvision_step(const byte* input, byte* between, long long size, byte* output, const Job* jobs, const double* numbers,
                     const byte* tables, const float* windows, int interleaved) {
    const Job job = jobs[blockIdx.y];
    const double* p = numbers + job.numbers * NUMBERS;
    const int kind = static_cast<int>(job.kind);
    const long long rows = job.rows, columns = job.columns, width = job.columns_after, pixels = job.rows_after * width;
    const Source s(before(job, input, between, size), job.channels, rows, columns, interleaved);
    const Target o((job.to == 3 ? output : between + (job.to - 1) * size) + job.target, job.channels_after, job.rows_after,
                   width, interleaved);
    const bool thin = rows <= 2 || columns <= 2;
    const float rest = static_cast<float>(1.0 - p[0]);
    const int kx = static_cast<int>(p[0]), ky = static_cast<int>(p[1]), mode = static_cast<int>(p[4]);
    // For small gray images and narrow windows, PyTorch uses another loop than oneDNN's.
    const bool fused = job.channels > 1 || (kx > 3 && ky > 3) || (columns + kx - 1) * (rows + ky - 1) > 20480;
    const int quarters = static_cast<int>(p[0]) % 4, axes = kind == TURN ? (quarters == 2 ? 3 : 0) : static_cast<int>(p[0]);
    for (long long to = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; to < pixels;
         to += static_cast<long long>(gridDim.x) * blockDim.x) {
        const long long y = to / width, x = to % width;
        if (kind == AFFINE || kind == PERSPECTIVE) {
            moved(s, job, p, y, x, o, to);
        } else if (kind == FLIP || kind == TURN || kind == WINDOW) {
            long long j, i;
            if (kind == WINDOW) {
                j = inside(static_cast<long long>(p[0]) + y, rows, mode);
                i = inside(static_cast<long long>(p[1]) + x, columns, mode);
            } else if (kind == TURN && quarters % 2) {
                j = quarters == 1 ? x : rows - 1 - x;
                i = quarters == 1 ? columns - 1 - y : y;
            } else {
                j = axes & 2 ? rows - 1 - y : y;
                i = axes & 1 ? columns - 1 - x : x;
            }
            for (long long c = 0; c < job.channels; ++c)
                o.at(c, to) = i < 0 || j < 0 ? static_cast<byte>(static_cast<long long>(p[5 + min(c, 3LL)]))
                                             : s.at(c, j * columns + i);
        } else if (kind == SHARPNESS && !thin) {
            for (long long c = 0; c < job.channels; ++c) o.at(c, to) = sharpened(s, rows, columns, c, y, x, rest);
        } else if (kind == BLUR) {
            for (long long c = 0; c < job.channels; ++c)
                o.at(c, to) = blurred(s, rows, columns, c, y, x, kx, ky, windows + job.table, fused);
        } else {
            changed(s, job, p, to, tables + job.table, o);
        }
    }
}

// grid (tiles, images): convert bytes to floats of 0 ... 1, divided by 255 or multiplied by 1 / 255; then (v - mean) /
// std, if there are `statistics` numbers of each; every operation is rounded. `geometry` [N][4]: from, to, channels,
// pixels.
extern "C" __global__ void __launch_bounds__(256)
    torchvision_floats(const byte* input, float* output, const long long* geometry, const float* mean, const float* std,
                       int means, int stds, int divide) {
    const long long* image = geometry + 4LL * blockIdx.y;
    const long long pixels = image[3], total = image[2] * pixels;
    const float scale = static_cast<float>(1.0 / 255.0);
    for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < total;
         i += static_cast<long long>(gridDim.x) * blockDim.x) {
        const float v = input[image[0] + i];
        float made = divide ? __fdiv_rn(v, 255.0f) : __fmul_rn(v, scale);
        if (means) made = __fdiv_rn(__fsub_rn(made, mean[i / pixels % means]), std[i / pixels % stds]);
        output[image[1] + i] = made;
    }
}

__device__ byte reversed(byte pixel) { return pixel; }
__device__ unsigned reversed(unsigned four) {
    return (four >> 24) | ((four >> 8) & 0xff00u) | ((four << 8) & 0xff0000u) | (four << 24);
}

// grid (tiles, images): images one after the other, with `rows` rows in all channels, `height` per channel, `width`
// words per row; images with a flag are mirrored, or flipped upside down.
template <typename Word>
__global__ void torchvision_flips(const Word* input, Word* output, const signed char* flags, int rows, int height,
                                  int width, int upside_down) {
    const int total = rows * width;
    const Word* from = input + static_cast<long long>(blockIdx.y) * total;
    Word* to = output + static_cast<long long>(blockIdx.y) * total;
    const bool flips = flags[blockIdx.y];
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        if (!flips) {
            to[i] = from[i];
            continue;
        }
        const int row = i / width, x = i - row * width;
        if (upside_down) {
            const int y = row % height;
            to[i] = from[(row - y + height - 1 - y) * width + x];
        } else {
            to[i] = reversed(from[row * width + width - 1 - x]);
        }
    }
}

// grid (tiles, images): fill the window [top, left, height, width] of images with values. `windows` [N][13]: from, to,
// elements, rows, columns, the window, offset of its values, and their strides along channels, rows, columns.
template <typename T>
__global__ void torchvision_erased(const T* input, T* output, const long long* windows, const float* values) {
    const long long* w = windows + 13LL * blockIdx.y;
    for (long long t = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; t < w[2];
         t += static_cast<long long>(gridDim.x) * blockDim.x) {
        const long long x = t % w[4] - w[6], line = t / w[4], y = line % w[3] - w[5], c = line / w[3];
        const bool within = x >= 0 && x < w[8] && y >= 0 && y < w[7];
        output[w[1] + t] = within ? static_cast<T>(values[w[9] + c * w[10] + y * w[11] + x * w[12]]) : input[w[0] + t];
    }
}
