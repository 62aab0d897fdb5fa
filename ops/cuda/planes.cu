// Convert unpacked rows of samples of PNG, TIFF, BMP and PNM to pixels. A plane is an image, a pass of an interlaced
// PNG, or a strip or tile of a TIFF. The CPU has checked that it lies within its buffers.

// Fields as in ops/codecs/gpu_streams/planes.py.
struct Plane {
    long long rows;         // first sample of its first row
    long long pitch;        // bytes from one row to the next
    long long destination;  // first byte of the window's pixels
    int width, height;      // pixels
    int y, x, down, across; // pixel (i, j) of the plane is pixel (y + i * down, x + j * across) of the window
    int shown_rows, shown_columns;  // size of the window
    int bits;               // bits per sample: 1, 2, 4, 8 or 16
    int samples, channels;  // values per pixel here (1 ... 4), and in the output
    // whether the first channel is written last; 16-bit samples have the low byte first; 0 is white
    int bgr, little, inverted;
    int colours;            // index of its palette, or -1
    int stream;             // index of the stream whose rows they are
    int undo, unused;
};

#define FILTERED 1   // `undo`: the number of its filter precedes each row
#define PREDICTED 2  // each sample is stored minus the previous one

__device__ __forceinline__ int row_bytes_of(const Plane &p) {
    return static_cast<int>((static_cast<long long>(p.width) * p.bits * p.samples + 7) >> 3);
}

// -- PNG's filters -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ int distance(int a) { return a < 0 ? -a : a; }

// Return a byte with its filter undone (PNG, clause 9.2).
__device__ __forceinline__ int restored(int filter, int stored, int a, int b, int c) {
    int far_a = distance(b - c), far_b = distance(a - c), far_c = distance(a + b - 2 * c);
    int nearest = far_a <= far_b && far_a <= far_c ? a : far_b <= far_c ? b : c;
    int guess = filter == 1 ? a : filter == 2 ? b : filter == 3 ? (a + b) >> 1 : filter == 4 ? nearest : 0;
    return (stored + guess) & 255;
}

// bytes of a row in shared memory: at most 128 are used, and the rest puts lanes in different banks
#define ROW_BYTES 132

// Undo the filters of pixels of BYTES bytes in place, with one lane for each of 32 rows. Each row is one pixel behind
// the row above: so the pixels above and to the upper left are those that the lane above has just computed. `tile`
// holds the pixels of the next STEPS steps, so each row's begin further left by its delay; `last` is the row above all
// 32.
template <int BYTES>
__device__ __forceinline__ void unfilter(unsigned char *first, long long pitch, int width, int height, int *bad,
                                         unsigned char (*tile)[ROW_BYTES], unsigned char *last) {
    constexpr int WORDS = (BYTES + 3) / 4, STEPS = BYTES > 4 ? 16 : 32;
    constexpr int LOADS = BYTES * STEPS / 32, AT_ONCE = 16;  // loads of one byte per lane for a row, and rows at a time
    const int lane = threadIdx.x, row_bytes = width * BYTES;
    for (int top = 0; top < height; top += 32) {
        const int count = min(32, height - top);
        const bool mine = lane < count;
        unsigned char *rows = first + top * pitch;
        const int filter = mine ? rows[lane * pitch - 1] : 0;
        if (filter > 4) *bad = 1;
        unsigned left[WORDS] = {}, corner[WORDS] = {}, found[WORDS] = {};
        for (int from = 0; from < width + count - 1; from += STEPS) {
            unsigned char over[LOADS];
#pragma unroll
            for (int k = 0; k < LOADS; ++k) {
                const int at = from * BYTES + 32 * k + lane;
                over[k] = top && at < row_bytes ? rows[at - pitch] : 0;
            }
            for (int r = 0; r < 32; r += AT_ONCE) {
                unsigned char read[AT_ONCE][LOADS];  // all loads are issued before one is waited for
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
                    for (int k = 0; k < LOADS; ++k) {
                        const int at = (from - r - j) * BYTES + 32 * k + lane;
                        const bool there = r + j < count && at >= 0 && at < row_bytes;
                        read[j][k] = there ? rows[(r + j) * pitch + at] : 0;
                    }
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
                    for (int k = 0; k < LOADS; ++k) tile[r + j][32 * k + lane] = read[j][k];
            }
#pragma unroll
            for (int k = 0; k < LOADS; ++k) last[32 * k + lane] = over[k];
            __syncwarp();
            for (int step = 0; step < STEPS; ++step) {
                unsigned up[WORDS];
#pragma unroll
                for (int w = 0; w < WORDS; ++w) up[w] = __shfl_up_sync(~0u, found[w], 1);
                const int x = from + step - lane;
                if (!mine || x < 0 || x >= width) continue;
                unsigned char *at = tile[lane] + step * BYTES;
                if (lane == 0) {
#pragma unroll
                    for (int w = 0; w < WORDS; ++w) up[w] = 0;
#pragma unroll
                    for (int k = 0; k < BYTES; ++k)
                        up[k / 4] |= static_cast<unsigned>(last[step * BYTES + k]) << 8 * (k % 4);
                }
#pragma unroll
                for (int w = 0; w < WORDS; ++w) found[w] = 0;
#pragma unroll
                for (int k = 0; k < BYTES; ++k) {
                    const int w = k / 4, shift = 8 * (k % 4);
                    const int byte = restored(filter, at[k], left[w] >> shift & 255, up[w] >> shift & 255,
                                              corner[w] >> shift & 255);
                    at[k] = byte;
                    found[w] |= static_cast<unsigned>(byte) << shift;
                }
#pragma unroll
                for (int w = 0; w < WORDS; ++w) left[w] = found[w], corner[w] = up[w];
            }
            __syncwarp();
#pragma unroll 8
            for (int r = 0; r < 32; ++r)
#pragma unroll
                for (int k = 0; k < LOADS; ++k) {
                    const int at = (from - r) * BYTES + 32 * k + lane;
                    if (r < count && at >= 0 && at < row_bytes) rows[r * pitch + at] = tile[r][32 * k + lane];
                }
            __syncwarp();
        }
    }
}

// grid (planes), 32 threads. `bad` is set for streams with a filter that does not exist. Filters work on whole pixels
// or, if these have less than a byte, on bytes.
extern "C" __global__ void __launch_bounds__(32) planes_unfilter(unsigned char *rows, const Plane *planes, int *bad) {
    __shared__ unsigned char tile[32][ROW_BYTES], last[ROW_BYTES];
    const Plane p = planes[blockIdx.x];
    if (p.undo != FILTERED) return;
    unsigned char *first = rows + p.rows;
    int *wrong = bad + p.stream;
    const int step = p.bits * p.samples >> 3, width = step > 1 ? p.width : row_bytes_of(p);
    if (step <= 1) unfilter<1>(first, p.pitch, width, p.height, wrong, tile, last);
    if (step == 2) unfilter<2>(first, p.pitch, width, p.height, wrong, tile, last);
    if (step == 3) unfilter<3>(first, p.pitch, width, p.height, wrong, tile, last);
    if (step == 4) unfilter<4>(first, p.pitch, width, p.height, wrong, tile, last);
    if (step == 6) unfilter<6>(first, p.pitch, width, p.height, wrong, tile, last);
    if (step == 8) unfilter<8>(first, p.pitch, width, p.height, wrong, tile, last);
}

// -- TIFF's predictor --------------------------------------------------------------------------------------------------

// grid (planes, any), whole warps, one row per warp. Add the same sample of the previous pixel to each sample of 8 or
// 16 bits.
extern "C" __global__ void planes_add_up(unsigned char *rows, const Plane *planes) {
    const Plane p = planes[blockIdx.x];
    if (p.undo != PREDICTED) return;
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    for (int i = blockIdx.y * warps + threadIdx.x / 32; i < p.height; i += gridDim.y * warps) {
        unsigned char *row = rows + p.rows + i * p.pitch;
        unsigned sums[4] = {};
        for (int from = 0; from < p.width; from += 32) {
            const bool there = from + lane < p.width;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                if (c >= p.samples) break;
                const int k = (from + lane) * p.samples + c;
                unsigned char *low = row + (p.bits == 16 ? 2 * k + !p.little : k), *high = row + 2 * k + p.little;
                unsigned value = there ? *low : 0;
                if (there && p.bits == 16) value |= *high << 8;
                for (int step = 1; step < 32; step *= 2) {
                    const unsigned before = __shfl_up_sync(~0u, value, step);
                    if (lane >= step) value += before;
                }
                value += sums[c];
                if (there) *low = value;
                if (there && p.bits == 16) *high = value >> 8;
                sums[c] = __shfl_sync(~0u, value, 31);
            }
        }
    }
}

// -- pixels ------------------------------------------------------------------------------------------------------------

#define MISSING 0x1000000u  // a colour that its palette does not contain

// Return sample `k` of a row, with all its bits.
__device__ __forceinline__ unsigned sample_at(const Plane &p, const unsigned char *row, long long k) {
    if (p.bits == 8) return row[k] ^ (p.inverted ? 255u : 0u);
    if (p.bits == 16) return p.little ? row[2 * k + 1] << 8 | row[2 * k] : row[2 * k] << 8 | row[2 * k + 1];
    const long long place = k * p.bits;
    return row[place >> 3] >> (8 - p.bits - static_cast<int>(place & 7)) & ((1 << p.bits) - 1);
}

// Return a sample as 8 bits; v / 257 rounded is (255 v + 32895) / 65536 for every 16-bit v.
__device__ __forceinline__ unsigned eight_bits(const Plane &p, unsigned value) {
    if (p.bits == 8) return value;
    return p.bits == 16 ? (255 * value + 32895) >> 16 : value * (255 / ((1 << p.bits) - 1));
}

// Return the index of the first of `count` positions `at`, `at + step`, ... that is at least `limit`.
__device__ __forceinline__ int first_from(int limit, int at, int step, int count) {
    return at >= limit ? 0 : static_cast<int>(min((static_cast<long long>(limit) - at + step - 1) / step,
                                                  static_cast<long long>(count)));
}

// grid (planes, any), whole warps, one row per warp. `bad` is set for streams with a colour that their palette, 256
// rows of `colours`, does not contain.
extern "C" __global__ void planes_pixels(const unsigned char *rows, const Plane *planes, const unsigned *colours,
                                         unsigned char *out, int *bad) {
    const Plane p = planes[blockIdx.x];
    const int top = first_from(0, p.y, p.down, p.height), bottom = first_from(p.shown_rows, p.y, p.down, p.height);
    const int left = first_from(0, p.x, p.across, p.width), right = first_from(p.shown_columns, p.x, p.across, p.width);
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    for (int i = top + blockIdx.y * warps + threadIdx.x / 32; i < bottom; i += gridDim.y * warps) {
        const unsigned char *row = rows + p.rows + i * p.pitch;
        unsigned char *line = out + p.destination + (p.y + static_cast<long long>(i) * p.down) * p.shown_columns * p.channels;
        for (int j = left + lane; j < right; j += 32) {
            unsigned char *to = line + (p.x + static_cast<long long>(j) * p.across) * p.channels;
            if (p.colours >= 0) {
                const unsigned colour = colours[256 * p.colours + sample_at(p, row, j)];
                if (colour & MISSING) bad[p.stream] = 1;
                for (int c = 0; c < 3; ++c) to[c] = colour >> 8 * c;
                continue;
            }
            for (int c = 0; c < p.channels; ++c) {
                const int source = p.samples < 3 && p.channels == 3 ? 0 : p.bgr && p.samples >= 3 && c < 3 ? 2 - c : c;
                to[c] = eight_bits(p, sample_at(p, row, static_cast<long long>(j) * p.samples + source));
            }
        }
    }
}
