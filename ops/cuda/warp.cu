// rotate and warp_affine (ops/geometry/warp.py).
#include "bilinear.cuh"
#include "division.cuh"

enum Geometry { FRAMES, ROWS, COLUMNS, CHANNELS, HEIGHT, WIDTH, FIELDS };

// Return the integer below `value`, clipped to at most one step outside of 0 ... limit - 1.
__device__ __forceinline__ int cell(double value, int limit) {
    return static_cast<int>(floor(fmin(fmax(value, -2.0), limit + 1.0)));
}

__device__ __forceinline__ int clamp(int i, int limit) { return i < 0 ? 0 : i >= limit ? limit - 1 : i; }

constexpr int PIXELS = 4;  // pixels per thread, `blockDim.x` apart

// grid (tiles, samples); `matrices` [N][2][3] map the output's pixel centres (x, y, 1) to the input.
template <typename In, typename Out>
__global__ void warp(const In* source, const long long* base, const long long* geometry, const double* matrices,
                     int linear, int filled, float fill, Out* target, const long long* out_base) {
    const int sample = blockIdx.y;
    geometry += static_cast<long long>(sample) * FIELDS;
    double m[6];
    #pragma unroll
    for (int k = 0; k < 6; ++k) m[k] = matrices[6ll * sample + k];
    const int rows = static_cast<int>(geometry[ROWS]), columns = static_cast<int>(geometry[COLUMNS]);
    const int channels = static_cast<int>(geometry[CHANNELS]);
    // samples have fewer than 2^31 values (ops/copies/strided.py: MAX_ELEMENTS), and 64-bit divisions took most of the
    // time
    const unsigned int height = static_cast<unsigned int>(geometry[HEIGHT]), width = static_cast<unsigned int>(geometry[WIDTH]);
    const unsigned int count = static_cast<unsigned int>(geometry[FRAMES]) * height * width;
    const In* const picture = source + base[sample];
    Out* const results = target + out_base[sample];
    #pragma unroll 1
    for (int k = 0; k < PIXELS; ++k) {
        const unsigned int i = (blockIdx.x * PIXELS + k) * blockDim.x + threadIdx.x;
        if (i >= count) return;
        const unsigned int line = i / width, frame = line / height;
        const In* image = picture + static_cast<long long>(frame) * rows * columns * channels;
        Out* out = results + static_cast<long long>(i) * channels;
        const double u = static_cast<int>(i - line * width) + 0.5, v = static_cast<int>(line - frame * height) + 0.5;
        const double sx = m[0] * u + m[1] * v + m[2], sy = m[3] * u + m[4] * v + m[5];
        if (!linear) {
            const int x = cell(sx, columns), y = cell(sy, rows);
            const bool outside = filled && (x < 0 || y < 0 || x >= columns || y >= rows);
            const In* at = image + (static_cast<long long>(clamp(y, rows)) * columns + clamp(x, columns)) * channels;
            for (int c = 0; c < channels; ++c)
                out[c] = saturate<Out>(outside ? fill : static_cast<float>(plain(at[c])));
            continue;
        }
        const double px = sx - 0.5, py = sy - 0.5;
        const int x = cell(px, columns), y = cell(py, rows);
        // Far outside, all four neighbours are equal, and the weights have no effect.
        const float fx = static_cast<float>(fmin(fmax(px - x, 0.0), 1.0));
        const float fy = static_cast<float>(fmin(fmax(py - y, 0.0), 1.0));
        if (channels == 3 && x >= 0 && y >= 0 && x + 1 < columns && y + 1 < rows) {
            const In* upper = image + (static_cast<long long>(y) * columns + x) * 3;
            pixel_between(upper, upper + 3ll * columns, fx, fy, out);
            continue;
        }
        const bool west = x >= 0 && x < columns, east = x + 1 >= 0 && x + 1 < columns;
        const bool north = y >= 0 && y < rows, south = y + 1 >= 0 && y + 1 < rows;
        const long long left = clamp(x, columns), right = clamp(x + 1, columns);
        const long long top = static_cast<long long>(clamp(y, rows)) * columns;
        const long long bottom = static_cast<long long>(clamp(y + 1, rows)) * columns;
        const In *nw = image + (top + left) * channels, *ne = image + (top + right) * channels;
        const In *sw = image + (bottom + left) * channels, *se = image + (bottom + right) * channels;
        for (int c = 0; c < channels; ++c) {
            const float a = !filled || (west && north) ? static_cast<float>(plain(nw[c])) : fill;
            const float b = !filled || (east && north) ? static_cast<float>(plain(ne[c])) : fill;
            const float d = !filled || (west && south) ? static_cast<float>(plain(sw[c])) : fill;
            const float e = !filled || (east && south) ? static_cast<float>(plain(se[c])) : fill;
            out[c] = saturate<Out>(between(a, b, d, e, fx, fy));
        }
    }
}

enum VolumeGeometry { PRESENT, V_SLICES, V_ROWS, V_COLUMNS, V_CHANNELS, V_DEPTH, V_HEIGHT, V_WIDTH, V_FIELDS };

// Volumes: grid (tiles, samples); `matrices` [N][3][4] map the output's voxel centres (x, y, z, 1) to the input.
template <typename In, typename Out>
__global__ void warp_volumes(const In* source, const long long* base, const long long* geometry,
                             const double* matrices, int linear, int filled, float fill, Out* target,
                             const long long* out_base) {
    const int sample = blockIdx.y;
    geometry += static_cast<long long>(sample) * V_FIELDS;
    const double* m = matrices + static_cast<long long>(sample) * 12;
    const int slices = static_cast<int>(geometry[V_SLICES]), rows = static_cast<int>(geometry[V_ROWS]);
    const int columns = static_cast<int>(geometry[V_COLUMNS]), channels = static_cast<int>(geometry[V_CHANNELS]);
    const long long height = geometry[V_HEIGHT], width = geometry[V_WIDTH];
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (geometry[PRESENT] == 0 || i >= geometry[V_DEPTH] * height * width) return;
    const In* volume = source + base[sample];
    Out* out = target + out_base[sample] + i * channels;
    long long rest = i;
    const double u = split(rest, width) + 0.5, v = split(rest, height) + 0.5, w = rest + 0.5;
    const double half = linear ? 0.5 : 0.0;
    const double sx = m[0] * u + m[1] * v + m[2] * w + m[3] - half;
    const double sy = m[4] * u + m[5] * v + m[6] * w + m[7] - half;
    const double sz = m[8] * u + m[9] * v + m[10] * w + m[11] - half;
    const int x = cell(sx, columns), y = cell(sy, rows), z = cell(sz, slices);
    // Far outside, all neighbours are equal, and the weights have no effect.
    const float fx = linear ? static_cast<float>(fmin(fmax(sx - x, 0.0), 1.0)) : 0.0f;
    const float fy = linear ? static_cast<float>(fmin(fmax(sy - y, 0.0), 1.0)) : 0.0f;
    const float fz = linear ? static_cast<float>(fmin(fmax(sz - z, 0.0), 1.0)) : 0.0f;
    for (int c = 0; c < channels; ++c) {
        float value = 0.0f;
        for (int corner = 0; corner < (linear ? 8 : 1); ++corner) {
            const int a = x + (corner & 1), b = y + (corner >> 1 & 1), d = z + (corner >> 2);
            const bool outside = filled && (a < 0 || b < 0 || d < 0 || a >= columns || b >= rows || d >= slices);
            const long long line = static_cast<long long>(clamp(d, slices)) * rows + clamp(b, rows);
            const float one =
                outside ? fill : static_cast<float>(plain(volume[(line * columns + clamp(a, columns)) * channels + c]));
            const float weight = (corner & 1 ? fx : 1.0f - fx) * (corner & 2 ? fy : 1.0f - fy) *
                                 (corner & 4 ? fz : 1.0f - fz);
            value += one * weight;
        }
        out[c] = saturate<Out>(value);
    }
}
