// Coefficients to component planes: dequantisation and the accurate integer inverse DCT of libjpeg ("islow": Loeffler,
// Ligtenberg and Moschytz 1989, 13-bit constants, two extra bits kept between the passes). Integer sums may be taken in
// any order, so the result is libjpeg-turbo's bit for bit, as long as its 16-bit SIMD code does not wrap: intermediate
// values that large are reported (OUT_OF_RANGE). Only blocks in the region of interest are computed.
//
// Eight lanes take a block: lane i first its column i, then its row i. A warp takes four blocks side by side at a time.
#include "jpeg_dc.cu"

#define IDCT_THREADS 256
#define IDCT_ROUNDS 8                                   // groups of four blocks a warp
#define IDCT_GROUPS (IDCT_THREADS / 32 * IDCT_ROUNDS)   // a block of threads

// Workspace of a block: rows of 12 words, blocks 104 words apart, so that no access of a warp meets a bank twice.
#define TILE_ROW 12
#define TILE_BLOCK 104

__constant__ u8 NATURAL_ORDER[64] = {  // T.81, figure A.6: zig-zag index to 8 * row + column
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// One dimension of the transform, in place. The result is scaled by 2^13; `bias` is added to it.
DEVICE void idct8(int *x, int bias) {
    int z1 = (x[2] + x[6]) * 4433;                        // 0.541196100
    int even2 = z1 - x[6] * 15137, even3 = z1 + x[2] * 6270;  // 1.847759065, 0.765366865
    int even0 = (x[0] + x[4]) * 8192 + bias, even1 = (x[0] - x[4]) * 8192 + bias;
    int sum0 = even0 + even3, sum3 = even0 - even3, sum1 = even1 + even2, sum2 = even1 - even2;

    int z5 = (x[7] + x[3] + x[5] + x[1]) * 9633;          // 1.175875602
    int z3 = z5 - (x[7] + x[3]) * 16069;                  // 1.961570560
    int z4 = z5 - (x[5] + x[1]) * 3196;                   // 0.390180644
    z1 = (x[7] + x[1]) * 7373;                            // 0.899976223
    int z2 = (x[5] + x[3]) * 20995;                       // 2.562915447
    int odd0 = x[7] * 2446 - z1 + z3, odd1 = x[5] * 16819 - z2 + z4;    // 0.298631336, 2.053119869
    int odd2 = x[3] * 25172 - z2 + z3, odd3 = x[1] * 12299 - z1 + z4;   // 3.072711026, 1.501321110

    x[0] = sum0 + odd3, x[7] = sum0 - odd3;
    x[1] = sum1 + odd2, x[6] = sum1 - odd2;
    x[2] = sum2 + odd1, x[5] = sum2 - odd1;
    x[3] = sum3 + odd0, x[4] = sum3 - odd0;
}

// Where the blocks of a component are. Divisions by sampling factors are multiplications: exact below 2^14.
struct BlockGrid {
    int h, v, per_row, in_mcu, mcus_x, first;
    u32 one_h, one_v;  // 2^16 divided by h and v, rounded up

    DEVICE void open(const Image &image, const Component &component) {
        h = component.h, v = component.v, in_mcu = image.blocks_in_mcu, mcus_x = image.mcus_x, first = component.first;
        per_row = mcus_x * h;
        one_h = (65535u + h) / (u32)h, one_v = (65535u + v) / (u32)v;
    }
    DEVICE int row(int y) const {  // index of the row's first block
        int mcu = (int)((u32)y * one_v >> 16);
        return mcu * mcus_x * in_mcu + first + (y - mcu * v) * h;
    }
    DEVICE int column(int x) const {  // what a block's column adds to that; beyond the right border, the last one
        x = min(x, per_row - 1);
        int mcu = (int)((u32)x * one_h >> 16);
        return mcu * in_mcu + x - mcu * h;
    }
};

// A lane's first two coefficients of a block; entries: its place among those of block 0.
struct First {
    u32 one, other;
    DEVICE void fetch(const u32 *entries, u64 block) {
        int lane = threadIdx.x & 7, count = (int)(block >> 32) & 0xffff;
        one = lane < count ? entries[(u32)block] : 0;
        other = lane + 8 < count ? entries[(u32)block + 8] : 0;
    }
};

// Both passes of a block in its workspace, by eight lanes of a warp; a lane's row comes out. Returns the bits of all values
// between the passes, above 16384.
DEVICE u32 transform(int *tile, int lane, u32 *low, u32 *high) {
    int v[8];
    u32 wide = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = tile[i * TILE_ROW + lane];
    idct8(v, 1 << 10);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] >>= 11;
        wide |= (u32)(v[i] + 16384);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; i++) tile[i * TILE_ROW + lane] = v[i];
    __syncwarp();
    int4 left4 = *(const int4 *)(tile + lane * TILE_ROW), right4 = *(const int4 *)(tile + lane * TILE_ROW + 4);
    v[0] = left4.x, v[1] = left4.y, v[2] = left4.z, v[3] = left4.w;
    v[4] = right4.x, v[5] = right4.y, v[6] = right4.z, v[7] = right4.w;
    idct8(v, (128 << 18) + (1 << 17));
    *low = pack_saturated(v[1] >> 18, v[0] >> 18, pack_saturated(v[3] >> 18, v[2] >> 18, 0));
    *high = pack_saturated(v[5] >> 18, v[4] >> 18, pack_saturated(v[7] >> 18, v[6] >> 18, 0));
    __syncwarp();
    return wide;
}

// The same where all but the first coefficient are zero.
DEVICE u32 transform_flat(int dc, u32 *low, u32 *high) {
    int v = (int)((u32)dc * 8192 + (1 << 10)) >> 11;
    u32 wide = (u32)(v + 16384);
    v = (int)((u32)v * 8192 + (128 << 18) + (1 << 17)) >> 18;
    *low = *high = pack_saturated(v, v, pack_saturated(v, v, 0));
    return wide;
}

KERNEL __launch_bounds__(IDCT_THREADS, 5) jpeg_idct(const Batch *batch) {
    __shared__ uint2 dequant[64];  // by zig-zag index: byte in the workspace, factor
    __shared__ __align__(16) int workspace[IDCT_THREADS / 8 * TILE_BLOCK];
    int slot = locate_by_warp(batch->idct_first, batch->count * 3, blockIdx.x), at = slot / 3, c = slot - 3 * at;
    if (batch->status[at]) return;
    const Image &image = batch->images[at];
    const Component &component = image.component[c];
    if (threadIdx.x < 64) {
        const u8 *table = batch->raw + image.raw + component.quant;
        int i = threadIdx.x, place = NATURAL_ORDER[i];
        u32 factor = component.quant_wide ? table[2 * i] << 8 | table[2 * i + 1] : table[i];
        dequant[i] = make_uint2(4 * (place / 8 * TILE_ROW + place % 8), (u32)(i16)factor);
    }
    int lane = threadIdx.x & 7, nth = (threadIdx.x >> 3) & 3, warp = threadIdx.x >> 5;
    int *tile = workspace + (threadIdx.x >> 3) * TILE_BLOCK;
    const u64 *blocks = batch->blocks + image.blocks;
    const u32 *entries = batch->entries + lane;
    int roi_groups = component.roi_groups, pitch = component.pitch, restart = image.restart;
    BlockGrid grid;
    grid.open(image, component);
    int group = (blockIdx.x - batch->idct_first[slot]) * IDCT_GROUPS + warp * IDCT_ROUNDS;
    int left = min(IDCT_ROUNDS, roi_groups * component.roi_rows - group);
    bool idle = left <= 0;
    group = idle ? 0 : group;
    int y = group / roi_groups, first_x = 4 * component.roi_group + nth, behind_x = first_x + 4 * roi_groups;
    int x = first_x + 4 * (group - y * roi_groups);
    y += component.roi_row;
    int in_row = grid.row(y), index = in_row + grid.column(x);
    u8 *row = batch->planes + component.plane + (i64)(8 * y + lane) * pitch;
    // While a block is computed, the next one's record is on its way, and then its first coefficients.
    u64 block = blocks[index];
    First next;
    next.fetch(entries, block);
    __syncthreads();  // for the table
    if (idle) return;
    bool wrapped = false;
    for (;;) {
        int here = x, at_here = index;
        u8 *to = row + 8 * x;
        u64 now = block;
        if (--left > 0) {
            x += 4;
            if (x == behind_x) {
                x = first_x, row += (i64)8 * pitch;
                in_row = grid.row(++y);
            }
            index = in_row + grid.column(x);
            block = blocks[index];
        }
        bool real = here < grid.per_row;
        int count = (int)(now >> 32) & 0xffff;
        int dc = (restart ? dc_of_block(image, blocks, c, at_here) : (int)(i16)(now >> 48)) * (int)dequant[0].y;
        u32 low, high, wide;
        if (__all_sync(~0u, count == 0)) {  // flat: both passes are the same for all
            wide = transform_flat(dc, &low, &high);
            next.fetch(entries, block);
        } else {
            *(uint4 *)(tile + lane * TILE_ROW) = make_uint4(0, 0, 0, 0);
            *(uint4 *)(tile + lane * TILE_ROW + 4) = make_uint4(0, 0, 0, 0);
            __syncwarp();
            if (lane == 0) tile[0] = dc;
            const u32 *mine = entries + (u32)now;
#pragma unroll 1
            for (int i = lane; i < count;) {
                bool two = i + 8 < count;
                uint2 how = dequant[next.one >> 16 & 63];
                *(int *)((u8 *)tile + how.x) = (i16)next.one * (int)how.y;
                how = dequant[next.other >> 16 & 63];
                if (two) *(int *)((u8 *)tile + how.x) = (i16)next.other * (int)how.y;
                i += 16, mine += 16;
                if (i < count) next.one = mine[0];
                if (i + 8 < count) next.other = mine[8];
            }
            next.fetch(entries, block);
            __syncwarp();
            wide = transform(tile, lane, &low, &high);
        }
        wrapped |= real && wide >= 32768;
        if (real) *(uint2 *)to = make_uint2(low, high);
        if (left <= 0) break;
    }
    if (wrapped) mark(batch, image, at, OUT_OF_RANGE);
}
