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
};

// Source pixels [x, x + SEGMENT) of rows y, y + 1, ... into shared memory; coordinates outside the picture are clamped.
DEVICE void load_rows(ResizeShared &shared, const Plane *planes, int colour, int output_type, const Axis *axis, int x, int y,
                      int width) {
    int groups = (width + 3) >> 2;
    bool simple = output_type == OUTPUT_RGB && planes[0].upsampling == FULL_SIZE
                  && (colour == COLOUR_GRAY || (planes[1].upsampling == FULL_SIZE && planes[2].upsampling == FULL_SIZE));
    for (int i = threadIdx.x; i < groups * ROWS_AT_ONCE; i += blockDim.x) {
        int nth = i >= groups, at_x = x + 4 * (i - nth * groups), at_y = min(max(y + nth, axis[1].begin), axis[1].end - 1);
        u32 four[4];
        if (simple && at_x >= axis[0].begin && at_x + 4 <= axis[0].end) {
            int at = at_y * planes[0].pitch + at_x;
            u32 first = *(const u32 *)(planes[0].samples + at), second = first, third = first;
            if (colour != COLOUR_GRAY) {
                second = *(const u32 *)(planes[1].samples + at);
                third = *(const u32 *)(planes[2].samples + at);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int a = first >> (8 * k) & 255, b = second >> (8 * k) & 255, c = third >> (8 * k) & 255;
                four[k] = colour == COLOUR_YCBCR ? ycc_to_rgb(a, b, c) : (u32)(a | b << 8 | c << 16);
            }
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                four[k] = pixel(planes, colour, output_type, min(max(at_x + k, axis[0].begin), axis[0].end - 1), at_y);
        }
        int to = at_x - x;
#pragma unroll
        for (int c = 0; c < 3; c++)
            *(float4 *)&shared.row[nth][c][to] = make_float4(byte_to_float(four[0], c), byte_to_float(four[1], c),
                                                             byte_to_float(four[2], c), byte_to_float(four[3], c));
    }
}

DEVICE void store_pixel(const Batch *batch, const Resize &resize, int column, int row, const float *value, int channels) {
    i64 at = resize.out + column * resize.axis[0].stride + row * resize.axis[1].stride;
#pragma unroll
    for (int c = 0; c < 3; c++) {
        if (c >= channels) break;
        float v = value[c];
        if (batch->round_to_uint8) v = fminf(fmaxf(floorf(v + 0.5f), 0.0f), 255.0f);
        v = v * batch->mul[c] + batch->add[c];
        i64 to = at + (i64)c * resize.stride_c;
        if (batch->out_dtype == 2) ((float *)batch->out)[to] = v;
        else if (batch->out_dtype == 1) ((u16 *)batch->out)[to] = to_half(v);
        else batch->out[to] = (u8)fminf(fmaxf(floorf(v + 0.5f), 0.0f), 255.0f);
    }
}

KERNEL __launch_bounds__(RESIZE_THREADS) jpeg_resize(const Batch *batch) {
    __shared__ __align__(16) ResizeShared shared;
    int at = locate(batch->resize_first, batch->count, blockIdx.x);
    const Resize &resize = batch->resize[at];
    if (batch->status[resize.image]) return;
    const Image &image = batch->images[resize.image];
    const Axis *axis = resize.axis;
    int colour = image.colour, output_type = batch->output_type, channels = output_type == OUTPUT_GRAY ? 1 : 3;
    Plane planes[3];
#pragma unroll
    for (int c = 0; c < 3; c++) planes[c] = open_plane(batch, image.component[c < image.components ? c : 0]);

    int tile = blockIdx.x - batch->resize_first[at];
    int across = (axis[0].count + blockDim.x - 1) / blockDim.x;
    int first_column = tile % across * blockDim.x, first_row = tile / across * batch->tile_rows;
    int last_column = min(first_column + (int)blockDim.x, axis[0].count) - 1;
    int behind_row = min(first_row + batch->tile_rows, axis[1].count);
    int column = min(first_column + (int)threadIdx.x, last_column);
    bool mine = first_column + (int)threadIdx.x <= last_column;

    const float *weights_x = batch->weights + axis[0].weights, *weights_y = batch->weights + axis[1].weights;
    const int *starts_x = (const int *)(weights_x + (i64)axis[0].taps * axis[0].count);
    const int *starts_y = (const int *)(weights_y + (i64)axis[1].taps * axis[1].count);
    int taps_x = axis[0].taps, taps_y = axis[1].taps, count_x = axis[0].count, count_y = axis[1].count;
    int begin_x = starts_x[first_column] & ~3, end_x = starts_x[last_column] + taps_x;
    int begin_y = starts_y[first_row], end_y = starts_y[behind_row - 1] + taps_y;
    int my_start = starts_x[column];
    float my_weights[TAPS_IN_REGISTERS];
#pragma unroll
    for (int k = 0; k < TAPS_IN_REGISTERS; k++) my_weights[k] = k < taps_x ? weights_x[k * count_x + column] : 0.0f;
    bool gather = taps_y <= RING;  // else few outputs are under way at a time, and each row is added to them
    float (*ring)[3][RESIZE_THREADS] = shared.ring;
    int lane = threadIdx.x, done = first_row, opened = first_row;  // outputs finished, outputs begun

    for (int y = begin_y; y < end_y; y += ROWS_AT_ONCE) {
        float sum[ROWS_AT_ONCE][3];
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) sum[r][0] = sum[r][1] = sum[r][2] = 0.0f;
        for (int x = begin_x; x < end_x; x += SEGMENT) {
            __syncthreads();
            load_rows(shared, planes, colour, output_type, axis, x, y, min(SEGMENT, end_x - x));
            __syncthreads();
            if (taps_x <= TAPS_IN_REGISTERS && end_x - begin_x <= SEGMENT) {
                const float *from = &shared.row[0][0][my_start - x];
#pragma unroll
                for (int k = 0; k < TAPS_IN_REGISTERS; k++) {
                    if (k >= taps_x) break;
#pragma unroll
                    for (int r = 0; r < ROWS_AT_ONCE; r++)
#pragma unroll
                        for (int c = 0; c < 3; c++) sum[r][c] += my_weights[k] * from[(r * 3 + c) * SEGMENT + k];
                }
            } else {
                int low = max(0, x - my_start), high = min(taps_x, x + SEGMENT - my_start);
                for (int k = low; k < high; k++) {
                    float weight = weights_x[(i64)k * count_x + column];
#pragma unroll
                    for (int r = 0; r < ROWS_AT_ONCE; r++)
#pragma unroll
                        for (int c = 0; c < 3; c++) sum[r][c] += weight * shared.row[r][c][my_start + k - x];
                }
            }
        }
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            int now = y + r;
            if (gather) {
                for (int c = 0; c < 3; c++) ring[(now - begin_y) % RING][c][lane] = sum[r][c];
            } else {
                for (; opened < behind_row && starts_y[opened] <= now; opened++)
                    for (int c = 0; c < 3; c++) ring[opened % RING][c][lane] = 0.0f;
                for (int output = done; output < opened; output++) {
                    float weight = weights_y[(i64)(now - starts_y[output]) * count_y + output];
                    for (int c = 0; c < 3; c++) ring[output % RING][c][lane] += weight * sum[r][c];
                }
            }
            for (; done < behind_row && starts_y[done] + taps_y - 1 == now; done++) {
                float value[3] = {0.0f, 0.0f, 0.0f};
                if (gather) {
                    for (int k = 0; k < taps_y; k++) {
                        float weight = weights_y[k * count_y + done];
#pragma unroll
                        for (int c = 0; c < 3; c++) value[c] += weight * ring[(starts_y[done] + k - begin_y) % RING][c][lane];
                    }
                } else {
                    for (int c = 0; c < 3; c++) value[c] = ring[done % RING][c][lane];
                }
                if (mine) store_pixel(batch, resize, column, done, value, channels);
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
