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

#define STEPS 32    // as many as lanes: the loops below count on it
#define AT_ONCE 16
#define ROW_BYTES (4 * STEPS + 4)  // of a row in shared memory: lanes are in banks of their own

// Undo the filters of pixels of BYTES bytes, in place: a lane for each of 32 rows. A row lags the one above by a pixel:
// what is above a pixel, and above to the left, is then what that lane has just found. `tile` holds the pixels of the
// next STEPS steps, so a row's begin as much further to the left as it lags; `last` is the row above all 32.
template <int BYTES>
__device__ __forceinline__ void unfilter(unsigned char *first, int width, int height, int *bad,
                                         unsigned char (*tile)[ROW_BYTES], unsigned char *last) {
    const int lane = threadIdx.x, row_bytes = width * BYTES;
    const long long pitch = 1 + static_cast<long long>(row_bytes);
    for (int top = 0; top < height; top += 32) {
        const int count = min(32, height - top);
        const bool mine = lane < count;
        unsigned char *rows = first + top * pitch + 1;  // the pixels of the first one
        const int filter = mine ? rows[lane * pitch - 1] : 0;
        if (filter > 4) *bad = 1;
        unsigned left = 0, corner = 0, found = 0;
        for (int from = 0; from < width + count - 1; from += STEPS) {
            unsigned char over[BYTES];
#pragma unroll
            for (int k = 0; k < BYTES; ++k) {
                const int at = from * BYTES + 32 * k + lane;
                over[k] = top && at < row_bytes ? rows[at - pitch] : 0;
            }
            for (int r = 0; r < 32; r += AT_ONCE) {
                unsigned char read[AT_ONCE][BYTES];  // all are on their way before one is waited for
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
                    for (int k = 0; k < BYTES; ++k) {
                        const int at = (from - r - j) * BYTES + 32 * k + lane;
                        const bool there = r + j < count && at >= 0 && at < row_bytes;
                        read[j][k] = there ? rows[(r + j) * pitch + at] : 0;
                    }
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
                    for (int k = 0; k < BYTES; ++k) tile[r + j][32 * k + lane] = read[j][k];
            }
#pragma unroll
            for (int k = 0; k < BYTES; ++k) last[32 * k + lane] = over[k];
            __syncwarp();
            for (int step = 0; step < STEPS; ++step) {
                unsigned up = __shfl_up_sync(~0u, found, 1);
                const int x = from + step - lane;
                if (!mine || x < 0 || x >= width) continue;
                unsigned char *at = tile[lane] + step * BYTES;
                if (lane == 0) {
                    up = 0;
                    for (int k = 0; k < BYTES; ++k) up |= static_cast<unsigned>(last[step * BYTES + k]) << 8 * k;
                }
                found = 0;
                for (int k = 0; k < BYTES; ++k) {
                    const int byte = restored(filter, at[k], left >> 8 * k & 255, up >> 8 * k & 255, corner >> 8 * k & 255);
                    at[k] = byte;
                    found |= static_cast<unsigned>(byte) << 8 * k;
                }
                left = found;
                corner = up;
            }
            __syncwarp();
#pragma unroll 8
            for (int r = 0; r < 32; ++r)
#pragma unroll
                for (int k = 0; k < BYTES; ++k) {
                    const int at = (from - r) * BYTES + 32 * k + lane;
                    if (r < count && at >= 0 && at < row_bytes) rows[r * pitch + at] = tile[r][32 * k + lane];
                }
            __syncwarp();
        }
    }
}

// A warp for each picture. `bad` tells of those with a filter that does not exist.
extern "C" __global__ void __launch_bounds__(32) png_unfilter(unsigned char *rows, const Picture *pictures, int *bad) {
    __shared__ unsigned char tile[32][ROW_BYTES], last[4 * STEPS];
    const Picture p = pictures[blockIdx.x];
    unsigned char *first = rows + p.rows;
    int *wrong = bad + blockIdx.x;
    if (p.stored == 1) unfilter<1>(first, p.width, p.height, wrong, tile, last);
    if (p.stored == 2) unfilter<2>(first, p.width, p.height, wrong, tile, last);
    if (p.stored == 3) unfilter<3>(first, p.width, p.height, wrong, tile, last);
    if (p.stored == 4) unfilter<4>(first, p.width, p.height, wrong, tile, last);
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
