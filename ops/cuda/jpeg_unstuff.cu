// Remove stuffing from the entropy-coded segment (T.81, B.1.1.5): FF 00 becomes FF, fill bytes are dropped, RSTn ends
// an interval, any other marker ends the scan. A block of threads processes one chunk. Each chunk publishes how many
// bytes it keeps, and sums up what the chunks before it have published ("decoupled look-back", Merrill and Garland
// 2016), so that chunks need not run in turn. The stream is stored as big-endian words, so that a bit reader needs no
// byte swaps.
#include "jpeg_common.cuh"

#define UNSTUFF_THREADS 256
#define UNSTUFF_WORDS 8  // words per thread
#define UNSTUFF_BYTES (4 * UNSTUFF_WORDS)
#define UNSTUFF_CHUNK (UNSTUFF_THREADS * UNSTUFF_BYTES)

// State that a chunk publishes: bytes kept (0..31), restart markers seen (32..60), end of scan seen (61); of this chunk
// alone (62) or of all up to it (READY).
#define SCAN_ENDED (1ull << 61)
#define ALONE (1ull << 62)

#define EOI 0xd9
#define OUTSIDE 0x100

// Index of word i in shared memory. An unused word after every 32 keeps lanes that access eight words each in different
// banks.
#define STAGED(i) ((i) + ((i) >> 5))

struct Chunk {               // shared by the threads of a block
    u32 stage[STAGED(UNSTUFF_CHUNK / 4 + 8)];
    u32 sums[UNSTUFF_THREADS / 32];
    i32 work, image;
    u32 scan_end;            // position in the chunk of the first marker that ends the scan, and (0..7) its code
    u32 stray;               // whether FF FF 00 was seen
    u64 before;
};

// Return a mask of the low n bits.
DEVICE u32 low_bits(int n) { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1; }

// Load 16 bytes at the given offset from `from`; bytes after `count` are zeros.
DEVICE void load_words(const u8 *from, int count, u32 *word) {
    if (count >= 16) {
        uint4 v = *(const uint4 *)from;
        word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
        return;
    }
    word[0] = word[1] = word[2] = word[3] = 0;
#pragma unroll 1
    for (int i = count - 1; i >= 0; i--) {
#pragma unroll
        for (int j = 3; j > 0; j--) word[j] = __funnelshift_l(word[j - 1], word[j], 8);
        word[0] = word[0] << 8 | from[i];
    }
}

// Return the sum of what chunks [first, work) keep. The lanes of a warp read 32 of them at a time, the nearest first.
DEVICE u64 look_back(const u64 *chain, int first, int work) {
    int lane = threadIdx.x & 31;
    u32 kept = 0, restarts = 0;
    u64 ended = 0;
    for (int nearest = work - 1;; nearest -= 32) {
        u64 link = READY;
        if (nearest - lane >= first)
            while (!((link = *(const volatile u64 *)(chain + nearest - lane)) & (READY | ALONE))) PAUSE();
        // up to the first that has the sum of all chunks before it
        u32 whole = __ballot_sync(~0u, (link & READY) != 0), used = whole ^ (whole - 1);
        u32 ends = used & __ballot_sync(~0u, (link & SCAN_ENDED) != 0);
        if (ends) {  // nothing after the end of the scan counts
            int last = 31 - __clz(ends);
            used &= ~0u << last;
            kept = restarts = 0;
            ended = SCAN_ENDED;
        }
        bool counts = used >> lane & 1;
        u32 mine = counts ? (u32)link : 0, markers = counts ? (u32)(link >> 32) & 0x1fffffff : 0;
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) {
            mine += __shfl_xor_sync(~0u, mine, step);
            markers += __shfl_xor_sync(~0u, markers, step);
        }
        kept += mine, restarts += markers;
        if (whole) return kept | (u64)restarts << 32 | ended;
    }
}

KERNEL __launch_bounds__(UNSTUFF_THREADS, 6) jpeg_unstuff(const Batch *batch) {
    __shared__ __align__(16) Chunk shared;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (warp == 0) {
        u32 work = 0;
        if (lane == 0) work = atomicAdd(batch->tickets + 0, 1u);
        work = __shfl_sync(~0u, work, 0);
        int at = locate_by_warp(batch->unstuff_first, batch->records, work);
        if (lane == 0) shared.work = work, shared.image = at, shared.scan_end = UNSTUFF_CHUNK << 8, shared.stray = 0;
    }
    for (u32 i = threadIdx.x; i < sizeof(shared.stage) / 4; i += UNSTUFF_THREADS) shared.stage[i] = 0;
    __syncthreads();
    int work = shared.work, at = shared.image;
    int first_work = batch->unstuff_first[at], chunk = work - first_work;
    const Image &image = batch->images[at];
    // Positions in the scan are relative to an aligned address (16 bytes): the bytes [low, high) are the scan's. The
    // header before it is longer than what is read before `low`.
    const u8 *scan = batch->raw + image.raw + image.scan;
    int low = (int)((u64)scan & 15), high = low + image.raw_size - image.scan;
    scan -= low;
    int place = chunk * UNSTUFF_CHUNK + threadIdx.x * UNSTUFF_BYTES, count = high - place;

    u32 word[UNSTUFF_WORDS];
    int before = place > low && place <= high ? scan[place - 1] : OUTSIDE;
#pragma unroll
    for (int i = 0; i < UNSTUFF_BYTES; i += 16) load_words(scan + place + i, count - i, word + i / 4);
    u32 keep = low_bits(count);
    if (place < low) {
        keep &= ~low_bits(low - place);
#pragma unroll
        for (int j = 0; j < 4; j++) word[j] &= ~low_bits(8 * (low - place) - 32 * j);
    }
    // Bit 8 * k + j: whether byte k of word j is FF.
    u32 found = 0;
#pragma unroll
    for (int j = 0; j < UNSTUFF_WORDS; j++) {
        u32 full = word[j] & ((word[j] & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
        found |= full >> (7 - j);
    }
    u32 restarts = 0, strays = 0;
    bool first = before == 255;
    while (first || found) {  // for each FF, also one before my bytes, and the byte after it
        int bit = __ffs(found) - 1, i = first ? -1 : (bit & 7) * 4 + (bit >> 3);
        if (!first) found &= found - 1;
        first = false;
        int next = i + 1 < count ? scan[place + i + 1] : OUTSIDE;
        u32 mark = i < 31 ? 1u << (i + 1) : 0;  // the next byte, if it is one of mine
        if (next != 0 && i >= 0) keep &= ~(1u << i);
        if (next == 255 || next == OUTSIDE) continue;
        keep &= ~mark;
        if (next == 0) {
            if (place + i > low && scan[place + i - 1] == 255) strays |= mark;
        } else if ((next & 0xf8) == 0xd0) {
            restarts |= mark;
        } else if (mark) {
            atomicMin(&shared.scan_end, (u32)(threadIdx.x * UNSTUFF_BYTES + i + 1) << 8 | next);
        }
    }
    __syncthreads();
    int last = shared.scan_end >> 8;
    u32 visible = low_bits(last - (int)threadIdx.x * UNSTUFF_BYTES);  // mask of my bytes within the scan
    keep &= visible;
    restarts &= visible;
    if (strays & visible) atomicOr(&shared.stray, 1u);

    u32 kept = __popc(keep), marked = __popc(restarts);
    u32 sum = warp_sum(kept | marked << 16), total = 0, others = 0;
    if (lane == 31) shared.sums[warp] = sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < UNSTUFF_THREADS / 32; i++) {
        if (i == warp) others = total;
        total += shared.sums[i];
    }
    sum += others;
    u64 own = (total & 0xffff) | (u64)(total >> 16) << 32 | (last < UNSTUFF_CHUNK ? SCAN_ENDED : 0);
    if (threadIdx.x == 0 && chunk) *(volatile u64 *)(batch->unstuff_chain + work) = own | ALONE;
    u32 mine_at = (sum & 0xffff) - kept;
    if (kept) {
        for (u32 gone = ~keep; gone;) {  // from the last dropped byte on: the rest moves up, followed by zeros
            int i = 31 - __clz(gone), in = i >> 2;
            gone ^= 1u << i;
            u32 order = 0x4321 - (0x1111 & low_bits(4 * (i & 3)));
#pragma unroll
            for (int j = 0; j < UNSTUFF_WORDS; j++) {
                u32 next = j + 1 < UNSTUFF_WORDS ? word[j + 1] : 0;
                if (j >= in) word[j] = __byte_perm(word[j], next, j == in ? order : 0x4321);
            }
        }
        // Words that contain only my bytes are stored; words shared with other threads are added to.
        u32 shift = 8 * (mine_at & 3), bytes = (mine_at & 3) + kept, to = mine_at >> 2;
#pragma unroll
        for (int j = 0; j <= UNSTUFF_WORDS; j++) {
            u32 *at_word = shared.stage + STAGED(to + j);
            u32 moved = __funnelshift_l(j ? word[j - 1] : 0, j < UNSTUFF_WORDS ? word[j] : 0, shift);
            if (4 * j + 4 <= bytes && (j || shift == 0)) *at_word = moved;
            else if (4 * j < bytes) atomicOr(at_word, moved);
        }
    }
    if (warp == 0) {
        u64 previous = chunk ? look_back(batch->unstuff_chain, first_work, work) : 0;
        if (lane == 0) {
            u64 sofar = previous & SCAN_ENDED ? previous : previous + own;
            hand_on(batch->unstuff_chain + work, sofar);
            shared.before = previous;
            // libjpeg reads on to EOI, so it decides what other markers mean. FF FF 00 is a fill byte without a marker:
            // libjpeg-turbo decodes the MCU twice and adds the results.
            bool odd_end = last < UNSTUFF_CHUNK && (shared.scan_end & 255) != EOI;
            if (!(previous & SCAN_ENDED) && (odd_end || shared.stray)) mark(batch, image, at, EXTRANEOUS);
            if (work + 1 == batch->unstuff_first[at + 1]) {
                u32 markers = (u32)(sofar >> 32) & 0x1fffffff;
                batch->stream[2 * at] = (u32)sofar;
                batch->stream[2 * at + 1] = min(markers, (u32)image.segment_count);
                if (markers != (u32)image.segment_count) mark(batch, image, at, BAD_RESTART);
            }
        }
    }
    __syncthreads();
    u64 before_chunk = shared.before;
    if (before_chunk & SCAN_ENDED) return;
    u32 start = (u32)before_chunk;  // index of the chunk's first byte in the stream
    if (restarts) {
        u32 marker = ((u32)(before_chunk >> 32) & 0x1fffffff) + (sum >> 16) - __popc(restarts);
        for (; restarts; restarts &= restarts - 1, marker++) {
            int i = __ffs(restarts) - 1;
            if (marker < (u32)image.segment_count)
                batch->segments[image.segments + marker] = start + mine_at + __popc(keep & low_bits(i));
            if ((scan[place + i] & 7) != (marker & 7)) mark(batch, image, at, BAD_RESTART);
        }
    }
    // Whole groups of 16 bytes are written as four words; a group shared with a neighbouring chunk is written byte by
    // byte.
    u32 behind = start + (total & 0xffff), begin = (start + 15) & ~15u, end = behind & ~15u;
    u8 *out = (u8 *)(batch->words + image.words);
    for (u32 to = begin + 16 * threadIdx.x; to < end; to += 16 * UNSTUFF_THREADS) {
        u32 from = (to - start) >> 2, order = 0x0123 + 0x1111 * ((to - start) & 3), five[5];
#pragma unroll
        for (int j = 0; j < 5; j++) five[j] = shared.stage[STAGED(from + j)];
        *(uint4 *)(out + to) = make_uint4(__byte_perm(five[0], five[1], order), __byte_perm(five[1], five[2], order),
                                          __byte_perm(five[2], five[3], order), __byte_perm(five[3], five[4], order));
    }
    if (warp == 0) {
        u32 to = lane < 16 ? start + lane : max(begin, end) + lane - 16;
        u32 from = to - start;
        if (to < behind && (lane >= 16 || to < begin)) out[to ^ 3] = (u8)(shared.stage[STAGED(from >> 2)] >> (8 * (from & 3)));
    }
}
