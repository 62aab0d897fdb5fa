// Windows around values of items, which are [images, slices, rows, columns, channels]. A thread computes ROWS
// vertically adjacent values: their windows share most of the values that they read.
#pragma once
#include "border.cuh"
#include "division.cuh"

constexpr int ROWS = 4;

// Values `i` of an output of size `out` [5], computed from an input of size `in`.
struct Spot {
    int slices, rows, columns, channels;  // of the input
    int z, y, x, c;                       // position of the first value
    int count;                            // number of values
    long long start;                      // offset of the image in the input
    long long first, pitch;               // offset of the first value in the output, and distance to the next

    __device__ Spot(const long long* in, const long long* out, long long i)
        : slices(static_cast<int>(in[1])), rows(static_cast<int>(in[2])), columns(static_cast<int>(in[3])),
          channels(static_cast<int>(in[4])), pitch(out[3] * out[4]) {
        c = static_cast<int>(split(i, out[4]));
        x = static_cast<int>(split(i, out[3]));
        y = ROWS * static_cast<int>(split(i, (out[2] + ROWS - 1) / ROWS));
        z = static_cast<int>(split(i, out[1]));
        count = static_cast<int>(min(out[2] - y, static_cast<long long>(ROWS)));
        start = i * slices * rows * columns * channels;
        first = ((i * out[1] + z) * out[2] + y) * pitch + static_cast<long long>(x) * out[4] + c;
    }
};

// Return the number of threads for an item of size `out`.
__device__ __forceinline__ long long spots(const long long* out) {
    return out[0] * out[1] * ((out[2] + ROWS - 1) / ROWS) * out[3] * out[4];
}

// Call `use(j, k, value)` for the values in a slice at row j and column k, line by line, of the windows of `height` x
// `width`, the first of which begins at (top, left); call `outside(j, k)` for positions outside of the image if
// `border` is constant. Row j is row j - q of the window of value q.
template <typename T, typename Use, typename Outside>
__device__ __forceinline__ void each(const T* slice, const Spot& spot, int top, int left, int height, int width,
                                     int border, Use use, Outside outside) {
    const int channels = spot.channels, down = height + spot.count - 1;
    const long long pitch = static_cast<long long>(spot.columns) * channels;
    slice += spot.c;
    if (top >= 0 && left >= 0 && top + down <= spot.rows && left + width <= spot.columns) {
        const T* line = slice + top * pitch + static_cast<long long>(left) * channels;
        for (int j = 0; j < down; ++j, line += pitch)
            for (int k = 0, at = 0; k < width; ++k, at += channels) use(j, k, line[at]);
        return;
    }
    for (int j = 0; j < down; ++j) {
        const int row = place(top + j, spot.rows, border);
        for (int k = 0; k < width; ++k) {
            const int column = place(left + k, spot.columns, border);
            if (row < 0 || column < 0) outside(j, k);
            else use(j, k, slice[row * pitch + static_cast<long long>(column) * channels]);
        }
    }
}
