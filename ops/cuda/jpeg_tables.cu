// Lookup tables of the Huffman codes (T.81, C.2 and F.2.2.3), one block of threads per table.
#include "jpeg_common.cuh"

#ifndef LOOKUP_BITS
#define LOOKUP_BITS 10
#endif
#ifndef PAIR_BITS
// 1.55 symbols of ImageNet's files on average have codes within so many bits; at least LOOKUP_BITS
#define PAIR_BITS 10
#endif
#define LOOKUPS (1 << LOOKUP_BITS)
#define PAIRS (1 << PAIR_BITS)
#define LONG_LENGTHS (16 - LOOKUP_BITS)
#define NEAR_CODES 512  // 16-bit patterns of longer codes: common tables have at most 323

// Effect of a code, packed in one word: its bits with its extra bits (0..7), without them (8..12), the step of the
// zig-zag index (16..23), 32 minus the number of extra bits (24..29). Bit 15 marks a pattern that is not a code; its
// number of bits exceeds that of padding, so that padding (ones) goes past the end of its interval. 0 in the lookup
// table: a longer code.
#define ENTRY_MOVE 0x00ff00ffu
#define ENTRY_INVALID 0x2001801fu
#define ENTRY_IS_INVALID 0x8000u

// Codes longer than LOOKUP_BITS.
struct __align__(16) LongCodes {
    // per length: the first 16-bit pattern after its codes; the last entry: the first pattern of all these lengths
    u32 limit[LONG_LENGTHS + 2];
    i32 delta[LONG_LENGTHS + 2];  // symbol index less code
    u8 symbol[256];
};

struct __align__(16) HuffmanTable {
    u32 lookup[LOOKUPS];          // by the next bits: the code with which they begin
    u32 pairs[PAIRS];             // the same and, if its code is within these bits, the next symbol
    LongCodes longer;
    u32 near[NEAR_CODES];         // for AC, longer codes by the next 16 bits minus the first pattern of a longer code
};

// Two symbols in one word: the steps of the position (0..7) and of the zig-zag index (16..23) by both, and by the first
// alone (8..15, 24..31), 0 if there is only one. The second symbol after a DC is an AC symbol of its block. By its
// code, the last symbol of a block is never the first of a pair, but it may be by its index. 0: a longer code.
#define PAIR_MOVE 0x00ff00ffu

DEVICE u32 code_entry(u32 symbol, u32 length, bool is_dc) {
    u32 size = symbol & 15, run = symbol >> 4;
    u32 move = is_dc ? 1 : size ? run + 1 : run == 15 ? 16 : 64;
    return (32 - size) << 24 | move << 16 | length << 8 | (length + size);
}

// Return the entry of `pairs` at `bits`, given the entries of single symbols by as many bits, and those for the next
// symbol, if any.
DEVICE u32 pair_entry(const u32 *single, const u32 *next, u32 bits) {
    u32 entry = single[bits], taken = entry & 255, move = entry & ENTRY_MOVE;
    if (entry == 0 || !next || move >= 64 << 16 || taken >= PAIR_BITS) return move;
    u32 behind = next[bits << taken & (PAIRS - 1)], length = behind >> 8 & 31;
    if (behind == 0 || length > PAIR_BITS - taken) return move;
    return move << 8 | (move + (behind & ENTRY_MOVE));
}

// A Huffman table of a file, expanded by one thread.
struct TableCodes {
    int first[18], index[18];  // per length: first code, index of its first symbol
    int bad;

    DEVICE void open(const u8 *file, int size, int offset) {
        const u8 *counts = file + offset;
        int code = 0, total = 0;
        bad = offset + 16 > size;
        for (int length = 1; length <= 16 && !bad; length++) {
            first[length] = code;
            index[length] = total;
            code += counts[length - 1];
            total += counts[length - 1];
            if (counts[length - 1] && code >= 1 << length) bad = 1;  // a code may not consist of ones only
            code <<= 1;
        }
        first[17] = code;
        index[17] = total;
        if (bad || total > 256 || offset + 16 + total > size) bad = 1;
    }
    // Return the entry of the code with which `pattern` of ``bits`` bits begins, if that has `from` to `to` bits; else
    // 0.
    DEVICE u32 entry(const u8 *symbols, u32 pattern, int bits, int from, int to, bool is_dc) const {
        for (int length = from; length <= to; length++) {
            int nth = (int)(pattern >> (bits - length)) - first[length];
            if (nth < index[length + 1] - index[length]) return code_entry(symbols[index[length] + nth], length, is_dc);
        }
        return 0;
    }
};

KERNEL jpeg_tables(const Batch *batch) {
    __shared__ u32 single[PAIRS], after[PAIRS];
    __shared__ TableCodes codes, codes_after;
    const Image &image = batch->images[blockIdx.x >> 2];
    if (image.block_count == 0) return;
    int slot = blockIdx.x & 1, is_dc = !(blockIdx.x & 2);
    int offset = is_dc ? image.dc[slot] : image.ac[slot];
    if (offset == 0) return;
    HuffmanTable &table = ((HuffmanTable *)batch->tables)[blockIdx.x];
    const u8 *file = batch->raw + image.raw, *symbols = file + offset + 16;
    // A DC is followed by codes of the AC table of the same block. That must be the table of the same slot here;
    // otherwise pairs hold one symbol.
    int offset_after = !is_dc ? offset : image.dc_slots == image.ac_slots ? image.ac[slot] : 0;
    if (threadIdx.x == 0) codes.open(file, image.raw_size, offset);
    if (threadIdx.x == 32 && is_dc && offset_after) codes_after.open(file, image.raw_size, offset_after);
    __syncthreads();
    if (codes.bad) {
        if (threadIdx.x == 0) mark(batch, image, blockIdx.x >> 2, BAD_TABLE);
        return;
    }
    const int *first = codes.first, *index = codes.index;
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        u8 symbol = i < index[17] ? symbols[i] : 0;
        table.longer.symbol[i] = symbol;
        if (is_dc && symbol > 15) mark(batch, image, blockIdx.x >> 2, BAD_TABLE);
    }
    const u32 *next = !is_dc ? single : offset_after && !codes_after.bad ? after : nullptr;
    for (int i = threadIdx.x; i < PAIRS; i += blockDim.x) {
        single[i] = codes.entry(symbols, i, PAIR_BITS, 1, PAIR_BITS, is_dc);
        if (is_dc && next) after[i] = codes_after.entry(file + offset_after + 16, i, PAIR_BITS, 1, PAIR_BITS, false);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < PAIRS; i += blockDim.x) table.pairs[i] = pair_entry(single, next, i);
    for (int i = threadIdx.x; i < LOOKUPS; i += blockDim.x) {
        u32 entry = single[i << (PAIR_BITS - LOOKUP_BITS)];
        table.lookup[i] = (entry >> 8 & 31) <= LOOKUP_BITS ? entry : 0;
    }
    u32 begin = (u32)first[LOOKUP_BITS + 1] << (15 - LOOKUP_BITS);  // first pattern that begins with a longer code
    if (threadIdx.x == 0) table.longer.limit[LONG_LENGTHS] = begin;
    for (int i = threadIdx.x; i < NEAR_CODES && !is_dc; i += blockDim.x) {
        u32 entry = codes.entry(symbols, begin + i, 16, LOOKUP_BITS + 1, 16, is_dc);
        if (entry == 0) entry = ENTRY_INVALID;
        table.near[i] = entry;
    }
    for (int i = threadIdx.x; i < LONG_LENGTHS; i += blockDim.x) {
        int length = LOOKUP_BITS + 1 + i;
        table.longer.limit[i] = (u32)(first[length] + index[length + 1] - index[length]) << (16 - length);
        table.longer.delta[i] = index[length] - first[length];
    }
}

// Return the entry of a code longer than LOOKUP_BITS; bits: the stream, left-aligned.
DEVICE u32 long_code(const LongCodes &longer, u32 bits, bool is_dc) {
    u32 pattern = bits >> 16;
    int i = 0;  // limits increase with the length
#pragma unroll
    for (int k = 0; k < LONG_LENGTHS; k++) i += pattern >= longer.limit[k];
    if (i == LONG_LENGTHS) return ENTRY_INVALID;
    int length = LOOKUP_BITS + 1 + i;
    return code_entry(longer.symbol[(longer.delta[i] + (pattern >> (16 - length))) & 255], length, is_dc);
}
