// Convert coefficients to component planes: dequantisation and the accurate integer inverse DCT of libjpeg ("islow":
// Loeffler, Ligtenberg and Moschytz 1989, 13-bit constants, two extra bits between the passes). Integer sums are the
// same in any order, so results equal libjpeg-turbo's to the bit unless its 16-bit SIMD code overflows: images with
// intermediate values that large get the status OUT_OF_RANGE. Only blocks in the region of interest are computed.
//
// Each lane transforms one block, a warp 32 adjacent ones. The coefficients pass through shared memory, where eight
// lanes at a time place those of a block.
#include "jpeg_dc.cu"

#define IDCT_THREADS 128  // as many as `dequant` has entries
#ifndef IDCT_BLOCKS
#define IDCT_BLOCKS 5  // minimum blocks of threads per multiprocessor
#endif
#define IDCT_WARPS (IDCT_THREADS / 32)
#define IDCT_ROUNDS 4                               // rounds of 32 blocks per warp
#define IDCT_GROUPS (8 * IDCT_WARPS * IDCT_ROUNDS)  // groups of four blocks per block of threads

// Workspace of a warp, in bytes: one column of the first block as eight 16-bit values, the same column of the next
// block and so on; then the next column of all blocks, and so on. 16 bytes separate the columns, so that the
// coefficients of one block are in different banks.
#define COLUMNS (16 * 32 + 16)
#define WARP_SPACE (8 * COLUMNS)
#define CHUNKS_AT_ONCE 4  // groups of eight coefficients that eight lanes load before they place them
#define CHUNKS (32 * 8 + 4 * CHUNKS_AT_ONCE)  // chunks of a warp's blocks, and empty ones that fill up the last turn

__constant__ u8 NATURAL_ORDER[64] = {  // T.81, figure A.6: zig-zag index to 8 * row + column
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// Return a + b + c in one instruction. The compiler would keep partial sums that two results share, and then needs more
// instructions.
DEVICE int sum3(int a, int b, int c) {
#ifndef EMULATED
    int sum;
    asm("{.reg .s32 t; add.s32 t, %1, %2; add.s32 %0, t, %3;}" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
#else
    return a + b + c;
#endif
}

// Transform one dimension in place. The result is scaled by 2^13, and `bias` is added to it. These are libjpeg's sums
// of products, expanded as far as it saves instructions: a product added to a sum is one instruction, and so is a sum
// of three.
DEVICE void idct8(int *x, int bias) {
    int even = x[0] * 8192 + bias, even0 = even + x[4] * 8192, even1 = even - x[4] * 8192;
    int even2 = x[2] * 4433 - x[6] * 10704, even3 = x[2] * 10703 + x[6] * 4433;  // 0.541196100, 1.306562965
    int z3 = x[7] + x[3], z4 = x[5] + x[1];
    int odd02 = z4 * 9633 - z3 * 6436, odd13 = z3 * 9633 + z4 * 6437;  // 1.175875602, 0.785694958
    int odd0 = odd02 - x[1] * 7373 - x[7] * 4927, odd1 = odd13 - x[3] * 20995 - x[5] * 4176;
    int odd2 = odd02 - x[5] * 20995 + x[3] * 4177, odd3 = odd13 - x[7] * 7373 + x[1] * 4926;

    x[0] = sum3(even3, odd3, even0), x[7] = sum3(even3, -odd3, even0);
    x[1] = sum3(even2, odd2, even1), x[6] = sum3(even2, -odd2, even1);
    x[2] = sum3(-even2, odd1, even1), x[5] = sum3(-even2, -odd1, even1);
    x[3] = sum3(-even3, odd0, even0), x[4] = sum3(-even3, -odd0, even0);
}

// Positions of the blocks of a component. Divisions by sampling factors are multiplications, which are exact below
// 2^14.
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
    // what the column of a block adds to row(y); beyond the right border, that of the last column
    DEVICE int column(int x) const {
        x = min(x, per_row - 1);
        int mcu = (int)((u32)x * one_h >> 16);
        return mcu * in_mcu + x - mcu * h;
    }
};

// Return a coefficient if ``wanted``, through the read-only cache: no thread writes coefficients while this kernel
// runs.
DEVICE u32 load_entry(const u32 *entries, u32 i, bool wanted) {
    u32 entry = 0;
#ifndef EMULATED
    asm volatile("{.reg .pred p; .reg .u64 a; setp.ne.u32 p, %2, 0; mad.wide.u32 a, %3, 4, %1; @p ld.global.nc.u32 %0, [a];}"
                 : "=r"(entry) : "l"(entries), "r"((u32)wanted), "r"(i));
#else
    if (wanted) entry = entries[i];
#endif
    return entry;
}

// Shared memory, accessed by byte offset from an address that stays in a register.
struct SharedBytes {
#ifndef EMULATED
    u32 address;
    DEVICE explicit SharedBytes(const void *first) : address((u32)__cvta_generic_to_shared(first)) {
        asm volatile("" : "+r"(address));
    }
    DEVICE u32 word(u32 at) const {
        u32 one;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(one) : "r"(address + at) : "memory");
        return one;
    }
    DEVICE uint2 pair(u32 at) const {
        uint2 two;
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(two.x), "=r"(two.y) : "r"(address + at) : "memory");
        return two;
    }
    DEVICE void put_half(u32 at, int half) const {
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(address + at), "h"((u16)half) : "memory");
    }
#else
    u8 *address;
    explicit SharedBytes(const void *first) : address((u8 *)first) {}
    u32 word(u32 at) const { return *(const u32 *)(address + at); }
    uint2 pair(u32 at) const { return *(const uint2 *)(address + at); }
    void put_half(u32 at, int half) const { *(u16 *)(address + at) = (u16)half; }
#endif
};

KERNEL __launch_bounds__(IDCT_THREADS, IDCT_BLOCKS) jpeg_idct(const Batch *batch) {
    // By zig-zag index + 1: the byte in a block's workspace, and the quantisation factor (16..31). 128 entries, because
    // entries of a damaged block may have larger indexes.
    __shared__ u32 dequant[128];
    __shared__ __align__(16) u8 workspace[IDCT_WARPS * WARP_SPACE];
    // first coefficient; byte of its block in the workspace, number of coefficients (16..21)
    __shared__ uint2 chunks[IDCT_WARPS][CHUNKS];
    __shared__ BlockGrid grid;
    int slot = locate_by_warp(batch->idct_first, batch->count * 3, blockIdx.x), at = slot / 3, c = slot - 3 * at;
    if (batch->status[at]) return;
    const Image &image = batch->images[at];
    const Component &component = image.component[c];
    {
        const u8 *factors = batch->raw + image.raw + component.quant;
        int i = threadIdx.x - 1, entry = 0;
        if (i >= 0 && i < 64) {
            int place = NATURAL_ORDER[i], factor = component.quant_wide ? factors[2 * i] << 8 | factors[2 * i + 1] : factors[i];
            entry = (place % 8 * COLUMNS + place / 8 * 2) | factor << 16;
        }
        dequant[threadIdx.x] = (u32)entry;
    }
    if (threadIdx.x == 96) grid.open(image, component);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 own = warp * WARP_SPACE + 16 * lane;  // the lane's own block in the workspace
    const u64 *blocks = batch->blocks + image.blocks;
    const u32 *entries = kept(batch->entries + (lane & 7));
    const SharedBytes space(workspace), table(dequant), listed(chunks[warp] + (lane >> 3));
    const u32 bound = (u32)(lane & 7) << 16 | 0xffff;  // chunks with larger values have a coefficient for this lane
    int roi_groups = component.roi_groups, groups = roi_groups * component.roi_rows, pitch = component.pitch;
    u8 *plane = batch->planes + component.plane;
    bool restart = image.restart != 0, wrapped = false;
    int group = (blockIdx.x - batch->idct_first[slot]) * IDCT_GROUPS + 8 * warp + (lane >> 2);
    int x = 0, y = 0, index = 0;
    auto find = [&]() -> u64 {  // the lane's block, and its record; nothing after the last block
        if (group >= groups) return 0;
        y = (int)((u32)group / (u32)roi_groups);
        x = 4 * (component.roi_group + group - y * roi_groups) + (lane & 3);
        y += component.roi_row;
        index = grid.row(y) + grid.column(x);
        return blocks[index];
    };
    __syncthreads();
    u64 block = find();
#pragma unroll 1
    for (int left = IDCT_ROUNDS; __any_sync(~0u, group < groups);) {
        u64 now = block;
        bool real = group < groups && x < grid.per_row;
        u8 *to = plane + (i64)8 * y * pitch + 8 * x;
        int dc = restart && group < groups ? dc_of_block(image, blocks, c, index) : (int)(i16)(now >> 48);
        dc *= (int)dequant[1] >> 16;
        u32 far = (u32)(dc + 32768);  // bits of all coefficients: set beyond 16 if one exceeds 16 bits
        // Meanwhile, the next round's record is being loaded.
        group = --left ? group + 8 * IDCT_WARPS : groups;
        block = find();
        *(uint4 *)(workspace + own) = make_uint4((u32)(u16)dc, 0, 0, 0);
#pragma unroll
        for (int i = 1; i < 8; i++) *(uint4 *)(workspace + own + i * COLUMNS) = make_uint4(0, 0, 0, 0);
        // Eight lanes process eight coefficients at a time, of any block: so all lanes have about the same amount of
        // work.
        int count = (int)(now >> 32) & 0xffff;
        u32 before = warp_sum((u32)(count + 7) >> 3), total = __shfl_sync(~0u, before, 31);
        uint2 *chunk = chunks[warp] + before - ((u32)(count + 7) >> 3);
#pragma unroll 1
        for (int i = 0; i < count; i += 8) *chunk++ = make_uint2((u32)now + i, (u32)(count - i) << 16 | own);
        if (lane < 4 * CHUNKS_AT_ONCE) chunks[warp][total + lane] = make_uint2(0, 0);
        __syncwarp();
        uint2 these[2][CHUNKS_AT_ONCE];
        u32 coming[2][CHUNKS_AT_ONCE];
        auto fetch = [&](int turn, u32 first) {
#pragma unroll
            for (int k = 0; k < CHUNKS_AT_ONCE; k++) these[turn][k] = listed.pair(8 * first + 32 * k);
#pragma unroll
            for (int k = 0; k < CHUNKS_AT_ONCE; k++) coming[turn][k] = load_entry(entries, these[turn][k].x, these[turn][k].y > bound);
        };
        auto place = [&](int turn) {
            u32 how[CHUNKS_AT_ONCE];
#pragma unroll
            for (int k = 0; k < CHUNKS_AT_ONCE; k++) how[k] = table.word(coming[turn][k] >> 14 & 0x1fc);
#pragma unroll
            for (int k = 0; k < CHUNKS_AT_ONCE; k++)
                if (these[turn][k].y > bound) {
                    int value = (i16)coming[turn][k] * ((int)how[k] >> 16);
                    far |= (u32)(value + 32768);
                    space.put_half((these[turn][k].y & 0xffff) + (how[k] & 0xffff), value);
                }
        };
        if (total) fetch(0, 0);
#pragma unroll 1
        // one turn is being loaded while the previous one is placed
        for (u32 i = 0; i < total; i += 8 * CHUNKS_AT_ONCE) {
            bool more = i + 4 * CHUNKS_AT_ONCE < total;
            if (more) fetch(1, i + 4 * CHUNKS_AT_ONCE);
            place(0);
            if (!more) break;
            if (i + 8 * CHUNKS_AT_ONCE < total) fetch(0, i + 8 * CHUNKS_AT_ONCE);
            place(1);
        }
        __syncwarp();
        int v[8][8];
        u32 wide = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint4 all = *(const uint4 *)(workspace + own + i * COLUMNS);
            u32 words[4] = {all.x, all.y, all.z, all.w};
            int column[8];
#pragma unroll
            for (int j = 0; j < 4; j++) column[2 * j] = (i16)words[j], column[2 * j + 1] = (int)words[j] >> 16;
            idct8(column, 1 << 10);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[j][i] = column[j] >> 11;
                wide |= (u32)(v[j][i] + 16384);
            }
        }
        wrapped |= (real && wide >= 32768) || far >= 65536;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            idct8(v[j], (128 << 18) + (1 << 17));
            u32 low = pack_saturated(v[j][1] >> 18, v[j][0] >> 18, pack_saturated(v[j][3] >> 18, v[j][2] >> 18, 0));
            u32 high = pack_saturated(v[j][5] >> 18, v[j][4] >> 18, pack_saturated(v[j][7] >> 18, v[j][6] >> 18, 0));
            if (real) *(uint2 *)(to + (i64)j * pitch) = make_uint2(low, high);
        }
    }
    if (wrapped) mark(batch, image, at, OUT_OF_RANGE);
}
