// Coefficients to component planes: dequantisation and the accurate integer inverse DCT of libjpeg ("islow": Loeffler,
// Ligtenberg and Moschytz 1989, 13-bit constants, two extra bits kept between the passes). Integer sums may be taken in
// any order, so the result is libjpeg-turbo's bit for bit, as long as its 16-bit SIMD code does not wrap: intermediate
// values that large are reported (OUT_OF_RANGE). Only blocks in the region of interest are computed.
//
// Eight lanes take a block: lane i first its column i, then its row i. A warp takes four blocks side by side.
#include "jpeg_entropy.cu"

#define IDCT_THREADS 256
#define IDCT_ROUNDS 4                                   // groups of four blocks a warp
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

KERNEL __launch_bounds__(IDCT_THREADS) jpeg_idct(const Batch *batch) {
    __shared__ u32 dequant[64];  // by zig-zag index: place in the workspace (16..31), factor (0..15)
    __shared__ __align__(16) int workspace[IDCT_THREADS / 8 * TILE_BLOCK];
    int slot = locate(batch->idct_first, batch->count * 3, blockIdx.x);
    int at = slot / 3, c = slot - 3 * at;
    if (batch->status[at]) return;
    const Image &image = batch->images[at];
    const Component &component = image.component[c];
    if (threadIdx.x < 64) {
        const u8 *table = batch->raw + image.raw + component.quant;
        int i = threadIdx.x, place = NATURAL_ORDER[i];
        u32 factor = component.quant_wide ? table[2 * i] << 8 | table[2 * i + 1] : table[i];
        dequant[i] = (place / 8 * TILE_ROW + place % 8) << 16 | factor;
    }
    __syncthreads();

    int lane = threadIdx.x & 7, nth = (threadIdx.x >> 3) & 3, warp = threadIdx.x >> 5;
    int *tile = workspace + (threadIdx.x >> 3) * TILE_BLOCK;
    const u64 *blocks = batch->blocks + image.blocks;
    u8 *plane = batch->planes + component.plane;
    int per_row = image.mcus_x * component.h;  // blocks
    int group = (blockIdx.x - batch->idct_first[slot]) * IDCT_GROUPS + warp;
    int groups = component.roi_groups * component.roi_rows;
    bool wrapped = false;
    for (int round = 0; round < IDCT_ROUNDS && group < groups; round++, group += IDCT_THREADS / 32) {
        int row = group / component.roi_groups;
        int x = (component.roi_group + group - row * component.roi_groups) * 4 + nth, y = component.roi_row + row;
        bool real = x < per_row;
        int mcu_x = min(x, per_row - 1) / component.h, mcu_y = y / component.v;
        int index = (mcu_y * image.mcus_x + mcu_x) * image.blocks_in_mcu + component.first
                    + (y - mcu_y * component.v) * component.h + (min(x, per_row - 1) - mcu_x * component.h);
        u64 block = blocks[index];
        const u32 *entries = batch->entries + (u32)block;
        int count = (int)(block >> 32) & 0xffff;

        *(uint4 *)(tile + lane * TILE_ROW) = make_uint4(0, 0, 0, 0);
        *(uint4 *)(tile + lane * TILE_ROW + 4) = make_uint4(0, 0, 0, 0);
        __syncwarp();
        if (lane == 0) tile[0] = dc_of_block(image, blocks, c, index) * (i16)dequant[0];
        for (int i = lane; i < count; i += 8) {
            u32 entry = entries[i], how = dequant[entry >> 16 & 63];
            tile[how >> 16] = (i16)entry * (i16)how;
        }
        __syncwarp();

        int v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = tile[i * TILE_ROW + lane];
        idct8(v, 1 << 10);
        u32 wide = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] >>= 11;
            wide |= (u32)(v[i] + 16384);
        }
        wrapped |= real && wide >= 32768;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; i++) tile[i * TILE_ROW + lane] = v[i];
        __syncwarp();
        int4 left = *(const int4 *)(tile + lane * TILE_ROW), right = *(const int4 *)(tile + lane * TILE_ROW + 4);
        v[0] = left.x, v[1] = left.y, v[2] = left.z, v[3] = left.w;
        v[4] = right.x, v[5] = right.y, v[6] = right.z, v[7] = right.w;
        idct8(v, (128 << 18) + (1 << 17));
        u32 low = pack_saturated(v[1] >> 18, v[0] >> 18, pack_saturated(v[3] >> 18, v[2] >> 18, 0));
        u32 high = pack_saturated(v[5] >> 18, v[4] >> 18, pack_saturated(v[7] >> 18, v[6] >> 18, 0));
        if (real) *(uint2 *)(plane + (i64)(8 * y + lane) * component.pitch + 8 * x) = make_uint2(low, high);
        __syncwarp();
    }
    if (wrapped) atomicOr(&batch->status[at], OUT_OF_RANGE);
}
