// dilate, erode and median_blur (ops/filters/morphology.py): values from those around them.
#include "convert.cuh"
#include "window.cuh"

// grid (tiles * pictures): the largest or smallest value of the rectangle `masks` [4]: height, width, and the element
// of it that lies on the value (row, column).
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

// grid (tiles * pictures): the middle value of the window of height and width `masks` [4]. It is the largest number
// that no more than half of the values are below; its bits are found one after the other, from the highest.
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
    const bool wide = key(T()) == 0x80000000u || sizeof(T) == 4;  // floats of 16 bits are compared as those of 32
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
