// Huffman decoding in parallel, after Klein & Wiseman (2003) and Weissenberger & Schmidt (ICPP 2018): many threads start
// in the middle of the stream from a guess, and soon fall into step with the true decoder, because the codes
// resynchronise themselves. A state is (bit position, block within the MCU, zig-zag index).
//
// A block of threads takes a chunk of one image, cut into subsequences (one a thread), each cut into steps:
//   1. every thread decodes its subsequence from a guess and logs the state at every step;
//   2. where a thread's exit is not the state that its successor started from, the successor's first step is decoded
//      again, and so on step by step until the new states meet the logged ones. A list holds the steps still to do, so
//      idle lanes share the work. At the end every logged state is the exit of the step before it: nothing is assumed;
//   3. the chunk's first subsequence is a run-up, the last one of the chunk before. When that chunk hands on its true
//      exit and the count of blocks before it, it is compared with the run-up's; if it differs, 2 runs again;
//   4. every thread decodes the blocks that begin in its subsequence and stores their coefficients.
#include "jpeg_tables.cu"
#include "jpeg_unstuff.cu"

#ifndef ENTROPY_THREADS
#define ENTROPY_THREADS 128
#endif
#ifndef SUBSEQUENCE_BITS
#define SUBSEQUENCE_BITS 4096
#endif
#ifndef STEP_BITS
#define STEP_BITS 512
#endif
#ifndef LOOKUPS_AT_ONCE
#define LOOKUPS_AT_ONCE 4  // between two looks at what a lane has still to read; eight bits each, on the average
#endif
#ifndef CODES_AT_ONCE
#define CODES_AT_ONCE 6    // five and a half bits each
#endif
#ifndef UNROLLED
#define UNROLLED 8
#endif
constexpr int TURNS = UNROLLED;
#define STEPS_EACH (SUBSEQUENCE_BITS / STEP_BITS)
#define STEPS (ENTROPY_THREADS * STEPS_EACH)
#define ENTRIES_EACH (SUBSEQUENCE_BITS / 2 + 64)  // a coefficient takes two bits at least, and a last block may run over

// A packed state: bits past the start of the step (0..7), block within the MCU (8..11), zig-zag index (16..22).
#define STATE_DEAD 0xffffffffu  // behind the end of the scan
#define STATE_GUESS 0u

// Local position and zig-zag index share a register, so that one addition moves both.
#define INDEX_ONE 0x10000u
#define INDEX_END (64 * INDEX_ONE)

// Bounds that no position is below.
#define ALL_STORED (-1)
#define INTERVAL_OVER (-2)

struct Stream {
    const u32 *words;
    const u32 *ends;       // of the restart intervals, in bytes
    int end_count;
    i64 bits;
};

// A window of a stream: 96 bits to read, and the 64 behind them, fetched long before they are needed.
struct Reader {
    const u32 *next;
    u32 w0, w1, w2, w3, w4;
    int at;                // local position of w0's first bit

    DEVICE void seek(const u32 *origin, int position) {
        next = origin + (position >> 5);
        w0 = next[0], w1 = next[1], w2 = next[2], w3 = next[3], w4 = next[4];
        next += 5;
        at = position & ~31;
    }
    DEVICE int end() const { return at + 64; }
    // 32 bits; at <= position < end().
    DEVICE u32 peek(u32 position) const {
        bool second = (int)(position & 0xffff) >= at + 32;
        return __funnelshift_l(second ? w2 : w1, second ? w1 : w0, position);
    }
    // Moves on to `position`, which is no more than 95 bits away. Words are loaded into where they are needed a turn or
    // two later, so that nothing waits for them here.
    DEVICE void advance(int position) {
        int words = (position - at) >> 5;
        bool one = words == 1, two = words == 2;
        w0 = two ? w2 : one ? w1 : w0;
        w1 = two ? w3 : one ? w2 : w1;
        w2 = two ? w4 : one ? w3 : w2;
        if (one) w3 = w4;
        if (two) w3 = next[0];
        next += words;
        if (words) w4 = next[-1];
        at += 32 * words;
    }
};

// The end of the interval that holds `position`.
struct Boundary {
    int nth;
    i64 bit;

    DEVICE void find(const Stream &stream, i64 position) {
        int low = 0, high = stream.end_count;
        while (low < high) {
            int middle = (low + high) >> 1;
            if ((i64)stream.ends[middle] * 8 < position) low = middle + 1; else high = middle;
        }
        nth = low;
        bit = low < stream.end_count ? (i64)stream.ends[low] * 8 : stream.bits;
    }
    DEVICE bool last(const Stream &stream) const { return nth >= stream.end_count; }
    DEVICE void advance(const Stream &stream) {
        nth++;
        bit = nth < stream.end_count ? (i64)stream.ends[nth] * 8 : stream.bits;
    }
    DEVICE int local(i64 origin) const { return (int)min(bit - origin, (i64)INDEX_ONE); }
};

// The four tables (DC 0, DC 1, AC 0, AC 1), and which of them the blocks of an MCU use.
struct Codes {
    const u32 *entries;       // LOOKUPS of each table
    const LongCodes *longer;
    u32 slots;                // bit b: DC table of block b, bit 16 + b: its AC table
    int blocks;

    DEVICE int table(bool is_dc, int block) const {
        return (is_dc ? 0 : 2) + (slots >> (is_dc ? block : block + 16) & 1);
    }
    DEVICE u32 entry(int table, u32 bits) const { return entries[table * LOOKUPS + (bits >> (32 - LOOKUP_BITS))]; }
    DEVICE int after(int block) const { return block + 1 == blocks ? 0 : block + 1; }
};

// Decodes steps [step, stop) from `state`; returns the exit of the last. With LOG, every exit and count is noted.
// `origin`: where `step` begins. The codes have pairs for entries.
template <bool LOG>
DEVICE u32 follow(const Stream &stream, const Codes &codes, i64 origin, int step, int stop, u32 state, u32 *states,
                  u16 *counts, u32 *count) {
    *count = 0;
    if (origin + (int)(state & 255) > stream.bits) state = STATE_DEAD;
    if (state == STATE_DEAD) {
        if (LOG) for (; step < stop; step++) states[step + 1] = STATE_DEAD, counts[step] = 0;
        return STATE_DEAD;
    }
    const u32 *words = stream.words + (origin >> 5);
    u32 s = state & 0xff00ffu;  // the position counts from the start of the step
    int block = state >> 8 & 15, table = codes.table(s < INDEX_ONE, block);
    u32 done = 0;
    int position = s & 0xffff;
    Reader reader;
    reader.seek(words, position);
    Boundary boundary;
    boundary.find(stream, origin + position);
    int end = boundary.local(origin);
    for (;;) {
        int bound = min(min(reader.end(), STEP_BITS), end + 1);
#pragma unroll TURNS
        for (int k = 0; k < LOOKUPS_AT_ONCE; k++) {
            if ((int)(s & 0xffff) >= bound) continue;
            u32 bits = reader.peek(s), entry = codes.entry(table, bits);
            if (entry == 0) entry = long_code(codes.longer[table], bits, table < 2) & ENTRY_MOVE;
            // The second symbol counts only if the first neither ends the block nor leaves the step.
            u32 first = s + (entry >> 8 & PAIR_MOVE);
            s = first & (INDEX_END | STEP_BITS) ? first : s + (entry & PAIR_MOVE);
            bool ends = s >= INDEX_END;
            s = ends ? s & 0xffff : s;
            done += ends;
            block = ends ? codes.after(block) : block;
            table = codes.table(ends, block);
        }
        position = s & 0xffff;
        if (position > end) {  // no code fits before the end of the interval: padding
            done -= s < INDEX_ONE;
            if (boundary.last(stream)) {
                if (LOG) {
                    counts[step] = (u16)done;
                    states[step + 1] = STATE_DEAD;
                    for (step++; step < stop; step++) states[step + 1] = STATE_DEAD, counts[step] = 0;
                }
                *count = done;
                return STATE_DEAD;
            }
            s = position = end;
            block = 0;
            table = codes.table(true, 0);
            boundary.advance(stream);
            end = boundary.local(origin);
            reader.seek(words, position);
        } else {
            reader.advance(position);
        }
        if (position >= STEP_BITS) {
            s -= STEP_BITS;
            state = (s & 0xff0000) | block << 8 | (s & 0xffff);
            if (LOG) {
                counts[step] = (u16)done;
                states[step + 1] = state;
            }
            if (++step == stop) {
                *count = done;
                return state;
            }
            done = 0;
            origin += STEP_BITS;
            words += STEP_BITS / 32;
            end = boundary.local(origin);
            reader.at -= STEP_BITS;
        }
    }
}

struct __align__(16) EntropyShared {
    u32 entries[4 * LOOKUPS];  // pairs while states are sought, single codes afterwards
    LongCodes longer[4];
    u32 states[STEPS + 1];     // at the start of every step
    u16 counts[STEPS];         // blocks that end in it
    u16 list[2][ENTROPY_THREADS];
    int list_size[2];
    u64 before;
};

// Redoes the listed steps until no exit differs from the state that the next step was decoded from.
DEVICE void settle(EntropyShared &shared, const Stream &stream, const Codes &codes, i64 chunk_bit) {
    for (int turn = 0;; turn ^= 1) {
        __syncthreads();
        int size = shared.list_size[turn];
        if (size == 0) break;
        int step = 0;
        u32 exit = 0, count = 0;
        bool busy = (int)threadIdx.x < size;
        if (busy) {
            step = shared.list[turn][threadIdx.x];
            exit = follow<false>(stream, codes, chunk_bit + (i64)step * STEP_BITS, step, step + 1, shared.states[step], 0, 0,
                                 &count);
        }
        __syncthreads();
        if (threadIdx.x == 0) shared.list_size[turn] = 0;
        if (busy) {
            shared.counts[step] = (u16)count;
            if (shared.states[step + 1] != exit) {
                shared.states[step + 1] = exit;
                if (step + 1 < STEPS) shared.list[turn ^ 1][atomicAdd(&shared.list_size[turn ^ 1], 1)] = (u16)(step + 1);
            }
        }
    }
    // Both lists are empty: this one was found so, and the other was emptied in the turn before. Writing zeros once more
    // would meet threads that are still reading the size above. The barrier keeps what the caller writes away from them.
    __syncthreads();
}

// What chunks hand on: packed exit state (0..22, all ones when dead), blocks finished so far (24..59).
DEVICE u64 pack_link(u32 state, u64 blocks) { return (state & 0xffffffu) | blocks << 24; }
DEVICE u32 link_state(u64 link) {
    u32 state = (u32)link & 0xffffffu;
    return state == 0xffffffu ? STATE_DEAD : state;
}
DEVICE u64 link_blocks(u64 link) { return (link & ~READY) >> 24; }

// Extra bits of a coefficient to its value (T.81, F.2.2.1: EXTEND); bits: the stream behind the code, left-aligned. Those
// of a negative value are the complement of its magnitude's.
DEVICE int extend(u32 bits, u32 size) {
    u32 negative = ~((int)bits >> 31);
    return (int)(shift_right(bits ^ negative, 32 - size) ^ negative) - (int)negative;
}

// Stores the blocks that begin in the subsequence at `origin`, entered in `state` after `index` finished blocks. The
// codes have single entries.
DEVICE u32 store_blocks(const Stream &stream, const Codes &codes, const Image &image, i64 origin, u32 state, u32 index,
                        u64 *blocks, u32 *entries, u32 entries_at) {
    const u32 block_count = image.block_count;
    if (state == STATE_DEAD || index >= block_count) return 0;
    u32 *odd_entries = entries - 1;
    const u32 *words = stream.words + (origin >> 5);
    u32 s = state & 0xff00ffu, flags = 0, seen = 0;
    int block = state >> 8 & 15, table = codes.table(s < INDEX_ONE, block);
    bool mine = s < INDEX_ONE;  // else the thread before stores the block that is under way
    u32 used = 0, block_at = 0, held = 0;
    int difference = 0;
    Reader reader;
    reader.seek(words, s & 0xffff);
    Boundary boundary;
    boundary.find(stream, origin + (int)(s & 0xffff));
    int end = boundary.local(origin);
    for (;;) {
        int bound = reader.end();
#pragma unroll TURNS
        for (int k = 0; k < CODES_AT_ONCE; k++) {
            if ((int)(s & 0xffff) >= bound) continue;
            u32 bits = reader.peek(s), entry = codes.entry(table, bits);
            if (entry == 0) entry = long_code(codes.longer[table], bits, table < 2);
            u32 moved = s + (entry & ENTRY_MOVE);
            if ((int)(moved & 0xffff) > end) {
                bound = INTERVAL_OVER;
                continue;
            }
            seen |= entry;
            u32 size = entry >> 24;
            int value = extend(bits << ((entry & 0xff) - size), size);
            bool is_dc = s < INDEX_ONE;
            difference = is_dc ? value : difference;
            block_at = is_dc ? used : block_at;
            s = moved;
            if (!is_dc && size && mine) {
                u32 coefficient = __byte_perm(value, s - INDEX_ONE, 0x7610);  // its index above its value
                if (s >= INDEX_END + INDEX_ONE) {
                    flags |= BAD_CODE;  // a run past the last coefficient
                } else {
                    if (used & 1) *(uint2 *)(odd_entries + used) = make_uint2(held, coefficient);
                    held = coefficient;
                    used++;
                }
            }
            bool ends = s >= INDEX_END;
            if (ends) {
                s &= 0xffff;
                if (mine) blocks[index] = (entries_at + block_at) | (u64)((used - block_at) | (u32)difference << 16) << 32;
                index++;
                mine = true;
                block = codes.after(block);
                if ((int)s >= SUBSEQUENCE_BITS || index == block_count) bound = ALL_STORED;
            }
            table = codes.table(ends, block);
        }
        if (bound == ALL_STORED) {
            if (index == block_count && stream.bits - (origin + (int)s) >= 8) flags |= EXTRANEOUS;
            break;
        }
        if (bound == INTERVAL_OVER) {
            if (boundary.last(stream)) break;  // the count of blocks tells whether any is missing
            u32 expected = (u32)(boundary.nth + 1) * image.restart * codes.blocks;
            if (s >= INDEX_ONE || block != 0 || index != expected || end - (int)s >= 8) flags |= BAD_RESTART;
            s = end;
            block = 0;
            mine = true;
            table = codes.table(true, 0);
            boundary.advance(stream);
            reader.seek(words, end);
            end = boundary.local(origin);
            if ((int)s >= SUBSEQUENCE_BITS) break;
            continue;
        }
        reader.advance(s & 0xffff);
    }
    if (used & 1) entries[used - 1] = held;
    if (seen & ENTRY_IS_INVALID) flags |= BAD_CODE;
    return flags;
}

// One of the two kinds of entries of an image's four tables.
DEVICE void load_entries(EntropyShared &shared, const HuffmanTable *tables, bool pairs) {
    for (int i = threadIdx.x; i < 4 * LOOKUPS / 4; i += ENTROPY_THREADS) {
        const HuffmanTable &table = tables[i / (LOOKUPS / 4)];
        ((uint4 *)shared.entries)[i] = ((const uint4 *)(pairs ? table.pairs : table.lookup))[i % (LOOKUPS / 4)];
    }
}

KERNEL __launch_bounds__(ENTROPY_THREADS) jpeg_entropy(const Batch *batch) {
    __shared__ EntropyShared shared;
    int work = take_ticket(batch->tickets + 1);
    int at = locate(batch->entropy_first, batch->count, work);
    int chunk = work - batch->entropy_first[at], chunks = batch->entropy_first[at + 1] - batch->entropy_first[at];
    const Image &image = batch->images[at];
    if (batch->status[at] & BAD_TABLE) return;  // all chunks of the image do
    const HuffmanTable *tables = (const HuffmanTable *)batch->tables + (i64)at * 4;
    load_entries(shared, tables, true);
    for (int i = threadIdx.x; i < (int)(sizeof(shared.longer) / 16); i += ENTROPY_THREADS) {
        const int each = sizeof(LongCodes) / 16;
        ((uint4 *)shared.longer)[i] = ((const uint4 *)&tables[i / each].longer)[i % each];
    }
    Stream stream;
    stream.words = batch->words + image.words;
    stream.ends = batch->segments + image.segments;
    stream.bits = (i64)batch->stream[2 * at] * 8;
    stream.end_count = batch->stream[2 * at + 1];
    Codes codes;
    codes.entries = shared.entries, codes.longer = shared.longer;
    codes.slots = image.dc_slots | image.ac_slots << 16, codes.blocks = image.blocks_in_mcu;
    // The chunk's first subsequence belongs to the chunk before; before the first chunk there is nothing.
    i64 chunk_bit = ((i64)chunk * (ENTROPY_THREADS - 1) - 1) * SUBSEQUENCE_BITS;
    i64 origin = chunk_bit + (i64)threadIdx.x * SUBSEQUENCE_BITS;
    int step = threadIdx.x * STEPS_EACH, after = step + STEPS_EACH;
    if (threadIdx.x < 2) shared.list_size[threadIdx.x] = 0;
    __syncthreads();

    u32 exit = STATE_GUESS, count;
    if (origin < 0) {
        for (int i = 0; i < STEPS_EACH; i++) shared.counts[i] = 0;
    } else {
        exit = follow<true>(stream, codes, origin, step, after, STATE_GUESS, shared.states, shared.counts, &count);
    }
    if (threadIdx.x == 0) shared.states[0] = STATE_GUESS, shared.before = 0;
    if (exit != STATE_GUESS && after < STEPS) shared.list[0][atomicAdd(&shared.list_size[0], 1)] = (u16)after;
    if (origin < 0) shared.states[after] = STATE_GUESS;
#pragma unroll 1
    for (bool entered = chunk == 0;; entered = true) {
        settle(shared, stream, codes, chunk_bit);
        if (entered) break;
        if (threadIdx.x == 0) {
            shared.before = wait_for(batch->entropy_chain + work - 1) & ~READY;
            if (shared.states[STEPS_EACH] != link_state(shared.before)) {
                shared.states[STEPS_EACH] = link_state(shared.before);
                shared.list[0][0] = STEPS_EACH;
                shared.list_size[0] = 1;
            }
        }
    }
    load_entries(shared, tables, false);  // block_sum keeps them from being read too early
    u32 own = 0, total;
    if (threadIdx.x > 0)
        for (int i = step; i < after; i++) own += shared.counts[i];
    u32 index = block_sum(own, &total) - own;
    u64 before = link_blocks(shared.before);
    if (threadIdx.x == 0) {
        hand_on(batch->entropy_chain + work, pack_link(shared.states[STEPS], before + total));
        if (chunk == chunks - 1 && before + total < (u64)image.block_count) atomicOr(&batch->status[at], MISSING);
        return;
    }
    u64 nth = (u64)chunk * (ENTROPY_THREADS - 1) + threadIdx.x - 1;
    i64 entries_at = image.entries + nth * ENTRIES_EACH;
    u32 flags = store_blocks(stream, codes, image, origin, shared.states[step], (u32)min(before + index, (u64)1 << 31), batch->blocks + image.blocks, batch->entries + entries_at, (u32)entries_at);
    if (flags) atomicOr(&batch->status[at], (int)flags);
}

// DC differences to DC values, without regard to restart intervals: what a component had before an interval is
// subtracted later (dc_of_block). Sums are modulo 2^16, as libjpeg's are. One block of threads an image.
KERNEL __launch_bounds__(256) jpeg_dc(const Batch *batch) {
    const Image &image = batch->images[blockIdx.x];
    if (image.block_count == 0 || batch->status[blockIdx.x]) return;
    u16 *dc = (u16 *)(batch->blocks + image.blocks) + 3;
    u32 carry[3] = {0, 0, 0};
    for (int base = 0; base < image.mcus; base += 256) {
        int mcu = base + threadIdx.x;
        u16 *mine = dc + (i64)mcu * image.blocks_in_mcu * 4;
#pragma unroll
        for (int c = 0; c < 3; c++) {
            if (c >= image.components) break;
            int first = image.component[c].first, behind = first + image.component[c].h * image.component[c].v;
            u32 sum = 0, total;
            if (mcu < image.mcus)
                for (int b = first; b < behind; b++) sum += mine[4 * b];
            u32 value = carry[c] + block_sum(sum, &total) - sum;
            if (mcu < image.mcus)
                for (int b = first; b < behind; b++) mine[4 * b] = (u16)(value += mine[4 * b]);
            carry[c] += total;
        }
    }
}

// DC of block `index`, which belongs to component c.
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
