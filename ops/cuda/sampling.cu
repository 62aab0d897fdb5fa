// Pixels taken from other positions (ops/geometry/sampling.py): a thread computes PIXELS output pixels, `blockDim.x`
// apart. Coordinates refer to pixel centres.
#include "bilinear.cuh"
#include "borders.cuh"

enum Kind { PERSPECTIVE, AFFINE, WATER, SPHERE, MAPS };
enum Filter { NEAREST, NEAREST_EVEN, LINEAR, CUBIC };

constexpr int PIXELS = 4;

// Compute the source of the output pixel (x, y).
__device__ __forceinline__ void place(int kind, const double* p, int x, int y, int rows, int columns, const float* map_x,
                                      const float* map_y, const long long* begins, int at, double& sx, double& sy) {
    if (kind == PERSPECTIVE) {
        const double w = p[6] * x + p[7] * y + p[8], scale = w != 0 ? 1 / w : 0;
        sx = (p[0] * x + p[1] * y + p[2]) * scale;
        sy = (p[3] * x + p[4] * y + p[5]) * scale;
    } else if (kind == AFFINE) {
        sx = p[0] * x + p[1] * y + p[2];
        sy = p[3] * x + p[4] * y + p[5];
    } else if (kind == WATER) {
        const float fx = static_cast<float>(x), fy = static_cast<float>(y);
        const float along = __fadd_rn(__fmul_rn(static_cast<float>(p[2]), fy), static_cast<float>(p[4]));
        const float down = __fadd_rn(__fmul_rn(static_cast<float>(p[3]), fx), static_cast<float>(p[5]));
        sx = static_cast<double>(__fadd_rn(fx, __fmul_rn(static_cast<float>(p[0]), sinf(along)))) - 0.5;
        sy = static_cast<double>(__fadd_rn(fy, __fmul_rn(static_cast<float>(p[1]), cosf(down)))) - 0.5;
    } else if (kind == SPHERE) {
        const float half_x = columns * 0.5f, half_y = rows * 0.5f;
        int whole = static_cast<int>(half_x > half_y ? half_x : half_y);
        if (whole < 1) whole = 1;
        const float dx = (x + 0.5f) - half_x, dy = (y + 0.5f) - half_y;
        const float far = sqrtf(__fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy))) / static_cast<float>(whole);
        sx = static_cast<double>(__fadd_rn(half_x, __fmul_rn(far, dx))) - 0.5;
        sy = static_cast<double>(__fadd_rn(half_y, __fmul_rn(far, dy))) - 0.5;
    } else {
        sx = static_cast<double>(map_x[begins[0] + at]) - p[0];
        sy = static_cast<double>(map_y[begins[1] + at]) - p[0];
    }
    const double far_away = 1e8;
    sx = sx > far_away ? far_away : sx > -far_away ? sx : -far_away;  // also if sx is NaN
    sy = sy > far_away ? far_away : sy > -far_away ? sy : -far_away;
}

// Compute the weights of Keys' cubic filter with a = -3/4, as in OpenCV.
__device__ __forceinline__ void keys(float t, float* weights) {
    const float a = -0.75f, u = t + 1, s = 1 - t;
    weights[0] = ((a * u - 5 * a) * u + 8 * a) * u - 4 * a;
    weights[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
    weights[2] = ((a + 2) * s - (a + 3)) * s * s + 1;
    weights[3] = 1 - weights[0] - weights[1] - weights[2];
}

// grid (tiles, samples); `params` [N][9]; `map_base` [N][2]; the maps have one element per pixel of an output plane;
// `fills` [1 or N][fill_width].
template <typename In, typename Out>
__global__ void __launch_bounds__(256, 4)
    sample(const In* source, const long long* base, const long long* geometry, int kind, const double* __restrict__ params,
           const float* map_x, const float* map_y, const long long* __restrict__ map_base, int filter, int border,
           const float* __restrict__ fills, int fill_width, int fill_rows, Out* __restrict__ target,
           const long long* out_base) {
    const int sample = blockIdx.y;
    geometry += static_cast<long long>(sample) * FIELDS;
    params += 9LL * sample;
    fills += static_cast<long long>(fill_rows) * sample * fill_width;
    const int rows = static_cast<int>(geometry[ROWS]), columns = static_cast<int>(geometry[COLUMNS]);
    const int channels = static_cast<int>(geometry[CHANNELS]);
    const int width = static_cast<int>(geometry[WIDTH]), height = static_cast<int>(geometry[HEIGHT]);
    // samples have fewer than 2^31 values (ops/copies/strided.py: MAX_ELEMENTS)
    const unsigned int plane = static_cast<unsigned int>(height) * static_cast<unsigned int>(width);
    const unsigned int count = static_cast<unsigned int>(geometry[PLANES]) * plane;
    const In* const picture = source + base[sample];
    Out* const results = target + out_base[sample];
    #pragma unroll 1
    for (int turn = 0; turn < PIXELS; ++turn) {
        const unsigned int i = (blockIdx.x * PIXELS + turn) * blockDim.x + threadIdx.x;
        if (i >= count) return;
        const unsigned int number = i / plane;
        const int within = static_cast<int>(i - number * plane), y = within / width, x = within - y * width;
        const In* image = picture + static_cast<long long>(number) * rows * columns * channels;
        Out* out = results + static_cast<long long>(i) * channels;
        double sx, sy;
        place(kind, params, x, y, rows, columns, map_x, map_y, map_base + 2LL * sample, within, sx, sy);

        if (filter == NEAREST || filter == NEAREST_EVEN) {
            const int a = inside(static_cast<int>(filter == NEAREST ? floor(sx + 0.5) : rint(sx)), columns, border);
            const int b = inside(static_cast<int>(filter == NEAREST ? floor(sy + 0.5) : rint(sy)), rows, border);
            for (int c = 0; c < channels; ++c)
                out[c] = a < 0 || b < 0 ? saturate<Out>(fills[fill_width > 1 ? c : 0])
                                        : saturate<Out>(image[(static_cast<long long>(b) * columns + a) * channels + c]);
            continue;
        }
        const double left = floor(sx), top = floor(sy);
        const int x0 = static_cast<int>(left), y0 = static_cast<int>(top);
        const float fx = static_cast<float>(sx - left), fy = static_cast<float>(sy - top);
        if (filter == LINEAR) {
            const int i0 = inside(x0, columns, border), i1 = inside(x0 + 1, columns, border);
            const int j0 = inside(y0, rows, border), j1 = inside(y0 + 1, rows, border);
            const In *upper = image + static_cast<long long>(j0) * columns * channels,
                     *lower = image + static_cast<long long>(j1) * columns * channels;
            if (channels == 3 && x0 >= 0 && y0 >= 0 && i1 == x0 + 1 && j1 == y0 + 1) {
                pixel_between(upper + 3ll * x0, lower + 3ll * x0, fx, fy, out);
                continue;
            }
            for (int c = 0; c < channels; ++c) {
                const float fill = fills[fill_width > 1 ? c : 0];
                const float a = i0 < 0 || j0 < 0 ? fill : static_cast<float>(plain(upper[i0 * channels + c]));
                const float b = i1 < 0 || j0 < 0 ? fill : static_cast<float>(plain(upper[i1 * channels + c]));
                const float d = i0 < 0 || j1 < 0 ? fill : static_cast<float>(plain(lower[i0 * channels + c]));
                const float e = i1 < 0 || j1 < 0 ? fill : static_cast<float>(plain(lower[i1 * channels + c]));
                out[c] = saturate<Out>(between(a, b, d, e, fx, fy));
            }
            continue;
        }
        float across[4], down[4];
        keys(fx, across);
        keys(fy, down);
        for (int c = 0; c < channels; ++c) {
            const float fill = fills[fill_width > 1 ? c : 0];
            float total = 0;
            for (int r = 0; r < 4; ++r) {
                const int j = inside(y0 + r - 1, rows, border);
                float line = 0;
                for (int k = 0; k < 4; ++k) {
                    const int column = inside(x0 + k - 1, columns, border);
                    const long long at = (static_cast<long long>(j) * columns + column) * channels + c;
                    line += across[k] * (j < 0 || column < 0 ? fill : static_cast<float>(plain(image[at])));
                }
                total += down[r] * line;
            }
            out[c] = saturate<Out>(total);
        }
    }
}
