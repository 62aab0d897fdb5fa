// Strips: a thread moves down the rows of an image and computes several adjacent values of each. Values that it has
// read from a row serve all windows that contain the row. Items are [images, slices, rows, columns, channels].
#pragma once
#include "border.cuh"
#include "division.cuh"
#include "fours.cuh"

// Strip `i` of an item of size `in` [5] with output `out` [5]: `HEIGHT` rows of `WIDTH` values.
template <int WIDTH, int HEIGHT> struct Strip {
    int rows, columns, channels;  // of the input
    int x, y;                     // position of the first value; x counts the values of a row
    int wide, count;              // number of existing values per row, and of existing rows
    int length, pitch;            // values per row of the input and of the output
    long long start, first;       // offset of the slice in the input, and of the first value in the output
    bool present;

    __device__ Strip(const long long* in, const long long* out, long long i)
        : rows(static_cast<int>(in[2])), columns(static_cast<int>(in[3])), channels(static_cast<int>(in[4])) {
        length = columns * channels, pitch = static_cast<int>(out[3] * out[4]);
        const int across = (pitch + WIDTH - 1) / WIDTH, down = (static_cast<int>(out[2]) + HEIGHT - 1) / HEIGHT;
        present = i < out[0] * out[1] * down * across;
        if (!present) return;
        x = WIDTH * static_cast<int>(split(i, across));
        y = HEIGHT * static_cast<int>(split(i, down));
        wide = min(WIDTH, pitch - x), count = min(HEIGHT, static_cast<int>(out[2]) - y);
        const long long z = split(i, out[1]);
        start = (i * in[1] + z) * rows * length;
        first = ((i * out[1] + z) * out[2] + y) * pitch + x;
    }
};

// Load COUNT bytes from `from` on as words of four, out of aligned words that each contain at least one of them.
template <int COUNT> __device__ __forceinline__ void bytes_at(const void* from, unsigned* words) {
    const unsigned shift = static_cast<unsigned>(reinterpret_cast<unsigned long long>(from) & 3);
    const unsigned* aligned = reinterpret_cast<const unsigned*>(reinterpret_cast<unsigned long long>(from) - shift);
    unsigned word = aligned[0];
    #pragma unroll
    for (int i = 0; i < (COUNT + 3) / 4; ++i) {
        const unsigned next = 4 * i + 4 < shift + COUNT ? aligned[i + 1] : 0;
        words[i] = __funnelshift_r(word, next, 8 * shift);
        word = next;
    }
}

// Return the position of value `at` in a line of `columns` x `channels` that is extended as `border` says; -1 for the
// constant.
__device__ __noinline__ int continued(int at, int columns, int channels, int border) {
    if (at >= 0 && at < columns * channels) return at;
    const int before = at < 0 ? (channels - 1 - at) / channels : 0;
    const int whole = (at + before * channels) / channels - before, column = place(whole, columns, border);
    return column < 0 ? -1 : column * channels + at - whole * channels;
}

// Load COUNT bytes of such a line from position `first` on as words of four; `fill` is the constant.
template <int COUNT>
__device__ __forceinline__ void bytes_around(const unsigned char* line, int first, int columns, int channels,
                                             int border, unsigned fill, unsigned* words) {
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int at = continued(first + i, columns, channels, border);
        const unsigned byte = at < 0 ? fill : line[at];
        words[i / 4] = i % 4 ? words[i / 4] | byte << 8 * (i % 4) : byte;
    }
}

// Write the first `count` bytes of `word`.
__device__ __forceinline__ void put_bytes(unsigned char* to, unsigned word, int count) {
    if (count == 4 && reinterpret_cast<unsigned long long>(to) % 4 == 0) {
        *reinterpret_cast<unsigned*>(to) = word;
        return;
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        if (i < count) to[i] = static_cast<unsigned char>(word >> 8 * i);
}

// Bytes are compared in pairs, each as a 16-bit number: 0 and 2 of a word, and 1 and 3.
struct Pairs { unsigned even, odd; };
__device__ __forceinline__ Pairs pairs(unsigned word) {
    return {__byte_perm(word, 0, 0x4240), __byte_perm(word, 0, 0x4341)};
}
__device__ __forceinline__ unsigned joined(Pairs v) { return __byte_perm(v.even, v.odd, 0x6240); }
__device__ __forceinline__ Pairs larger(Pairs a, Pairs b) { return {__vmaxu2(a.even, b.even), __vmaxu2(a.odd, b.odd)}; }
__device__ __forceinline__ Pairs lesser(Pairs a, Pairs b) { return {__vminu2(a.even, b.even), __vminu2(a.odd, b.odd)}; }
