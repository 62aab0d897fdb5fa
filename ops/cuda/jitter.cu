// jitter (ops/distortions/jitter.py): a thread moves VALUES values TURNS times, with adjacent draws. For pixels of
// three bytes, it moves PIXELS at a time: a pixel's position is computed once for its three values.
#include "convert.cuh"
#include "division.cuh"
#include "philox.cuh"

typedef unsigned long long Key;
constexpr int VALUES = 4, PIXELS = 4, TURNS = 8;  // if all turns were unrolled, threads would wait for instructions

// Convert a draw to a number of 0 ... count - 1: low bits for powers of two, else by multiplication.
__device__ __forceinline__ int among(unsigned draw, unsigned count) {
    return (count & (count - 1)) == 0 ? draw & (count - 1) : __umulhi(draw, count);
}

// grid (tiles * samples); `sizes` [3] is rows, columns, channels. Samples have fewer than 2^31 values.
template <typename T>
__global__ void __launch_bounds__(256)
    jitter(Key key, Key low, int phase, const Key* sequences, int skip, const T* __restrict__ source, const long long* base,
           const long long* sizes, int tiles, const long long* reach, T* __restrict__ target, const long long* out_base) {
    const int sample = blockIdx.x / tiles;
    const int rows = static_cast<int>(sizes[3 * sample]), columns = static_cast<int>(sizes[3 * sample + 1]);
    const int channels = static_cast<int>(sizes[3 * sample + 2]), n = static_cast<int>(reach[sample]);
    const Key sequence = sequences[sample];
    const unsigned count = static_cast<unsigned>(rows) * columns * channels, step = VALUES * blockDim.x;
    const T* s = source + base[sample];
    T* out = target + out_base[sample];
    const bool words = sizeof(T) == 1 && reinterpret_cast<unsigned long long>(out) % 4 == 0;
    unsigned first = blockIdx.x % tiles * (step * TURNS) + VALUES * threadIdx.x;
    long long rest = first;
    int c = static_cast<int>(split(rest, channels)), x = static_cast<int>(split(rest, columns)), y = static_cast<int>(rest);
    rest = step;  // step from turn to turn
    const int step_c = static_cast<int>(split(rest, channels)), step_x = static_cast<int>(split(rest, columns)), step_y = static_cast<int>(rest);
    #pragma unroll 1
    for (int turn = 0; turn < TURNS && first < count; ++turn, first += step) {
        T made[VALUES];
        if (n > 1) {
            unsigned draws[2 * VALUES];
            if (skip == 2 && phase == 0) {
                #pragma unroll
                for (int b = 0; b < VALUES / 2; ++b) {
                    const Key number = low + first / 2 + b;  // an overflow is carried to the high half
                    const Four four = philox(key, sequence + (number < low), number);
                    #pragma unroll
                    for (int i = 0; i < 4; ++i) draws[4 * b + i] = four.word[i];
                }
            } else {
                Draws drawn(key, sequence, low, phase, static_cast<Key>(first) * skip);
                #pragma unroll 1
                for (int v = 0; v < VALUES; ++v) {
                    const unsigned across = drawn.next(), down = drawn.next();
                    drawn.pass(skip - 2);
                    #pragma unroll
                    for (int k = 0; k < VALUES; ++k)
                        if (k == v) draws[2 * k] = across, draws[2 * k + 1] = down;
                }
            }
            int to = c, column = x, row = y;
            #pragma unroll
            for (int v = 0; v < VALUES; ++v) {
                const int u = min(max(column + among(draws[2 * v], n) - (n >> 1), 0), columns - 1);
                const int w = min(max(row + among(draws[2 * v + 1], n) - (n >> 1), 0), rows - 1);
                made[v] = s[static_cast<unsigned>(w * columns + u) * channels + to];
                if (++to == channels) to = 0, ++column;
                if (column == columns) column = 0, ++row;
            }
            c += step_c, x += step_x, y += step_y;
            if (c >= channels) c -= channels, ++x;
            if (x >= columns) x -= columns, ++y;
        } else {
            #pragma unroll
            for (int v = 0; v < VALUES; ++v) made[v] = s[min(first + v, count - 1)];
        }
        if (words && first + VALUES <= count) {
            alignas(4) T four[VALUES] = {made[0], made[1], made[2], made[3]};
            *reinterpret_cast<unsigned*>(out + first) = *reinterpret_cast<const unsigned*>(four);
            continue;
        }
        #pragma unroll
        for (int v = 0; v < VALUES; ++v)
            if (first + v < count) out[first + v] = made[v];
    }
}

// grid (tiles * samples): images [rows, columns, 3] of bytes, whose draws begin with the first of their sequence.
// POWER: the number of shifts is a power of two for all images. Results equal those of `jitter`.
template <bool POWER>
__global__ void __launch_bounds__(256)
    jitter_pixels(Key key, const Key* sequences, const unsigned char* __restrict__ source, const long long* base,
                  const long long* sizes, int tiles, const long long* reach, unsigned char* __restrict__ target,
                  const long long* out_base) {
    const int sample = blockIdx.x / tiles;
    const int rows = static_cast<int>(sizes[3 * sample]), columns = static_cast<int>(sizes[3 * sample + 1]);
    const unsigned count = static_cast<unsigned>(rows) * columns, step = PIXELS * blockDim.x;
    unsigned first = blockIdx.x % tiles * (step * TURNS) + PIXELS * threadIdx.x;
    if (first >= count) return;
    const unsigned n = static_cast<unsigned>(reach[sample]);
    const int half = static_cast<int>(n >> 1), most_x = columns - 1, most_y = rows - 1;
    const Key sequence = sequences[sample];
    const unsigned char* s = source + base[sample];
    unsigned char* out = target + out_base[sample];
    const bool words = reinterpret_cast<unsigned long long>(out) % 4 == 0;
    int row = static_cast<int>(first / columns), x = static_cast<int>(first) - row * columns - half, y = row - half;
    const int step_y = static_cast<int>(step / columns), step_x = static_cast<int>(step) - step_y * columns;
    const int end = columns - half;  // `x` and `y` are smaller than column and row by `half`
    #pragma unroll 1
    for (int turn = 0; turn < TURNS && first < count; ++turn, first += step) {
        unsigned made[3 * PIXELS / 4] = {};
        int left = x, top = y;
        #pragma unroll
        for (int pair = 0; pair < PIXELS / 2; ++pair) {
            unsigned draws[12];
            #pragma unroll
            for (int b = 0; b < 3; ++b) {
                const Four four = philox(key, sequence, first / 2 * 3 + 3 * pair + b);
                #pragma unroll
                for (int i = 0; i < 4; ++i) draws[4 * b + i] = four.word[i];
            }
            #pragma unroll
            for (int v = 0; v < 6; ++v) {
                const unsigned across = draws[2 * v], down = draws[2 * v + 1];
                const int to_x = left + static_cast<int>(POWER ? across & (n - 1) : __umulhi(across, n));
                const int to_y = top + static_cast<int>(POWER ? down & (n - 1) : __umulhi(down, n));
                const int u = max(min(to_x, most_x), 0), w = max(min(to_y, most_y), 0);
                const unsigned value = s[static_cast<unsigned>(w * columns + u) * 3 + v % 3];
                made[(6 * pair + v) / 4] |= value << 8 * ((6 * pair + v) % 4);
                if (v % 3 == 2 && ++left == end) left = -half, ++top;
            }
        }
        x += step_x, y += step_y;
        if (x >= end) x -= columns, ++y;
        unsigned char* to = out + 3 * first;
        if (words && first + PIXELS <= count) {
            #pragma unroll
            for (int k = 0; k < 3 * PIXELS / 4; ++k) reinterpret_cast<unsigned*>(to)[k] = made[k];
            continue;
        }
        #pragma unroll
        for (int v = 0; v < 3 * PIXELS; ++v)
            if (first + v / 3 < count) to[v] = static_cast<unsigned char>(made[v / 4] >> 8 * (v % 4));
    }
}
