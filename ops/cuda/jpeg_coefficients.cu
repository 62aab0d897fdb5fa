// Coefficients: every thread decodes the blocks that begin in its subsequence, from the state that jpeg_states found, and
// stores them one after the other.
//
// The host may know the states from an earlier time. Such threads write down where their own blocks begin and where they
// end; jpeg_joints sees whether each ends where the next one begins. If so, the blocks are those of the scan, whatever was known.
#include "jpeg_states.cu"

#ifndef COEFFICIENT_BLOCKS
#define COEFFICIENT_BLOCKS 4  // on a multiprocessor, at least
#endif
#ifndef CODES_AT_ONCE
#define CODES_AT_ONCE 4       // between two looks at what a lane has still to read; five and a half bits each
#endif

static_assert(CODES_AT_ONCE <= 4 && RING >= 7, "a turn finds no more than one store takes, beside three that were left");

// Bounds that no position is below.
#define ALL_STORED (-1)
#define INTERVAL_OVER (-2)

// Flags beside the bits of the status.
#define STATUS_BITS 0xff
#define NOT_MINE 0x100  // the thread before stores the block that is under way

// The coefficient of the code at the start of `bits` (T.81, F.2.2.1: EXTEND).
DEVICE int coefficient_value(u32 bits, u32 entry) {
    u32 behind = __funnelshift_l(0, bits, entry >> 8), unused = entry >> 24;
    u32 value = shift_right(behind, unused);
    return (int)behind < 0 ? value : value - shift_right(~0u, unused);
}

// Where one block ends and the next one begins: bits after the start of a subsequence (0..15), block within the MCU
// (16..19), blocks before (32..63).
#define SCAN_OVER (~0ull)
DEVICE u64 pack_joint(int position, int block, u32 index, u32 block_count) {
    return index >= block_count ? SCAN_OVER : (u32)position | (u32)block << 16 | (u64)index << 32;
}

// Where threads note their joints: the beginnings in place of the states, the ends where those would be that were found.
DEVICE u64 *beginnings(const Batch *batch, const Image &image) { return batch->known + image.known; }
DEVICE u64 *ends(const Batch *batch, const Image &image) { return batch->starts + image.entries / ENTRIES_EACH; }

// Stores the blocks that begin in the nth subsequence of image `at`, entered in `state` after `index` finished blocks.
// What is seldom needed is read again then, so that it takes no registers.
template <bool KNOWN>
DEVICE u32 store_blocks(const Batch *batch, int at, const Codes &codes, const SharedRing &ring, int nth, u32 state,
                        u32 index) {
    const u32 block_count = arrived(batch->images[at].block_count);
    auto note_beginning = [&](u64 joint) { beginnings(batch, batch->images[at])[nth] = joint; };
    auto note_end = [&](u64 joint) { ends(batch, batch->images[at])[nth] = joint; };
    if (state == STATE_DEAD || index >= block_count) {
        if (KNOWN) note_beginning(SCAN_OVER), note_end(SCAN_OVER);
        return 0;
    }
    u64 *blocks = kept(batch->blocks + batch->images[at].blocks);
    const i64 entries_at = batch->images[at].entries + (i64)nth * ENTRIES_EACH;
    u32 *entries = kept(batch->entries + entries_at);
    u32 s = state & 0xff00ffu, flags = s < INDEX_ONE ? 0 : NOT_MINE;
    int block = state >> 8 & 15, table = codes.table(s < INDEX_ONE, block);
    if (KNOWN && !(flags & NOT_MINE)) note_beginning(pack_joint(s & 0xffff, block, index, block_count));
    u32 used = 0, stored = 0, block_at = 0;  // entries; those after `stored` are in the ring
    // Blocks that ended in this turn, two at most. A store in the middle of it would make everything wait that uses its
    // registers again.
    u32 finished = 0, newer_low = 0, newer_high = 0, older_low = 0, older_high = 0;
    int difference = 0, bound, end;
    Reader reader;
    Interval interval;
    {
        const Stream stream = stream_of(batch, at);
        const i64 origin = (i64)nth * SUBSEQUENCE_BITS;
        reader.seek(stream, origin, s & 0xffff);
        interval.find(stream, origin + (int)(s & 0xffff));
        end = interval.end(stream, origin);
    }

    auto look_up = [&](u32 bits) {
        u32 entry = codes.entry(table, bits);
        return entry ? entry : codes.long_entry(table, bits);
    };
    auto take = [&](u32 bits, u32 entry) {
        int value = coefficient_value(bits, entry);
        bool is_dc = s < INDEX_ONE, is_coefficient = entry >> 24 != 32;  // without extra bits: runs of zeros
        flags |= entry & ENTRY_IS_INVALID;
        difference = is_dc ? value : difference;
        block_at = is_dc ? used : block_at;
        s += entry & ENTRY_MOVE;
        if (is_coefficient && !is_dc) {
            u32 coefficient = __byte_perm(value, s - INDEX_ONE, 0x7610);  // its index above its value
            ring.put(used, coefficient);
            used++;
        }
        bool ends = s >= INDEX_END;
        if (ends) {
            if (is_coefficient && s >= INDEX_END + INDEX_ONE) flags |= BAD_CODE;  // a run past the last coefficient
            s &= 0xffff;
            older_low = newer_low, older_high = newer_high;
            newer_low = (u32)entries_at + block_at, newer_high = (used - block_at) | (u32)difference << 16;
            finished += !(flags & NOT_MINE);
            index++;
            block = codes.after(block);
            if (KNOWN && flags & NOT_MINE) note_beginning(pack_joint(s, block, index, block_count));
            flags &= ~NOT_MINE;
            if ((int)s >= SUBSEQUENCE_BITS || index == block_count) bound = ALL_STORED;
        }
        table = codes.table(ends, block);
    };
    for (;;) {
        bound = reader.end();
        if (bound + 31 <= end) {  // no code that starts below the bound ends beyond the interval
#pragma unroll
            for (int k = 0; k < CODES_AT_ONCE; k++) {
                if ((int)(s & 0xffff) >= bound) continue;
                u32 bits = reader.peek(s);
                take(bits, look_up(bits));
            }
        } else {
#pragma unroll 1
            for (int k = 0; k < CODES_AT_ONCE; k++) {
                if ((int)(s & 0xffff) >= bound) break;
                u32 bits = reader.peek(s), entry = look_up(bits);
                if ((int)((s + (entry & ENTRY_MOVE)) & 0xffff) > end) bound = INTERVAL_OVER; else take(bits, entry);
            }
        }
        if (finished > 1) store_past_cache(blocks + index - 2, older_low, older_high);
        if (finished) store_past_cache(blocks + index - 1, newer_low, newer_high);
        finished = 0;
        if (used - stored >= 4) {
            u32 a = ring.get(stored), b = ring.get(stored + 1), c = ring.get(stored + 2), d = ring.get(stored + 3);
            store_past_cache(entries + stored, a, b, c, d);
            stored += 4;
        }
        if (bound >= 0) {
            reader.advance(s & 0xffff);
            continue;
        }
        const Stream stream = stream_of(batch, at);
        const i64 origin = (i64)nth * SUBSEQUENCE_BITS;
        if (bound == ALL_STORED) {
            if (index == block_count && stream.bits - (origin + (int)s) >= 8) flags |= EXTRANEOUS;
            break;
        }
        if (interval.last(stream)) {
            if (KNOWN) flags |= MISSING;  // else their count tells
            break;
        }
        u32 expected = (u32)(interval.nth + 1) * batch->images[at].restart * batch->images[at].blocks_in_mcu;
        if (s >= INDEX_ONE || block != 0 || index != expected || end - (int)s >= 8) flags |= BAD_RESTART;
        s = end;
        block = 0;
        flags &= ~NOT_MINE;
        table = codes.table(true, 0);
        interval.nth++;
        reader.seek(stream, origin, end);
        end = interval.end(stream, origin);
        if ((int)s >= SUBSEQUENCE_BITS) break;
    }
    for (; stored < used; stored++) entries[stored] = ring.get(stored);
    if (KNOWN) note_end(pack_joint((int)(s & 0xffff) - SUBSEQUENCE_BITS, block, index, block_count));
    if (flags & ENTRY_IS_INVALID) flags |= BAD_CODE;
    return flags & STATUS_BITS;
}

template <bool KNOWN> DEVICE void store_chunk(const Batch *batch) {
    __shared__ Tables<LOOKUP_BITS> tables;
    __shared__ u32 rings[ENTROPY_THREADS * RING];
    int at = locate(batch->entropy_first, batch->count, blockIdx.x);
    const Image &image = batch->images[at];
    if (batch->status[at] & BAD_TABLE || KNOWN != (image.known_count > 0)) return;
    tables.load(batch, at, &HuffmanTable::lookup);
    __syncthreads();
    if (threadIdx.x == 0) return;  // the chunk's first subsequence belongs to the chunk before
    int nth = (blockIdx.x - batch->entropy_first[at]) * (ENTROPY_THREADS - 1) + threadIdx.x - 1;
    if ((i64)nth * SUBSEQUENCE_BITS > (i64)batch->stream[2 * at] * 8) return;
    if (KNOWN && image.known_count != (i64)batch->stream[2 * at] * 8 / SUBSEQUENCE_BITS + 1) return mark(batch, image, at, STALE);
    SharedRing ring(rings + (threadIdx.x / 32) * 32 * RING + threadIdx.x % 32);
    u64 start = KNOWN ? beginnings(batch, image)[nth] : batch->starts[image.entries / ENTRIES_EACH + nth];
    u32 flags = store_blocks<KNOWN>(batch, at, codes_of(tables, image), ring, nth, (u32)start, (u32)(start >> 32));
    if (flags) mark(batch, batch->images[at], at, (int)flags);
}

KERNEL __launch_bounds__(ENTROPY_THREADS, COEFFICIENT_BLOCKS) jpeg_coefficients(const Batch *batch) { store_chunk<false>(batch); }
KERNEL __launch_bounds__(ENTROPY_THREADS, COEFFICIENT_BLOCKS) jpeg_known_coefficients(const Batch *batch) { store_chunk<true>(batch); }

// Whether each subsequence's blocks of a scan whose states the host knew end where those of the next one begin.
KERNEL jpeg_joints(const Batch *batch) {
    int at = blockIdx.x;
    const Image &image = batch->images[at];
    int count = (int)image.known_count;
    if (count == 0 || batch->status[at]) return;  // what is wrong already is refused
    const u64 *begin = beginnings(batch, image), *end = ends(batch, image);
    bool wrong = begin[0] != 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) wrong |= end[i] != (i + 1 < count ? begin[i + 1] : SCAN_OVER);
    if (wrong) mark(batch, image, at, STALE);
}
