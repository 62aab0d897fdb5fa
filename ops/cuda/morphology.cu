// dilate, erode and median_blur (ops/filters/morphology.py): a thread makes one value from those around it.
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
    if (i >= size[0] * size[1] * size[2] * size[3] * size[4]) return;
    const Spot spot(size, size, i);
    const long long* mask = masks + 4ll * picture;
    const T* s = source + base[picture] + spot.start;
    T best = s[(static_cast<long long>(spot.y) * spot.columns + spot.x) * spot.channels + spot.c];
    bool fresh = true;
    each(s, spot, spot.y - static_cast<int>(mask[2]), spot.x - static_cast<int>(mask[3]), static_cast<int>(mask[0]),
         static_cast<int>(mask[1]), border,
         [&](T v) {
             if (fresh || (largest ? plain(best) < plain(v) : plain(v) < plain(best))) best = v;
             fresh = false;
         },
         [] {});
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

// grid (tiles * pictures): the middle value of the window of height and width `masks` [4]. It is the largest number
// that no more than half of the values are below; its bits are found one after the other, from the highest.
template <typename T>
__global__ void median(const T* source, const long long* base, const long long* sizes, int tiles,
                       const long long* masks, T* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const long long* size = sizes + 5ll * picture;
    const long long i = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (i >= size[0] * size[1] * size[2] * size[3] * size[4]) return;
    const Spot spot(size, size, i);
    const int h = static_cast<int>(masks[4ll * picture]), w = static_cast<int>(masks[4ll * picture + 1]);
    const T* s = source + base[picture] + spot.start;
    const int top = spot.y - h / 2, left = spot.x - w / 2;
    const bool wide = key(T()) == 0x80000000u || sizeof(T) == 4;  // floats of 16 bits are compared as those of 32
    unsigned found = 0;
    for (int bit = wide ? 31 : 8 * static_cast<int>(sizeof(T)) - 1; bit >= 0; --bit) {
        const unsigned candidate = found | 1u << bit;
        int below = 0;
        each(s, spot, top, left, h, w, CLAMP, [&](T v) { below += key(v) < candidate; }, [] {});
        if (below <= h * w / 2) found = candidate;
    }
    T middle = T();
    each(s, spot, top, left, h, w, CLAMP, [&](T v) { if (key(v) == found) middle = v; }, [] {});
    target[out_base[picture] + i] = middle;
}
