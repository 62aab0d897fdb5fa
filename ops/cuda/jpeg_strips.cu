// Planes -> pixels -> resize -> crop -> mirror -> normalise, with the same bits as jpeg_resize, for images that become
// smaller and have at most SLOTS unfinished outputs at a time along either axis.
//
// A warp computes a strip of the image, some columns of the output wide, and moves down it 32 source rows at a time,
// one row per lane. Along its row, a lane computes one pixel after the other in registers and adds it to the unfinished
// outputs: which outputs these are, and their weights, is the same for all lanes. Finished values go to shared memory;
// then each lane takes a column and adds the 32 rows to the unfinished outputs of the vertical pass. No warp waits for
// another one.
#include "jpeg_resize.cu"

#ifndef STRIP_POOL
#define STRIP_POOL 3616  // floats: filtered rows, and weights of the strip's source columns
#endif
#ifndef STRIP_BLOCKS
// minimum blocks per multiprocessor: with more, registers or the first-level cache are too small
#define STRIP_BLOCKS 12
#endif

struct __align__(16) StripShared : OutputForm {
    float4 rows[32];
    float pool[STRIP_POOL];
};

// Positions of a lane's samples: bytes from the first sample of luma, and of either chroma.
struct StripRow { int luma, near, far; };

// The samples of 16 pixels of a row. If chroma has half the width, two rows of 8 chroma samples.
template <bool HALVED> struct StripGroup {
    uint4 luma;
    uint4 chroma[2];  // HALVED: x, y of the nearer row, z, w of the farther one
};

struct StripSource {
    const u8 *luma, *blue, *red;
    bool chroma;

    template <bool HALVED> DEVICE StripGroup<HALVED> load(const StripRow &row, int group) const {
        StripGroup<HALVED> made;
        made.luma = *(const uint4 *)(luma + row.luma + 16 * group);
        if (!HALVED) {
            uint4 gray = make_uint4(0x80808080u, 0x80808080u, 0x80808080u, 0x80808080u);
            made.chroma[0] = made.chroma[1] = gray;
            if (chroma) {
                made.chroma[0] = *(const uint4 *)(blue + row.near + 16 * group);
                made.chroma[1] = *(const uint4 *)(red + row.near + 16 * group);
            }
            return made;
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const u8 *plane = c ? red : blue;
            uint2 near = *(const uint2 *)(plane + row.near + 8 * group), far = *(const uint2 *)(plane + row.far + 8 * group);
            made.chroma[c] = make_uint4(near.x, near.y, far.x, far.y);
        }
        return made;
    }
};

DEVICE uint4 moved(uint4 words) { return make_uint4(words.y, words.z, words.w, words.w); }

// Upsample samples 0 and 2, and 1 and 3, of a nearer and a farther row vertically: results times 4, as 16-bit halves of
// a word.
DEVICE void upsample_down(u32 near, u32 far, u32 *even, u32 *odd) {
    *even = 3 * __byte_perm(near, 0, 0x4240) + __byte_perm(far, 0, 0x4240);
    *odd = 3 * __byte_perm(near, 0, 0x4341) + __byte_perm(far, 0, 0x4341);
}

// State of a warp while it moves along its rows.
struct StripWalk {
    float under_way[SLOTS][3];
    const float4 *weights;  // weights of the next pixel
    float *finished;        // where the next output is written

    // Add four pixels: the bytes of a word of luma. Byte `first` of the chroma word is the first pixel's; the next
    // pixel's is STEP bytes after it or, if STEP is 0, at the same position of the next word.
    template <int STEP> DEVICE void take(u32 luma, const u32 *cb, const u32 *cr, int first, u32 magic) {
        float rgb[4][3], each[4][SLOTS];
        int ends[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float4 weight = weights[i];
            each[i][0] = weight.x, each[i][1] = weight.y, each[i][2] = weight.z, ends[i] = (int)__float_as_uint(weight.w);
        }
        weights += 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int word = STEP ? 0 : i, byte = first + STEP * i;
            ycc_to_floats((int)magic_byte(luma, magic, i), (int)byte_of(cb[word], byte), (int)byte_of(cr[word], byte), rgb[i]);
        }
        if (!(ends[0] | ends[1] | ends[2] | ends[3])) {
#pragma unroll
            for (int i = 0; i < 4; i++) add(each[i], rgb[i]);
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            add(each[i], rgb[i]);
            bool end = ends[i] != 0;  // no branch, so that the four pixels are processed in parallel
            if (end) finished[0] = under_way[0][0];
            if (end) finished[1] = under_way[0][1];
            if (end) finished[2] = under_way[0][2];
            if (end) finished += 3;
#pragma unroll
            for (int k = 0; k < SLOTS * 3; k++) {
                float next = k / 3 + 1 < SLOTS ? under_way[(k / 3 + 1) % SLOTS][k % 3] : 0.0f;
                under_way[k / 3][k % 3] = end ? next : under_way[k / 3][k % 3];
            }
        }
    }
    DEVICE void add(const float *weight, const float *rgb) {
#pragma unroll
        for (int k = 0; k < SLOTS * 3; k++) under_way[k / 3][k % 3] = fmaf(weight[k / 3], rgb[k % 3], under_way[k / 3][k % 3]);
    }
};

// The outputs [first, behind) of an axis that a strip computes, and the samples [begin, end) that they use.
struct Stretch {
    const float4 *reached;  // weights of sample 0
    int begin, end, before, before_that;  // ends of the two outputs before the first one

    DEVICE void open(const Batch *batch, const Axis &axis, const int *starts, int first, int behind) {
        reached = (const float4 *)(batch->weights + axis.reached) - starts[0];
        begin = starts[first], end = starts[behind - 1] + axis.taps;
        before = first > 0 ? starts[first - 1] + axis.taps : begin;
        before_that = first > 1 ? starts[first - 2] + axis.taps : begin;
    }
    // Return the weights of sample `at` in these outputs, the oldest first, and whether the oldest ends.
    DEVICE float4 at(int at) const {
        float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (at < begin || at >= end) return none;
        float4 all = reached[at];
        if (at < before_that) return make_float4(all.z, 0.0f, 0.0f, 0.0f);
        if (at < before) return make_float4(all.y, all.z, 0.0f, 0.0f);
        return all;
    }
};

// Load four pixels of which some are outside the image or at its border: a word of each component.
__device__ __noinline__ uint4 pixels_at_border(const Batch *batch, const Image &image, const Axis &across, int x, int y, bool chroma) {
    uint4 words = make_uint4(0, 0x80808080u, 0x80808080u, 0);
    u32 *each[3] = {&words.x, &words.y, &words.z};
#pragma unroll
    for (int c = 0; c < 3; c++) {
        if (c && !chroma) break;
        const Plane plane = open_plane(batch, image.component[c]);
#pragma unroll 1
        for (int i = 0; i < 4; i++)
            *each[c] = *each[c] >> 8 | (u32)sample(plane, min(max(x + i, across.begin), across.end - 1), y) << 24;
    }
    return words;
}

// Compute a strip. HALVED: chroma has half the columns. A group of 16 pixels then begins one before a multiple of 16,
// so that it needs only its own chroma samples and one of the previous group.
template <bool HALVED> DEVICE void resize_strip(StripShared &shared, const Batch *batch, const Resize &resize, int strip, int tile) {
    const int SHIFT = HALVED ? 1 : 0;
    const Axis &across = resize.axis[0], &down = resize.axis[1];
    const Image &image = batch->images[resize.image];
    int lane = threadIdx.x;
    int first_column = strip * across.tile, behind_column = min(first_column + across.tile, across.count);
    int done = tile * down.tile, behind_row = min(done + down.tile, down.count);
    // odd, so that lanes of a column use different banks
    int columns = behind_column - first_column, stride = 3 * columns | 1;
    Stretch columns_of, rows_of;
    columns_of.open(batch, across, (const int *)(batch->weights + across.weights + (i64)across.taps * across.count), first_column, behind_column);
    rows_of.open(batch, down, (const int *)(batch->weights + down.weights + (i64)down.taps * down.count), done, behind_row);
    // Pixels [begin_x, end_x) as whole groups; at either end, only the fours of a group that are needed.
    int begin_x = ((columns_of.begin + SHIFT) & ~3) - SHIFT, end_x = ((columns_of.end + SHIFT + 3) & ~3) - SHIFT;
    float4 *table = (float4 *)(shared.pool + ((32 * stride + 3) & ~3));
    for (int i = lane; i < end_x - begin_x; i += 32) table[i] = columns_of.at(begin_x + i);

    StripSource source;
    const Component &luma = image.component[0], &other = image.component[1];
    source.luma = batch->planes + luma.plane, source.blue = batch->planes + other.plane;
    source.red = batch->planes + image.component[2].plane;
    source.chroma = image.components == 3 && batch->output_type != OUTPUT_GRAY;
    bool both = HALVED && other.expand_y == 2;
    u32 even_bias = both ? 0x80008 : 0x40004, odd_bias = both ? 0x70007 : 0x80008;
    int low_y = down.begin, last_y = down.end - 1;
    auto row_at = [&](int y) {
        StripRow row;
        y = min(max(y, low_y), last_y);
        int near = both ? y >> 1 : y, far = both ? min(max(near + (y & 1 ? 1 : -1), 0), other.height - 1) : y;
        row.luma = y * luma.pitch, row.near = near * other.pitch, row.far = far * other.pitch;
        return row;
    };
    int first_group = (begin_x + SHIFT) >> 4, behind_group = (end_x + SHIFT + 15) >> 4;
    // Groups that are inside the image with their neighbours; the others are computed pixel by pixel.
    int inner = (max(across.begin, HALVED ? 15 : 0) + SHIFT + 15) >> 4;
    int behind_inner = (min(across.end, HALVED ? 2 * other.width - 1 : across.end) + SHIFT) >> 4;
    inner = max(inner, first_group), behind_inner = min(behind_inner, behind_group);

    StripRow row = row_at(rows_of.begin + lane);
    float4 row_weights = rows_of.at(rows_of.begin + lane);
    StripGroup<HALVED> next = {};
    if (first_group == inner && inner < behind_inner) next = source.template load<HALVED>(row, first_group);
    u32 magic = shared.magic;
    int column = min(lane, columns - 1);
    u8 *to = batch->out + ((resize.out + (first_column + column) * across.stride + done * down.stride) << shared.out_dtype);
    if (batch->output_type == OUTPUT_BGR) to += 2 * -shared.channel_bytes;
    float under_way[SLOTS][3] = {};

#pragma unroll 1
    for (int y = rows_of.begin; y < rows_of.end; y += 32) {
        shared.rows[lane] = row_weights;
        __syncwarp();
        StripWalk walk = {};
        walk.weights = table, walk.finished = shared.pool + lane * stride;
        // luma of the last four pixels; chroma of the last samples but one and two
        u32 luma_before = 0, blue_before = 0, red_before = 0;
#pragma unroll 1
        for (int group = first_group; group < behind_group; group++) {
            StripGroup<HALVED> now = next;
            bool whole = group >= inner && group < behind_inner;
            if (HALVED && group == inner && whole) {
                u32 even;
                luma_before = *(const u32 *)(source.luma + row.luma + 16 * group - 4);
                upsample_down(*(const u32 *)(source.blue + row.near + 8 * group - 4), *(const u32 *)(source.blue + row.far + 8 * group - 4), &even, &blue_before);
                upsample_down(*(const u32 *)(source.red + row.near + 8 * group - 4), *(const u32 *)(source.red + row.far + 8 * group - 4), &even, &red_before);
            }
            if (group + 1 >= inner && group + 1 < behind_inner) next = source.template load<HALVED>(row, group + 1);
            int at = 16 * group - SHIFT;
            if (whole) {
                if (HALVED) {
                    u32 words[4] = {now.luma.x, now.luma.y, now.luma.z, now.luma.w};
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        u32 pixels[2][4];  // pixels 0 and 4, 1 and 5, 2 and 6, 3 and 7, of either chroma
#pragma unroll
                        for (int c = 0; c < 2; c++) {
                            u32 near = half ? now.chroma[c].y : now.chroma[c].x, far = half ? now.chroma[c].w : now.chroma[c].z;
                            u32 &before = c ? red_before : blue_before, even, odd;
                            upsample_down(near, far, &even, &odd);
                            u32 left = __byte_perm(before, odd, 0x5432);  // samples -1 and 1
                            before = odd;
                            pixels[c][0] = (3 * left + even + odd_bias) >> 4, pixels[c][1] = (3 * even + left + even_bias) >> 4;
                            pixels[c][2] = (3 * even + odd + odd_bias) >> 4, pixels[c][3] = (3 * odd + even + even_bias) >> 4;
                        }
#pragma unroll
                        for (int k = 0; k < 2; k++) {
                            int x = at + 8 * half + 4 * k;
                            u32 four = __funnelshift_l(luma_before, words[2 * half + k], 8);
                            luma_before = words[2 * half + k];
                            if (x >= begin_x && x < end_x) walk.take<0>(four, pixels[0], pixels[1], 2 * k, magic);
                        }
                    }
                } else {
#pragma unroll 1
                    for (int k = 0; k < 4; k++) {  // not unrolled: longer code waits for its instructions
                        if (at + 4 * k >= begin_x && at + 4 * k < end_x) walk.take<1>(now.luma.x, &now.chroma[0].x, &now.chroma[1].x, 0, magic);
                        now.luma = moved(now.luma), now.chroma[0] = moved(now.chroma[0]), now.chroma[1] = moved(now.chroma[1]);
                    }
                }
                continue;
            }
            int y_here = min(max(y + lane, low_y), last_y);
#pragma unroll 1
            for (int x = max(at, begin_x); x < min(at + 16, end_x); x += 4) {
                uint4 words = pixels_at_border(batch, image, across, x, y_here, source.chroma);
                walk.take<1>(words.x, &words.y, &words.z, 0, magic);
            }
        }
        // The next rows are loaded while these are added up.
        row = row_at(y + 32 + lane), row_weights = rows_of.at(y + 32 + lane);
        if (y + 32 < rows_of.end && first_group == inner && inner < behind_inner) next = source.template load<HALVED>(row, first_group);
        __syncwarp();
        // rows that are the last of an output
        const u32 ending = __ballot_sync(~0u, __float_as_uint(shared.rows[lane].w) != 0);
        const float *values = shared.pool + 3 * column;
        const OutputForm form = shared;
#pragma unroll 2
        for (int r = 0; r < 32; r++, values += stride) {
            float4 weights = shared.rows[r];
            float each[SLOTS] = {weights.x, weights.y, weights.z};
#pragma unroll
            for (int k = 0; k < SLOTS * 3; k++) under_way[k / 3][k % 3] = fmaf(each[k / 3], values[k % 3], under_way[k / 3][k % 3]);
            if (ending >> r & 1) {
                if (lane < columns) store_pixel(form, to, under_way[0]);
                to += form.row_bytes;
#pragma unroll
                for (int k = 0; k < SLOTS * 3; k++) under_way[k / 3][k % 3] = k / 3 + 1 < SLOTS ? under_way[(k / 3 + 1) % SLOTS][k % 3] : 0.0f;
            }
        }
        __syncwarp();
    }
}

KERNEL __launch_bounds__(32, STRIP_BLOCKS) jpeg_strips(const Batch *batch) {
    __shared__ StripShared shared;
    int at = locate_by_warp(batch->strips_first, batch->count, blockIdx.x);
    const Resize &resize = batch->resize[at];
    if (batch->status[resize.image]) return;
    if (threadIdx.x == 0) {
        shared.open(batch, resize);
        if (batch->output_type == OUTPUT_BGR) {  // in reverse order
            float mul = shared.mul.x, add = shared.add.x;
            shared.mul.x = shared.mul.z, shared.add.x = shared.add.z, shared.mul.z = mul, shared.add.z = add;
            shared.channel_bytes = -shared.channel_bytes;
        }
    }
    __syncwarp();
    int nth = blockIdx.x - batch->strips_first[at], strips = (resize.axis[0].count + resize.axis[0].tile - 1) / resize.axis[0].tile;
    const Image &image = batch->images[resize.image];
    bool halved = image.components == 3 && batch->output_type != OUTPUT_GRAY && image.component[1].expand_x == 2;
    if (halved) resize_strip<true>(shared, batch, resize, nth % strips, nth / strips);
    else resize_strip<false>(shared, batch, resize, nth % strips, nth / strips);
}
