// Separable resampling of images of three bytes per pixel, both passes in one kernel
// (ops/images/resampling/resample.py): a block computes a tile of the output, and the values between the passes stay in
// shared memory. Sums equal those of resample.cu to the bit: `w * byte` is rounded once and then added, tap after tap.
#include "affine.cuh"
#include "bytes.cuh"
#include "convert.cuh"

// Columns of a sample's row. STARTS and WEIGHTS are the indexes of the first source pixels and of the weights of its
// outputs, along y and along x.
enum Column { SOURCE, TARGET, FRAMES, FRAME_STRIDE, LINE, HEIGHT, WIDTH, ORDER, TILE_HEIGHT, TILE_WIDTH,
              KEPT_Y, KEPT_X, STARTS_Y, STARTS_X, WEIGHTS_Y, WEIGHTS_X, COLUMNS };
enum Order { ROWS_FIRST, COLUMNS_FIRST, NEAREST };

constexpr int BLOCK = 256, WARPS = BLOCK / 32, BLOCKS = 5;  // BLOCKS: minimum per multiprocessor
constexpr int POOL = 8192;       // floats between the passes (passes_cpu.py: POOL)

typedef unsigned char u8;
typedef unsigned int u32;

// A tile: the first source pixels and the weights of its outputs, and where the output is written.
template <typename To> struct Tile {
    const u8* picture;
    long long line;
    const int *down, *across;
    const float *down_weights, *across_weights;
    int kept_y, kept_x, width, height;
    To to;

    // Compute the source pixels [begin, end) of `count` outputs, whose starts may increase or decrease.
    static __device__ __forceinline__ void reach(const int* starts, int count, int kept, int& begin, int& end) {
        const int one = starts[0], other = starts[count - 1];
        begin = min(one, other), end = max(one, other) + kept;
    }
};

// Return `weight` times the byte that `lifted` returned, rounded once: 2^23 times a weight is exact, and `bias`
// subtracts it.
__device__ __forceinline__ float product(float byte, float weight, float bias) { return fmaf(byte, weight, bias); }

// Round and saturate as _store in resample_cpu.py does.
__device__ __forceinline__ u32 limited(float v) { return rounded(fminf(fmaxf(v, 0.0f), 255.0f)); }

// Writes outputs unchanged and packed: where the first one of a tile is written, and the distance of lines.
template <typename Out> struct Packed {
    Out* out;
    long long line;

    // Write the pixels of the lanes of a warp, from (x, y) of the tile on; only the first `n` exist.
    __device__ __forceinline__ void bytes(u32 pixel, int x, int y, int n) const {
        const int lane = threadIdx.x & 31;
        Out* row = out + y * line + 3 * x;
        if constexpr (sizeof(Out) > 1) {
            const float v[3] = {lifted(pixel, 0) - MAGIC, lifted(pixel, 1) - MAGIC, lifted(pixel, 2) - MAGIC};
            values(v, x, y, n);
        } else if ((reinterpret_cast<unsigned long long>(row) & 3) == 0) {
            put_aligned<32>(pixel, row, 0, n);
        } else if (lane < n) {
            row[3 * lane] = static_cast<u8>(pixel), row[3 * lane + 1] = static_cast<u8>(pixel >> 8);
            row[3 * lane + 2] = static_cast<u8>(pixel >> 16);
        }
    }
    __device__ __forceinline__ void values(const float* v, int x, int y, int n) const {
        if constexpr (sizeof(Out) == 1) {
            bytes(pixel_of(limited(v[0]), limited(v[1]), limited(v[2])), x, y, n);
        } else {
            const int lane = threadIdx.x & 31;
            Out* row = out + y * line + 3 * x;
            if (lane < n) row[3 * lane] = v[0], row[3 * lane + 1] = v[1], row[3 * lane + 2] = v[2];
        }
    }
    // Write four values from the `q`th group of four of line y on, of which `n` exist.
    __device__ __forceinline__ void four(const float* v, int q, int y, int n) const {
        Out* at = out + y * line + 4 * q;
        const bool whole = n >= 4 && reinterpret_cast<unsigned long long>(at) % (4 * sizeof(Out)) == 0;
        if constexpr (sizeof(Out) == 1) {
            const u32 word = __byte_perm(__byte_perm(limited(v[0]), limited(v[1]), 0x0040), __byte_perm(limited(v[2]), limited(v[3]), 0x0040), 0x5410);
            if (whole) *reinterpret_cast<u32*>(at) = word;
            else {
                #pragma unroll
                for (int k = 0; k < 4; ++k)
                    if (k < n) at[k] = static_cast<u8>(word >> 8 * k);
            }
        } else if (whole) {
            *reinterpret_cast<float4*>(at) = make_float4(v[0], v[1], v[2], v[3]);
        } else {
            #pragma unroll
            for (int k = 0; k < 4; ++k)
                if (k < n) at[k] = v[k];
        }
    }
};

// Writes outputs rounded and normalised: (v - mean) * mul + add. `across` and `apart` are the distances of pixels and
// of channels.
template <typename Out> struct Normalized {
    Out* out;
    long long line, across, apart;
    const float* factors;  // factors of the first channel
    int next;              // distance from one channel's factors to the next

    __device__ __forceinline__ void bytes(u32 pixel, int x, int y, int n) const {
        const int lane = threadIdx.x & 31;
        if (lane >= n) return;
        Out* at = out + y * line + (x + lane) * across;
        #pragma unroll
        for (int c = 0; c < 3; ++c) at[c * apart] = saturate<Out>(affine(lifted(pixel, c) - MAGIC, factors + c * next));
    }
    __device__ __forceinline__ void values(const float* v, int x, int y, int n) const {
        bytes(pixel_of(limited(v[0]), limited(v[1]), limited(v[2])), x, y, n);
    }
};

// -- rows first -------------------------------------------------------------------------------------------------------

// Add `TAPS` taps of eight values of a row, of which `left` are needed, to `sums`; advance `at` and `weights`.
template <int TAPS>
__device__ __forceinline__ void add_down(const u8*& at, long long line, const float*& weights, int left, float* sums) {
    u32 words[TAPS][3], shifts[TAPS];
    float own[TAPS];
    #pragma unroll
    for (int k = 0; k < TAPS; ++k, at += line) {
        shifts[k] = static_cast<u32>(reinterpret_cast<unsigned long long>(at) & 3);
        const u32* aligned = reinterpret_cast<const u32*>(at - shifts[k]);
        const int reach = left + static_cast<int>(shifts[k]);  // only words that contain a byte that is needed
        words[k][0] = aligned[0], words[k][1] = reach > 4 ? aligned[1] : 0, words[k][2] = reach > 8 ? aligned[2] : 0;
        own[k] = *weights++;
    }
    #pragma unroll
    for (int k = 0; k < TAPS; ++k) {
        const float bias = -MAGIC * own[k];
        const u32 low = __funnelshift_r(words[k][0], words[k][1], 8 * shifts[k]);
        const u32 high = __funnelshift_r(words[k][1], words[k][2], 8 * shifts[k]);
        #pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] = __fadd_rn(sums[i], product(lifted(i < 4 ? low : high, i & 3), own[k], bias));
    }
}

// Filter columns of the source from `begin` on vertically: each thread computes eight values of a row. KEPT: number of
// taps, 0 for any number.
template <int KEPT, typename To>
__device__ __forceinline__ void filter_down(const Tile<To>& tile, int begin, int values, int pitch, float* pool) {
    const int octets = pitch / 8, steps = BLOCK / octets, over = BLOCK - steps * octets;
    int y = threadIdx.x / octets, q = threadIdx.x - y * octets;
    while (y < tile.height) {
        const u8* at = tile.picture + tile.down[y] * tile.line + 3 * begin + 8 * q;
        const float* weights = tile.down_weights + y * tile.kept_y;
        const int left = min(values - 8 * q, 8);
        float sums[8] = {};
        if constexpr (KEPT > 0) {
            add_down<KEPT>(at, tile.line, weights, left, sums);
        } else {
            for (int k = tile.kept_y / 2; k > 0; --k) add_down<2>(at, tile.line, weights, left, sums);
            if (tile.kept_y & 1) add_down<1>(at, tile.line, weights, left, sums);
        }
        float4* to = reinterpret_cast<float4*>(pool + y * pitch + 8 * q);
        to[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
        to[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
        y += steps, q += over;
        if (q >= octets) q -= octets, ++y;
    }
}

// Compute outputs from the rows of the pool: each lane computes one column. The weights of KEPT taps stay in registers.
template <int KEPT, typename To>
__device__ __forceinline__ void filter_across(const Tile<To>& tile, int begin, int pitch, const float* pool) {
    const int groups = tile.width > 32 ? 2 : 1, warp = threadIdx.x / 32, group = warp % groups;
    const int n = tile.width - 32 * group, x = min(static_cast<int>(threadIdx.x & 31), n - 1) + 32 * group;
    const float* weights = tile.across_weights + x * KEPT;
    float own[KEPT];
    #pragma unroll
    for (int k = 0; k < KEPT; ++k) own[k] = weights[k];
    const float* column = pool + 3 * (tile.across[x] - begin);
    for (int y = warp / groups; y < tile.height; y += WARPS / groups) {
        const float* at = column + y * pitch;
        float sums[3] = {};
        #pragma unroll
        for (int k = 0; k < KEPT; ++k)
            #pragma unroll
            for (int c = 0; c < 3; ++c) sums[c] = __fadd_rn(sums[c], __fmul_rn(own[k], at[3 * k + c]));
        tile.to.values(sums, 32 * group, y, n);
    }
}

// The same for any number of taps, ROWS lines at a time, all of which use the same weight of a tap.
template <typename To>
__device__ __forceinline__ void filter_far(const Tile<To>& tile, int begin, int pitch, const float* pool) {
    constexpr int ROWS = 2;
    const int groups = tile.width > 32 ? 2 : 1, warp = threadIdx.x / 32, group = warp % groups, step = WARPS / groups;
    const int n = tile.width - 32 * group, x = min(static_cast<int>(threadIdx.x & 31), n - 1) + 32 * group;
    const float* column = pool + 3 * (tile.across[x] - begin);
    for (int first = warp / groups; first < tile.height; first += ROWS * step) {
        const float *at[ROWS], *weights = tile.across_weights + x * tile.kept_x;
        float sums[ROWS][3] = {};
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) at[r] = column + min(first + r * step, tile.height - 1) * pitch;
        #pragma unroll 2
        for (int k = 0; k < tile.kept_x; ++k) {
            const float weight = weights[k];
            #pragma unroll
            for (int r = 0; r < ROWS; ++r)
                #pragma unroll
                for (int c = 0; c < 3; ++c) sums[r][c] = __fadd_rn(sums[r][c], __fmul_rn(weight, at[r][3 * k + c]));
        }
        #pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (first + r * step < tile.height) tile.to.values(sums[r], 32 * group, first + r * step, n);
    }
}

// -- columns first ----------------------------------------------------------------------------------------------------

// Return the weighted sum of `KEPT` pixels from `at` on.
template <int KEPT> __device__ __forceinline__ void pixels_across(const u8* at, const float* own, const float* bias, float* sums) {
    constexpr int BYTES = 3 * KEPT, WORDS = (BYTES + 3) / 4;
    const u32 shift = static_cast<u32>(reinterpret_cast<unsigned long long>(at) & 3);
    const u32* aligned = reinterpret_cast<const u32*>(at - shift);
    u32 words[WORDS + 1];
    #pragma unroll
    for (int j = 0; j <= WORDS; ++j) words[j] = 4 * j < BYTES || 4 * j < BYTES + static_cast<int>(shift) ? aligned[j] : 0;
    #pragma unroll
    for (int j = 0; j < WORDS; ++j) words[j] = __funnelshift_r(words[j], words[j + 1], 8 * shift);
    #pragma unroll
    for (int k = 0; k < KEPT; ++k)
        #pragma unroll
        for (int c = 0; c < 3; ++c)
            sums[c] = __fadd_rn(sums[c], product(lifted(words[(3 * k + c) / 4], (3 * k + c) % 4), own[k], bias[k]));
}

// Filter rows [begin, end) of the source horizontally: each lane computes one column.
template <int KEPT, typename To>
__device__ __forceinline__ void rows_across(const Tile<To>& tile, int begin, int end, int pitch, float* pool) {
    const int groups = tile.width > 32 ? 2 : 1, warp = threadIdx.x / 32, group = warp % groups;
    const int lane = threadIdx.x & 31, x = 32 * group + lane;
    if (x >= tile.width) return;
    const int kept = KEPT ? KEPT : tile.kept_x;
    const float* weights = tile.across_weights + x * kept;
    float own[KEPT ? KEPT : 4], bias[KEPT ? KEPT : 4];
    #pragma unroll
    for (int k = 0; k < KEPT; ++k) own[k] = weights[k], bias[k] = -MAGIC * own[k];
    const u8* column = tile.picture + 3ll * tile.across[x];
    #pragma unroll 2
    for (int y = begin + warp / groups; y < end; y += WARPS / groups) {
        const u8* at = column + y * tile.line;
        float sums[3] = {};
        if constexpr (KEPT > 0) pixels_across<KEPT>(at, own, bias, sums);
        else {
            int k = 0;
            for (; k + 4 <= kept; k += 4, at += 12) {
                #pragma unroll
                for (int i = 0; i < 4; ++i) own[i] = weights[k + i], bias[i] = -MAGIC * own[i];
                pixels_across<4>(at, own, bias, sums);
            }
            for (; k < kept; ++k, at += 3) {
                own[0] = weights[k], bias[0] = -MAGIC * own[0];
                pixels_across<1>(at, own, bias, sums);
            }
        }
        float* to = pool + (y - begin) * pitch + 3 * x;
        to[0] = sums[0], to[1] = sums[1], to[2] = sums[2];
    }
}

template <int TAPS>
__device__ __forceinline__ void add_four(const float*& at, int pitch, const float*& weights, float* sums) {
    #pragma unroll
    for (int k = 0; k < TAPS; ++k, at += pitch) {
        const float weight = *weights++;
        const float4 v = *reinterpret_cast<const float4*>(at);
        sums[0] = __fadd_rn(sums[0], __fmul_rn(weight, v.x)), sums[1] = __fadd_rn(sums[1], __fmul_rn(weight, v.y));
        sums[2] = __fadd_rn(sums[2], __fmul_rn(weight, v.z)), sums[3] = __fadd_rn(sums[3], __fmul_rn(weight, v.w));
    }
}

// Compute outputs from the rows of the pool: each thread computes four adjacent values of one line after the other.
template <typename To>
__device__ __forceinline__ void rows_down(const Tile<To>& tile, int begin, int pitch, const float* pool) {
    const int values = 3 * tile.width, quads = (values + 3) / 4, step = BLOCK / quads;
    const int q = threadIdx.x % quads, first = threadIdx.x / quads;
    if (first >= step) return;
    #pragma unroll 2
    for (int y = first; y < tile.height; y += step) {
        const float *at = pool + (tile.down[y] - begin) * pitch + 4 * q, *weights = tile.down_weights + y * tile.kept_y;
        float sums[4] = {};
        for (int k = tile.kept_y / 4; k > 0; --k) add_four<4>(at, pitch, weights, sums);
        if (tile.kept_y & 2) add_four<2>(at, pitch, weights, sums);
        if (tile.kept_y & 1) add_four<1>(at, pitch, weights, sums);
        tile.to.four(sums, q, y, values - 4 * q);
    }
}

// The same, one column per lane.
template <typename To>
__device__ __forceinline__ void columns_down(const Tile<To>& tile, int begin, int pitch, const float* pool) {
    const int groups = tile.width > 32 ? 2 : 1, warp = threadIdx.x / 32, group = warp % groups;
    const int n = tile.width - 32 * group, x = min(static_cast<int>(threadIdx.x & 31), n - 1) + 32 * group;
    for (int y = warp / groups; y < tile.height; y += WARPS / groups) {
        const float* at = pool + (tile.down[y] - begin) * pitch + 3 * x;
        const float* weights = tile.down_weights + y * tile.kept_y;
        float sums[3] = {};
        #pragma unroll 2
        for (int k = 0; k < tile.kept_y; ++k, at += pitch) {
            const float weight = weights[k];
            #pragma unroll
            for (int c = 0; c < 3; ++c) sums[c] = __fadd_rn(sums[c], __fmul_rn(weight, at[c]));
        }
        tile.to.values(sums, 32 * group, y, n);
    }
}

// -- nearest pixels ---------------------------------------------------------------------------------------------------

template <typename To> __device__ __forceinline__ void nearest(const Tile<To>& tile) {
    const int groups = tile.width > 32 ? 2 : 1, warp = threadIdx.x / 32, group = warp % groups;
    const int n = tile.width - 32 * group, x = min(static_cast<int>(threadIdx.x & 31), n - 1) + 32 * group;
    const u8* column = tile.picture + 3ll * tile.across[x];
    #pragma unroll 4
    for (int y = warp / groups; y < tile.height; y += WARPS / groups) {
        const u8* at = column + tile.down[y] * tile.line;
        const u32 shift = static_cast<u32>(reinterpret_cast<unsigned long long>(at) & 3);
        const u32* words = reinterpret_cast<const u32*>(at - shift);
        const u32 pixel = __funnelshift_r(words[0], shift > 1 ? words[1] : 0, 8 * shift) & 0xFFFFFFu;
        tile.to.bytes(pixel, 32 * group, y, n);
    }
}

// Compute all tiles of a sample that belong to this block. `into(frame, y, x)` returns where an output is written.
template <bool FOURS, typename To, typename Into>
__device__ __forceinline__ void make_tiles(const u8* source, const long long* table, const int* starts, const float* weights,
                                           float* pool, Into into) {
    const int height = static_cast<int>(table[HEIGHT]), width = static_cast<int>(table[WIDTH]);
    const int tall = static_cast<int>(table[TILE_HEIGHT]), wide = static_cast<int>(table[TILE_WIDTH]);
    const int tiles_x = (width + wide - 1) / wide, tiles_y = (height + tall - 1) / tall;
    const int order = static_cast<int>(table[ORDER]), tiles = tiles_x * tiles_y * static_cast<int>(table[FRAMES]);
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        const int rest = number / tiles_x, x = (number - rest * tiles_x) * wide;
        const int frame = rest / tiles_y, y = (rest - frame * tiles_y) * tall;
        Tile<To> tile;
        tile.kept_y = static_cast<int>(table[KEPT_Y]), tile.kept_x = static_cast<int>(table[KEPT_X]);
        tile.line = table[LINE];
        tile.picture = source + table[SOURCE] + frame * table[FRAME_STRIDE];
        tile.width = min(width - x, wide), tile.height = min(height - y, tall);
        tile.down = starts + table[STARTS_Y] + y, tile.across = starts + table[STARTS_X] + x;
        tile.down_weights = weights + table[WEIGHTS_Y] + static_cast<long long>(y) * tile.kept_y;
        tile.across_weights = weights + table[WEIGHTS_X] + static_cast<long long>(x) * tile.kept_x;
        tile.to = into(frame, y, x);
        if (order == NEAREST) {
            nearest(tile);
            continue;
        }
        int begin, end;
        if (order == ROWS_FIRST) {
            tile.reach(tile.across, tile.width, tile.kept_x, begin, end);
            const int values = 3 * (end - begin), pitch = (values + 7) & ~7;
            switch (tile.kept_y) {
                case 1: filter_down<1>(tile, begin, values, pitch, pool); break;
                case 2: filter_down<2>(tile, begin, values, pitch, pool); break;
                case 3: filter_down<3>(tile, begin, values, pitch, pool); break;
                case 4: filter_down<4>(tile, begin, values, pitch, pool); break;
                default: filter_down<0>(tile, begin, values, pitch, pool);
            }
            __syncthreads();
            switch (tile.kept_x) {
                case 1: filter_across<1>(tile, begin, pitch, pool); break;
                case 2: filter_across<2>(tile, begin, pitch, pool); break;
                case 3: filter_across<3>(tile, begin, pitch, pool); break;
                case 4: filter_across<4>(tile, begin, pitch, pool); break;
                case 5: filter_across<5>(tile, begin, pitch, pool); break;
                case 6: filter_across<6>(tile, begin, pitch, pool); break;
                default: filter_far(tile, begin, pitch, pool);
            }
        } else {
            const int pitch = 3 * wide;
            tile.reach(tile.down, tile.height, tile.kept_y, begin, end);
            switch (tile.kept_x) {
                case 1: rows_across<1>(tile, begin, end, pitch, pool); break;
                case 2: rows_across<2>(tile, begin, end, pitch, pool); break;
                case 3: rows_across<3>(tile, begin, end, pitch, pool); break;
                case 4: rows_across<4>(tile, begin, end, pitch, pool); break;
                case 5: rows_across<5>(tile, begin, end, pitch, pool); break;
                case 6: rows_across<6>(tile, begin, end, pitch, pool); break;
                default: rows_across<0>(tile, begin, end, pitch, pool);
            }
            __syncthreads();
            if constexpr (FOURS) rows_down(tile, begin, pitch, pool);
            else columns_down(tile, begin, pitch, pool);
        }
        __syncthreads();
    }
}

// grid (tiles, samples)
template <typename Out>
__global__ void __launch_bounds__(BLOCK, BLOCKS) resample_pixels(const u8* __restrict__ source, Out* __restrict__ target,
                                                            const long long* __restrict__ table, const int* __restrict__ starts,
                                                            const float* __restrict__ weights) {
    __shared__ __align__(16) float pool[POOL];
    table += static_cast<long long>(blockIdx.y) * COLUMNS;
    const long long line = 3 * table[WIDTH], height = table[HEIGHT];
    target += table[TARGET];
    make_tiles<true, Packed<Out>>(source, table, starts, weights, pool, [&](int frame, int y, int x) {
        return Packed<Out>{target + (frame * height + y) * line + 3 * x, line};
    });
}

// The same for single images, rounded and normalised; `places` and `factors` as in resample.cu.
template <typename Out>
__global__ void __launch_bounds__(BLOCK, BLOCKS)
    normalize_pixels(const u8* __restrict__ source, Out* __restrict__ target, const long long* __restrict__ table,
                     const int* __restrict__ starts, const float* __restrict__ weights, const long long* __restrict__ places,
                     const float* __restrict__ factors, int factor_width, int factor_rows) {
    __shared__ __align__(16) float pool[POOL];
    const long long sample = blockIdx.y;
    table += sample * COLUMNS;
    const long long width = table[WIDTH], across = places[3 * sample + 1], apart = places[3 * sample + 2];
    factors += factor_rows * sample * factor_width * 3;
    target += table[TARGET];
    make_tiles<false, Normalized<Out>>(source, table, starts, weights, pool, [&](int, int y, int x) {
        return Normalized<Out>{target + (y * width + x) * across, width * across, across, apart, factors, factor_width > 1 ? 3 : 0};
    });
}
