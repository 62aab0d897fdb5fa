// Convert component planes to pixels: chroma upsampling and colour conversion, equal to libjpeg-turbo's to the bit
// ("fancy" upsampling, 16-bit fixed point), and the kernel that writes pixels without resizing.
#include "jpeg_dense.cu"

enum OutputType { OUTPUT_RGB = 0, OUTPUT_BGR = 1, OUTPUT_GRAY = 2, OUTPUT_YCBCR = 3 };

// How a component is upsampled to full resolution.
enum Upsampling { FULL_SIZE, FANCY_H2V1, FANCY_H1V2, FANCY_H2V2, REPLICATE };

struct Plane {
    const u8 *samples;
    int pitch, width, height, expand_x, expand_y, upsampling;
};

DEVICE Plane open_plane(const Batch *batch, const Component &component) {
    Plane plane;
    plane.samples = batch->planes + component.plane;
    plane.pitch = component.pitch, plane.width = component.width, plane.height = component.height;
    plane.expand_x = component.expand_x, plane.expand_y = component.expand_y;
    bool wide = component.width > 2;  // libjpeg replicates the samples of narrower components
    plane.upsampling = plane.expand_x == 1 && plane.expand_y == 1 ? FULL_SIZE
                       : plane.expand_x == 2 && plane.expand_y == 1 && wide ? FANCY_H2V1
                       : plane.expand_x == 1 && plane.expand_y == 2 ? FANCY_H1V2
                       : plane.expand_x == 2 && plane.expand_y == 2 && wide ? FANCY_H2V2 : REPLICATE;
    return plane;
}

// Return the value of the component at pixel (x, y). Fancy upsampling is a triangle filter: 3/4 of the nearer sample
// plus 1/4 of the farther one, in each direction; the rounding constant alternates, and samples outside the plane equal
// its border sample.
DEVICE int sample(const Plane &plane, int x, int y) {
    const u8 *samples = plane.samples;
    if (plane.upsampling == FULL_SIZE) return samples[y * plane.pitch + x];
    if (plane.upsampling == REPLICATE) return samples[y / plane.expand_y * plane.pitch + x / plane.expand_x];
    int near_x = x, far_x = x, near_y = y, far_y = y;
    if (plane.expand_x == 2) near_x = x >> 1, far_x = min(max(near_x + (x & 1 ? 1 : -1), 0), plane.width - 1);
    if (plane.expand_y == 2) near_y = y >> 1, far_y = min(max(near_y + (y & 1 ? 1 : -1), 0), plane.height - 1);
    const u8 *row = samples + near_y * plane.pitch, *far_row = samples + far_y * plane.pitch;
    if (plane.upsampling == FANCY_H2V1) return (3 * row[near_x] + row[far_x] + (x & 1 ? 2 : 1)) >> 2;
    if (plane.upsampling == FANCY_H1V2) return (3 * row[x] + far_row[x] + (y & 1 ? 2 : 1)) >> 2;
    int here = 3 * row[near_x] + far_row[near_x], there = 3 * row[far_x] + far_row[far_x];
    return (3 * here + there + (x & 1 ? 7 : 8)) >> 4;
}

// Pack bytes a, b, c, d into one word.
DEVICE u32 pack4(u32 a, u32 b, u32 c, u32 d) { return a | b << 8 | c << 16 | d << 24; }
DEVICE u32 byte_of(u32 word, int i) { return __byte_perm(word, 0, 0x4440 + i); }

// Return the values of the component at pixels x ... x + 3 of row y, packed; x is a multiple of 4, and all four are
// inside the image.
DEVICE u32 sample4(const Plane &plane, int x, int y) {
    const u8 *samples = plane.samples;
    if (plane.upsampling == FULL_SIZE) return *(const u32 *)(samples + y * plane.pitch + x);
    if (plane.upsampling == REPLICATE)
        return pack4(sample(plane, x, y), sample(plane, x + 1, y), sample(plane, x + 2, y), sample(plane, x + 3, y));
    bool two_rows = plane.expand_y == 2;
    int near_y = two_rows ? y >> 1 : y, far_y = y;
    if (two_rows) far_y = min(max(near_y + (y & 1 ? 1 : -1), 0), plane.height - 1);
    const u8 *near_row = samples + near_y * plane.pitch, *far_row = samples + far_y * plane.pitch;
    if (plane.upsampling == FANCY_H1V2) {
        u32 near4 = *(const u32 *)(near_row + x), far4 = *(const u32 *)(far_row + x), bias = y & 1 ? 2 : 1, four[4];
#pragma unroll
        for (int i = 0; i < 4; i++) four[i] = (3 * byte_of(near4, i) + byte_of(far4, i) + bias) >> 2;
        return pack4(four[0], four[1], four[2], four[3]);
    }
    int column[4];  // two samples, and one neighbour on either side
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = min(max((x >> 1) + i - 1, 0), plane.width - 1);
        column[i] = two_rows ? 3 * near_row[at] + far_row[at] : near_row[at];
    }
    int even = two_rows ? 8 : 1, odd = two_rows ? 7 : 2, shift = two_rows ? 4 : 2;
    return pack4((3 * column[1] + column[0] + even) >> shift, (3 * column[1] + column[2] + odd) >> shift,
                 (3 * column[2] + column[1] + even) >> shift, (3 * column[2] + column[3] + odd) >> shift);
}

// Convert Y, Cb, Cr to packed R, G, B (bytes 0, 1, 2) with jdcolor's constants 1.40200, 0.34414, 0.71414, 1.77200 times
// 2^16, which include the subtraction of 128 from Cb and Cr.
DEVICE u32 ycc_to_rgb(int y, int cb, int cr) {
    int r = y + ((91881 * cr + (32768 - 91881 * 128)) >> 16);
    int g = y + ((-22554 * cb - 46802 * cr + (32768 + (22554 + 46802) * 128)) >> 16);
    int b = y + ((116130 * cb + (32768 - 116130 * 128)) >> 16);
    return pack_saturated(g, r, pack_saturated(0, b, 0));
}

// Convert RGB to YCbCr as DALI does: BT.601, studio swing.
DEVICE u32 rgb_to_studio_ycc(u32 rgb) {
    float r = (float)(rgb & 255), g = (float)(rgb >> 8 & 255), b = (float)(rgb >> 16 & 255);
    int y = (int)(0.25678824f * r + 0.50412941f * g + 0.09790588f * b + 16.5f);
    int cb = (int)(-0.14822290f * r - 0.29099279f * g + 0.43921569f * b + 128.5f);
    int cr = (int)(0.43921569f * r - 0.36778831f * g - 0.07142737f * b + 128.5f);
    return pack_saturated(cb, y, pack_saturated(0, cr, 0));
}

// Convert samples of the components to the bytes of the output type.
DEVICE u32 convert(int colour, int output_type, u32 first, u32 second, u32 third) {
    u32 rgb = colour == COLOUR_GRAY ? first * 0x010101u
              : colour == COLOUR_RGB ? first | second << 8 | third << 16 : ycc_to_rgb(first, second, third);
    if (output_type == OUTPUT_RGB) return rgb;
    if (output_type == OUTPUT_BGR) return __byte_perm(rgb, 0, 0x4012);
    if (output_type == OUTPUT_GRAY)  // jdcolor: rgb_gray_convert
        return colour != COLOUR_RGB ? first
               : (19595 * (rgb & 255) + 38470 * (rgb >> 8 & 255) + 7471 * (rgb >> 16 & 255) + 32768) >> 16;
    return rgb_to_studio_ycc(rgb);
}

// How the pixels of an image are computed.
struct Source {
    Plane plane[3];
    int colour, output_type;
    bool chroma;  // whether more than the first component is needed
    bool full;    // whether no component is upsampled
};

DEVICE Source open_source(const Batch *batch, const Image &image) {
    Source source;
    source.colour = image.colour, source.output_type = batch->output_type;
    source.chroma = image.components == 3 && (source.output_type != OUTPUT_GRAY || source.colour == COLOUR_RGB);
#pragma unroll
    for (int c = 0; c < 3; c++) source.plane[c] = open_plane(batch, image.component[c < image.components ? c : 0]);
    source.full = source.plane[0].upsampling == FULL_SIZE && (!source.chroma || (source.plane[1].upsampling == FULL_SIZE
                                                                                && source.plane[2].upsampling == FULL_SIZE));
    return source;
}

DEVICE u32 pixel(const Source &source, int x, int y) {
    u32 first = sample(source.plane[0], x, y), second = first, third = first;
    if (source.chroma) second = sample(source.plane[1], x, y), third = sample(source.plane[2], x, y);
    return convert(source.colour, source.output_type, first, second, third);
}

// Convert planes of four components (CMYK, YCCK) to those of an RGB image, as simplejpeg does: files store 255 - ink,
// and the highest byte of ink * black is subtracted from black.
#define FOUR_THREADS 256
#define FOUR_BLOCKS 16  // blocks of threads per image
KERNEL __launch_bounds__(FOUR_THREADS) jpeg_four(const Batch *batch) {
    __shared__ Plane plane[4];
    int at = batch->fours[blockIdx.x / FOUR_BLOCKS];
    const Image *stream = batch->images + at, &picture = batch->images[stream->owner];
    if (batch->status[stream->owner]) return;
    if (threadIdx.x < 4) plane[threadIdx.x] = open_plane(batch, threadIdx.x < 3 ? stream->component[threadIdx.x] : stream[1].component[0]);
    __syncthreads();
    const Component &shown = picture.component[0];
    bool ycck = stream->colour == COLOUR_YCCK;
    int begin_x = 32 * shown.roi_group, begin_y = 8 * shown.roi_row;
    int columns = (min(32 * shown.roi_groups, picture.width - begin_x) + 3) >> 2;  // number of words of four pixels
    int words = columns * min(8 * shown.roi_rows, picture.height - begin_y);
    for (int i = blockIdx.x % FOUR_BLOCKS * FOUR_THREADS + threadIdx.x; i < words; i += FOUR_BLOCKS * FOUR_THREADS) {
        int row = i / columns, x = begin_x + 4 * (i - row * columns), y = begin_y + row;
        u32 samples[4], rgb[3] = {0, 0, 0};
#pragma unroll
        for (int c = 0; c < 4; c++) samples[c] = sample4(plane[c], x, y);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 black = byte_of(samples[3], j);
            u32 ink = ycck ? ycc_to_rgb(byte_of(samples[0], j), byte_of(samples[1], j), byte_of(samples[2], j))
                           : ~(byte_of(samples[0], j) | byte_of(samples[1], j) << 8 | byte_of(samples[2], j) << 16);
#pragma unroll
            for (int c = 0; c < 3; c++) rgb[c] |= (black - (byte_of(ink, c) * black >> 8)) << (8 * j);
        }
#pragma unroll
        for (int c = 0; c < 3; c++)
            *(u32 *)(batch->planes + picture.component[c].plane + (i64)y * picture.component[c].pitch + x) = rgb[c];
    }
}

// Write the values of the component at pixels x ... x + 3 of rows y and y + 1 to ``rows``, one word per row. Rows are
// clamped to [low, high), which is inside the image. x is a multiple of 4, y of 2; values beyond the right border are
// undefined.
DEVICE void sample4x2(const Plane &plane, int x, int y, int low, int high, u32 *rows) {
    if (plane.upsampling == FULL_SIZE) {
#pragma unroll
        for (int r = 0; r < 2; r++) rows[r] = *(const u32 *)(plane.samples + min(max(y + r, low), high - 1) * plane.pitch + x);
    } else if ((plane.upsampling == FANCY_H2V2 && y >= low && y + 2 <= high) || plane.upsampling == FANCY_H2V1) {
        // Two columns, and one neighbour on either side, from two words; two samples share a register.
        bool two_rows = plane.expand_y == 2;
        int half = x >> 1, last = plane.width - 1, left = max(half - 1, 0) & ~3, right = min(half + 2, last) & ~3;
        u32 order = (u32)(max(half - 1, 0) - left) | (u32)(half - left) << 4 | (u32)(min(half + 1, last) - left) << 8
                    | (u32)(min(half + 2, last) - left) << 12;
        u32 inner[3], outer[3];
#pragma unroll
        for (int r = 0; r < 3; r++) {
            int row = two_rows ? min(max((y >> 1) - 1 + r, 0), plane.height - 1) : min(max(y + r, low), high - 1);
            const u8 *samples = plane.samples + row * plane.pitch;
            u32 four = __byte_perm(*(const u32 *)(samples + left), *(const u32 *)(samples + right), order);
            inner[r] = __byte_perm(four, 0, 0x4241), outer[r] = __byte_perm(four, 0, 0x4340);
        }
        u32 even_bias = two_rows ? 0x80008 : 0x10001, odd_bias = two_rows ? 0x70007 : 0x20002;
        int shift = two_rows ? 4 : 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 in = two_rows ? 3 * inner[1] + inner[2 * r] : inner[r], out = two_rows ? 3 * outer[1] + outer[2 * r] : outer[r];
            u32 even = 3 * in + __byte_perm(in, out, 0x1054) + even_bias, odd = 3 * in + __byte_perm(in, out, 0x7632) + odd_bias;
            rows[r] = __byte_perm(even >> shift, odd >> shift, 0x6240);
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < 8; i++) {  // rare: one pixel at a time, which needs few registers
            u32 one = sample(plane, x + (i & 3), min(max(y + (i >> 2), low), high - 1));
            rows[0] = __funnelshift_l(rows[0], rows[1], 24), rows[1] = rows[1] >> 8 | one << 24;
        }
    }
}

// Write all components of these pixels, as sample4x2 does.
DEVICE void samples4x2(const Source &source, int x, int y, int low, int high, u32 (*rows)[2]) {
    if (source.full) {
        int at[2];
#pragma unroll
        for (int r = 0; r < 2; r++) at[r] = min(max(y + r, low), high - 1) * source.plane[0].pitch + x;
#pragma unroll
        for (int c = 0; c < 3; c++) {
            if (c && !source.chroma) return;
#pragma unroll
            for (int r = 0; r < 2; r++) rows[c][r] = *(const u32 *)(source.plane[c].samples + at[r]);
        }
        return;
    }
#pragma unroll 1
    for (int c = 2; c >= 0; c--) {  // not unrolled: the code is long
#pragma unroll
        for (int r = 0; r < 2; r++) rows[2][r] = rows[1][r], rows[1][r] = rows[0][r];
        if (c == 0 || source.chroma) sample4x2(source.plane[c], x, y, low, high, rows[0]);
    }
}

#define PIXEL_THREADS 256
#define PIXELS_EACH 4
// bytes that a block of threads writes if the image is rotated or mirrored
#define PIXEL_CHUNK (PIXEL_THREADS * PIXELS_EACH * 4)
#define PIXEL_SPAN 508                                 // columns of the two rows that a warp writes if it is not

// Write a warp's share of an image that is not rotated: up to PIXEL_SPAN columns from `x` on, of two rows from `y` on.
// A lane computes CHANNELS words of four pixels each, and stores aligned words, which begin with the last bytes of the
// previous lane.
template <int CHANNELS> DEVICE void store_span(const Source &source, const Image &image, const Pixels &window, u8 *out, int x, int y) {
    int lane = threadIdx.x & 31;
    // range of bytes of a row
    int low = max((x - window.x) * CHANNELS, 0), high = min((x + PIXEL_SPAN - window.x), window.width) * CHANNELS;
    bool plain = CHANNELS == 3 && source.chroma && source.colour == COLOUR_YCBCR && source.output_type == OUTPUT_RGB;
    u32 carry[2] = {0, 0};
    for (int step = 0; step < 4; step++, x += 128) {
        int first = (x - window.x) * CHANNELS, mine = first + 4 * CHANNELS * lane;
        if (first - 3 >= high) break;
        u32 rows[3][2] = {};
        samples4x2(source, min(x + 4 * lane, (image.width - 1) & ~3), y, 0, image.height, rows);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 four[4], word[CHANNELS];
            if (plain) {
#pragma unroll
                for (int i = 0; i < 4; i++) four[i] = ycc_to_rgb(byte_of(rows[0][r], i), byte_of(rows[1][r], i), byte_of(rows[2][r], i));
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    four[i] = convert(source.colour, source.output_type, byte_of(rows[0][r], i), byte_of(rows[1][r], i), byte_of(rows[2][r], i));
            }
            if (CHANNELS == 3) {
                word[0] = __byte_perm(four[0], four[1], 0x4210);
                word[CHANNELS / 2] = __byte_perm(four[1], four[2], 0x5421);
                word[CHANNELS - 1] = __byte_perm(four[2], four[3], 0x6542);
            } else {
                word[0] = pack4(four[0], four[1], four[2], four[3]);
            }
            u32 before = __shfl_up_sync(~0u, word[CHANNELS - 1], 1);
            if (lane == 0) before = carry[r];
            carry[r] = __shfl_sync(~0u, word[CHANNELS - 1], 31);
            int row = y + r - window.y;
            if (row < 0 || row >= window.height) continue;
            u8 *line = out + (i64)row * window.width * CHANNELS;
            int off = (int)((u64)(line + first) & 3), at = mine - off;
            u32 order = 0x7654 - 0x1111 * off;
#pragma unroll
            for (int k = 0; k < CHANNELS; k++, at += 4) {
                u32 whole = __byte_perm(before, word[k], order);
                before = word[k];
                if (at >= low && at + 4 <= high) {
                    *(u32 *)(line + at) = whole;
                } else if (at > low - 4 && at < high) {
#pragma unroll
                    for (int b = 0; b < 4; b++)
                        if (at + b >= low && at + b < high) line[at + b] = (u8)(whole >> (8 * b));
                }
            }
        }
    }
}

// Write a window of every image as interleaved bytes.
KERNEL __launch_bounds__(PIXEL_THREADS, 4) jpeg_pixels(const Batch *batch) {
    __shared__ Source source;  // too large for the registers of every thread
    __shared__ int found;
    if (threadIdx.x < 32) {
        int at = locate_by_warp(batch->pixel_first, batch->count, blockIdx.x);
        if (threadIdx.x == 0) {
            found = at;
            source = open_source(batch, batch->images[at]);
        }
    }
    __syncthreads();
    int at = found, nth = blockIdx.x - batch->pixel_first[at];
    if (batch->status[at]) return;
    const Image &image = batch->images[at];
    const Pixels &window = batch->pixels[at];
    int channels = source.output_type == OUTPUT_GRAY ? 1 : 3;
    u8 *out = batch->out + window.out;
    if (window.step_x_x == 1 && window.step_y_y == 1) {
        int spans = (window.width + (window.x & 3) + PIXEL_SPAN - 1) / PIXEL_SPAN, pairs = (window.height + (window.y & 1) + 1) >> 1;
        int unit = nth * (PIXEL_THREADS / 32) + (threadIdx.x >> 5), pair = unit / spans;
        if (pair >= pairs) return;
        int x = (window.x & ~3) + (unit - pair * spans) * PIXEL_SPAN, y = (window.y & ~1) + 2 * pair;
        if (channels == 3) store_span<3>(source, image, window, out, x, y);
        else store_span<1>(source, image, window, out, x, y);
        return;
    }
    int size = window.width * window.height;
    int begin = nth * PIXEL_CHUNK, end = min(begin + PIXEL_CHUNK, size);
    for (int first = begin + threadIdx.x * PIXELS_EACH; first < end; first += PIXEL_THREADS * PIXELS_EACH) {
        int row = first / window.width, column = first - row * window.width;
        int count = min(PIXELS_EACH, end - first);
        u32 word[3] = {0, 0, 0};  // the pixels, shifted in from the left; a gray pixel is one byte
#pragma unroll 1
        for (int i = 0; i < count; i++) {
            u32 one = pixel(source, window.x + column * window.step_x_x + row * window.step_y_x,
                            window.y + column * window.step_x_y + row * window.step_y_y);
            if (channels == 3) {
                word[0] = __funnelshift_l(word[0], word[1], 8), word[1] = __funnelshift_l(word[1], word[2], 8);
                word[2] = word[2] >> 24 | one << 8;
            } else {
                word[0] = word[0] >> 8 | one << 24;
            }
            if (++column == window.width) column = 0, row++;
        }
        u8 *to = out + (i64)first * channels;
        bool whole = count == PIXELS_EACH && ((u64)to & 3) == 0;
        int skip = (PIXELS_EACH - count) * channels;  // bytes that are still empty
#pragma unroll
        for (int k = 0; k < 3; k++) {
            if (k >= channels) break;
            if (whole) {
                ((u32 *)to)[k] = word[k];
            } else {
#pragma unroll
                for (int b = 4 * k; b < 4 * k + 4; b++)
                    if (b >= skip) to[b - skip] = (u8)(word[k] >> (8 * (b & 3)));
            }
        }
    }
}
