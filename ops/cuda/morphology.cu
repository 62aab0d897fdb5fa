// dilate, erode and median_blur (ops/filters/morphology.py): a thread makes one value from those around it.
#include "border.cuh"
#include "convert.cuh"

// Where value i of a picture is. `size` [5] is pictures, 1, rows, columns, channels.
struct Spot {
    int rows, columns, channels, x, y, c;
    long long start;  // of the picture
    __device__ Spot(const long long* size, long long i) {
        rows = static_cast<int>(size[2]);
        columns = static_cast<int>(size[3]);
        channels = static_cast<int>(size[4]);
        c = static_cast<int>(i % channels);
        const long long pixel = i / channels, pixels = static_cast<long long>(rows) * columns;
        x = static_cast<int>(pixel % columns);
        y = static_cast<int>(pixel / columns % rows);
        start = pixel / pixels * pixels * channels;
    }
    __device__ long long at(int row, int column) const {
        return start + (static_cast<long long>(row) * columns + column) * channels + c;
    }
};

// grid (tiles * pictures): the largest or smallest value of the rectangle `masks` [4]: height, width, and the element
// of it that lies on the value (row, column).
template <typename T>
__global__ void extreme(const T* source, const long long* base, const long long* sizes, int tiles,
                        const long long* masks, int border, int largest, T* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long* size = sizes + 5ll * picture;
    const long long i = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (i >= size[0] * size[1] * size[2] * size[3] * size[4]) return;
    const Spot spot(size, i);
    const long long* mask = masks + 4ll * picture;
    const T* s = source + base[picture];
    T best = s[spot.at(spot.y, spot.x)];
    bool fresh = true;
    for (int j = 0; j < mask[0]; ++j) {
        const int row = place(spot.y + j - static_cast<int>(mask[2]), spot.rows, border);
        if (row < 0) continue;
        for (int k = 0; k < mask[1]; ++k) {
            const int column = place(spot.x + k - static_cast<int>(mask[3]), spot.columns, border);
            if (column < 0) continue;
            const T v = s[spot.at(row, column)];
            if (fresh || (largest ? plain(best) < plain(v) : plain(v) < plain(best))) best = v;
            fresh = false;
        }
    }
    target[out_base[picture] + i] = best;
}

// Numbers in the order of their values.
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

// grid (tiles * pictures): the middle value of the window of height and width `masks` [4]. Its bits are found one after
// the other, from the highest, by counting.
template <typename T>
__global__ void median(const T* source, const long long* base, const long long* sizes, int tiles,
                       const long long* masks, T* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long* size = sizes + 5ll * picture;
    const long long i = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (i >= size[0] * size[1] * size[2] * size[3] * size[4]) return;
    const Spot spot(size, i);
    const int h = static_cast<int>(masks[4ll * picture]), w = static_cast<int>(masks[4ll * picture + 1]);
    const T* s = source + base[picture];
    const bool wide = key(T()) == 0x80000000u || sizeof(T) == 4;  // floats of 16 bits are compared as those of 32
    int rank = h * w / 2;
    unsigned found = 0;
    T middle = T();
    for (int bit = wide ? 31 : 8 * static_cast<int>(sizeof(T)) - 1; bit >= 0; --bit) {
        int zeros = 0;
        for (int j = 0; j < h; ++j)
            for (int k = 0; k < w; ++k) {
                const int row = place(spot.y + j - h / 2, spot.rows, CLAMP);
                const int column = place(spot.x + k - w / 2, spot.columns, CLAMP);
                const T v = s[spot.at(row, column)];
                const unsigned one = key(v);
                const unsigned above = bit == 31 ? 0 : one >> (bit + 1) ^ found >> (bit + 1);
                if (above == 0 && (one >> bit & 1) == 0) ++zeros;
            }
        if (rank >= zeros) {
            rank -= zeros;
            found |= 1u << bit;
        }
    }
    for (int j = 0; j < h; ++j)
        for (int k = 0; k < w; ++k) {
            const T v = s[spot.at(place(spot.y + j - h / 2, spot.rows, CLAMP), place(spot.x + k - w / 2, spot.columns, CLAMP))];
            if (key(v) == found) middle = v;
        }
    target[out_base[picture] + i] = middle;
}
