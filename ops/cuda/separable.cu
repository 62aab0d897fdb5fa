// gaussian_blur and laplacian (ops/filters/separable.py): a window along one axis of all images. Neighbouring values
// that threads of a block share come from the L1 cache; reads of bytes and of whole lines do not exhaust it.
// The kernel `plane` applies both axes to 8-bit images at once, for symmetric windows.
#include "border.cuh"
#include "convert.cuh"

// grid (tiles * images): `sizes` [5] is images, depth, height, width, channels. Windows are [terms][3][longest], with
// lengths `counts` [terms][3]. In the last pass of a term, sums are scaled, and added to `total` if `more`. A thread
// computes FOLD values, a block's width apart. Index is the type that counts the values of an image: 64-bit divisions
// took most of the time.
constexpr int FOLD = 4;

template <typename In, typename Out, typename Index>
__global__ void along(const In* source, const long long* base, const long long* sizes, int tiles, const float* windows,
                      const int* counts, const float* factors, int terms, int term, int longest, int axis, int last,
                      const float* total, int more, Out* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long* size = sizes + 5ll * picture;
    Index step = static_cast<Index>(size[4]);  // distance between neighbours along the axis
    for (int a = 2; a > axis; --a) step *= static_cast<Index>(size[a + 1]);
    const Index length = static_cast<Index>(size[axis + 1]);
    const Index values = static_cast<Index>(size[0] * size[1] * size[2] * size[3] * size[4]);
    const long long row = static_cast<long long>(picture) * terms + term;
    const int count = counts[row * 3 + axis], radius = count / 2;
    const float* window = windows + (row * 3 + axis) * longest;
    const float factor = factors[row];
    source += base[picture];
    target += out_base[picture];
    total += more ? out_base[picture] : 0;
    const Index first = static_cast<Index>(blockIdx.x % tiles) * blockDim.x * FOLD + threadIdx.x;
    for (int f = 0; f < FOLD; ++f) {
        const Index i = first + static_cast<Index>(f) * blockDim.x;
        if (i >= values) return;
        const int at = static_cast<int>(i / step % length);
        const In* line = source + i;
        float sum = 0;
        if (at >= radius && at + radius < static_cast<int>(length)) {
            line -= static_cast<long long>(radius) * step;
            for (int k = 0; k < count; ++k, line += step) sum += window[k] * static_cast<float>(plain(*line));
        } else {
            for (int k = 0; k < count; ++k) {
                const int from = place(at + k - radius, static_cast<int>(length), REFLECT_101);
                sum += window[k] * static_cast<float>(plain(line[(from - at) * static_cast<long long>(step)]));
            }
        }
        if (last) sum *= factor;
        if (more) sum += total[i];
        target[i] = saturate<Out>(sum);
    }
}

constexpr int ACROSS = 4;         // adjacent pixels per thread
// values of a line that a thread reads: its own and, for some threads, those of the margins
constexpr int READ = ACROSS + 1;
constexpr int LINES = 4;          // lines between two barriers
constexpr int MOST = 192;         // maximum threads per block
constexpr int STRIP = 64;         // lines of the result per block

// Round a number from 0 to 255.5 to the nearest integer without conversion instructions, which are slow.
__device__ __forceinline__ void put(float value, unsigned char* to) {
    *to = static_cast<unsigned char>(__float_as_uint(__fadd_rn(fminf(value, 255.0f), 8388608.0f)));
}
__device__ __forceinline__ void put(float value, float* to) { *to = value; }

// Copy a line of values from shared to global memory; bytes in fours if the lines of the image are `aligned`.
__device__ __forceinline__ void write(const unsigned char* from, unsigned char* to, int n, bool aligned) {
    const int whole = aligned ? n & ~3 : 0, k = threadIdx.x;
    if (4 * k < whole) reinterpret_cast<unsigned int*>(to)[k] = reinterpret_cast<const unsigned int*>(from)[k];
    for (int i = whole + k; i < n; i += blockDim.x) to[i] = from[i];
}
__device__ __forceinline__ void write(const float* from, float* to, int n, bool) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i];
}

// Images of C channels; one term of symmetric windows of length 2 R + 1 at most. `pieces` blocks per image: `across`
// side by side, then strips downwards, then frames; at least 2 R C threads. Lines are read one after the other: each
// thread sums ACROSS of its pixels along the line, and adds these sums to the 2 R + 1 results above and below to which
// they belong, which stay in registers.
template <typename Out, int R, int C>
__global__ void __launch_bounds__(MOST, R <= 3 ? 4 : R <= 6 ? 3 : 2)
    plane(const unsigned char* source, const long long* base, const long long* sizes, int pieces, int across, int strips,
          const float* windows, const int* counts, const float* factors, int longest, Out* target, const long long* out_base) {
    __shared__ float lines[LINES][READ * MOST];
    __shared__ __align__(16) Out made[LINES][ACROSS * MOST];
    const int picture = blockIdx.x / pieces, piece = blockIdx.x % pieces, threads = blockDim.x, thread = threadIdx.x;
    const long long* size = sizes + 5ll * picture;
    const int height = static_cast<int>(size[2]), width = static_cast<int>(size[3]);
    const int frame = piece / (across * strips), tile = ACROSS * (threads / C);
    const int left = piece % across * tile, top = piece / across % strips * STRIP;
    if (frame >= size[0] * size[1] || left >= width || top >= height) return;
    const int pitch = width * C, right = min(left + tile, width), bottom = min(top + STRIP, height), n = (right - left) * C;
    source += base[picture] + frame * static_cast<long long>(height) * pitch;
    target += out_base[picture] + frame * static_cast<long long>(height) * pitch + left * C;
    const bool aligned = ((reinterpret_cast<unsigned long long>(target) | static_cast<unsigned int>(pitch)) & 3) == 0;

    float along[R + 1], down[R + 1];  // weights by distance
    const int* count = counts + 3ll * picture;
    const float* window = windows + 3ll * picture * longest;
    const int radius_along = count[2] / 2, radius_down = count[1] / 2;
    const float factor = factors[picture];
    #pragma unroll
    for (int k = 0; k <= R; ++k) {
        along[k] = k <= radius_along ? window[2 * longest + radius_along + k] : 0.0f;
        down[k] = k <= radius_down ? factor * window[longest + radius_down + k] : 0.0f;
    }
    int from[READ];  // positions of this thread's values in a line
    #pragma unroll
    for (int k = 0; k < READ; ++k) {
        const int at = thread + k * threads, x = left - R + at / C;
        from[k] = at < n + 2 * R * C ? place(x, width, REFLECT_101) * C + at % C : -1;
    }
    const int begin = thread / C * ACROSS * C + thread % C;  // position of its pixels, and of the margin before them
    const bool busy = thread < tile / ACROSS * C && begin < n;

    float sums[ACROSS][2 * R];
    #pragma unroll
    for (int j = 0; j < ACROSS; ++j)
        #pragma unroll
        for (int t = 0; t < 2 * R; ++t) sums[j][t] = 0.0f;
    for (int y = top - R; y < bottom + R; y += LINES) {
        unsigned int bytes[LINES][READ];
        #pragma unroll
        for (int l = 0; l < LINES; ++l) {
            const unsigned char* line = source + static_cast<long long>(place(min(y + l, bottom + R - 1), height, REFLECT_101)) * pitch;
            #pragma unroll
            for (int k = 0; k < READ; ++k) bytes[l][k] = from[k] >= 0 ? line[from[k]] : 0u;
        }
        #pragma unroll
        for (int l = 0; l < LINES; ++l)
            #pragma unroll
            for (int k = 0; k < READ; ++k)
                lines[l][thread + k * threads] = __fsub_rn(__uint_as_float(bytes[l][k] | 0x4b000000u), 8388608.0f);
        __syncthreads();
        if (busy) {
            #pragma unroll
            for (int l = 0; l < LINES; ++l) {
                float near[ACROSS + 2 * R];
                #pragma unroll
                for (int k = 0; k < ACROSS + 2 * R; ++k) near[k] = lines[l][begin + k * C];
                #pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    float sum = 0.0f;
                    #pragma unroll
                    for (int k = 0; k <= 2 * R; ++k) sum += along[k < R ? R - k : k - R] * near[j + k];
                    put(sums[j][0] + down[R] * sum, &made[l][begin + j * C]);
                    #pragma unroll
                    for (int t = 0; t < 2 * R - 1; ++t) {
                        const int away = 2 * R - 1 - t;
                        sums[j][t] = sums[j][t + 1] + down[away < R ? R - away : away - R] * sum;
                    }
                    sums[j][2 * R - 1] = down[R] * sum;
                }
            }
        }
        __syncthreads();
        #pragma unroll
        for (int l = 0; l < LINES; ++l) {
            const int to = y + l - R;
            if (to >= top && to < bottom) write(made[l], target + static_cast<long long>(to) * pitch, n, aligned);
        }
    }
}
