// jitter (ops/distortions/jitter.py): a thread moves one value.
#include "convert.cuh"
#include "division.cuh"
#include "philox.cuh"

typedef unsigned long long Key;

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
    const long long j = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (j >= static_cast<long long>(rows) * columns * channels) return;
    long long rest = j;
    const int c = static_cast<int>(split(rest, channels));
    int x = static_cast<int>(split(rest, columns)), y = static_cast<int>(rest);
    if (n > 1) {
        Draws draws(key, sequences[sample], low, phase, static_cast<Key>(j) * skip);
        x += among(draws.next(), n) - (n >> 1);
        y += among(draws.next(), n) - (n >> 1);
        x = x < 0 ? 0 : x >= columns ? columns - 1 : x;
        y = y < 0 ? 0 : y >= rows ? rows - 1 : y;
    }
    target[out_base[sample] + j] = source[base[sample] + (static_cast<long long>(y) * columns + x) * channels + c];
}
