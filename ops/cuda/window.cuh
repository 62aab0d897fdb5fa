// Windows around values of pieces, which are [pictures, slices, rows, columns, channels].
#pragma once
#include "border.cuh"
#include "division.cuh"

// Value `i` of an output of size `out` [5], made from an input of size `in`.
struct Spot {
    int slices, rows, columns, channels;  // of the input
    int z, y, x, c;                       // of the value
    long long start;                      // of its picture in the input

    __device__ Spot(const long long* in, const long long* out, long long i)
        : slices(static_cast<int>(in[1])), rows(static_cast<int>(in[2])), columns(static_cast<int>(in[3])),
          channels(static_cast<int>(in[4])) {
        c = static_cast<int>(split(i, out[4]));
        x = static_cast<int>(split(i, out[3]));
        y = static_cast<int>(split(i, out[2]));
        z = static_cast<int>(split(i, out[1]));
        start = i * slices * rows * columns * channels;
    }
};

// Calls `use(value)` for each value of `spot`'s channel in the window of `height` x `width` from (top, left) of a slice,
// line by line; `outside()` for those that are not in the picture where `border` is constant.
template <typename T, typename Use, typename Outside>
__device__ __forceinline__ void each(const T* slice, const Spot& spot, int top, int left, int height, int width,
                                     int border, Use use, Outside outside) {
    const int channels = spot.channels;
    const long long pitch = static_cast<long long>(spot.columns) * channels;
    slice += spot.c;
    if (top >= 0 && left >= 0 && top + height <= spot.rows && left + width <= spot.columns) {
        const T* line = slice + top * pitch + static_cast<long long>(left) * channels;
        for (int j = 0; j < height; ++j, line += pitch)
            for (int k = 0, at = 0; k < width; ++k, at += channels) use(line[at]);
        return;
    }
    for (int j = 0; j < height; ++j) {
        const int row = place(top + j, spot.rows, border);
        for (int k = 0; k < width; ++k) {
            const int column = place(left + k, spot.columns, border);
            if (row < 0 || column < 0) outside();
            else use(slice[row * pitch + static_cast<long long>(column) * channels]);
        }
    }
}
