// Entropy decoding of coefficients: each thread decodes the blocks that begin in its subsequence, starting from the
// decoder state that jpeg_states.cu computed, and stores the blocks consecutively.
//
// One turn of the loop decodes up to FAST_CODES plain AC coefficients (one table lookup gives the code and its extra
// bits), and then one symbol of any kind: an end of block and the DC after it, a long code or a large value. All lanes
// of a warp execute both parts, so that rare symbols cost time once per turn and not at every symbol.
//
// The host may know the states of a scan from an earlier decode of the same file. Then each thread records where its
// blocks begin and where they end, and jpeg_joints checks that each thread's end equals the next thread's beginning. If
// all are equal, the blocks are those of the scan, whatever states the host supplied.
#include "jpeg_states.cu"

#ifndef COEFFICIENT_BLOCKS
#define COEFFICIENT_BLOCKS 4  // minimum blocks of threads per multiprocessor
#endif
#ifndef FAST_CODES
#define FAST_CODES 4
#endif

#ifndef PLAIN_BITS
// 94 % of the AC coefficients of ImageNet's files have codes within so many bits; at least LOOKUP_BITS
#define PLAIN_BITS 10
#endif
#define PLAINS (1 << PLAIN_BITS)

static_assert(FAST_CODES + 8 <= RING, "seven coefficients are left from a turn, and the next one may find one more than these");

// Bounds that are at or below every position.
#define ALL_STORED (-1)
#define INTERVAL_OVER (-2)

// Flags in the same word as the status bits.
#define STATUS_BITS 0xff
#define NOT_MINE 0x100  // the previous thread stores the current block

// Position of a lane, packed in one word: bits past the start of the reader's window (0..6), coefficients since a
// multiple of RING before the block (7..14), whether a DC comes next (15), zig-zag index of the next coefficient
// (16..22), whether the end of the block has been read (23). The bits above have no meaning.
#define ONE_COEFFICIENT 0x80u
#define COEFFICIENTS(s) ((s) >> 7 & 255)
#define DC_NEXT 0x8000u
#define INDEX_OVER 0x400000u
#define END_MET 0x800000u
#define POSITION(s) ((int)((s) & 127))
#define STOP (64u | DC_NEXT | INDEX_OVER | END_MET)

// What a plain AC symbol adds to that word: its number of bits, one coefficient and the step of the index; bits 24..31
// hold the coefficient. An end of block adds END_MET and no coefficient. 0: any other symbol.
DEVICE u32 plain_entry(u32 entry, u32 bits) {
    u32 taken = entry & 255, size = 32 - (entry >> 24), moves = entry & 0xff0000;
    if (entry == 0 || taken > PLAIN_BITS) return 0;
    if (size == 0) return moves == INDEX_OVER ? END_MET | taken : 0;
    if (size > 7) return 0;
    int value = (int)(bits >> (PLAIN_BITS - taken)) & ((1 << size) - 1);
    if (value < 1 << (size - 1)) value -= (1 << size) - 1;
    return (u32)value << 24 | moves | ONE_COEFFICIENT | taken;
}

// Return the coefficient of a `plain_entry` (0..15), and the index in `s` after it (16..23).
DEVICE u32 plain_coefficient(u32 entry, u32 s) {
#ifndef EMULATED
    u32 coefficient;
    asm("prmt.b32 %0, %1, %2, 0x76b3;" : "=r"(coefficient) : "r"(entry), "r"(s));
    return coefficient;
#else
    return (u32)((i32)entry >> 24) & 0xffff | (s & 0xffff0000);
#endif
}

// Entry of 16 bits for a symbol that is not plain: the length of its code (8..15) and the symbol (0..7). 0: a longer
// code.
#define CODE_INVALID 0x1ff0u
DEVICE u16 short_entry(u32 entry) {
    if (entry & ENTRY_IS_INVALID) return CODE_INVALID;
    u32 size = 32 - (entry >> 24), move = entry >> 16 & 255, run = size ? move - 1 : move == 16 ? 15 : 0;
    return entry ? (u16)((entry & 0x1f00) | run << 4 | size) : (u16)0;
}

// The four tables of an image (DC 0, DC 1, AC 0, AC 1) in the form that this kernel keeps in shared memory.
struct __align__(16) CoefficientTables {
    u32 plain[2 * PLAINS];       // of the AC tables
    LongCodes longer[4];
    u16 codes[4 * LOOKUPS];
    u16 near[2 * NEAR_CODES];    // of the AC tables

    // Load the tables. All threads of the block call this, and must synchronise afterwards.
    DEVICE void load(const Batch *batch, int image) {
        const HuffmanTable *from = (const HuffmanTable *)batch->tables + (i64)image * 4;
        for (int i = 4 * threadIdx.x; i < 4 * LOOKUPS; i += 4 * blockDim.x) {
            uint4 four = *(const uint4 *)(from[i / LOOKUPS].lookup + i % LOOKUPS);
            *(uint2 *)(codes + i) = make_uint2(short_entry(four.x) | (u32)short_entry(four.y) << 16,
                                               short_entry(four.z) | (u32)short_entry(four.w) << 16);
        }
        for (int i = threadIdx.x; i < 2 * PLAINS; i += blockDim.x)
            plain[i] = plain_entry(from[2 + i / PLAINS].lookup[i % PLAINS >> (PLAIN_BITS - LOOKUP_BITS)], i % PLAINS);
        for (int i = threadIdx.x; i < 2 * NEAR_CODES; i += blockDim.x)
            near[i] = short_entry(from[2 + i / NEAR_CODES].near[i % NEAR_CODES]);
        const int each = sizeof(LongCodes) / 16;
        for (int i = threadIdx.x; i < 4 * each; i += blockDim.x)
            ((uint4 *)longer)[i] = ((const uint4 *)&from[i / each].longer)[i % each];
    }
    // Return the code at the start of `bits`, from table `nth`.
    DEVICE u32 code(int nth, u32 bits) const {
        u32 entry = codes[(nth << LOOKUP_BITS) + (bits >> (32 - LOOKUP_BITS))];
        if (entry) return entry;
        u32 i = (bits >> 16) - longer[nth].limit[LONG_LENGTHS];
        if (nth >= 2 && i < NEAR_CODES) return near[(nth - 2) * NEAR_CODES + i];
        return short_entry(long_code(longer[nth], bits, nth < 2));
    }
};

// Which tables the blocks of an MCU use, as in `Codes`.
struct BlockTables {
    u32 slots;                // bit b: DC table of block b, bit 16 + b: its AC table
    int blocks;               // blocks in an MCU, or 1 if all have the same tables

    DEVICE u32 dc(int block) const { return slots >> block & 1; }
    DEVICE u32 ac(int block) const { return slots >> (block + 16) & 1; }
    DEVICE int after(int block) const { return block + 1 == blocks ? 0 : block + 1; }
};

// Return the coefficient of `size` bits at the start of `bits` (T.81, F.2.2.1: EXTEND).
DEVICE int coefficient_value(u32 bits, u32 size) {
    u32 value = shift_right(bits, 32 - size);
    return (int)bits < 0 ? value : value - shift_right(~0u, 32 - size);
}

// A window of 96 bits of a stream. The 160 bits after the window are being copied to shared memory, or have arrived
// there. What a lane waits for was requested two turns earlier, by any lane; with a distance of one turn, all lanes
// would wait in each turn for the latest request of any lane.
struct StagedReader {
    const u32 *words;         // words of the subsequence
    SharedPairs pairs;
    u32 w0, w1, w2;
    int at;                   // local position of w0's first bit

    DEVICE explicit StagedReader(const SharedPairs &pairs) : pairs(pairs) {}
    // Move to bit `position` after `origin`, which is the first bit of 16 aligned bytes of the stream.
    DEVICE void seek(const Stream &stream, i64 origin, int position) {
        words = stream.words + (origin >> 5);
        at = position & ~31;
        pairs.wait<0>();
        for (int i = at >> 6; i < (at >> 6) + 4; i++) pairs.ask(i, words + 2 * i);
        pairs.commit();
        pairs.wait<0>();
        fill();
    }
    // Return 32 bits from a position (its lowest seven bits count) relative to `at`; it must be below 64.
    DEVICE u32 peek(u32 position) const {
        bool second = any_bit<32>(position);
        return __funnelshift_l(second ? w2 : w1, second ? w1 : w0, position);
    }
    // Advance by ``count`` words, at most 2.
    DEVICE void advance(int count) {
        int before = at >> 6;
        at += 32 * count;
        int now = at >> 6;
        if (now != before) pairs.ask(now + 3, words + 2 * (now + 3));
        pairs.commit();
        pairs.wait<2>();
        fill();
    }
    DEVICE void fill() {
        uint2 one = pairs.get(at >> 6), two = pairs.get((at >> 6) + 1);
        bool odd = any_bit<32>(at);
        w0 = odd ? one.y : one.x, w1 = odd ? two.x : one.y, w2 = odd ? two.y : two.x;
    }
};

// Position between two blocks, packed: bits after the start of a subsequence (0..15), block within the MCU (16..19),
// blocks before it (32..63).
#define SCAN_OVER (~0ull)
DEVICE u64 pack_joint(int position, int block, u32 index, u32 block_count) {
    return index >= block_count ? SCAN_OVER : (u32)position | (u32)block << 16 | (u64)index << 32;
}

// Arrays in which threads record their first and last positions between blocks: the beginnings replace the known
// states, the ends use the room of the computed states.
DEVICE u64 *beginnings(const Batch *batch, const Image &image) { return batch->known + image.known; }
DEVICE u64 *ends(const Batch *batch, const Image &image) { return batch->starts + image.entries / ENTRIES_EACH; }

// Store the blocks that begin in the nth subsequence of image `at`, which is entered in `state` after `index` finished
// blocks. Values that are rarely needed are read again at each use, so that they occupy no registers.
template <bool KNOWN>
DEVICE u32 store_blocks(const Batch *batch, int at, const CoefficientTables &tables, const BlockTables &which,
                        const SharedRing &ring, const SharedPairs &pairs, int nth, u32 state, u32 index) {
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
    const SharedWords values(tables.plain);
    int block = state >> 8 & 15;
    u32 flags = (state >> 16 & 127) == 0 ? 0 : NOT_MINE;
    if (KNOWN && !flags) note_beginning(pack_joint(state & 255, block, index, block_count));
    u32 stored = 0, block_at = 0;  // entries of coefficients; those after `stored` are still in the ring
    u32 plain_at = which.ac(block) << PLAIN_BITS;
    int difference = 0, end;
    StagedReader reader(pairs);
    Interval interval;
    {
        const Stream stream = stream_of(batch, at);
        const i64 origin = (i64)nth * SUBSEQUENCE_BITS;
        reader.seek(stream, origin, state & 255);
        interval.find(stream, origin + (int)(state & 255));
        end = interval.end(stream, origin);
    }
    u32 s = (state & 31) | (flags ? state & 0x7f0000 : DC_NEXT);
    for (;;) {
        // then no plain symbol that starts in the window ends after the interval
        if (end - reader.at >= 64 + PLAIN_BITS) {
#pragma unroll
            for (int k = 0; k < FAST_CODES; k++) {
                u32 entry = values[plain_at + (reader.peek(s) >> (32 - PLAIN_BITS))];
                if (any_bit<STOP>(s)) entry = 0;
                u32 before = s;
                s += entry;
                ring.put_nth(before, plain_coefficient(entry, s));  // kept only if the entry is a plain coefficient
            }
        }
        int bound = 0;
        u32 low, high;
        bool finished = false;
        if (any_bit<INDEX_OVER | END_MET>(s)) {
            if (!(s & END_MET) && s & 0x3f0000) flags |= BAD_CODE;  // a run of zeros beyond the last coefficient
            u32 count = COEFFICIENTS(s) - block_at % RING;
            low = (u32)entries_at + block_at, high = count | (u32)difference << 16;
            finished = !(flags & NOT_MINE);
            block_at += count;
            index++;
            block = which.after(block);
            int position = reader.at + POSITION(s);
            if (KNOWN && flags & NOT_MINE) note_beginning(pack_joint(position, block, index, block_count));
            flags &= ~NOT_MINE;
            s = POSITION(s) | block_at % RING * ONE_COEFFICIENT | DC_NEXT;
            if (position >= SUBSEQUENCE_BITS || index == block_count) bound = ALL_STORED;
        }
        if (bound == 0 && !any_bit<64>(s)) {
            bool is_dc = s & DC_NEXT;
            u32 bits = reader.peek(s), code = tables.code(is_dc ? which.dc(block) : 2 + which.ac(block), bits);
            u32 length = code >> 8, size = code & 15, run = code >> 4 & 15;
            if (reader.at + POSITION(s) + (int)(length + size) > end) {
                bound = INTERVAL_OVER;
            } else {
                int value = coefficient_value(bits << (length & 31), size);
                if (code == CODE_INVALID) flags |= BAD_CODE;
                u32 before = s;
                s += length + size;
                if (is_dc) {
                    difference = value;
                    s += INDEX_ONE - DC_NEXT;
                    plain_at = which.ac(block) << PLAIN_BITS;
                } else if (size) {
                    s += (run + 1) * INDEX_ONE;
                    ring.put_nth(before, __byte_perm(value, s, 0x7610));  // packs its index above its value
                    s += ONE_COEFFICIENT;
                } else {
                    s += run == 15 ? 16 * INDEX_ONE : END_MET;
                    if (any_bit<INDEX_OVER>(s)) s |= END_MET;
                }
            }
        }
        if (finished) store_past_cache(blocks + index - 1, low, high);
        bool many = block_at - block_at % RING + COEFFICIENTS(s) - stored >= 8;
        u32 eight[8];
        if (many) ring.get_eight(stored, eight);
        if (bound == 0) {
            reader.advance(POSITION(s) >> 5);
            s &= ~96u;
        }
        if (many) {
            if (stored + 8 + RING > ENTRIES_EACH) return UNSUPPORTED;
            store_past_cache(entries + stored, eight[0], eight[1], eight[2], eight[3]);
            store_past_cache(entries + stored + 4, eight[4], eight[5], eight[6], eight[7]);
            stored += 8;
        }
        if (bound == 0) continue;
        const Stream stream = stream_of(batch, at);
        const i64 origin = (i64)nth * SUBSEQUENCE_BITS;
        int position = reader.at + POSITION(s);
        if (bound == ALL_STORED) {
            if (index == block_count && stream.bits - (origin + position) >= 8) flags |= EXTRANEOUS;
            break;
        }
        if (interval.last(stream)) {
            if (KNOWN) flags |= MISSING;  // otherwise the number of blocks shows it
            break;
        }
        u32 expected = (u32)(interval.nth + 1) * batch->images[at].restart * batch->images[at].blocks_in_mcu;
        if (!(s & DC_NEXT) || block != 0 || index != expected || end - position >= 8) flags |= BAD_RESTART;
        // the coefficients of an incomplete block; such an image is rejected
        block_at += COEFFICIENTS(s) - block_at % RING;
        s = (end & 31) | block_at % RING * ONE_COEFFICIENT | DC_NEXT;
        block = 0;
        flags &= ~NOT_MINE;
        interval.nth++;
        reader.seek(stream, origin, end);
        end = interval.end(stream, origin);
        if (reader.at + POSITION(s) >= SUBSEQUENCE_BITS) break;
    }
    for (u32 used = block_at - block_at % RING + COEFFICIENTS(s); stored < used; stored++) entries[stored] = ring.get(stored);
    if (KNOWN) note_end(pack_joint(reader.at + POSITION(s) - SUBSEQUENCE_BITS, block, index, block_count));
    return flags & STATUS_BITS;
}

template <bool KNOWN> DEVICE void store_chunk(const Batch *batch) {
    __shared__ CoefficientTables tables;
    __shared__ __align__(1024) u32 rings[ENTROPY_THREADS * RING];
    __shared__ uint2 windows[ENTROPY_THREADS * 4];
    int at = locate(batch->entropy_first, batch->count, blockIdx.x);
    const Image &image = batch->images[at];
    if (batch->status[at] & BAD_TABLE || KNOWN != (image.known_count > 0)) return;
    tables.load(batch, at);
    __syncthreads();
    if (threadIdx.x == 0) return;  // the previous chunk decodes this chunk's first subsequence
    int nth = (blockIdx.x - batch->entropy_first[at]) * (ENTROPY_THREADS - 1) + threadIdx.x - 1;
    if ((i64)nth * SUBSEQUENCE_BITS > (i64)batch->stream[2 * at] * 8) return;
    if (KNOWN && image.known_count != (i64)batch->stream[2 * at] * 8 / SUBSEQUENCE_BITS + 1) return mark(batch, image, at, STALE);
    SharedRing ring(rings + (threadIdx.x / 32) * 32 * RING + threadIdx.x % 32);
    u64 start = KNOWN ? beginnings(batch, image)[nth] : batch->starts[image.entries / ENTRIES_EACH + nth];
    SharedPairs pairs(windows + (threadIdx.x / 32) * 128 + threadIdx.x % 32);
    u32 slots = image.dc_slots | image.ac_slots << 16;
    const BlockTables which = {arrived(slots), (int)arrived(slots ? image.blocks_in_mcu : 1)};
    u32 flags = store_blocks<KNOWN>(batch, at, tables, which, ring, pairs, nth, (u32)start, (u32)(start >> 32));
    if (flags) mark(batch, batch->images[at], at, (int)flags);
}

KERNEL __launch_bounds__(ENTROPY_THREADS, COEFFICIENT_BLOCKS) jpeg_coefficients(const Batch *batch) { store_chunk<false>(batch); }
KERNEL __launch_bounds__(ENTROPY_THREADS, COEFFICIENT_BLOCKS) jpeg_known_coefficients(const Batch *batch) { store_chunk<true>(batch); }

// For scans whose states the host supplied: check that the blocks of each subsequence end where those of the next
// begin.
KERNEL jpeg_joints(const Batch *batch) {
    int at = blockIdx.x;
    const Image &image = batch->images[at];
    int count = (int)image.known_count;
    if (count == 0 || batch->status[at]) return;  // an image with an error is already rejected
    const u64 *begin = beginnings(batch, image), *end = ends(batch, image);
    bool wrong = begin[0] != 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) wrong |= end[i] != (i + 1 < count ? begin[i + 1] : SCAN_OVER);
    if (wrong) mark(batch, image, at, STALE);
}
