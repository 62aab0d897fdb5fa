// Find the decoder's state at the start of every subsequence: parallel Huffman decoding after Klein & Wiseman (2003)
// and Weissenberger & Schmidt (ICPP 2018). Many threads start in the middle of the stream from a guessed state. They
// soon agree with a decoder that started at the beginning, because the codes resynchronise themselves.
//
// A block of threads processes a chunk of one image, which is divided into subsequences (one per thread), each divided
// into steps:
//   1. every thread decodes its subsequence from a guess and logs the state at every step;
//   2. if a thread's exit state is not the state from which its successor started, the first step of the successor is
//      decoded again, and so on step by step until the new states equal the logged ones. A list holds the steps still
//      to be decoded, so that idle lanes share the work. At the end, every logged state is the exit state of the step
//      before it, so no guess remains;
//   3. the first subsequence of the chunk is a run-up: it is the last one of the previous chunk. When that chunk passes
//      on its true exit state and the number of blocks before it, they are compared with the run-up's; if they differ,
//      2 runs again.
#include "jpeg_stream.cu"

#ifndef STEP_BITS
#define STEP_BITS 512
#endif
#ifndef STATES_BLOCKS
#define STATES_BLOCKS 4    // minimum blocks of threads per multiprocessor
#endif
#ifndef LOOKUPS_AT_ONCE
// lookups between two checks of the bits that the lane still has to read; eight bits each, on average
#define LOOKUPS_AT_ONCE 4
#endif
#define STEPS_EACH (SUBSEQUENCE_BITS / STEP_BITS)
#define STEPS (ENTROPY_THREADS * STEPS_EACH)

// Decode steps [step, stop) from `state`; return the exit state of the last. With LOG, every exit state and block count
// is logged. The chunk begins at `chunk_bit` of the stream of image `at`. The entries of the codes are `pairs`.
template <bool LOG>
DEVICE u32 follow(const Batch *batch, int at, const Codes &codes, i64 chunk_bit, int step, int stop, u32 state,
                  u32 *states, u16 *counts, u32 *count) {
    const Stream stream = stream_of(batch, at);
    const i64 origin = chunk_bit + (i64)step * STEP_BITS;
    *count = 0;
    if (origin + (int)(state & 255) > stream.bits) state = STATE_DEAD;
    if (state == STATE_DEAD) {
        if (LOG) for (; step < stop; step++) states[step + 1] = STATE_DEAD, counts[step] = 0;
        return STATE_DEAD;
    }
    u32 s = state & 0xff00ffu;  // the position is relative to the start of the step
    int block = state >> 8 & 15, table = codes.table(s < INDEX_ONE, block);
    u32 done = 0;
    int position = s & 0xffff;
    Reader reader;
    reader.seek(stream, origin, position);
    Interval interval;
    interval.find(stream, origin + position);
    int end = interval.end(stream, origin);
    for (;;) {
        int bound = min(min(reader.end(), STEP_BITS), end + 1);
#pragma unroll
        for (int k = 0; k < LOOKUPS_AT_ONCE; k++) {
            if ((int)(s & 0xffff) >= bound) continue;
            u32 bits = reader.peek(s), entry = codes.entry(table, bits);
            if (entry == 0) entry = codes.long_entry(table, bits) & ENTRY_MOVE;
            // The second symbol of a pair counts only if the first neither ends the block nor leaves the step.
            u32 first = s + (entry >> 8 & PAIR_MOVE);
            s = first & (INDEX_END | STEP_BITS) ? first : s + (entry & PAIR_MOVE);
            bool ends = s >= INDEX_END;
            s = ends ? s & 0xffff : s;
            done += ends;
            block = ends ? codes.after(block) : block;
            table = codes.table(ends, block);
        }
        position = s & 0xffff;
        if (position > end) {  // no code fits before the end of the interval: these bits are padding
            done -= s < INDEX_ONE;
            const Stream stream = stream_of(batch, at);
            if (interval.last(stream)) {
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
            interval.nth++;
            i64 here = chunk_bit + (i64)step * STEP_BITS;
            end = interval.end(stream, here);
            reader.seek(stream, here, position);
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
            end -= STEP_BITS;
            reader.at -= STEP_BITS;
        }
    }
}

struct __align__(16) StatesShared {
    Tables<PAIR_BITS> tables;
    u32 states[STEPS + 1];     // the state at the start of every step
    u16 counts[STEPS];         // number of blocks that end in each step
    u16 list[2][ENTROPY_THREADS];
    int list_size[2];
    u64 before;
};

// Decode the listed steps again until every step was decoded from the exit state of the step before it.
DEVICE void settle(StatesShared &shared, const Batch *batch, int at, const Codes &codes, i64 chunk_bit) {
    for (int turn = 0;; turn ^= 1) {
        __syncthreads();
        int size = shared.list_size[turn];
        if (size == 0) break;
        int step = 0;
        u32 exit = 0, count = 0;
        bool busy = (int)threadIdx.x < size;
        if (busy) {
            step = shared.list[turn][threadIdx.x];
            exit = follow<false>(batch, at, codes, chunk_bit, step, step + 1, shared.states[step], 0, 0, &count);
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
    // Both lists are empty: this one was found empty, and the other was emptied in the previous turn. Clearing them
    // here would race with threads that are still reading the size above. The barrier separates them from what the
    // caller writes next.
    __syncthreads();
}

// Link that a chunk passes to the next, packed: its exit state (0..22, all ones if dead), number of blocks finished so
// far (24..59).
DEVICE u64 pack_link(u32 state, u64 blocks) { return (state & 0xffffffu) | blocks << 24; }
DEVICE u32 link_state(u64 link) {
    u32 state = (u32)link & 0xffffffu;
    return state == 0xffffffu ? STATE_DEAD : state;
}
DEVICE u64 link_blocks(u64 link) { return (link & ~READY) >> 24; }

KERNEL __launch_bounds__(ENTROPY_THREADS, STATES_BLOCKS) jpeg_states(const Batch *batch) {
    __shared__ StatesShared shared;
    int work = take_ticket(batch->tickets + 1);
    int at = locate(batch->entropy_first, batch->count, work);
    int chunk = work - batch->entropy_first[at], chunks = batch->entropy_first[at + 1] - batch->entropy_first[at];
    const Image &image = batch->images[at];
    if (batch->status[at] & BAD_TABLE || image.known_count) return;  // all chunks of the image return here
    shared.tables.load(batch, at, &HuffmanTable::pairs);
    // The first subsequence of the chunk belongs to the previous chunk; before the first chunk it is empty.
    i64 chunk_bit = ((i64)chunk * (ENTROPY_THREADS - 1) - 1) * SUBSEQUENCE_BITS;
    i64 origin = chunk_bit + (i64)threadIdx.x * SUBSEQUENCE_BITS;
    int step = threadIdx.x * STEPS_EACH, after = step + STEPS_EACH;
    if (threadIdx.x < 2) shared.list_size[threadIdx.x] = 0;
    __syncthreads();
    const Codes codes = codes_of(shared.tables, image);

    u32 exit = STATE_GUESS, count;
    if (origin < 0) {
        for (int i = 0; i < STEPS_EACH; i++) shared.counts[i] = 0;
    } else {
        exit = follow<true>(batch, at, codes, chunk_bit, step, after, STATE_GUESS, shared.states, shared.counts, &count);
    }
    if (threadIdx.x == 0) shared.states[0] = STATE_GUESS, shared.before = 0;
    if (exit != STATE_GUESS && after < STEPS) shared.list[0][atomicAdd(&shared.list_size[0], 1)] = (u16)after;
    if (origin < 0) shared.states[after] = STATE_GUESS;
#pragma unroll 1
    for (bool entered = chunk == 0;; entered = true) {
        settle(shared, batch, at, codes, chunk_bit);
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
    u32 own = 0, total;
    if (threadIdx.x > 0)
        for (int i = step; i < after; i++) own += shared.counts[i];
    u32 index = block_sum(own, &total) - own;
    u64 before = link_blocks(shared.before);
    if (threadIdx.x == 0) {
        hand_on(batch->entropy_chain + work, pack_link(shared.states[STEPS], before + total));
        if (chunk == chunks - 1 && before + total < (u64)image.block_count) mark(batch, image, at, MISSING);
        return;
    }
    // after the end of the stream, where the stream of the next image may be
    if (origin > (i64)batch->stream[2 * at] * 8) return;
    i64 nth = (i64)chunk * (ENTROPY_THREADS - 1) + threadIdx.x - 1;
    batch->starts[image.entries / ENTRIES_EACH + nth] = pack_start(shared.states[step], before + index);
}
