// Planes -> pixels -> resize -> crop -> mirror -> normalise in one kernel. The resize is DALI's: tabulated filters
// (linear between the entries), normalised taps, float32 between the passes; outside the image, its border pixel is
// repeated.
//
// A block of threads computes some rows of the output, each thread one column. Each source row is processed once, four
// rows at a time: they are converted to pixels in shared memory (equal to libjpeg-turbo's), filtered horizontally, and
// added to the outputs to which they contribute.
#include "jpeg_pixels.cu"

#define RESIZE_THREADS 256   // maximum threads of a block
#define SLOTS 3              // unfinished outputs that registers hold
#define TABLE_ROWS 64        // source rows whose weights are in shared memory
#define RING 8               // filtered rows that are kept, or unfinished outputs, if registers cannot hold them

// Return the tabulated filter at x, with DALI's order of operations.
DEVICE float filter_at(const float *table, int last, float x) {
    if (!(x > -1.0f && x < (float)(last + 1))) return 0.0f;
    int below = (int)floorf(x);
    float a = below >= 0 ? table[below] : 0.0f, b = below < last ? table[below + 1] : 0.0f;
    return __fadd_rn(a, __fmul_rn(__fsub_rn(x, (float)below), __fsub_rn(b, a)));
}

// weights with which a filtered row is added to the unfinished outputs, the oldest first
struct __align__(16) RowWeights {
    float weight[SLOTS];
    int finished;                  // number of outputs whose last row is this one
};

// Return the weights with which sample `at` of an axis is added to outputs [first, behind), whose first samples are
// `starts`.
DEVICE RowWeights weigh(const float *weights, const int *starts, int taps, int count, int at, int first, int behind) {
    int low = first, high = behind;  // the oldest output that uses the sample
    while (low < high) {
        int middle = (low + high) >> 1;
        if (starts[middle] + taps <= at) low = middle + 1; else high = middle;
    }
    RowWeights row;
#pragma unroll
    for (int k = 0; k < SLOTS; k++) {
        int output = low + k;
        bool part = output < behind && starts[output] <= at;
        row.weight[k] = part ? weights[(at - starts[output]) * count + output] : 0.0f;
    }
    row.finished = 0;
    while (low + row.finished < behind && starts[low + row.finished] + taps == at + 1) row.finished++;
    return row;
}

// Compute the taps of every output column and row, and for jpeg_strips the weights of every source sample in its
// outputs. blockIdx.x counts (image, axis).
KERNEL __launch_bounds__(128) jpeg_weights(const Batch *batch) {
    const Axis &axis = batch->resize[blockIdx.x >> 1].axis[blockIdx.x & 1];
    float *weights = batch->weights + axis.weights;
    int *starts = (int *)(weights + (i64)axis.taps * axis.count);
    float unit = blockIdx.x & 1 ? 1.0f : 256.0f;  // pixels are stored divided by 256
    for (int i = threadIdx.x; i < axis.count; i += blockDim.x) {
        float output = (float)(axis.first + axis.step * i);
        if (axis.table < 0) {
            float from = __fsub_rn(axis.lo, (float)axis.corner);
            float place = __fadd_rn(from, __fmul_rn(__fadd_rn(output, 0.5f), axis.scale));
            if (axis.stepwise && output > 0.0f) {
                place = __fadd_rn(from, __fmul_rn(0.5f, axis.scale));
                for (float k = 0.0f; k < output; k += 1.0f) place = __fadd_rn(place, axis.scale);
            }
            int nearest = min(max((int)floorf(place) + axis.corner, 0), axis.end - axis.begin - 1);
            starts[i] = axis.flip ? axis.base - nearest : axis.base + nearest;
            weights[i] = unit;
            continue;
        }
        const float *table = batch->filters + axis.table;
        int last = axis.table_last;
        float density = __fdiv_rn((float)last, axis.support);
        float middle = __fsub_rn(__fmul_rn(0.5f, axis.scale), 0.5f);
        float origin = __fsub_rn(__fadd_rn(axis.lo, middle), __fdiv_rn((float)last * 0.5f, density));
        float at = __fadd_rn(__fmul_rn(output, axis.scale), origin), total = 0.0f;
        int start = (int)ceilf(at);
        for (int k = 0; k < axis.taps; k++)
            total = __fadd_rn(total, filter_at(table, last, __fmul_rn(__fsub_rn((float)(start + k), at), density)));
        for (int k = 0; k < axis.taps; k++) {
            float weight = __fdiv_rn(filter_at(table, last, __fmul_rn(__fsub_rn((float)(start + k), at), density)), total);
            weights[(i64)(axis.flip ? axis.taps - 1 - k : k) * axis.count + i] = unit * weight;
        }
        starts[i] = axis.flip ? axis.base + 1 - start - axis.taps : axis.base + start;
    }
    if (axis.reached < 0) return;
    __syncthreads();
    int count = axis.count, behind = count ? starts[count - 1] + axis.taps - starts[0] : 0;
    for (int i = threadIdx.x; i < behind; i += blockDim.x)
        ((RowWeights *)(batch->weights + axis.reached))[i] = weigh(weights, starts, axis.taps, count, starts[0] + i, 0, count);
}

// Pixels in shared memory, in the order in which the horizontal filter reads them: all taps of four rows, one channel
// at a time. Pixel x of a segment is at place_of(x): there are four areas, one for each remainder of x modulo 4, each
// two pixels longer than a multiple of 8. So neither lanes that store every fourth pixel nor lanes that read neighbours
// conflict in a bank.
#define SEGMENT(area) (4 * (area) - 8)
DEVICE int place_of(int x, int area) { return (x & 3) * area + (x >> 2); }

// Sizes of an area: if rows of one segment have the whole pool; with room for the sums that wait while the next segment
// is loaded; with room for the ring; with room for both.
#define AREA_ALONE 210
#define AREA_AND_SUMS 146
#define AREA_AND_RING 66
#define AREA_AND_BOTH 18

// how values are stored. The fields are equal for all threads and therefore kept out of their registers.
struct __align__(16) OutputForm {
    float4 mul, add;
    i64 row_bytes, channel_bytes;  // bytes from one row, or channel, of the output to the next
    i32 channels, out_dtype, round_to_uint8;
    u32 magic;  // MAGIC, hidden from the compiler, which would otherwise use two instructions per byte

    DEVICE void open(const Batch *batch, const Resize &resize);
};

struct __align__(16) ResizeShared : OutputForm {
    float4 pixels[4 * AREA_ALONE][3];  // four rows; channels
    RowWeights rows[TABLE_ROWS];
    Resize resize;
    Source source;
    const float *weights_x, *weights_y;
    const int *starts_y;
    i32 begin_x, end_x, begin_y, end_y, behind_row;
    DEVICE float *ring(int area, int nth, int channel) {
        return (float *)(pixels + 4 * area) + ((nth & (RING - 1)) * 3 + channel) * RESIZE_THREADS + threadIdx.x;
    }
    DEVICE float *sum(int i) { return (float *)(pixels + 4 * AREA_AND_SUMS) + i * RESIZE_THREADS + threadIdx.x; }
};
static_assert(4 * (AREA_ALONE - AREA_AND_SUMS) * 48 >= 12 * 4 * RESIZE_THREADS, "the sums fit");
static_assert(4 * (AREA_ALONE - AREA_AND_RING) * 48 >= RING * 12 * RESIZE_THREADS, "the ring fits");
static_assert(4 * (AREA_AND_SUMS - AREA_AND_BOTH) * 48 >= RING * 12 * RESIZE_THREADS, "the ring fits before the sums");

// The float 2^23 + byte has the byte in its lowest bits. Pixels are stored divided by 256 and weights multiplied by
// 256, both exact; so the conversion can saturate values to 0 ... 1.
#define MAGIC 0x4b000000u
DEVICE void OutputForm::open(const Batch *batch, const Resize &resize) {
    channels = batch->output_type == OUTPUT_GRAY ? 1 : 3;
    magic = MAGIC;
    out_dtype = batch->out_dtype, round_to_uint8 = batch->round_to_uint8;
    mul = make_float4(batch->mul[0], batch->mul[1], batch->mul[2], 0.0f);
    add = make_float4(batch->add[0], batch->add[1], batch->add[2], 0.0f);
    int size = 1 << batch->out_dtype;
    row_bytes = resize.axis[1].stride * size, channel_bytes = (i64)resize.stride_c * size;
}
DEVICE u32 magic_byte(u32 word, u32 magic, int i) { return __byte_perm(word, magic, 0x7440 + i); }
DEVICE float from_magic(int bits) {
    return __saturatef(fmaf(__uint_as_float((u32)min(bits, (int)(MAGIC + 255))), 1.0f / 256, -32768.0f));
}

// Convert Y, Cb, Cr to R, G, B as ycc_to_rgb does; the constants include the subtraction of 128 from Cb and Cr.
DEVICE void ycc_to_floats(int luma, int blue, int red, float *rgb) {  // luma: a result of magic_byte
    rgb[0] = from_magic(luma + ((91881 * red + (32768 - 91881 * 128)) >> 16));
    rgb[1] = from_magic(luma + ((-22554 * blue - 46802 * red + (32768 + (22554 + 46802) * 128)) >> 16));
    rgb[2] = from_magic(luma + ((116130 * blue + (32768 - 116130 * 128)) >> 16));
}

// Load the samples of an item, which is four pixels of two rows. Item n of a segment that begins at x has the pixels
// from 4 * (n / 2) on: of rows y and y + 1 if n is even, of the next two rows if it is odd. Coordinates outside the
// image are clamped.
DEVICE void fetch(const ResizeShared &shared, int x, int y, int item, u32 (*rows)[2]) {
    const Axis *axis = shared.resize.axis;
    int begin = axis[0].begin, last = axis[0].end - 1, at_x = x + 4 * (item >> 1);
    int inside = min(max(at_x, begin & ~3), last & ~3);
    samples4x2(shared.source, inside, y + 2 * (item & 1), axis[1].begin, axis[1].end, rows);
    if (at_x < begin || at_x + 3 > last) {  // use the border pixel
        u32 order = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) order |= (u32)(min(max(at_x + j, begin), last) - inside) << (4 * j);
#pragma unroll
        for (int i = 0; i < 6; i++) rows[i >> 1][i & 1] = __byte_perm(rows[i >> 1][i & 1], 0, order);
    }
}

// Store the pixels of an item in shared memory.
DEVICE void put(ResizeShared &shared, int area, int item, u32 (*rows)[2]) {
    const Source &source = shared.source;
    bool plain = source.chroma && source.colour == COLOUR_YCBCR && source.output_type <= OUTPUT_BGR;
    u32 magic = shared.magic;
    float *at = (float *)shared.pixels[item >> 1] + 2 * (item & 1);  // channels are four floats apart
    if (plain) {
        int first = source.output_type == OUTPUT_BGR ? 8 : 0;
#pragma unroll
        for (int j = 0; j < 4; j++, at += 12 * area) {
            float one[3], two[3];
            ycc_to_floats((int)magic_byte(rows[0][0], magic, j), (int)byte_of(rows[1][0], j), (int)byte_of(rows[2][0], j), one);
            ycc_to_floats((int)magic_byte(rows[0][1], magic, j), (int)byte_of(rows[1][1], j), (int)byte_of(rows[2][1], j), two);
            *(float2 *)(at + first) = make_float2(one[0], two[0]);
            *(float2 *)(at + 4) = make_float2(one[1], two[1]);
            *(float2 *)(at + 8 - first) = make_float2(one[2], two[2]);
        }
        return;
    }
#pragma unroll 1
    for (int j = 0; j < 4; j++, at += 12 * area) {
        u32 pixel[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            pixel[r] = convert(source.colour, source.output_type, rows[0][r] & 255, rows[1][r] & 255, rows[2][r] & 255);
#pragma unroll
            for (int c = 0; c < 3; c++) rows[c][r] >>= 8;
        }
#pragma unroll
        for (int c = 0; c < 3; c++)
            *(float2 *)(at + 4 * c) = make_float2(from_magic(magic_byte(pixel[0], magic, c)), from_magic(magic_byte(pixel[1], magic, c)));
    }
}

DEVICE float rounded(float v) { return fminf(fmaxf(floorf(v + 0.5f), 0.0f), 255.0f); }

template <class T> DEVICE void store_channels(u8 *to, i64 step, bool all, T a, T b, T c) {
    *(T *)to = a;
    if (!all) return;
    *(T *)(to + step) = b;
    *(T *)(to + 2 * step) = c;
}

DEVICE void store_pixel(const OutputForm &shared, u8 *to, const float *value) {
    float a = value[0], b = value[1], c = value[2];
    if (shared.round_to_uint8) a = rounded(a), b = rounded(b), c = rounded(c);
    float4 mul = shared.mul, add = shared.add;
    a = fmaf(a, mul.x, add.x), b = fmaf(b, mul.y, add.y), c = fmaf(c, mul.z, add.z);
    i64 step = shared.channel_bytes;
    bool all = shared.channels == 3;
    if (shared.out_dtype == 2) store_channels(to, step, all, a, b, c);
    else if (shared.out_dtype == 1) store_channels(to, step, all, to_half(a), to_half(b), to_half(c));
    else store_channels(to, step, all, (u8)rounded(a), (u8)rounded(b), (u8)rounded(c));
}

// Fill the table of weights of rows y, y + 1, ...
DEVICE void weigh_rows(ResizeShared &shared, const float *weights, const int *starts, int y, int first, int behind) {
    const Axis &down = shared.resize.axis[1];
    for (int i = threadIdx.x; i < TABLE_ROWS; i += blockDim.x)
        shared.rows[i] = weigh(weights, starts, down.taps, down.count, y + i, first, behind);
}

// Add taps [low, high) of a column to its sums of four rows; tap 0 is at pixel `start` of the segment.
DEVICE void filter_columns(const ResizeShared &shared, int area, int start, int low, int high, const float *weights, int step, float (*sum)[3]) {
    int place[4];
#pragma unroll
    for (int j = 0; j < 4; j++) place[j] = place_of(start + low + j, area);
#pragma unroll 1
    for (int k = low; k < high; k += 4) {
        float four[4];  // loaded together, so that the lane waits once
#pragma unroll
        for (int j = 0; j < 4; j++) four[j] = k + j < high ? weights[(k + j) * step] : 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (k + j >= high) break;
#pragma unroll
            for (int c = 0; c < 3; c++) {
                float4 v = shared.pixels[place[j]][c];
                sum[0][c] = fmaf(four[j], v.x, sum[0][c]), sum[1][c] = fmaf(four[j], v.y, sum[1][c]);
                sum[2][c] = fmaf(four[j], v.z, sum[2][c]), sum[3][c] = fmaf(four[j], v.w, sum[3][c]);
            }
            place[j]++;
        }
    }
}

// Compute one tile of the output.
KERNEL __launch_bounds__(RESIZE_THREADS, 4) jpeg_resize(const Batch *batch) {
    __shared__ ResizeShared shared;
    const i32 *first_block = batch->resize_first;
    int at = locate(first_block, batch->count, blockIdx.x);
    if (batch->status[batch->resize[at].image]) return;
    for (int i = threadIdx.x; i < (int)(sizeof(Resize) / 4); i += blockDim.x)
        ((u32 *)&shared.resize)[i] = ((const u32 *)(batch->resize + at))[i];
    if (threadIdx.x == 0) {
        shared.source = open_source(batch, batch->images[batch->resize[at].image]);
        shared.open(batch, batch->resize[at]);
    }
    __syncthreads();
    const Axis &across = shared.resize.axis[0], &down = shared.resize.axis[1];

    int tile = blockIdx.x - first_block[at];
    int tiles = (across.count + blockDim.x - 1) / blockDim.x;
    int first_column = tile % tiles * blockDim.x, done = tile / tiles * down.tile;  // number of finished rows
    int last_column = min(first_column + (int)blockDim.x, across.count) - 1;
    int behind_row = min(done + down.tile, down.count);
    int column = first_column + (int)threadIdx.x;
    bool mine = column <= last_column;
    column = min(column, last_column);
    u8 *to = batch->out + ((shared.resize.out + column * across.stride + done * down.stride) << batch->out_dtype);

    const float *weights_y = batch->weights + down.weights;
    const int *starts_x = (const int *)(batch->weights + across.weights + across.taps * across.count);
    const int *starts_y = (const int *)(weights_y + down.taps * down.count);
    if (threadIdx.x == 0) {
        shared.weights_x = batch->weights + across.weights, shared.weights_y = weights_y, shared.starts_y = starts_y;
        shared.begin_x = starts_x[first_column] & ~3, shared.end_x = starts_x[last_column] + across.taps;
        shared.begin_y = starts_y[done] & ~1, shared.end_y = starts_y[behind_row - 1] + down.taps;
        shared.behind_row = behind_row;
    }
    int my_start = starts_x[column], opened = done;  // number of outputs begun
    // Registers hold the sums of unfinished outputs if there are few at a time, as in downscaling.
    int crowd = 0;
    for (int i = done + (int)threadIdx.x; i + SLOTS < behind_row; i += blockDim.x) crowd |= starts_y[i + SLOTS] < starts_y[i] + down.taps;
    bool few = !__syncthreads_or(crowd);
    int width = shared.end_x - shared.begin_x;
    int area = few ? width <= SEGMENT(AREA_ALONE) ? AREA_ALONE : AREA_AND_SUMS
                   : width <= SEGMENT(AREA_AND_RING) ? AREA_AND_RING : AREA_AND_BOTH;
    // If rows have one segment and the filter is short, a column's weights occupy the room of the sums.
    bool cached = few && width <= SEGMENT(AREA_AND_SUMS) && across.taps <= 12;
    if (cached) {
        area = AREA_AND_SUMS;
        for (int k = 0; k < across.taps; k++) *shared.sum(k) = shared.weights_x[k * across.count + column];
    }
    int segment = SEGMENT(area);
    // one item per thread: all of them are loaded ahead
    if (width > segment) segment = min(segment, 2 * (int)blockDim.x);
    float under_way[SLOTS][3] = {};
    u32 rows[3][2] = {};  // the thread's first item of the next four rows, which is loaded while these are filtered
    if (4 * ((int)threadIdx.x >> 1) < min(segment, width)) fetch(shared, shared.begin_x, shared.begin_y, threadIdx.x, rows);

#pragma unroll 1
    for (int y = shared.begin_y; y < shared.end_y; y += 4) {
        float sum[4][3];
        for (int x = shared.begin_x; x < shared.end_x; x += segment) {
            __syncthreads();
            int items = min(segment, shared.end_x - x);
            items = 2 * ((items + 3) >> 2);
            if ((int)threadIdx.x < items) put(shared, area, threadIdx.x, rows);
            for (int item = threadIdx.x + blockDim.x; item < items; item += blockDim.x) {
                fetch(shared, x, y, item, rows);
                put(shared, area, item, rows);
            }
            int nth = (y - shared.begin_y) & (TABLE_ROWS - 1);
            if (few && nth == 0) weigh_rows(shared, shared.weights_y, shared.starts_y, y, done, shared.behind_row);
            __syncthreads();
            int next_x = x + segment, next_y = y;
            if (next_x >= shared.end_x) next_x = shared.begin_x, next_y += 4;
            if (next_y < shared.end_y && next_x + 4 * ((int)threadIdx.x >> 1) < min(next_x + segment, shared.end_x))
                fetch(shared, next_x, next_y, threadIdx.x, rows);
            if (x == shared.begin_x) {
#pragma unroll
                for (int i = 0; i < 12; i++) sum[i / 3][i % 3] = 0.0f;
            } else {
#pragma unroll
                for (int i = 0; i < 12; i++) sum[i / 3][i % 3] = *shared.sum(i);
            }
            int low = max(0, x - my_start), high = min(across.taps, x + segment - my_start);
            if (cached) filter_columns(shared, area, my_start - x, low, high, shared.sum(0), RESIZE_THREADS, sum);
            else filter_columns(shared, area, my_start - x, low, high, shared.weights_x + column, across.count, sum);
            if (x + segment < shared.end_x) {
#pragma unroll
                for (int i = 0; i < 12; i++) *shared.sum(i) = sum[i / 3][i % 3];
            }
        }
        if (few) {
            const RowWeights *rows = shared.rows + ((y - shared.begin_y) & (TABLE_ROWS - 1));
#pragma unroll
            for (int r = 0; r < 4; r++) {
                RowWeights row = rows[r];
#pragma unroll
                for (int i = 0; i < SLOTS * 3; i++) under_way[i / 3][i % 3] = fmaf(row.weight[i / 3], sum[r][i % 3], under_way[i / 3][i % 3]);
                for (; row.finished > 0; row.finished--, done++, to += shared.row_bytes) {
                    if (mine) store_pixel(shared, to, under_way[0]);
#pragma unroll
                    for (int i = 0; i < SLOTS * 3; i++) under_way[i / 3][i % 3] = i / 3 + 1 < SLOTS ? under_way[(i / 3 + 1) % SLOTS][i % 3] : 0.0f;
                }
            }
            continue;
        }
#pragma unroll 1
        for (int r = 0; r < 4; r++) {
            float value[3] = {sum[0][0], sum[0][1], sum[0][2]};
#pragma unroll
            for (int i = 0; i < 9; i++) sum[i / 3][i % 3] = sum[i / 3 + 1][i % 3];
            if (down.taps <= RING) {  // the ring holds rows
                for (int c = 0; c < 3; c++) *shared.ring(area, y + r, c) = value[c];
#pragma unroll 1
                for (; done < shared.behind_row && shared.starts_y[done] + down.taps <= y + r + 1; done++, to += shared.row_bytes) {
                    float total[3] = {0.0f, 0.0f, 0.0f};
                    int start = shared.starts_y[done];
#pragma unroll 2
                    for (int k = 0; k < down.taps; k++) {
                        float weight = shared.weights_y[k * down.count + done];
#pragma unroll
                        for (int c = 0; c < 3; c++) total[c] = fmaf(weight, *shared.ring(area, start + k, c), total[c]);
                    }
                    if (mine) store_pixel(shared, to, total);
                }
                continue;
            }
            // A wide filter: the ring holds outputs, of which few are unfinished at a time.
#pragma unroll 1
            for (; opened < shared.behind_row && shared.starts_y[opened] <= y + r; opened++)
                for (int c = 0; c < 3; c++) *shared.ring(area, opened, c) = 0.0f;
#pragma unroll 1
            for (int output = done; output < opened; output++) {
                float weight = shared.weights_y[(y + r - shared.starts_y[output]) * down.count + output];
#pragma unroll
                for (int c = 0; c < 3; c++) *shared.ring(area, output, c) = fmaf(weight, value[c], *shared.ring(area, output, c));
            }
#pragma unroll 1
            for (; done < opened && shared.starts_y[done] + down.taps <= y + r + 1; done++, to += shared.row_bytes) {
                float total[3];
#pragma unroll
                for (int c = 0; c < 3; c++) total[c] = *shared.ring(area, done, c);
                if (mine) store_pixel(shared, to, total);
            }
        }
    }
}

KERNEL jpeg_layout(const Batch *batch) {  // write the sizes of the structs, which the host compares with its own
    if (threadIdx.x || blockIdx.x) return;
    i32 *sizes = batch->status;
    sizes[0] = sizeof(Component), sizes[1] = sizeof(Image), sizes[2] = sizeof(Axis), sizes[3] = sizeof(Resize);
    sizes[4] = sizeof(Pixels), sizes[5] = sizeof(Batch), sizes[6] = sizeof(HuffmanTable);
    sizes[7] = ENTROPY_THREADS, sizes[8] = SUBSEQUENCE_BITS, sizes[9] = ENTRIES_EACH, sizes[10] = UNSTUFF_CHUNK;
    sizes[11] = IDCT_GROUPS, sizes[12] = PIXEL_CHUNK, sizes[13] = PIXEL_SPAN, sizes[14] = sizeof(Scan);
}
