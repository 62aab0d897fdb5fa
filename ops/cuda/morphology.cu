// dilate, erode and median_blur (ops/filters/morphology.py): each value is computed from its neighbourhood.
#include "convert.cuh"
#include "strips.cuh"
#include "window.cuh"

// grid (tiles * images): compute the maximum or minimum of a rectangle; `masks` [4]: height, width, and the rectangle's
// element that lies on the value (row, column).
template <typename T>
__global__ void extreme(const T* source, const long long* base, const long long* sizes, int tiles,
                        const long long* masks, int border, int largest, T* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long* size = sizes + 5ll * picture;
    const long long i = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (i >= spots(size)) return;
    const Spot spot(size, size, i);
    const long long* mask = masks + 4ll * picture;
    const int height = static_cast<int>(mask[0]);
    const T* s = source + base[picture] + spot.start;
    T* out = target + out_base[picture] + spot.first;
    T best[ROWS];
    bool fresh[ROWS];
    #pragma unroll
    for (int q = 0; q < ROWS; ++q) {
        best[q] = q < spot.count ? source[base[picture] + spot.first + q * spot.pitch] : T();
        fresh[q] = true;
    }
    each(s, spot, spot.y - static_cast<int>(mask[2]), spot.x - static_cast<int>(mask[3]), height,
         static_cast<int>(mask[1]), border,
         [&](int j, int, T v) {
             #pragma unroll
             for (int q = 0; q < ROWS; ++q) {
                 if (j < q || j - q >= height) continue;
                 if (fresh[q] || (largest ? plain(best[q]) < plain(v) : plain(v) < plain(best[q]))) best[q] = v;
                 fresh[q] = false;
             }
         },
         [](int, int) {});
    #pragma unroll
    for (int q = 0; q < ROWS; ++q)
        if (q < spot.count) out[q * spot.pitch] = best[q];
}

enum { DOWN = 8 };  // rows per thread for bytes

// Transform bytes so that the requested extreme is the largest unsigned number, and back.
template <typename T> __device__ __forceinline__ unsigned turned(int largest) {
    return (largest ? 0u : ~0u) ^ (static_cast<T>(-1) < 0 ? 0x80808080u : 0u);
}

// `extreme` for bytes, as any type of 8 bits: grid (tiles * images). A thread computes four bytes of DOWN rows; for
// each row it computes the extreme over the windows' width, which is used by all windows that contain the row.
template <typename T>
__global__ void __launch_bounds__(256)
    extreme_bytes(const T* source, const long long* base, const long long* sizes, int tiles, const long long* masks,
                  int border, int largest, T* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long *size = sizes + 5ll * picture, *mask = masks + 4ll * picture;
    const Strip<4, DOWN> strip(size, size, static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x);
    if (!strip.present) return;
    const int height = static_cast<int>(mask[0]), width = static_cast<int>(mask[1]);
    const int top = strip.y - static_cast<int>(mask[2]), columns = strip.columns, channels = strip.channels;
    const int left = strip.x - static_cast<int>(mask[3]) * channels;
    const bool within = left >= 0 && left + 3 + (width - 1) * channels < strip.length;
    const unsigned turn = turned<T>(largest), nothing = turn & 0xFF;
    const unsigned char* image = reinterpret_cast<const unsigned char*>(source + base[picture] + strip.start);
    Pairs best[DOWN] = {};
    for (int j = 0; j < strip.count + height - 1; ++j) {
        const int row = place(top + j, strip.rows, border);
        if (row < 0) continue;
        const unsigned char* line = image + static_cast<long long>(row) * strip.length;
        Pairs most = {};
        if (within) {
            line += left;
            #pragma unroll 4
            for (int k = 0; k < width; ++k, line += channels) {
                unsigned word;
                bytes_at<4>(line, &word);
                most = larger(most, pairs(word ^ turn));
            }
        } else {
            for (int k = 0; k < width; ++k) {
                unsigned word;
                bytes_around<4>(line, left + k * channels, columns, channels, border, nothing, &word);
                most = larger(most, pairs(word ^ turn));
            }
        }
        #pragma unroll
        for (int q = 0; q < DOWN; ++q)
            if (static_cast<unsigned>(j - q) < static_cast<unsigned>(height)) best[q] = larger(best[q], most);
    }
    unsigned char* out = reinterpret_cast<unsigned char*>(target + out_base[picture] + strip.first);
    #pragma unroll
    for (int q = 0; q < DOWN; ++q)
        if (q < strip.count) put_bytes(out + static_cast<long long>(q) * strip.pitch, joined(best[q]) ^ turn, strip.wide);
}

// Map numbers to unsigned integers of the same order.
__device__ __forceinline__ unsigned key(float v) {
    unsigned bits;
    memcpy(&bits, &v, 4);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ unsigned key(half v) { return key(half_to_float(v)); }
__device__ __forceinline__ unsigned key(unsigned char v) { return v; }
__device__ __forceinline__ unsigned key(unsigned short v) { return v; }
__device__ __forceinline__ unsigned key(unsigned v) { return v; }
__device__ __forceinline__ unsigned key(signed char v) { return static_cast<unsigned char>(v) ^ 0x80u; }
__device__ __forceinline__ unsigned key(short v) { return static_cast<unsigned short>(v) ^ 0x8000u; }
__device__ __forceinline__ unsigned key(int v) { return static_cast<unsigned>(v) ^ 0x80000000u; }

// grid (tiles * images): compute the median of a window with height and width `masks` [4]. It is the largest number
// such that at most half of the values are below; its bits are determined one after the other, from the highest.
template <typename T>
__global__ void median(const T* source, const long long* base, const long long* sizes, int tiles,
                       const long long* masks, T* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long* size = sizes + 5ll * picture;
    const long long i = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (i >= spots(size)) return;
    const Spot spot(size, size, i);
    const int h = static_cast<int>(masks[4ll * picture]), w = static_cast<int>(masks[4ll * picture + 1]);
    const T* s = source + base[picture] + spot.start;
    const int top = spot.y - h / 2, left = spot.x - w / 2;
    const auto nothing = [](int, int) {};
    const bool wide = key(T()) == 0x80000000u || sizeof(T) == 4;  // 16-bit floats are compared as 32-bit floats
    unsigned found[ROWS] = {};
    for (int bit = wide ? 31 : 8 * static_cast<int>(sizeof(T)) - 1; bit >= 0; --bit) {
        int below[ROWS] = {};
        each(s, spot, top, left, h, w, CLAMP,
             [&](int j, int, T v) {
                 #pragma unroll
                 for (int q = 0; q < ROWS; ++q)
                     below[q] += j >= q && j - q < h && key(v) < (found[q] | 1u << bit);
             },
             nothing);
        #pragma unroll
        for (int q = 0; q < ROWS; ++q)
            if (below[q] <= h * w / 2) found[q] |= 1u << bit;
    }
    T middle[ROWS] = {};
    each(s, spot, top, left, h, w, CLAMP,
         [&](int j, int, T v) {
             #pragma unroll
             for (int q = 0; q < ROWS; ++q)
                 if (j >= q && j - q < h && key(v) == found[q]) middle[q] = v;
         },
         nothing);
    T* out = target + out_base[picture] + spot.first;
    #pragma unroll
    for (int q = 0; q < ROWS; ++q)
        if (q < spot.count) out[q * spot.pitch] = middle[q];
}

// Three values, sorted.
struct Three { Pairs low, middle, high; };
__device__ __forceinline__ Three sorted(Pairs a, Pairs b, Pairs c) {
    const Pairs low = lesser(a, b), high = larger(a, b), rest = lesser(high, c);
    return {lesser(low, rest), larger(low, rest), larger(high, c)};
}

// `median` for bytes in windows of 3 x 3: grid (tiles * images). Columns are sorted: the median of nine values is the
// median of the largest low, the median middle and the smallest high value.
template <typename T>
__global__ void __launch_bounds__(256)
    median_of_nine(const T* source, const long long* base, const long long* sizes, int tiles, const long long*,
                   T* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long* size = sizes + 5ll * picture;
    const Strip<4, DOWN> strip(size, size, static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x);
    if (!strip.present) return;
    const int channels = strip.channels, left = strip.x - channels;
    const bool within = left >= 0 && left + 3 + 2 * channels < strip.length;
    const unsigned turn = turned<T>(1);
    const unsigned char* image = reinterpret_cast<const unsigned char*>(source + base[picture] + strip.start);
    unsigned char* out = reinterpret_cast<unsigned char*>(target + out_base[picture] + strip.first);
    Pairs rows[3][3] = {};
    #pragma unroll 1
    for (int j = 0; j < strip.count + 2; ++j) {
        const unsigned char* line =
            image + static_cast<long long>(place(strip.y - 1 + j, strip.rows, CLAMP)) * strip.length;
        #pragma unroll
        for (int k = 0; k < 3; ++k) {
            unsigned word;
            if (within) bytes_at<4>(line + left + k * channels, &word);
            else bytes_around<4>(line, left + k * channels, strip.columns, channels, CLAMP, 0, &word);
            rows[0][k] = rows[1][k], rows[1][k] = rows[2][k], rows[2][k] = pairs(word ^ turn);
        }
        if (j < 2) continue;
        const Three a = sorted(rows[0][0], rows[1][0], rows[2][0]), b = sorted(rows[0][1], rows[1][1], rows[2][1]);
        const Three c = sorted(rows[0][2], rows[1][2], rows[2][2]);
        const Pairs low = larger(larger(a.low, b.low), c.low), high = lesser(lesser(a.high, b.high), c.high);
        const Pairs middle = sorted(low, sorted(a.middle, b.middle, c.middle).middle, high).middle;
        put_bytes(out, joined(middle) ^ turn, strip.wide);
        out += strip.pitch;
    }
}

// Load four bytes of a line that is extended by its end values.
__device__ __noinline__ unsigned word_around(const unsigned char* line, int first, int columns, int channels) {
    unsigned word;
    bytes_around<4>(line, first, columns, channels, CLAMP, 0, &word);
    return word;
}

__device__ __forceinline__ void order(Pairs& low, Pairs& high) {
    const Pairs a = low, b = high;
    low = lesser(a, b), high = larger(a, b);
}

// Write the median of COUNT values and of the values from number `next` on, which `value` returns, to v[0]: the
// smallest of `v` is moved to its beginning, the largest to its end, and both are dropped. Recursive, because loops of
// this length are not unrolled.
template <int COUNT, typename Value> __device__ __forceinline__ void left_out(Pairs* v, Value value, int next) {
    #pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) order(v[i], v[COUNT - 1 - i]);
    #pragma unroll
    for (int i = 1; i < (COUNT + 1) / 2; ++i) {
        order(v[0], v[i]);
        order(v[COUNT - 1 - i], v[COUNT - 1]);
    }
    if constexpr (COUNT > 3) {
        v[0] = value(next);
        left_out<COUNT - 1>(v, value, next + 1);
    } else {
        v[0] = v[1];
    }
}

// `median` for bytes in windows of H x W, both odd: grid (tiles * images). A thread computes four bytes of a row. Among
// one more than half of the values, neither the smallest nor the largest can be the median: they are replaced by the
// next value, until all values were processed, and one remains.
template <typename T, int H, int W>
__global__ void __launch_bounds__(256)
    median_of(const T* source, const long long* base, const long long* sizes, int tiles, const long long*, T* target,
              const long long* out_base) {
    constexpr int MOST = H * W / 2 + 2;
    const int picture = blockIdx.x / tiles;
    const long long* size = sizes + 5ll * picture;
    const Strip<4, 1> strip(size, size, static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x);
    if (!strip.present) return;
    const int channels = strip.channels, left = strip.x - W / 2 * channels;
    const bool within = left >= 0 && left + 3 + (W - 1) * channels < strip.length;
    const unsigned turn = turned<T>(1);
    const unsigned char* image = reinterpret_cast<const unsigned char*>(source + base[picture] + strip.start);
    int lines[H];
    #pragma unroll
    for (int j = 0; j < H; ++j) lines[j] = place(strip.y - H / 2 + j, strip.rows, CLAMP) * strip.length + left;
    const auto value = [&](int n) {
        const int at = lines[n / W] + n % W * channels;
        unsigned word;
        if (within) bytes_at<4>(image + at, &word);
        else word = word_around(image + lines[n / W] - left, left + n % W * channels, strip.columns, channels);
        return pairs(word ^ turn);
    };
    Pairs v[MOST];
    #pragma unroll
    for (int n = 0; n < MOST; ++n) v[n] = value(n);
    left_out<MOST>(v, value, MOST);
    put_bytes(reinterpret_cast<unsigned char*>(target + out_base[picture] + strip.first), joined(v[0]) ^ turn, strip.wide);
}
