// The entropy-coded segment without its stuffing (T.81, B.1.1.5): FF 00 becomes FF, fill bytes vanish, RSTn ends an
// interval, any other marker ends the scan. A block of threads takes one chunk; a chunk learns from the one before it
// where its bytes go. The stream is kept as big-endian words, so that a bit reader needs no byte swaps.
#include "jpeg_common.cuh"

#define UNSTUFF_THREADS 512
#define UNSTUFF_CHUNK (UNSTUFF_THREADS * 16)

// What chunks hand on: bytes kept (0..31), restart markers seen (32..60), end of scan seen (61).
#define SCAN_ENDED (1ull << 61)

#define EOI 0xd9

struct Bytes16 {
    u32 word[4];
    DEVICE u32 operator[](int i) const { return word[i >> 2] >> (8 * (i & 3)) & 255; }
};

// 16 bytes at `at`; those outside [begin, end) read as 0.
DEVICE Bytes16 load16(const u8 *at, const u8 *begin, const u8 *end) {
    Bytes16 bytes;
    if (at >= begin && at + 16 <= end) {
        uint4 v = *(const uint4 *)at;
        bytes.word[0] = v.x, bytes.word[1] = v.y, bytes.word[2] = v.z, bytes.word[3] = v.w;
        return bytes;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 word = 0;
        for (int j = 0; j < 4; j++) {
            const u8 *p = at + 4 * i + j;
            if (p >= begin && p < end) word |= (u32)*p << (8 * j);
        }
        bytes.word[i] = word;
    }
    return bytes;
}

KERNEL __launch_bounds__(UNSTUFF_THREADS) jpeg_unstuff(const Batch *batch) {
    __shared__ u32 stage[UNSTUFF_CHUNK / 4 + 8];
    __shared__ int scan_end;
    __shared__ u64 before_chunk;
    int work = take_ticket(batch->tickets + 0);
    int at = locate(batch->unstuff_first, batch->count, work);
    int chunk = work - batch->unstuff_first[at], chunks = batch->unstuff_first[at + 1] - batch->unstuff_first[at];
    const Image &image = batch->images[at];
    const u8 *begin = batch->raw + image.raw + image.scan, *end = batch->raw + image.raw + image.raw_size;
    const u8 *mine = (const u8 *)((u64)begin & ~15ull) + (i64)chunk * UNSTUFF_CHUNK + threadIdx.x * 16;
    int last = UNSTUFF_CHUNK;
    if (threadIdx.x == 0) scan_end = last;

    Bytes16 bytes = load16(mine, begin, end);
    u32 two_before = mine > begin && mine <= end ? *(const u16 *)(mine - 2) : 0;  // a header is before the first byte
    u32 before = two_before >> 8;
    u32 after = mine + 16 < end ? mine[16] : 1;
    u32 keep = 0, restarts = 0, others = 0, first_other = 0, strays = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        u32 byte = bytes[i], previous = i ? bytes[i - 1] : before, next = i < 15 ? bytes[i + 1] : after;
        u32 one_more = i > 1 ? bytes[i - 2] : i ? before : two_before & 255;
        const u8 *p = mine + i;
        bool inside = p >= begin && p < end;
        bool marker = previous == 255 && byte != 255 && byte != 0;
        if (inside && (byte == 255 ? next == 0 : previous != 255)) keep |= 1u << i;
        if (inside && byte == 0 && previous == 255 && one_more == 255) strays |= 1u << i;
        if (inside && marker) {
            if ((byte & 0xf8) == 0xd0) {
                restarts |= 1u << i;
            } else {
                if (others == 0) first_other = byte;
                others |= 1u << i;
            }
        }
    }
    __syncthreads();
    if (others) atomicMin(&scan_end, (int)(threadIdx.x * 16 + __ffs(others) - 1));
    __syncthreads();
    last = scan_end;
    int visible = last - (int)threadIdx.x * 16;  // of my 16 bytes
    u32 mask = visible >= 16 ? 0xffffu : visible <= 0 ? 0 : (1u << visible) - 1;
    keep &= mask;
    restarts &= mask;

    u32 total, kept = __popc(keep), found = __popc(restarts);
    u32 sum = block_sum(kept | found << 16, &total);
    if (threadIdx.x == 0) {
        u64 previous = chunk ? wait_for(batch->unstuff_chain + work - 1) & ~READY : 0;
        u64 sofar = previous;
        if (!(previous & SCAN_ENDED)) {
            sofar += (total & 0xffff) | (u64)(total >> 16) << 32;
            if (last < UNSTUFF_CHUNK) sofar |= SCAN_ENDED;
        }
        hand_on(batch->unstuff_chain + work, sofar);
        before_chunk = previous;
        if (chunk == chunks - 1) {
            u32 markers = (u32)(sofar >> 32) & 0x1fffffff;
            batch->stream[2 * at] = (u32)sofar;
            batch->stream[2 * at + 1] = min(markers, (u32)image.segment_count);
            if (markers != (u32)image.segment_count) atomicOr(&batch->status[at], BAD_RESTART);
        }
    }
    __syncthreads();
    if (before_chunk & SCAN_ENDED) return;
    // libjpeg reads on to EOI: what other markers lead to, it has to say.
    if (others && last == (int)threadIdx.x * 16 + __ffs(others) - 1 && first_other != EOI) atomicOr(&batch->status[at], EXTRANEOUS);
    // FF FF 00, a fill byte without a marker: libjpeg-turbo decodes the MCU twice and adds what it got the first time.
    if (strays & mask) atomicOr(&batch->status[at], EXTRANEOUS);
    u32 start = (u32)before_chunk;  // where the chunk's bytes go
    u32 from = start & 15, mine_at = from + (sum & 0xffff) - kept;
    u8 *staged = (u8 *)stage;
    u32 position = mine_at;
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (keep >> i & 1) staged[position++] = (u8)bytes[i];
    if (restarts) {
        u32 marker = ((u32)(before_chunk >> 32) & 0x1fffffff) + (sum >> 16) - found;
        for (int i = 0; i < 16; i++) {
            if (!(restarts >> i & 1)) continue;
            u32 kept_before = __popc(keep & ((1u << i) - 1));
            if (marker < (u32)image.segment_count) batch->segments[image.segments + marker] = start - from + mine_at + kept_before;
            if ((bytes[i] & 7) != (marker & 7)) atomicOr(&batch->status[at], BAD_RESTART);
            marker++;
        }
    }
    __syncthreads();
    // Whole groups of 16 bytes go out as four words; what shares a group with a neighbour chunk goes byte by byte.
    u32 until = from + (total & 0xffff);
    u8 *out = (u8 *)(batch->words + image.words) + (start - from);
    for (u32 group = threadIdx.x; group * 16 < until; group += blockDim.x) {
        u32 low = group * 16, high = low + 16;
        if (low >= from && high <= until) {
            const u32 *four = stage + group * 4;
            *(uint4 *)(out + low) = make_uint4(swap_bytes(four[0]), swap_bytes(four[1]), swap_bytes(four[2]), swap_bytes(four[3]));
        } else {
            for (u32 i = max(low, from); i < min(high, until); i++) out[i ^ 3] = staged[i];
        }
    }
}
