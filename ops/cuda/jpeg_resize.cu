// Planes -> pixels -> resize -> crop -> mirror -> normalise in one pass. DALI's resize: tabulated filters (linear between
// the entries), normalised taps, float32 between the passes, and outside the picture its border pixel stands in.
//
// A block of threads takes some rows of the output; a thread owns a column. Source rows go by once, two at a time: they
// are converted to pixels in shared memory (each exactly as libjpeg-turbo would), filtered horizontally, and added to the
// outputs that they belong to.
#include "jpeg_pixels.cu"

#define RESIZE_THREADS 256   // at most
#define SEGMENT 512          // source pixels of a row in shared memory
#define ROWS_AT_ONCE 2
#define RING 8               // filtered rows remembered, or outputs under way
#define TAPS_IN_REGISTERS 8

// The filter at x of its table; DALI's order of operations.
DEVICE float filter_at(const float *table, int last, float x) {
    if (!(x > -1.0f && x < (float)(last + 1))) return 0.0f;
    int below = (int)floorf(x);
    float a = below >= 0 ? table[below] : 0.0f, b = below < last ? table[below + 1] : 0.0f;
    return __fadd_rn(a, __fmul_rn(__fsub_rn(x, (float)below), __fsub_rn(b, a)));
}

// Taps of every output column and row: blockIdx.x counts (picture, axis).
KERNEL __launch_bounds__(128) jpeg_weights(const Batch *batch) {
    const Axis &axis = batch->resize[blockIdx.x >> 1].axis[blockIdx.x & 1];
    float *weights = batch->weights + axis.weights;
    int *starts = (int *)(weights + (i64)axis.taps * axis.count);
    for (int i = threadIdx.x; i < axis.count; i += blockDim.x) {
        int output = axis.first + i;
        if (axis.table < 0) {
            float at = __fadd_rn(axis.lo, __fmul_rn(__fadd_rn((float)output, 0.5f), axis.scale));
            starts[i] = axis.flip ? (int)ceilf(at) - 1 : (int)floorf(at);
            weights[i] = 1.0f;
            continue;
        }
        const float *table = batch->filters + axis.table;
        float density = __fdiv_rn((float)axis.table_last, axis.support);
        float middle = __fsub_rn(__fmul_rn(0.5f, axis.scale), 0.5f);
        float origin = __fadd_rn(axis.lo, __fsub_rn(middle, __fmul_rn(axis.support, 0.5f)));
        float at = __fadd_rn(__fmul_rn((float)output, axis.scale), origin);
        int start = (int)ceilf(at);
        float first = __fmul_rn(__fsub_rn((float)start, at), density), x = first, total = 0.0f;
        for (int k = 0; k < axis.taps; k++, x = __fadd_rn(x, density)) total = __fadd_rn(total, filter_at(table, axis.table_last, x));
        x = first;
        for (int k = 0; k < axis.taps; k++, x = __fadd_rn(x, density))
            weights[(i64)k * axis.count + i] = __fdiv_rn(filter_at(table, axis.table_last, x), total);
        starts[i] = start;
    }
}

DEVICE float byte_to_float(u32 word, int i) {  // 2^23 + byte has the byte in its last bits
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + i)) - 8388608.0f;
}

struct ResizeShared {
    float row[ROWS_AT_ONCE][3][SEGMENT];
    float ring[RING][3][RESIZE_THREADS];
    Resize resize;               // what all threads share stays out of their registers
    Source source;
};

// Rarely called: kept apart, so that its registers are not everyone's.
__device__ __noinline__ u32 border_pixel(const Source &source, int x, int y) { return pixel(source, x, y); }

// Source pixels [x, x + width) of rows y, y + 1, ... into shared memory; coordinates outside the picture are clamped.
DEVICE void load_rows(ResizeShared &shared, int x, int y, int width) {
    const Source &source = shared.source;
    const Axis *axis = shared.resize.axis;
    int groups = (width + 3) >> 2;
#pragma unroll 1
    for (int i = threadIdx.x; i < groups * ROWS_AT_ONCE; i += blockDim.x) {
        int nth = i >= groups, to = 4 * (i - nth * groups);
        int at_x = x + to, at_y = min(max(y + nth, axis[1].begin), axis[1].end - 1);
        u32 four[4];
        if (at_x >= axis[0].begin && at_x + 4 <= axis[0].end) {
            pixels4(source, at_x, at_y, four);
        } else {
#pragma unroll 1
            for (int k = 0; k < 4; k++) {  // rare: keeps the code small
                u32 one = border_pixel(source, min(max(at_x + k, axis[0].begin), axis[0].end - 1), at_y);
#pragma unroll
                for (int j = 0; j < 4; j++) four[j] = j == k ? one : four[j];
            }
        }
#pragma unroll
        for (int c = 0; c < 3; c++)
            *(float4 *)&shared.row[nth][c][to] = make_float4(byte_to_float(four[0], c), byte_to_float(four[1], c),
                                                             byte_to_float(four[2], c), byte_to_float(four[3], c));
    }
}

DEVICE void store_pixel(const Batch *batch, const ResizeShared &shared, int column, int row, const float *value) {
    const Resize &resize = shared.resize;
    i64 at = resize.out + column * resize.axis[0].stride + row * resize.axis[1].stride;
    int channels = shared.source.output_type == OUTPUT_GRAY ? 1 : 3;
#pragma unroll
    for (int c = 0; c < 3; c++) {
        if (c >= channels) break;
        float v = value[c];
        if (batch->round_to_uint8) v = fminf(fmaxf(floorf(v + 0.5f), 0.0f), 255.0f);
        v = v * batch->mul[c] + batch->add[c];
        if (batch->out_dtype == 2) ((float *)batch->out)[at] = v;
        else if (batch->out_dtype == 1) ((u16 *)batch->out)[at] = to_half(v);
        else batch->out[at] = (u8)fminf(fmaxf(floorf(v + 0.5f), 0.0f), 255.0f);
        at += resize.stride_c;
    }
}

KERNEL __launch_bounds__(RESIZE_THREADS, 4) jpeg_resize(const Batch *batch) {
    __shared__ __align__(16) ResizeShared shared;
    int at = locate(batch->resize_first, batch->count, blockIdx.x);
    if (batch->status[batch->resize[at].image]) return;
    for (int i = threadIdx.x; i < (int)(sizeof(Resize) / 4); i += blockDim.x)
        ((u32 *)&shared.resize)[i] = ((const u32 *)(batch->resize + at))[i];
    if (threadIdx.x == 0) shared.source = open_source(batch, batch->images[batch->resize[at].image]);
    __syncthreads();
    const Axis &across = shared.resize.axis[0], &down = shared.resize.axis[1];

    int tile = blockIdx.x - batch->resize_first[at];
    int tiles = (across.count + blockDim.x - 1) / blockDim.x;
    int first_column = tile % tiles * blockDim.x, done = tile / tiles * batch->tile_rows;  // rows finished
    int last_column = min(first_column + (int)blockDim.x, across.count) - 1;
    int behind_row = min(done + batch->tile_rows, down.count);
    int column = first_column + (int)threadIdx.x;
    bool mine = column <= last_column;
    column = min(column, last_column);

    const float *weights_x = batch->weights + across.weights, *weights_y = batch->weights + down.weights;
    const int *starts_x = (const int *)(weights_x + across.taps * across.count);
    const int *starts_y = (const int *)(weights_y + down.taps * down.count);
    int taps_x = across.taps, taps_y = down.taps;
    int begin_x = starts_x[first_column] & ~3, end_x = starts_x[last_column] + taps_x;
    int begin_y = starts_y[done], end_y = starts_y[behind_row - 1] + taps_y;
    int my_start = starts_x[column], lane = threadIdx.x;
    bool one_segment = taps_x <= TAPS_IN_REGISTERS && end_x - begin_x <= SEGMENT;
    bool gather = taps_y + ROWS_AT_ONCE - 1 <= RING;  // else few outputs are under way, and each row is added to them
    float my_weights[TAPS_IN_REGISTERS];
#pragma unroll
    for (int k = 0; k < TAPS_IN_REGISTERS; k++) my_weights[k] = k < taps_x ? weights_x[k * across.count + column] : 0.0f;

    int opened = done;  // outputs begun
    for (int y = begin_y; y < end_y; y += ROWS_AT_ONCE) {
        float sum[ROWS_AT_ONCE][3];
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) sum[r][0] = sum[r][1] = sum[r][2] = 0.0f;
        for (int x = begin_x; x < end_x; x += SEGMENT) {
            __syncthreads();
            load_rows(shared, x, y, min(SEGMENT, end_x - x));
            __syncthreads();
            const float *from = &shared.row[0][0][0] + (my_start - x);
            if (one_segment) {
#pragma unroll
                for (int k = 0; k < TAPS_IN_REGISTERS; k++) {
                    if (k >= taps_x) break;
#pragma unroll
                    for (int rc = 0; rc < ROWS_AT_ONCE * 3; rc++) sum[rc / 3][rc % 3] += my_weights[k] * from[rc * SEGMENT + k];
                }
            } else {
                int low = max(0, x - my_start), high = min(taps_x, x + SEGMENT - my_start);
#pragma unroll 1
                for (int k = low; k < high; k++) {
                    float weight = weights_x[k * across.count + column];
#pragma unroll
                    for (int rc = 0; rc < ROWS_AT_ONCE * 3; rc++) sum[rc / 3][rc % 3] += weight * from[rc * SEGMENT + k];
                }
            }
        }
        if (gather) {
#pragma unroll
            for (int rc = 0; rc < ROWS_AT_ONCE * 3; rc++) shared.ring[(y + rc / 3) & (RING - 1)][rc % 3][lane] = sum[rc / 3][rc % 3];
#pragma unroll 1
            for (; done < behind_row && starts_y[done] + taps_y <= y + ROWS_AT_ONCE; done++) {
                float value[3] = {0.0f, 0.0f, 0.0f};
                int start = starts_y[done];
#pragma unroll 2
                for (int k = 0; k < taps_y; k++) {
                    float weight = weights_y[k * down.count + done];
#pragma unroll
                    for (int c = 0; c < 3; c++) value[c] += weight * shared.ring[(start + k) & (RING - 1)][c][lane];
                }
                if (mine) store_pixel(batch, shared, column, done, value);
            }
            continue;
        }
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
#pragma unroll 1
            for (; opened < behind_row && starts_y[opened] <= y + r; opened++)
                for (int c = 0; c < 3; c++) shared.ring[opened & (RING - 1)][c][lane] = 0.0f;
#pragma unroll 1
            for (int output = done; output < opened; output++) {
                float weight = weights_y[(y + r - starts_y[output]) * down.count + output];
#pragma unroll
                for (int c = 0; c < 3; c++) shared.ring[output & (RING - 1)][c][lane] += weight * sum[r][c];
            }
#pragma unroll 1
            for (; done < opened && starts_y[done] + taps_y - 1 == y + r; done++) {
                float value[3];
#pragma unroll
                for (int c = 0; c < 3; c++) value[c] = shared.ring[done & (RING - 1)][c][lane];
                if (mine) store_pixel(batch, shared, column, done, value);
            }
        }
    }
}

KERNEL jpeg_layout(const Batch *batch) {  // sizes, for the host to check its mirror of the records
    if (threadIdx.x || blockIdx.x) return;
    i32 *sizes = batch->status;
    sizes[0] = sizeof(Component), sizes[1] = sizeof(Image), sizes[2] = sizeof(Axis), sizes[3] = sizeof(Resize);
    sizes[4] = sizeof(Pixels), sizes[5] = sizeof(Batch), sizes[6] = sizeof(HuffmanTable);
    sizes[7] = ENTROPY_THREADS, sizes[8] = SUBSEQUENCE_BITS, sizes[9] = ENTRIES_EACH, sizes[10] = UNSTUFF_CHUNK;
    sizes[11] = IDCT_GROUPS, sizes[12] = PIXEL_CHUNK;
}
