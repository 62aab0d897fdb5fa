// Convert DC differences to DC values: prefix sums over all blocks of a component. One block of threads per image; each
// thread processes some consecutive MCUs.
#include "jpeg_coefficients.cu"

#define DC_THREADS 512
#define DC_WARPS (DC_THREADS / 32)
#define DC_MOST 12  // maximum blocks that a thread processes at a time

// Replace three sums by the sums over all previous threads; ``carry``: the sums of the previous rounds, which are
// updated.
struct DcShared {
    u32 sums[2][3][DC_WARPS];
    u16 staged[DC_THREADS * DC_MOST];
};
DEVICE void sums_before(DcShared &shared, int turn, u32 *sum, u32 *carry) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int c = 0; c < 3; c++) {
        u32 whole = warp_sum(sum[c]);
        if (lane == 31) shared.sums[turn][c][warp] = whole;
        sum[c] = whole - sum[c];
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < 3; c++) {
        sum[c] += carry[c];
#pragma unroll
        for (int i = 0; i < DC_WARPS; i++) {
            u32 other = shared.sums[turn][c][i];
            if (i < warp) sum[c] += other;
            carry[c] += other;
        }
    }
}

// Common samplings: LUMA blocks of the first component, then one of each other. A thread processes MCUS MCUs at a time.
// They pass through shared memory, so that neighbouring lanes access neighbouring blocks.
template <int LUMA, int CHROMA, int MCUS> DEVICE void sum_dc(DcShared &shared, u16 *dc, int blocks) {
    const int IN_MCU = LUMA + CHROMA, EACH = MCUS * IN_MCU;
    static_assert(EACH <= DC_MOST, "they fit");
    u32 carry[3] = {0, 0, 0};
    u16 *mine = shared.staged + threadIdx.x * EACH;
    int turn = 0;
    for (int base = 0; base < blocks; base += DC_THREADS * EACH, turn ^= 1) {
        int count = blocks - base;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int at = i * DC_THREADS + (int)threadIdx.x;
            shared.staged[at] = at < count ? dc[4 * (base + at)] : 0;
        }
        __syncthreads();
        u32 value[EACH], sum[3] = {0, 0, 0};
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = max(i % IN_MCU - LUMA + 1, 0);
            value[i] = sum[c] += mine[i];
        }
        sums_before(shared, turn, sum, carry);
#pragma unroll
        for (int i = 0; i < EACH; i++) mine[i] = (u16)(value[i] + sum[max(i % IN_MCU - LUMA + 1, 0)]);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int at = i * DC_THREADS + (int)threadIdx.x;
            if (at < count) dc[4 * (base + at)] = shared.staged[at];
        }
        __syncthreads();
    }
}

// Restart intervals are ignored here: dc_of_block subtracts the value that a component had before an interval. Sums are
// modulo 2^16, as libjpeg's are.
KERNEL __launch_bounds__(DC_THREADS) jpeg_dc(const Batch *batch) {
    __shared__ DcShared shared;
    const Image &image = batch->images[blockIdx.x];
    int blocks = image.block_count, in_mcu = image.blocks_in_mcu;
    if (blocks == 0 || batch->status[blockIdx.x]) return;
    u16 *dc = (u16 *)(batch->blocks + image.blocks) + 3;
    int luma = image.component[0].h * image.component[0].v;
    bool usual = image.components == 3 && in_mcu == luma + 2
                 && image.component[1].h * image.component[1].v == 1;
    if (in_mcu == 1) return sum_dc<1, 0, 8>(shared, dc, blocks);
    if (usual && luma == 1) return sum_dc<1, 2, 4>(shared, dc, blocks);
    if (usual && luma == 2) return sum_dc<2, 2, 3>(shared, dc, blocks);
    if (usual && luma == 4) return sum_dc<4, 2, 2>(shared, dc, blocks);
    u32 carry[3] = {0, 0, 0};
    int turn = 0;
    for (int base = 0; base < image.mcus; base += DC_THREADS, turn ^= 1) {
        int mcu = base + (int)threadIdx.x;
        bool mine = mcu < image.mcus;
        u16 *first = dc + (i64)mcu * in_mcu * 4;
        u32 sum[3] = {0, 0, 0};
#pragma unroll
        for (int c = 0; c < 3; c++) {
            int begin = image.component[c].first, end = begin + image.component[c].h * image.component[c].v;
            for (int b = begin; mine && b < end; b++) sum[c] += first[4 * b];
        }
        sums_before(shared, turn, sum, carry);
#pragma unroll
        for (int c = 0; c < 3; c++) {
            int begin = image.component[c].first, end = begin + image.component[c].h * image.component[c].v;
            for (int b = begin; mine && b < end; b++) first[4 * b] = (u16)(sum[c] += first[4 * b]);
        }
    }
}

// Return the DC of block `index`, which belongs to component c.
DEVICE int dc_of_block(const Image &image, const u64 *blocks, int c, int index) {
    u32 dc = (u32)(blocks[index] >> 48);
    if (image.restart) {
        int interval = index / (image.restart * image.blocks_in_mcu);
        int last = interval * image.restart * image.blocks_in_mcu - image.blocks_in_mcu  // last block of c before it
                   + image.component[c].first + image.component[c].h * image.component[c].v - 1;
        if (interval) dc -= (u32)(blocks[last] >> 48);
    }
    return (i16)dc;
}
