// Pixels of three bytes taken from other positions, as in sampling.cu (ops/geometry/sampling.py). A block computes a
// tile of TILE x TALL pixels of the output. A warp computes GROUP columns of it at a time: for rotated images, the
// sources of pixels in a square share more cache lines than those of pixels in a row. Lines of the output begin with up
// to three unused pixels, so that every tile begins at a word.
#include "bytes.cuh"
#include "borders.cuh"

enum Kind { PERSPECTIVE, AFFINE, WATER, SPHERE };
enum Filter { NEAREST, NEAREST_EVEN, LINEAR };

#ifndef GROUP
#define GROUP 8
#endif
#ifndef TALL
#define TALL 128  // the setup of a block takes as long as four pixels of a thread
#endif
constexpr int BLOCK = 256, TILE = 32, MARGIN = 3;
constexpr int ACROSS = TILE / GROUP, DOWN = 32 / GROUP, STEP = BLOCK / TILE, TURNS = TALL / STEP;

typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// A coordinate: an integer, and a fraction in units of 2^-32.
struct Place {
    int x, y;
    u32 part_x, part_y;
};

__device__ __forceinline__ float fraction(u32 bits) { return __uint_as_float(0x3f800000u | bits >> 9) - 1.0f; }

// Split a coordinate whose magnitude is below half a million: the sum's low word counts units of 2^-32.
__device__ __forceinline__ void split_double(double s, int& whole, u32& rest) {
    s = s < 500000.0 ? s > -500000.0 ? s : -500000.0 : 500000.0;
    const i64 bits = __double_as_longlong(s + 1572864.0);
    whole = static_cast<int>(static_cast<u32>(bits >> 32) & 0xFFFFFu) - 0x80000, rest = static_cast<u32>(bits);
}

// Split a coordinate in float32; NaN becomes a position outside.
__device__ __forceinline__ void split_float(float s, int& whole, u32& rest) {
    s = s < 500000.0f ? s > -500000.0f ? s : -500000.0f : 500000.0f;
    whole = static_cast<int>(floorf(s));
    rest = __float_as_uint(fminf(s - static_cast<float>(whole), 0.99999994f) + 1.0f) << 9;
}

struct Picture {
    const u8* aligned;  // address, rounded down to 4 bytes
    u32 shift;          // bytes from there to the beginning of the image
    int rows, columns, border;
    u32 fill;

    __device__ __forceinline__ u32 offset(int x, int y) const { return static_cast<u32>(y * columns + x) * 3u + shift; }
    __device__ __forceinline__ const u32* words(u32 offset) const { return reinterpret_cast<const u32*>(aligned + (offset & ~3u)); }

    // Return a pixel; coordinates must not be negative.
    __device__ __forceinline__ u32 bytes(int x, int y) const {
        if ((x | y) < 0) return fill;
        const u8* at = aligned + offset(x, y);
        return at[0] | at[1] << 8 | at[2] << 16;
    }
    // Return a pixel at any position, inside or outside.
    __device__ __noinline__ u32 any(int x, int y) const { return bytes(inside(x, columns, border), inside(y, rows, border)); }
    // Return pixel (x, y), the next one, and the two below them.
    __device__ __noinline__ uint4 four(int x, int y) const {
        const int left = inside(x, columns, border), right = inside(x + 1, columns, border);
        const int top = inside(y, rows, border), bottom = inside(y + 1, rows, border);
        return make_uint4(bytes(left, top), bytes(right, top), bytes(left, bottom), bytes(right, bottom));
    }
};

// The loads of the source pixels of an output, in progress.
template <int FILTER> struct Taken {
    u32 offset, words[FILTER == LINEAR ? 6 : 2];
    bool within;

    __device__ __forceinline__ void load(const Picture& picture, const Place& at, bool there) {
        constexpr int MORE = FILTER == LINEAR ? 1 : 0;
        within = there && static_cast<u32>(at.x) < static_cast<u32>(picture.columns - MORE) &&
                 static_cast<u32>(at.y) < static_cast<u32>(picture.rows - MORE);
        offset = picture.offset(at.x, at.y);
        const u32* first = picture.words(offset);
        if constexpr (FILTER != LINEAR) {
            words[0] = within ? first[0] : 0, words[1] = within && (offset & 3) > 1 ? first[1] : 0;
        } else {
            const u32 next = offset + 3 * picture.columns;
            const u32* second = picture.words(next);
            words[0] = within ? first[0] : 0, words[1] = within ? first[1] : 0;
            words[2] = within && (offset & 3) == 3 ? first[2] : 0;
            words[3] = within ? second[0] : 0, words[4] = within ? second[1] : 0;
            words[5] = within && (next & 3) == 3 ? second[2] : 0;
        }
    }

    __device__ __forceinline__ u32 pixel(const Picture& picture, const Place& at, bool there) const {
        if constexpr (FILTER != LINEAR) {
            // shifts are taken modulo 32
            if (within) return __funnelshift_r(words[0], words[1], 8 * offset) & 0xFFFFFFu;
            return !there || picture.border == FILL ? picture.fill : picture.any(at.x, at.y);
        } else {
            const u32 next = offset + 3 * picture.columns;
            u32 upper = __funnelshift_r(words[0], words[1], 8 * offset), upper_high = __funnelshift_r(words[1], words[2], 8 * offset);
            u32 lower = __funnelshift_r(words[3], words[4], 8 * next), lower_high = __funnelshift_r(words[4], words[5], 8 * next);
            if (!within) {
                if (!there || (picture.border == FILL && (at.x < -1 || at.y < -1 || at.x >= picture.columns || at.y >= picture.rows)))
                    return picture.fill;
                const uint4 around = picture.four(at.x, at.y);
                upper = around.x | around.y << 24, upper_high = around.y >> 8;
                lower = around.z | around.w << 24, lower_high = around.w >> 8;
            }
            const float fx = fraction(at.part_x), fy = fraction(at.part_y);
            u32 made[3];
            #pragma unroll
            for (int c = 0; c < 3; ++c) {
                const float a = lifted(upper, c), b = c ? lifted(upper_high, c - 1) : lifted(upper, 3);
                const float d = lifted(lower, c), e = c ? lifted(lower_high, c - 1) : lifted(lower, 3);
                const float above = fmaf(b - a, fx, a - MAGIC), below = fmaf(e - d, fx, d - MAGIC);
                made[c] = rounded(fmaf(below - above, fy, above));
            }
            return pixel_of(made[0], made[1], made[2]);
        }
    }
};

// Sources of the outputs of a tile.
template <int KIND, int FILTER> struct Places {
    const double* p;
    // AFFINE: source of the nominal pixel of the next iteration, and steps, in units of 2^-32
    u64 x, y, across_x, across_y, down_x, down_y;
    bool limited;
    const float *sines, *cosines;  // WATER: waves of the tile's rows and columns, times the amplitude
    float half_x, half_y, whole, part;  // SPHERE: `part` is 1 / `whole`

    // Return the source of the next output, (column, line), which is `back` pixels left of the nominal column.
    __device__ __forceinline__ Place next(int column, int line, u32 back, int in_tile_x, int in_tile_y) {
        // the nearest pixel is the one below, half a pixel further
        constexpr double half = FILTER == LINEAR ? 0.0 : 0.5;
        Place place;
        if (KIND == AFFINE && !limited) {
            const u64 sx = x - back * across_x, sy = y - back * across_y;
            place.x = static_cast<int>(sx >> 32), place.part_x = static_cast<u32>(sx);
            place.y = static_cast<int>(sy >> 32), place.part_y = static_cast<u32>(sy);
            x += down_x, y += down_y;
        } else if constexpr (KIND == AFFINE || KIND == PERSPECTIVE) {
            double sx = p[0] * column + p[1] * line + p[2], sy = p[3] * column + p[4] * line + p[5];
            if (KIND == PERSPECTIVE) {
                const double w = p[6] * column + p[7] * line + p[8], scale = w != 0 ? 1 / w : 0;
                sx *= scale, sy *= scale;
            }
            split_double(sx + half, place.x, place.part_x);
            split_double(sy + half, place.y, place.part_y);
        } else {
            float sx, sy;
            const float fx = static_cast<float>(column), fy = static_cast<float>(line);
            if constexpr (KIND == WATER) sx = __fadd_rn(fx, sines[in_tile_y]), sy = __fadd_rn(fy, cosines[in_tile_x]);
            else {
                const float dx = (fx + 0.5f) - half_x, dy = (fy + 0.5f) - half_y;
                // division by a number whose inverse is known, rounded as a division
                const float root = sqrtf(__fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy))), about = __fmul_rn(root, part);
                const float far = fmaf(fmaf(-about, whole, root), part, about);
                sx = __fadd_rn(half_x, __fmul_rn(far, dx)), sy = __fadd_rn(half_y, __fmul_rn(far, dy));
            }
            if (FILTER == LINEAR) sx -= 0.5f, sy -= 0.5f;
            split_float(sx, place.x, place.part_x);
            split_float(sy, place.y, place.part_y);
        }
        if (FILTER == NEAREST_EVEN) {
            if (place.part_x == 0) place.x &= ~1;
            if (place.part_y == 0) place.y &= ~1;
        }
        return place;
    }
};

// grid (tiles, samples); other parameters as for `sample` in sampling.cu. Integer parts of coordinates must stay below
// 400,000.
template <int KIND, int FILTER>
__global__ void __launch_bounds__(BLOCK, FILTER == LINEAR ? 6 : 8)
    sample_pixels(const u8* __restrict__ source, const i64* __restrict__ base, const i64* __restrict__ geometry,
                  const double* __restrict__ params, int border, const float* __restrict__ fills, int fill_width,
                  int fill_rows, u8* __restrict__ target, const i64* __restrict__ out_base) {
    __shared__ i64 steps[6];
    __shared__ int limited;
    __shared__ float waves[KIND == WATER ? TALL + TILE + MARGIN : 1];
    const int sample = blockIdx.y;
    geometry += static_cast<i64>(sample) * FIELDS;
    const double* p = params + 9ll * sample;
    fills += static_cast<i64>(fill_rows) * sample * fill_width;
    const int height = static_cast<int>(geometry[HEIGHT]), width = static_cast<int>(geometry[WIDTH]);
    const int tiles_x = (width + MARGIN + TILE - 1) / TILE, tiles_y = (height + TALL - 1) / TALL;
    const int frame = blockIdx.x / max(tiles_x * tiles_y, 1), number = blockIdx.x - frame * tiles_x * tiles_y;
    if (frame >= static_cast<int>(geometry[PLANES])) return;
    const int row = number / tiles_x, column = number - row * tiles_x;
    Picture picture;
    picture.rows = static_cast<int>(geometry[ROWS]), picture.columns = static_cast<int>(geometry[COLUMNS]);
    const u8* begin = source + base[sample] + static_cast<i64>(frame) * picture.rows * picture.columns * 3;
    picture.shift = static_cast<u32>(reinterpret_cast<unsigned long long>(begin)) & 3, picture.aligned = begin - picture.shift;
    picture.border = border;
    picture.fill = pixel_of(rounded(fills[0]), rounded(fills[fill_width > 1 ? 1 : 0]), rounded(fills[fill_width > 1 ? 2 : 0]));
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int left = column * TILE + warp % ACROSS * GROUP, top = row * TALL + warp / ACROSS * DOWN + lane / GROUP;
    const int nominal = left + (lane & (GROUP - 1));

    Places<KIND, FILTER> places;
    places.p = p;
    if constexpr (KIND == AFFINE) {
        if (threadIdx.x < 6) {
            const int k = threadIdx.x;
            const bool small = fabs(p[0]) * width + fabs(p[1]) * height + fabs(p[2]) < 1e9 &&
                               fabs(p[3]) * width + fabs(p[4]) * height + fabs(p[5]) < 1e9;
            steps[k] = small ? __double2ll_rn((p[k] + (k % 3 == 2 && FILTER != LINEAR ? 0.5 : 0.0)) * 4294967296.0) : 0;
            if (k == 0) limited = !small;
        }
        __syncthreads();
        places.limited = limited;
        places.across_x = steps[0], places.across_y = steps[3];
        places.x = steps[0] * nominal + steps[1] * top + steps[2], places.y = steps[3] * nominal + steps[4] * top + steps[5];
        places.down_x = steps[1] * STEP, places.down_y = steps[4] * STEP;
    } else if constexpr (KIND == WATER) {
        for (int k = threadIdx.x; k < TALL + TILE + MARGIN; k += BLOCK) {
            const bool down = k < TALL;
            const float at = static_cast<float>(down ? row * TALL + k : column * TILE + k - TALL - MARGIN);
            const float angle = __fadd_rn(__fmul_rn(static_cast<float>(p[down ? 2 : 3]), at), static_cast<float>(p[down ? 4 : 5]));
            waves[k] = __fmul_rn(static_cast<float>(p[down ? 0 : 1]), down ? sinf(angle) : cosf(angle));
        }
        __syncthreads();
        places.sines = waves, places.cosines = waves + TALL + MARGIN;
    } else if constexpr (KIND == SPHERE) {
        places.half_x = picture.columns * 0.5f, places.half_y = picture.rows * 0.5f;
        places.whole = static_cast<float>(max(static_cast<int>(fmaxf(places.half_x, places.half_y)), 1));
        places.part = __fdiv_rn(1.0f, places.whole);
    }

    u8* const out = target + out_base[sample] + static_cast<i64>(frame) * height * width * 3;
    const u32 out_low = static_cast<u32>(reinterpret_cast<unsigned long long>(out));
    // A word of the output contains the end of one lane's pixel and the beginning of the next lane's.
    const int within = lane & (GROUP - 1), shown = within * 4 / 3, giver = lane - within + shown;
    const int selector = within * 4 - 3 * shown == 0 ? 0x4210 : within * 4 - 3 * shown == 1 ? 0x5421 : 0x6542;
    const bool writes = 4 * within < 3 * GROUP;
    const int end = height - (top - lane / GROUP);  // end of the warp's lines
    u32 line = static_cast<u32>(top * width) * 3u;
    int y = top;
    #pragma unroll 1
    for (int turn = 0; turn < TURNS && turn * STEP < end; ++turn, y += STEP, line += 3u * STEP * width) {
        const u32 back = 3 * (out_low + line) & 3;
        const int x = nominal - static_cast<int>(back);
        const bool there = static_cast<u32>(x) < static_cast<u32>(width) && y < height;
        const Place at = places.next(x, y, back, x - column * TILE, y - row * TALL);
        Taken<FILTER> taken;
        taken.load(picture, at, there);
        const u32 pixel = taken.pixel(picture, at, there);
        __syncwarp();
        const u32 low = __shfl_sync(~0u, pixel, giver), high = __shfl_sync(~0u, pixel, giver + 1);
        const u32 word = __byte_perm(low, high, selector);
        if (!writes || y >= height) continue;
        if (static_cast<u32>(x - within + shown) < static_cast<u32>(width - 1)) {
            *reinterpret_cast<u32*>(out + (line + static_cast<u32>(3 * x + within))) = word;
            continue;
        }
        for (int k = 0; k < 4; ++k) {
            const int byte = 3 * x + within + k;
            if (byte >= 0 && byte < 3 * width) out[static_cast<i64>(line) + byte] = static_cast<u8>(word >> 8 * k);
        }
    }
}
