// PNG on the GPU, from filtered rows to pixels. The CPU has inflated them and checked all else of the file.

// Row names as in ops/codecs/png/on_gpu.py.
struct Picture {
    long long rows;         // first byte of the filtered rows
    long long destination;  // first byte of the pixels
    int width, height;      // of the picture
    int stored, channels;   // bytes of a pixel in the rows (1 ... 4), and in the result
    int y, x;               // the window's corner
    int shown_rows, shown_columns;
    int bgr, unused;
};

__device__ __forceinline__ int distance(int a) { return a < 0 ? -a : a; }

// One byte without its filter: (PNG, clause 9.2).
__device__ __forceinline__ int restored(int filter, int stored, int a, int b, int c) {
    int far_a = distance(b - c), far_b = distance(a - c), far_c = distance(a + b - 2 * c);
    int nearest = far_a <= far_b && far_a <= far_c ? a : far_b <= far_c ? b : c;
    int guess = filter == 1 ? a : filter == 2 ? b : filter == 3 ? (a + b) >> 1 : filter == 4 ? nearest : 0;
    return (stored + guess) & 255;
}

__device__ __forceinline__ unsigned loaded(const unsigned char *from, int bytes) {
    unsigned value = from[0];
    if (bytes > 1) value |= from[1] << 8;
    if (bytes > 2) value |= from[2] << 16;
    if (bytes > 3) value |= static_cast<unsigned>(from[3]) << 24;
    return value;
}

// Undo the filters in place: a warp for each picture, a lane for each of 32 rows. A row lags the one above by a pixel:
// what is above a pixel, and above to the left, is then what that lane has just found. `bad` tells of pictures with a
// filter that does not exist.
extern "C" __global__ void png_unfilter(unsigned char *rows, const Picture *pictures, int *bad) {
    const Picture p = pictures[blockIdx.x];
    const int lane = threadIdx.x, bytes = p.stored;
    const long long pitch = 1 + static_cast<long long>(p.width) * bytes;
    unsigned char *first = rows + p.rows;
    for (int top = 0; top < p.height; top += 32) {
        const int count = min(32, p.height - top);
        const bool mine = lane < count;
        unsigned char *row = first + (top + (mine ? lane : 0)) * pitch;
        const unsigned char *above = first + (top - 1) * pitch + 1;  // of lane 0
        const int filter = row[0];
        if (mine && filter > 4) bad[blockIdx.x] = 1;
        unsigned left = 0, corner = 0, found = 0;
        for (long long t = 0; t < static_cast<long long>(p.width) + count - 1; ++t) {
            unsigned up = __shfl_up_sync(~0u, found, 1);
            const long long x = t - lane;
            if (!mine || x < 0 || x >= p.width) continue;
            unsigned char *at = row + 1 + x * bytes;
            if (lane == 0) up = top ? loaded(above + x * bytes, bytes) : 0;
            const unsigned stored = loaded(at, bytes);
            found = 0;
            for (int k = 0; k < bytes; ++k) {
                const int byte = restored(filter, stored >> 8 * k & 255, left >> 8 * k & 255, up >> 8 * k & 255,
                                          corner >> 8 * k & 255);
                at[k] = byte;
                found |= static_cast<unsigned>(byte) << 8 * k;
            }
            left = found;
            corner = up;
        }
        __syncwarp();  // the last row is there for the next ones
    }
}

// Pixels of the windows, from rows without filters. blockIdx.y is the picture.
extern "C" __global__ void png_pixels(const unsigned char *rows, const Picture *pictures, unsigned char *out) {
    const Picture p = pictures[blockIdx.y];
    const long long pitch = 1 + static_cast<long long>(p.width) * p.stored;
    const long long pixels = static_cast<long long>(p.shown_rows) * p.shown_columns;
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < pixels; i += step) {
        const long long y = p.y + i / p.shown_columns, x = p.x + i % p.shown_columns;
        const unsigned char *from = rows + p.rows + y * pitch + 1 + x * p.stored;
        unsigned char *to = out + p.destination + i * p.channels;
        for (int c = 0; c < p.channels; ++c) {
            int source = p.stored < 3 && p.channels == 3 ? 0 : c;
            if (p.bgr && p.stored >= 3 && c < 3) source = 2 - c;
            to[c] = from[source];
        }
    }
}
