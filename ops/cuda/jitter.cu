// jitter (ops/distortions/jitter.py): a thread moves VALUES values, whose draws lie side by side.
#include "convert.cuh"
#include "division.cuh"
#include "philox.cuh"

typedef unsigned long long Key;
constexpr int VALUES = 4;

// A number of 0 ... count - 1 from a draw: low bits of powers of two, else by multiplication.
__device__ __forceinline__ int among(unsigned draw, unsigned count) {
    return (count & (count - 1)) == 0 ? draw & (count - 1) : static_cast<unsigned>(static_cast<Key>(draw) * count >> 32);
}

// grid (tiles * samples); `sizes` [3] is rows, columns, channels.
template <typename T>
__global__ void jitter(Key key, Key low, int phase, const Key* sequences, int skip, const T* source,
                       const long long* base, const long long* sizes, int tiles, const long long* reach, T* target,
                       const long long* out_base) {
    const int sample = blockIdx.x / tiles;
    const int rows = static_cast<int>(sizes[3 * sample]), columns = static_cast<int>(sizes[3 * sample + 1]);
    const int channels = static_cast<int>(sizes[3 * sample + 2]), n = static_cast<int>(reach[sample]);
    const long long first = VALUES * (static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x);
    const long long left = static_cast<long long>(rows) * columns * channels - first;
    if (left <= 0) return;
    long long rest = first;
    int c = static_cast<int>(split(rest, channels)), x = static_cast<int>(split(rest, columns)), y = static_cast<int>(rest);
    Draws draws(key, sequences[sample], low, phase, static_cast<Key>(first) * skip);
    const T* s = source + base[sample];
    T* out = target + out_base[sample] + first;
    #pragma unroll
    for (int v = 0; v < VALUES; ++v) {
        if (v >= left) break;
        int u = x, w = y;
        if (n > 1) {
            u += among(draws.next(), n) - (n >> 1);
            w += among(draws.next(), n) - (n >> 1);
            draws.pass(skip - 2);
            u = u < 0 ? 0 : u >= columns ? columns - 1 : u;
            w = w < 0 ? 0 : w >= rows ? rows - 1 : w;
        }
        out[v] = s[(static_cast<long long>(w) * columns + u) * channels + c];
        if (++c < channels) continue;
        c = 0;
        if (++x < columns) continue;
        x = 0;
        ++y;
    }
}
