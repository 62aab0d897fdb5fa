// Decode lossy WebP: a VP8 key frame (RFC 6386; section numbers are in comments) from the bytes of the file to pixels,
// a batch at once.
//
// vp8_decode: a block of two warps per image. One lane of the first warp reads the modes and coefficients of a
// macroblock while the second warp computes the pixels of the previous one. vp8_filter: the loop filter, one warp per
// macroblock of a wavefront. vp8_pixels: colour, with chroma interpolated as in libwebp.
//
// Images with anything unusual are marked in `bad`, and the CPU decodes them: damaged ones, and those that only its
// decoder supports. No byte of a file makes the kernels read or write outside the buffers that the table names.
#include "vp8_tables.cuh"

// Fields as in ops/codecs/webp/on_gpu.py.
struct Picture {
    long long source;       // first byte of the file
    long long size;         // of the file
    long long planes;       // first byte of Y, U, V, and of one filter word per macroblock
    long long destination;  // first byte of the pixels
    int width, height;
    int y, x;  // corner of the window
    int shown_rows, shown_columns;
    int bgr, unused;
};

typedef unsigned char u8;

const int COLUMNS = 256;   // maximum macroblocks per row
const int CHUNKS = 64;     // maximum chunks of a file
// room for the 16 coefficients of a block; not 16, so that the next block uses other banks of shared memory
const int BLOCK = 18;
const int BLOCKS = 25;     // blocks of a macroblock: 16 of Y, 4 of U, 4 of V, and one with the DC of the blocks of Y
const int NODES = 3;      // words with the probabilities of a context: the tree has 11 nodes
const int PLACES = 17 * 3 * NODES;
const int LUMA = 28, CHROMA = 12, LEFT = 3;  // bytes per row of the current macroblock; the left neighbour is at LEFT
// Limits of the sums of a block's coefficients: up to these, all steps of a transform fit 16 bits, as in libwebp's
// vector code.
const int MOST = 19000, MOST_BUT_DC = 10000, MOST_OF_DC = 72000;

// -- bools (7.3) ------------------------------------------------------------------------------------------------------

// A reader of one part of a file. It reads the file in words, which are requested 32 bits before they are needed, and
// only words that contain a byte of the part. Bytes after the end of the part never influence bits that are used.
struct Bools {
    unsigned range;          // 128 to 255, in the highest byte
    unsigned high, low;      // the next bits; `low` contains `left` of them
    unsigned first, second;  // words that hold the next four bytes
    unsigned order;          // order of the bytes in these words, for __byte_perm
    int left, at, end;       // at: index of the next word; end: position after the part, in bits from the first word on
    const unsigned *words;
};

__device__ __forceinline__ unsigned following(Bools &b) {
    const unsigned next = __byte_perm(b.first, b.second, b.order);
    b.first = b.second;
    b.second = b.words[min(b.at, (b.end - 8) >> 5)];
    ++b.at;
    return next;
}

// Return false if the part is empty or its beginning is invalid: the value must be less than the range.
__device__ __noinline__ bool begin(Bools &b, const u8 *data, int size) {
    if (size <= 0) return false;
    const int skew = reinterpret_cast<size_t>(data) & 3;
    b.words = reinterpret_cast<const unsigned *>(data - skew);
    b.range = 0xff000000;
    b.order = 0x0123 + 0x1111 * skew;
    b.end = 8 * (skew + size);
    const int last = (b.end - 8) >> 5;
    b.first = b.words[0];
    b.second = b.words[min(1, last)];
    b.at = 2;
    b.high = following(b);
    b.low = following(b);
    b.left = 32;
    return b.high < b.range;
}

// Return whether no bits after the end were used, except a few that no encoder leaves out. If true, libwebp does not
// report a premature end of the data either: all but the last 8 bits may be used up.
__device__ __forceinline__ bool sound(const Bools &b) {
    const int used = 32 * (b.at - 3) - b.left + 8 * static_cast<int>(b.order >> 12);
    return used <= b.end - 8;
}

// Provide at least 24 bits more than the 8 that a bool compares: a bool consumes at most 7, and one with probability
// 128 one bit.
__device__ __forceinline__ void refill(Bools &b) {
    if (b.left >= 0) return;
    const unsigned next = following(b);
    b.high |= next >> (32 + b.left);
    b.low = next << -b.left;
    b.left += 32;
}

// Return a bool from bits that `refill` has provided. Both outcomes are computed before the bool is known.
__device__ __forceinline__ int take(Bools &b, int probability) {
    // (range - 1) * probability / 256, without its fraction, + 1: in the highest byte
    const unsigned split = ((b.range - 0x01000000 >> 8) * probability & 0xff000000) + 0x01000000;
    const unsigned rest = b.range - split, value = b.high - split;
    const int shift_0 = __clz(split), shift_1 = __clz(rest);
    const bool one = b.high >= split;
    const int shift = one ? shift_1 : shift_0;
    b.range = (one ? rest : split) << shift;
    b.high = __funnelshift_l(b.low, one ? value : b.high, shift);
    b.low <<= shift;
    b.left -= shift;
    return one;
}

__device__ __forceinline__ int bit(Bools &b, int probability) {
    refill(b);
    return take(b, probability);
}

// Return a bool of probability 128 after other bools: the range is then at most 254, so it consumes one bit.
__device__ __forceinline__ int take_even(Bools &b) {
    const unsigned split = (b.range - 0x01000000 >> 1 & 0xff000000) + 0x01000000;
    const bool one = b.high >= split;
    b.range = (one ? b.range - split : split) << 1;
    b.high = __funnelshift_l(b.low, one ? b.high - split : b.high, 1);
    b.low <<= 1;
    b.left -= 1;
    return one;
}

__device__ __noinline__ int number(Bools &b, int bits) {
    int value = 0;
    while (bits-- > 0) value = 2 * value + bit(b, 128);
    return value;
}

__device__ int with_sign(Bools &b, int bits) {
    const int value = number(b, bits);
    return bit(b, 128) ? -value : value;
}

__device__ int if_any(Bools &b, int bits) { return bit(b, 128) ? with_sign(b, bits) : 0; }

// -- what a block of threads shares -----------------------------------------------------------------------------------

struct Macroblock {
    int segment, of_blocks, mode, chroma;  // of_blocks: whether each 4x4 block of Y has a mode of its own
    unsigned long long modes;              // the modes of these blocks, 4 bits each
    int rich;                              // whether some block has coefficients
    int there;                             // a bit per block: whether it may have coefficients
};

struct Shared {
    Bools modes, tokens[8];
    int partitions, segments, map, skips, skipped;
    int tree[3];
    int steps[4][6];  // quantisation steps of DC and AC: of Y with separate DC, of Y with DC, of Y2 and of chroma
    unsigned strengths[4][2];  // results of `filter_word` for macroblocks with one mode, and with 16
    unsigned top[COLUMNS];  // contexts from the macroblocks above: 4 bits Y, 2 U, 2 V, 1 Y2, and from bit 16 on 4 modes
    Macroblock ready[2];
    short coefficients[2][BLOCKS * BLOCK];
    unsigned probabilities[4 * PLACES];  // indexed by the position in the block instead of the band
    u8 luma[17 * LUMA], chroma[2][9 * CHROMA];
};

// -- headers (9, 19.2) ------------------------------------------------------------------------------------------------

__device__ unsigned little(const u8 *p, int bytes) {
    unsigned value = 0;
    for (int k = 0; k < bytes; ++k) value |= static_cast<unsigned>(p[k]) << 8 * k;
    return value;
}

// Return the data of the VP8 chunk and its size; null if the chunks of the file do not follow each other up to the end
// that its header gives.
__device__ const u8 *chunk(const u8 *file, long long size, int &found) {
    const unsigned RIFF = 0x46464952, WEBP = 0x50424557, VP8X = 0x58385056, VP8 = 0x20385056, ALPH = 0x48504c41,
                   VP8L = 0x4c385056, ANIM = 0x4d494e41, ANMF = 0x464d4e41;
    if (size < 20 || size > 0x7fffffff || little(file, 4) != RIFF || little(file + 8, 4) != WEBP) return nullptr;
    const long long end = 8 + static_cast<long long>(little(file + 4, 4));
    long long at = 12;
    const u8 *data = nullptr;
    for (int k = 0; at + 8 <= end && end <= size; ++k) {
        const unsigned name = little(file + at, 4), bytes = little(file + at + 4, 4);
        const long long next = at + 8 + bytes + (bytes & 1);
        if (k == CHUNKS || next > end) return nullptr;
        if (name == ALPH || name == VP8L || name == ANIM || name == ANMF) return nullptr;
        if (name == VP8X && (at > 12 || bytes != 10 || file[20] & ~0x2c || little(file + 21, 3))) return nullptr;
        if (name == VP8) {
            if (data) return nullptr;
            data = file + at + 8;
            found = static_cast<int>(bytes);
        }
        at = next;
    }
    return at == end ? data : nullptr;
}

__device__ int clipped(int x, int low, int high) { return min(max(x, low), high); }

// Return the filter of a macroblock (9.6, 15.2): limit, inner limit, threshold; 0 for none.
__device__ unsigned filter_word(int level, int sharpness, int simple) {
    if (level <= 0) return 0;
    int inside = sharpness > 4 ? level >> 2 : sharpness > 0 ? level >> 1 : level;
    if (sharpness > 0) inside = min(inside, 9 - sharpness);
    inside = max(inside, 1);
    return (2 * level + inside) | inside << 8 | (level >= 40 ? 2 : level >= 15 ? 1 : 0) << 16 | simple << 25;
}

// Read everything before the first macroblock. `replaced` [4][8][3][11] are the probabilities of coefficients.
__device__ bool headers(Shared &s, const Picture &p, const u8 *file, u8 *replaced) {
    int size = 0;
    const u8 *data = chunk(file, p.size, size);
    if (!data || size < 11) return false;
    const unsigned tag = little(data, 3), first = tag >> 5;
    if (tag & 1 || (tag >> 1 & 7) > 3 || !(tag >> 4 & 1)) return false;
    if (little(data + 3, 3) != 0x2a019d || first > static_cast<unsigned>(size - 10)) return false;
    if (static_cast<int>(little(data + 6, 2) & 0x3fff) != p.width) return false;
    if (static_cast<int>(little(data + 8, 2) & 0x3fff) != p.height) return false;
    data += 10;
    size -= 10;
    Bools b;
    if (!begin(b, data, first)) return false;
    bit(b, 128);  // colour space
    bit(b, 128);  // clamping: libwebp always clamps
    int quantiser[4] = {0, 0, 0, 0}, strength[4] = {0, 0, 0, 0}, absolute = 1;
    s.map = 0;
    s.segments = bit(b, 128);
    if (s.segments) {
        s.map = bit(b, 128);
        if (bit(b, 128)) {
            absolute = bit(b, 128);
            for (int k = 0; k < 4; ++k) quantiser[k] = if_any(b, 7);
            for (int k = 0; k < 4; ++k) strength[k] = if_any(b, 6);
        }
        if (s.map)
            for (int k = 0; k < 3; ++k) s.tree[k] = bit(b, 128) ? number(b, 8) : 255;
    }
    const int simple = bit(b, 128), level = number(b, 6), sharpness = number(b, 3);
    int of_frame = 0, of_blocks = 0;  // changes of the filter level
    const int changes = bit(b, 128);
    if (changes && bit(b, 128)) {
        for (int k = 0; k < 4; ++k) {
            const int value = if_any(b, 6);
            if (k == 0) of_frame = value;
        }
        for (int k = 0; k < 4; ++k) {
            const int value = if_any(b, 6);
            if (k == 0) of_blocks = value;
        }
    }
    s.partitions = 1 << number(b, 2);
    const int base = number(b, 7);
    int delta[5];  // differences of the quantisation steps of Y's DC, of Y2's DC and AC, of chroma's DC and AC
    for (int k = 0; k < 5; ++k) delta[k] = if_any(b, 4);
    bit(b, 128);  // whether probabilities are kept for the next frame
    for (int k = 0; k < 4; ++k) {
        const int q = s.segments ? quantiser[k] + (absolute ? 0 : base) : base;
        int *steps = s.steps[k];
        steps[0] = VP8_DC_STEPS[clipped(q + delta[0], 0, 127)];
        steps[1] = VP8_AC_STEPS[clipped(q, 0, 127)];
        steps[2] = 2 * VP8_DC_STEPS[clipped(q + delta[1], 0, 127)];
        steps[3] = max(VP8_AC_STEPS[clipped(q + delta[2], 0, 127)] * 155 / 100, 8);
        steps[4] = VP8_DC_STEPS[clipped(q + delta[3], 0, 117)];
        steps[5] = VP8_AC_STEPS[clipped(q + delta[4], 0, 127)];
        for (int with_modes = 0; with_modes < 2; ++with_modes) {
            const int own = s.segments ? strength[k] + (absolute ? 0 : level) : level;
            const int l = clipped(own + of_frame + (with_modes ? of_blocks : 0), 0, 63);
            s.strengths[k][with_modes] = level ? filter_word(l, sharpness, simple) : 0;
        }
    }
    for (int k = 0; k < 4 * 8 * 33; ++k) replaced[k] = bit(b, VP8_UPDATES[k]) ? number(b, 8) : VP8_COEFFICIENTS[k];
    s.skips = bit(b, 128);
    s.skipped = s.skips ? number(b, 8) : 0;
    if (!sound(b)) return false;
    s.modes = b;

    data += first;
    size -= first;
    const u8 *sizes = data;
    data += 3 * (s.partitions - 1);
    size -= 3 * (s.partitions - 1);
    if (size < 0) return false;
    for (int k = 0; k < s.partitions; ++k) {
        const int bytes = k + 1 < s.partitions ? static_cast<int>(little(sizes + 3 * k, 3)) : size;
        if (bytes > size || !begin(s.tokens[k], data, bytes)) return false;
        data += bytes;
        size -= bytes;
    }
    return true;
}

// -- a macroblock's modes (11) and coefficients (13) ------------------------------------------------------------------

__device__ __forceinline__ int block_mode(Bools &b, const u8 *p) {
    if (!bit(b, p[0])) return 0;
    if (!bit(b, p[1])) return 1;
    if (!bit(b, p[2])) return 2;
    if (!bit(b, p[3])) {
        if (!bit(b, p[4])) return 3;
        return bit(b, p[5]) ? 5 : 4;
    }
    if (!bit(b, p[6])) return 6;
    if (!bit(b, p[7])) return 7;
    return bit(b, p[8]) ? 9 : 8;
}

// Read the modes; those of the neighbours are 4 bits each of `above` and `beside`. Return whether the macroblock has no
// coefficients.
__device__ __forceinline__ bool read_modes(Bools &b, const Shared &s, Macroblock &m, unsigned &above, unsigned &beside) {
    m.segment = s.map ? bit(b, s.tree[0]) ? 2 + bit(b, s.tree[2]) : bit(b, s.tree[1]) : 0;
    const bool none = s.skips && bit(b, s.skipped);
    m.of_blocks = !bit(b, 145);
    m.modes = 0;
    if (m.of_blocks) {
        for (int y = 0; y < 4; ++y) {
            int left = beside >> 4 * y & 15;
            for (int x = 0; x < 4; ++x) {
                left = block_mode(b, VP8_MODES + ((above >> 4 * x & 15) * 10 + left) * 9);
                above = (above & ~(15u << 4 * x)) | left << 4 * x;
                m.modes |= static_cast<unsigned long long>(left) << (16 * y + 4 * x);
            }
            beside = (beside & ~(15u << 4 * y)) | left << 4 * y;
        }
    } else {
        m.mode = bit(b, 156) ? bit(b, 128) ? 1 : 3 : bit(b, 163) ? 2 : 0;
        above = beside = m.mode * 0x1111;
    }
    m.chroma = !bit(b, 142) ? 0 : !bit(b, 114) ? 2 : bit(b, 183) ? 1 : 3;
    return none;
}

// Return node `k` of the four in a word.
__device__ __forceinline__ int node(unsigned word, int k) { return word >> 8 * k & 255; }

// Read a coefficient of at least 2 (13.2); `p` are its probabilities, `word` the first four.
__device__ __forceinline__ int large(Bools &b, const unsigned *p, unsigned word) {
    const unsigned second = p[1], third = p[2];
    refill(b);
    if (!take(b, node(word, 3))) {
        if (!take(b, node(second, 0))) return 2;
        return 3 + take(b, node(second, 1));
    }
    if (!take(b, node(second, 2))) {
        if (!take(b, node(second, 3))) return 5 + bit(b, 159);
        const int two = 2 * bit(b, 165);
        return 7 + two + take(b, 145);
    }
    // categories 3 to 6: the probabilities of the bits, the first in the lowest byte
    const int upper = take(b, node(third, 0)), category = 2 * upper + bit(b, node(third, 1 + upper));
    unsigned long long bits = category == 0 ? 0x8c94ad : category == 1 ? 0x878c9bb0 : 0x82868d9db4;
    int value = 0;
    if (category == 3) {
        bits = 0x8182858c99b1c4e6;
        value = 2 * take(b, 254);
        value += take(b, 254);
        value = 2 * value + bit(b, 243);
    }
    for (; bits; bits >>= 8) value = 2 * value + bit(b, static_cast<int>(bits & 255));
    return 3 + (8 << category) + value;
}

// Read the coefficients of a block from position `n` on, times their steps, and their `sum`; return the position after
// the last. Shared memory is read one bool ahead of use. Between two refills, at most three bools of any probability
// and a sign are consumed.
__device__ __forceinline__ int read_block(Bools &b, const unsigned *of_type, int context, int dc, int ac, int n,
                                          short *out, int &sum) {
    const unsigned long long ZIGZAG = 0xfeb7adc963258410;
    const unsigned *p = of_type + (n * 3 + context) * NODES;
    unsigned word = *p;
    while (n < 16) {
        refill(b);
        if (!take(b, node(word, 0))) return n;
        while (true) {
            const unsigned *following = of_type + (n * 3 + 3) * NODES;
            const unsigned next = *following;
            if (take(b, node(word, 1))) break;
            if (++n == 16) return 16;
            p = following;
            word = next;
            refill(b);
        }
        int value = 1;
        const unsigned *next = of_type + (n * 3 + 4) * NODES;
        if (take(b, node(word, 2))) {
            value = large(b, p, word);
            next += NODES;
        }
        p = next;
        word = *p;
        value *= n ? ac : dc;
        sum += value;
        out[ZIGZAG >> 4 * n & 15] = static_cast<short>(take_even(b) ? -value : value);
        ++n;
    }
    return 16;
}

// Read all coefficients of a macroblock; contexts as in `Shared::top`. Return false if they are too large.
__device__ __forceinline__ bool read_coefficients(Bools &b, const Shared &s, Macroblock &m, short *out, unsigned &above,
                                                  unsigned &beside) {
    const int *steps = s.steps[m.segment];
    const int first = m.of_blocks ? 0 : 1;
    int there = 0;
    bool rich = false, good = true;
    for (int k = -first; k < 24; ++k) {
        // bits of the contexts: in `above` by column, in `beside` by row
        const bool chroma = k >= 16, of_dc = k < 0;
        const int x = chroma ? k & 1 : k & 3, y = chroma ? k >> 1 & 1 : k >> 2, base = k < 16 ? 0 : k < 20 ? 4 : 6;
        const int type = of_dc ? 1 : chroma ? 2 : first ? 0 : 3, which = of_dc ? 2 : chroma ? 4 : 0;
        const unsigned column = of_dc ? 256 : 1u << (base + x), row = of_dc ? 256 : 1u << (base + y);
        const int context = ((above & column) != 0) + ((beside & row) != 0), from = of_dc || chroma ? 0 : first;
        int sum = 0;
        const int end = read_block(b, s.probabilities + type * PLACES, context, steps[which], steps[which + 1], from,
                                   out + (of_dc ? 24 : k) * BLOCK, sum);
        const bool some = end > from;
        above = some ? above | column : above & ~column;
        beside = some ? beside | row : beside & ~row;
        if (some) there |= of_dc ? 0x100ffff : 1 << k;
        rich |= !of_dc && (end > 1 || (end == 1 && from == 0));
        good &= sum <= (of_dc ? MOST_OF_DC : first && !chroma ? MOST_BUT_DC : MOST);
    }
    m.rich = rich;
    m.there = there;
    return good;
}

// -- pixels of a macroblock (12, 14), by a warp -----------------------------------------------------------------------

__device__ __forceinline__ u8 pixel(int x) { return static_cast<u8>(min(max(x, 0), 255)); }

// Return output k of the inverse Walsh-Hadamard transform (14.3): rows and columns use the same signs.
__device__ int walsh(const short *in, int k) {
    const int row = k >> 2, column = k & 3;
    int t[4];
    for (int i = 0; i < 4; ++i) {
        const int a = in[i], b = in[4 + i], c = in[8 + i], d = in[12 + i];
        t[i] = row == 0 ? a + b + c + d : row == 1 ? a + b - c - d : row == 2 ? a - b - c + d : a - b + c - d;
    }
    const int dc = t[0] + 3;
    const int sum = column == 0   ? dc + t[1] + t[2] + t[3]
                    : column == 1 ? dc + t[1] - t[2] - t[3]
                    : column == 2 ? dc - t[1] - t[2] + t[3]
                                  : dc - t[1] + t[2] - t[3];
    return static_cast<short>(sum >> 3);
}

__device__ __forceinline__ int by_cosine(int a) { return (a * 20091 >> 16) + a; }
__device__ __forceinline__ int by_sine(int a) { return a * 35468 >> 16; }

// Transform the coefficients of a block in place to the differences that are added to its prediction (14.4).
__device__ void transform(short *block, int dc) {
    int t[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int x0 = i ? block[i] : dc, x1 = block[4 + i], x2 = block[8 + i], x3 = block[12 + i];
        const int a = x0 + x2, b = x0 - x2;
        const int c = by_sine(x1) - by_cosine(x3), d = by_cosine(x1) + by_sine(x3);
        t[4 * i] = a + d;
        t[4 * i + 1] = b + c;
        t[4 * i + 2] = b - c;
        t[4 * i + 3] = a - d;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int x0 = t[i] + 4, x1 = t[4 + i], x2 = t[8 + i], x3 = t[12 + i];
        const int a = x0 + x2, b = x0 - x2;
        const int c = by_sine(x1) - by_cosine(x3), d = by_cosine(x1) + by_sine(x3);
        block[4 * i] = static_cast<short>((a + d) >> 3);
        block[4 * i + 1] = static_cast<short>((b + c) >> 3);
        block[4 * i + 2] = static_cast<short>((b - c) >> 3);
        block[4 * i + 3] = static_cast<short>((a - d) >> 3);
    }
}

// Load the edges of a macroblock: the pixels above it and to its left, before any filter.
__device__ void take_edges(Shared &s, const u8 *luma, const u8 *chroma, long long plane, int x, int y, int columns, int lane) {
    const int pitch = 16 * columns, half = 8 * columns;
    u8 *of_luma = s.luma, *of_chroma = s.chroma[lane >> 4 & 1];
    if (lane < 16) {
        of_luma[(lane + 1) * LUMA + LEFT] = x ? of_luma[(lane + 1) * LUMA + LEFT + 16] : 129;
        u8 *u = s.chroma[lane >> 3] + ((lane & 7) + 1) * CHROMA + LEFT;
        *u = x ? u[8] : 129;
    }
    __syncwarp();
    if (lane < 21) {  // the corner, 16 pixels, and four of the next macroblock (or the last one repeated)
        const int column = 16 * x + (x == columns - 1 ? min(lane - 1, 15) : lane - 1);
        of_luma[LEFT + lane] = y == 0 ? 127 : column < 0 ? 129 : luma[(16LL * y - 1) * pitch + column];
    }
    if ((lane & 15) < 9) {
        const int column = 8 * x + (lane & 15) - 1;
        const u8 *from = chroma + (lane >> 4) * plane;
        of_chroma[LEFT + (lane & 15)] = y == 0 ? 127 : column < 0 ? 129 : from[(8LL * y - 1) * half + column];
    }
    __syncwarp();
}

// Return the value of DC prediction (12.2) from `count` pixels above and as many to the left, if these exist. Each lane
// holds one of them: the first `count` those above, the next `count` those to the left.
__device__ int mean(int value, int count, bool up, bool left) {
    for (int k = 1; k < count; k <<= 1) value += __shfl_xor_sync(~0u, value, k);
    const int both = value + __shfl_xor_sync(~0u, value, count);
    const int of_one = count == 16 ? 4 : 3;
    if (up && left) return (both + count) >> (of_one + 1);
    return up || left ? (both + (count >> 1)) >> of_one : 128;
}

// Return a predicted pixel of a macroblock or chroma block by its mode: 0 DC, 1 from both neighbours (TrueMotion), 2
// from above, 3 from the left.
__device__ __forceinline__ int predicted(int mode, int dc, int above, int left, int corner) {
    return mode == 0 ? dc : mode == 1 ? pixel(left + above - corner) : mode == 2 ? above : left;
}

__device__ void predict_luma(Shared &s, const Macroblock &m, const short *added, int x, int y, int lane) {
    const int up = lane < 16 ? s.luma[LEFT + 1 + lane] : s.luma[(lane - 15) * LUMA + LEFT];
    const bool used = lane < 16 ? y > 0 : x > 0;
    const int dc = mean(used ? up : 0, 16, y > 0, x > 0), row = lane >> 1, from = 8 * (lane & 1);
    const int left = s.luma[(row + 1) * LUMA + LEFT], corner = s.luma[LEFT];
    u8 *to = s.luma + (row + 1) * LUMA + LEFT + 1;
    for (int k = from; k < from + 8; ++k) {
        const int guess = predicted(m.mode, dc, s.luma[LEFT + 1 + k], left, corner);
        to[k] = pixel(guess + added[((row >> 2) * 4 + (k >> 2)) * BLOCK + (row & 3) * 4 + (k & 3)]);
    }
}

__device__ void predict_chroma(Shared &s, const Macroblock &m, const short *added, int x, int y, int lane) {
    u8 *plane = s.chroma[lane >> 4];
    const int k = lane & 7, row = lane >> 1 & 7, from = 4 * (lane & 1);
    const bool above = (lane & 8) == 0, used = above ? y > 0 : x > 0;
    const int one = above ? plane[LEFT + 1 + k] : plane[(k + 1) * CHROMA + LEFT];
    const int dc = mean(used ? one : 0, 8, y > 0, x > 0);
    const int left = plane[(row + 1) * CHROMA + LEFT], corner = plane[LEFT];
    u8 *to = plane + (row + 1) * CHROMA + LEFT + 1 + from;
    const short *of_block = added + (16 + (lane >> 4) * 4 + (row >> 2) * 2 + (lane & 1)) * BLOCK + (row & 3) * 4;
    for (int i = 0; i < 4; ++i)
        to[i] = pixel(predicted(m.chroma, dc, plane[LEFT + 1 + from + i], left, corner) + of_block[i]);
}

// Return neighbour `e` of block (x, y): 0 to 3 to the left, upwards, 4 the corner, 5 to 12 above. Above and to the
// right of the last column, all rows use the pixels above the next macroblock (12.3).
__device__ __forceinline__ int neighbour(const Shared &s, int x, int y, int e) {
    e = min(max(e, 0), 12);
    if (e < 4) return s.luma[(4 * y + 4 - e) * LUMA + LEFT + 4 * x];
    return s.luma[(e > 8 && x == 3 ? 0 : 4 * y) * LUMA + LEFT + 4 * x + e - 4];
}

// Predict blocks that have their own modes: each half of the warp computes one of two independent blocks, each lane one
// pixel.
__device__ void predict_blocks(Shared &s, const Macroblock &m, const short *added, int lane) {
    const int k = lane & 15, column = k & 3, row = k >> 2;
    for (int step = 0; step < 10; ++step) {
        const int y = max(0, step - 2) / 2 + (lane >> 4), x = step - 2 * y;
        const bool mine = x >= 0 && x < 4 && y < 4;
        int value = 0;
        if (mine) {
            const int mode = m.modes >> (16 * y + 4 * x) & 15;
            if (mode == 0) {
                value = 4;
                for (int e = 0; e < 4; ++e) value += neighbour(s, x, y, e) + neighbour(s, x, y, 5 + e);
                value >>= 3;
            } else if (mode == 1) {
                value = pixel(neighbour(s, x, y, 3 - row) + neighbour(s, x, y, 5 + column) - neighbour(s, x, y, 4));
            } else {
                const int code = VP8_DIRECTIONS[(mode - 2) * 16 + k], e = (code & 15) - 1;
                const int one = neighbour(s, x, y, e), next = neighbour(s, x, y, e < 0 ? 0 : e + 1);
                value = code & 16 ? (one + next + 1) >> 1 : (neighbour(s, x, y, e - 1) + 2 * one + next + 2) >> 2;
            }
            value = pixel(value + added[(4 * y + x) * BLOCK + k]);
        }
        if (mine) s.luma[(4 * y + row + 1) * LUMA + LEFT + 1 + 4 * x + column] = static_cast<u8>(value);
        __syncwarp();
    }
}

// Write the pixels of macroblock (x, y), before the loop filter, to the planes, and its word for the filter.
__device__ void reconstruct(Shared &s, const Macroblock &m, short *blocks, u8 *planes, int x, int y, int columns, int rows,
                            int lane) {
    const long long plane = 64LL * columns * rows;
    u8 *luma = planes, *chroma = planes + 4 * plane;
    take_edges(s, luma, chroma, plane, x, y, columns, lane);
    int dc = lane < 24 ? blocks[lane * BLOCK] : 0;
    if (!m.of_blocks && m.there >> 24 && lane < 16) dc = walsh(blocks + 24 * BLOCK, lane);
    const bool any = __any_sync(~0u, dc != 0) || m.rich;
    if (lane < 24 && m.there >> lane & 1) transform(blocks + lane * BLOCK, dc);
    __syncwarp();
    if (m.of_blocks) predict_blocks(s, m, blocks, lane);
    else predict_luma(s, m, blocks, x, y, lane);
    predict_chroma(s, m, blocks, x, y, lane);
    __syncwarp();
    {
        const int row = lane >> 1, half = lane & 1, of_chroma = row & 7;
        const unsigned *from = reinterpret_cast<const unsigned *>(s.luma + (row + 1) * LUMA + LEFT + 1 + 8 * half);
        unsigned *to = reinterpret_cast<unsigned *>(luma + (16LL * y + row) * 16 * columns + 16 * x + 8 * half);
        to[0] = from[0];
        to[1] = from[1];
        to = reinterpret_cast<unsigned *>(chroma + (lane >> 4) * plane + (8LL * y + of_chroma) * 8 * columns + 8 * x + 4 * half);
        *to = *reinterpret_cast<const unsigned *>(s.chroma[lane >> 4] + (of_chroma + 1) * CHROMA + LEFT + 1 + 4 * half);
    }
    if (lane == 0) {
        unsigned *words = reinterpret_cast<unsigned *>(planes + 6 * plane);
        const unsigned word = s.strengths[m.segment][m.of_blocks];
        words[static_cast<long long>(y) * columns + x] = word ? word | (m.of_blocks || any) << 24 : 0;
    }
    if (m.there) {  // clear the coefficients for the next macroblock but one
        unsigned *words = reinterpret_cast<unsigned *>(blocks);
        for (int k = lane; k < BLOCKS * BLOCK / 2; k += 32) words[k] = 0;
    }
}

// grid (images), 64 threads. `bad` [N] is set for images that the CPU must decode.
extern "C" __global__ void __launch_bounds__(64, 16) vp8_decode(const u8 *files, const Picture *pictures, u8 *planes, int *bad) {
    __shared__ __align__(16) Shared s;
    const Picture p = pictures[blockIdx.x];
    const int thread = threadIdx.x, lane = thread & 31, columns = (p.width + 15) >> 4, rows = (p.height + 15) >> 4;
    u8 *replaced = reinterpret_cast<u8 *>(s.coefficients);
    bool wrong = false;
    if (thread == 0) wrong = columns > COLUMNS || !headers(s, p, files + p.source, replaced);
    if (__syncthreads_or(wrong)) {
        if (thread == 0) bad[blockIdx.x] = 1;
        return;
    }
    for (int k = thread; k < 4 * PLACES; k += 64) {
        const unsigned long long BANDS = 0x7666666665463210;
        const int type = k / PLACES, n = k % PLACES / (3 * NODES), context = k / NODES % 3, from = k % NODES * 4;
        const int band = n < 16 ? BANDS >> 4 * n & 15 : 0;
        const u8 *nodes = replaced + ((type * 8 + band) * 3 + context) * 11;
        unsigned word = 0;
        for (int i = from; i < min(from + 4, 11); ++i) word |= nodes[i] << 8 * (i - from);
        s.probabilities[k] = word;
    }
    for (int k = thread; k < columns; k += 64) s.top[k] = 0;
    __syncthreads();
    for (int k = thread; k < BLOCKS * BLOCK; k += 64) reinterpret_cast<unsigned *>(s.coefficients)[k] = 0;
    __syncthreads();
    unsigned beside = 0;
    const int count = rows * columns;
    int x = 0, y = 0, last_x = 0, last_y = 0;
    for (int k = 0; k <= count; ++k) {
        if (thread < 32) {
            if (thread == 0 && k < count) {
                if (x == 0) beside = 0;
                Macroblock m;
                Bools modes = s.modes;  // only one reader at a time is in registers
                unsigned above = s.top[x], up = above >> 16, left = beside >> 16;
                const bool none = read_modes(modes, s, m, up, left);
                s.modes = modes;
                wrong = !sound(modes);
                m.rich = m.there = 0;
                if (none) {
                    const unsigned kept = m.of_blocks ? 256 : 0;  // keeps the context of Y2 if the macroblock has none
                    above &= kept;
                    beside &= kept;
                } else {
                    Bools &kept = s.tokens[y & (s.partitions - 1)];
                    Bools tokens = kept;
                    wrong |= !read_coefficients(tokens, s, m, s.coefficients[k & 1], above, beside);
                    wrong |= !sound(tokens);
                    kept = tokens;
                }
                s.top[x] = (above & 0x1ff) | up << 16;
                beside = (beside & 0x1ff) | left << 16;
                s.ready[k & 1] = m;
            }
        } else if (k) {
            reconstruct(s, s.ready[k & 1 ^ 1], s.coefficients[k & 1 ^ 1], planes + p.planes, last_x, last_y, columns, rows, lane);
        }
        last_x = x;
        last_y = y;
        if (++x == columns) x = 0, ++y;
        if (__syncthreads_or(wrong)) {
            if (thread == 0) bad[blockIdx.x] = 1;
            return;
        }
    }
}

// -- the loop filter (15) ---------------------------------------------------------------------------------------------

__device__ __forceinline__ int apart(int a, int b) { return a < b ? b - a : a - b; }
__device__ __forceinline__ int signed_byte(int x) { return min(max(x, -128), 127); }
__device__ __forceinline__ int small(int x) { return min(max(x, -16), 15); }

// Filter one line of pixels across edges, `step` apart: first the edge at `at`, if `outer`, then `inner` edges that are
// 4, 8 and 12 pixels further.
__device__ void filter_line(u8 *at, long long step, bool outer, int inner, unsigned word) {
    const int limit = word & 255, inside = word >> 8 & 255, threshold = word >> 16 & 255;
    const bool simple = word >> 25 & 1;
    for (int edge = outer ? 0 : 1; edge <= inner; ++edge) {
        u8 *q = at + 4 * edge * step;
        const int most = 2 * (edge ? limit : limit + 4) + 1;
        const int p1 = q[-2 * step], p0 = q[-step], q0 = q[0], q1 = q[step];
        if (4 * apart(p0, q0) + apart(p1, q1) > most) continue;
        bool high = true;
        int p2 = 0, q2 = 0;
        if (!simple) {
            const int p3 = q[-4 * step], q3 = q[3 * step];
            p2 = q[-3 * step];
            q2 = q[2 * step];
            if (apart(p3, p2) > inside || apart(p2, p1) > inside || apart(p1, p0) > inside || apart(q3, q2) > inside ||
                apart(q2, q1) > inside || apart(q1, q0) > inside)
                continue;
            high = apart(p1, p0) > threshold || apart(q1, q0) > threshold;
        }
        const int across = 3 * (q0 - p0);
        if (high) {
            const int a = across + signed_byte(p1 - q1);
            q[-step] = pixel(p0 + small((a + 3) >> 3));
            q[0] = pixel(q0 - small((a + 4) >> 3));
        } else if (edge) {
            const int one = small((across + 4) >> 3), half = (one + 1) >> 1;
            q[-2 * step] = pixel(p1 + half);
            q[-step] = pixel(p0 + small((across + 3) >> 3));
            q[0] = pixel(q0 - one);
            q[step] = pixel(q1 - half);
        } else {
            const int a = signed_byte(across + signed_byte(p1 - q1));
            const int a1 = (27 * a + 63) >> 7, a2 = (18 * a + 63) >> 7, a3 = (9 * a + 63) >> 7;
            q[-3 * step] = pixel(p2 + a3);
            q[-2 * step] = pixel(p1 + a2);
            q[-step] = pixel(p0 + a1);
            q[0] = pixel(q0 - a1);
            q[step] = pixel(q1 - a2);
            q[2 * step] = pixel(q2 - a3);
        }
    }
}

// grid (images), a multiple of 32 threads. A macroblock is filtered after those to its left, above, and above to the
// right: all with the same x + 2y run at once.
extern "C" __global__ void vp8_filter(const Picture *pictures, u8 *planes, const int *bad) {
    const Picture p = pictures[blockIdx.x];
    if (bad[blockIdx.x]) return;
    const int columns = (p.width + 15) >> 4, rows = (p.height + 15) >> 4, lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const long long plane = 64LL * columns * rows, pitch = (lane < 16 ? 16 : 8) * columns;
    u8 *mine = planes + p.planes + (lane < 16 ? 0 : lane < 24 ? 4 * plane : 5 * plane);
    const unsigned *words = reinterpret_cast<const unsigned *>(planes + p.planes + 6 * plane);
    const int size = lane < 16 ? 16 : 8, line = lane < 16 ? lane : lane & 7;
    for (int step = 0; step < columns + 2 * (rows - 1); ++step) {
        const int first = max(0, (step - columns + 2) >> 1), last = min(rows - 1, step >> 1);
        for (int y = first + warp; y <= last; y += warps) {
            const int x = step - 2 * y;
            const unsigned word = words[static_cast<long long>(y) * columns + x];
            const int inner = word >> 24 & 1 ? lane < 16 ? 3 : 1 : 0;
            const bool used = word && (lane < 16 || !(word >> 25 & 1));
            u8 *corner = mine + static_cast<long long>(size) * (y * pitch + x);
            if (used) filter_line(corner + line * pitch, 1, x > 0, inner, word);
            __syncwarp();
            if (used) filter_line(corner + line, pitch, y > 0, inner, word);
            __syncwarp();
        }
        __syncthreads();
    }
}

// -- colour -----------------------------------------------------------------------------------------------------------

// Return a product with a weight of BT.601's studio range times 2^14, as libwebp rounds it; (value * weight) >> 8 keeps
// 6 bits of fraction.
__device__ __forceinline__ int weighed(int value, int weight) { return value * weight >> 8; }
__device__ __forceinline__ u8 six_bits_less(int x) { return static_cast<u8>(x < 0 ? 0 : x > 16383 ? 255 : x >> 6); }

// Write the pixels of the windows. blockIdx.y is the image. Chroma is 9/16 of the nearest sample, 3/16 of the next one
// in each direction and 1/16 of the diagonal one; at the edges the nearest one is repeated.
extern "C" __global__ void vp8_pixels(const Picture *pictures, const u8 *planes, const int *bad, u8 *out) {
    const Picture p = pictures[blockIdx.y];
    if (bad[blockIdx.y]) return;
    const int columns = (p.width + 15) >> 4, rows = (p.height + 15) >> 4;
    const u8 *luma = planes + p.planes, *us = luma + 256LL * columns * rows, *vs = us + 64LL * columns * rows;
    const int last_x = (p.width - 1) >> 1, last_y = (p.height - 1) >> 1, pitch = 8 * columns;
    const int pixels = p.shown_rows * p.shown_columns;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pixels; i += gridDim.x * blockDim.x) {
        const int row = i / p.shown_columns, y = p.y + row, x = p.x + i - row * p.shown_columns;
        const int near_x = x >> 1, near_y = y >> 1;
        const int far_x = clipped(near_x + (x & 1 ? 1 : -1), 0, last_x), far_y = clipped(near_y + (y & 1 ? 1 : -1), 0, last_y);
        const int a = near_y * pitch + near_x, b = near_y * pitch + far_x, c = far_y * pitch + near_x, d = far_y * pitch + far_x;
        const int u = (9 * us[a] + 3 * (us[b] + us[c]) + us[d] + 8) >> 4;
        const int v = (9 * vs[a] + 3 * (vs[b] + vs[c]) + vs[d] + 8) >> 4;
        const int light = weighed(luma[y * 2 * pitch + x], 19077);
        u8 *to = out + p.destination + 3LL * i;
        to[p.bgr ? 2 : 0] = six_bits_less(light + weighed(v, 26149) - 14234);
        to[1] = six_bits_less(light - weighed(u, 6419) - weighed(v, 13320) + 8708);
        to[p.bgr ? 0 : 2] = six_bits_less(light + weighed(u, 33050) - 17685);
    }
}
