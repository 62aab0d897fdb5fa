// The inverse DCT of images in many scans, whose coefficients are stored block by block. It works as jpeg_idct.cu does,
// except that eight lanes transform a block and a warp four adjacent ones.
#include "jpeg_idct.cu"
#include "jpeg_scans.cu"

#define DENSE_THREADS 256
#define DENSE_ROUNDS (IDCT_GROUPS / (DENSE_THREADS / 32))  // groups of four blocks per warp

// Workspace of a block: rows of 12 words, blocks 104 words apart, so that no access of a warp uses a bank twice.
#define TILE_ROW 12
#define TILE_BLOCK 104

// Compute both passes of a block in its workspace, with eight lanes of a warp; each lane returns one row. Return the
// combined bits of all values between the passes, + 16384.
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

// The same if all coefficients but the first are zero.
DEVICE u32 transform_flat(int dc, u32 *low, u32 *high) {
    int v = (int)((u32)dc * 8192 + (1 << 10)) >> 11;
    u32 wide = (u32)(v + 16384);
    v = (int)((u32)v * 8192 + (128 << 18) + (1 << 17)) >> 18;
    *low = *high = pack_saturated(v, v, pack_saturated(v, v, 0));
    return wide;
}

KERNEL __launch_bounds__(DENSE_THREADS, 4) jpeg_dense(const Batch *batch) {
    __shared__ __align__(16) int workspace[DENSE_THREADS / 8 * TILE_BLOCK];
    int slot = locate_by_warp(batch->dense_first, batch->count * 3, blockIdx.x), at = slot / 3, c = slot - 3 * at;
    if (batch->status[at]) return;
    const Image &image = batch->images[at];
    const Component &component = image.component[c];
    int lane = threadIdx.x & 7, nth = (threadIdx.x >> 3) & 3, warp = threadIdx.x >> 5;
    int *tile = workspace + (threadIdx.x >> 3) * TILE_BLOCK;
    // The eight coefficients of a lane, in every block: four words, each with coefficients i and i + 32.
    int factor[8], place[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int k = 4 * lane + (i >> 1) + 32 * (i & 1), natural = NATURAL_ORDER[k];
        const u8 *table = batch->raw + image.raw + component.quant;
        factor[i] = (i16)(component.quant_wide ? table[2 * k] << 8 | table[2 * k + 1] : table[k]);
        place[i] = natural / 8 * TILE_ROW + natural % 8;
    }
    int roi_groups = component.roi_groups, pitch = component.pitch;
    int group = (blockIdx.x - batch->dense_first[slot]) * IDCT_GROUPS + warp * DENSE_ROUNDS;
    int left = min(DENSE_ROUNDS, roi_groups * component.roi_rows - group);
    if (left <= 0) return;
    int y = group / roi_groups, x = group - y * roi_groups;
    const i16 *coefficients = batch->coefficients + image.coefficients + (component.plane - image.component[0].plane);
    auto block_at = [&]() {  // a row of blocks has as many coefficients as eight rows have samples
        return coefficients + (i64)(y + component.roi_row) * 8 * pitch + ((component.roi_group + x) * 4 + nth) * 64;
    };
    uint4 next = *(const uint4 *)(block_at() + 8 * lane);
    u32 wide = 0;
    for (;;) {
        uint4 now = next;
        u8 *to = batch->planes + component.plane + (i64)((y + component.roi_row) * 8 + lane) * pitch
                 + ((component.roi_group + x) * 4 + nth) * 8;
        if (--left > 0) {
            if (++x == roi_groups) x = 0, y++;
            next = *(const uint4 *)(block_at() + 8 * lane);
        }
        u32 words[4] = {now.x, now.y, now.z, now.w}, low, high;
        bool flat = ((lane ? now.x : now.x & 0xffff0000u) | now.y | now.z | now.w) == 0;
        if (__all_sync(~0u, flat)) {
            int dc = (i16)__shfl_sync(~0u, now.x, threadIdx.x & 24) * __shfl_sync(~0u, (u32)factor[0], threadIdx.x & 24);
            wide |= transform_flat(dc, &low, &high);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                tile[place[2 * i]] = (i16)words[i] * factor[2 * i];
                tile[place[2 * i + 1]] = ((int)words[i] >> 16) * factor[2 * i + 1];
            }
            __syncwarp();
            wide |= transform(tile, lane, &low, &high);
        }
        *(uint2 *)to = make_uint2(low, high);
        if (left <= 0) break;
    }
    if (wide >= 32768) mark(batch, image, at, OUT_OF_RANGE);
}
