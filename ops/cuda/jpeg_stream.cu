// Access to entropy-coded streams: bits, restart intervals and codes. A state of the decoder is (bit position, block
// within the MCU, zig-zag index); a subsequence is the part of a stream that one thread decodes.
#include "jpeg_tables.cu"
#include "jpeg_unstuff.cu"

#ifndef ENTROPY_THREADS
#define ENTROPY_THREADS 256
#endif
#ifndef SUBSEQUENCE_BITS
#define SUBSEQUENCE_BITS 4096
#endif
// Room for the coefficients of a subsequence, if each has four bits, and of a last block that continues past its end.
// The minimum is two bits; photographs and noise have 4.5 to 8. An image with more coefficients is left to another
// decoder (jpeg_coefficients.cu).
#define ENTRIES_EACH (SUBSEQUENCE_BITS / 4 + 128)

// A packed state: bits past the start of the step (0..7), block within the MCU (8..11), zig-zag index (16..22).
#define STATE_DEAD 0xffffffffu  // after the end of the scan
#define STATE_GUESS 0u

// Local position and zig-zag index share a register, so that one addition moves both.
#define INDEX_ONE 0x10000u
#define INDEX_END (64 * INDEX_ONE)

struct Stream {
    const u32 *words;
    const u32 *ends;       // ends of the restart intervals, in bytes
    int end_count;
    i64 bits;
};

// A window of a stream: 96 bits that can be read, and the next 64, which are loaded long before they are needed.
struct Reader {
    const u32 *next;
    u32 w0, w1, w2, w3, w4;
    int at;                // local position of w0's first bit

    // Move to bit `position` after `origin`, which is the first bit of a word of the stream.
    DEVICE void seek(const Stream &stream, i64 origin, int position) {
        next = stream.words + (origin >> 5) + (position >> 5);
        w0 = next[0], w1 = next[1], w2 = next[2], w3 = next[3], w4 = next[4];
        next += 5;
        at = position & ~31;
        w0 = arrived(w0), w1 = arrived(w1), w2 = arrived(w2);
    }
    DEVICE int end() const { return at + 64; }
    // Return 32 bits; at <= position < end().
    DEVICE u32 peek(u32 position) const {
        bool second = (int)(position & 0xffff) >= at + 32;
        return __funnelshift_l(second ? w2 : w1, second ? w1 : w0, position);
    }
    // Advance to `position`, at most 95 bits away. Each word is loaded into a register that is read a turn or two
    // later, so that nothing waits for it here.
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

// The restart interval that contains a bit of the stream, and its end.
struct Interval {
    int nth;

    DEVICE void find(const Stream &stream, i64 bit) {
        int low = 0, high = stream.end_count;
        while (low < high) {
            int middle = (low + high) >> 1;
            if ((i64)stream.ends[middle] * 8 < bit) low = middle + 1; else high = middle;
        }
        nth = low;
    }
    DEVICE bool last(const Stream &stream) const { return nth >= stream.end_count; }
    // Return the bits from `origin` to the end of the interval, limited to a number that no subsequence has.
    DEVICE int end(const Stream &stream, i64 origin) const {
        i64 bit = last(stream) ? stream.bits : (i64)stream.ends[nth] * 8;
        return (int)min(bit - origin, (i64)INDEX_ONE);
    }
};

// The four tables (DC 0, DC 1, AC 0, AC 1), and which of them the blocks of an MCU use.
struct Codes {
    SharedWords entries;      // 1 << bits entries of each table
    const LongCodes *longer;
    const u32 *near;          // longer codes of the AC tables
    u32 slots;                // bit b: DC table of block b, bit 16 + b: its AC table
    int blocks, bits;         // blocks in an MCU, or 1 if all have the same tables; bits that index a table

    DEVICE int table(bool is_dc, int block) const {
        return (is_dc ? 0 : 2) + (slots >> (is_dc ? block : block + 16) & 1);
    }
    DEVICE u32 entry(int table, u32 next) const { return entries[(table << bits) + (next >> (32 - bits))]; }
    DEVICE u32 long_entry(int table, u32 next) const {
        u32 i = (next >> 16) - longer[table].limit[LONG_LENGTHS];
        return table >= 2 && i < NEAR_CODES ? near[(table - 2) * NEAR_CODES + i] : long_code(longer[table], next, table < 2);
    }
    DEVICE int after(int block) const { return block + 1 == blocks ? 0 : block + 1; }
};

// The four tables of an image in shared memory: `pairs` of HuffmanTable, or its `lookup`.
template <int BITS> struct __align__(16) Tables {
    u32 entries[4 << BITS];
    LongCodes longer[4];
    u32 near[2 * NEAR_CODES];

    // Load the tables. All threads of the block call this, and must synchronise afterwards.
    DEVICE void load(const Batch *batch, int image, const u32 (HuffmanTable::*kind)[1 << BITS]) {
        const HuffmanTable *from = (const HuffmanTable *)batch->tables + (i64)image * 4;
        const int words = 1 << BITS;
        for (int i = threadIdx.x; i < words; i += blockDim.x)
            ((uint4 *)entries)[i] = ((const uint4 *)(from[i / (words / 4)].*kind))[i % (words / 4)];
        const int each = sizeof(LongCodes) / 16;
        for (int i = threadIdx.x; i < 4 * each; i += blockDim.x)
            ((uint4 *)longer)[i] = ((const uint4 *)&from[i / each].longer)[i % each];
        for (int i = threadIdx.x; i < NEAR_CODES / 2; i += blockDim.x)
            ((uint4 *)near)[i] = ((const uint4 *)from[2 + i / (NEAR_CODES / 4)].near)[i % (NEAR_CODES / 4)];
    }
};

DEVICE Stream stream_of(const Batch *batch, int at) {
    const Image &image = batch->images[at];
    return {batch->words + image.words, batch->segments + image.segments, (int)batch->stream[2 * at + 1],
            (i64)batch->stream[2 * at] * 8};
}
// Called after the tables are loaded. If all blocks have the same tables, as in CMYK and in RGB, the index of the block
// within the MCU does not change its codes, and nothing in the stream shows it: a guessed index would stay wrong to the
// end. So it is ignored then.
template <int BITS> DEVICE Codes codes_of(const Tables<BITS> &tables, const Image &image) {
    u32 slots = image.dc_slots | image.ac_slots << 16;
    return {SharedWords(tables.entries), tables.longer, tables.near, arrived(slots),
            (int)arrived(slots ? image.blocks_in_mcu : 1), BITS};
}

// Return the entry of a subsequence in Batch::starts: its state, and the number of blocks that end before it.
DEVICE u64 pack_start(u32 state, u64 blocks) { return state | min(blocks, (u64)1 << 31) << 32; }
