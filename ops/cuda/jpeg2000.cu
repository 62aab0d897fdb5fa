// Decode JPEG 2000 from code blocks to pixels (ITU-T T.800, annexes C to G), equal to OpenJPEG to the bit.
//
// Each bit of a code block depends on those before it, so one thread decodes a block. Shared memory holds four state
// bits per coefficient: a word covers four rows of a column, the order in which coding passes visit them.

#ifndef LANES
#define LANES 8  // threads of a warp that decode a block each
#endif
#define WORDS 1024  // words per code block, which has at most 4,096 coefficients

#define SIGNIFICANT 0x000fu
#define VISITED 4   // shift of the bits "coded in this bit plane"
#define NEGATIVE 8  // shift
#define REFINED 12  // shift

#define RUN 17
#define UNIFORM 18
#define CONTEXTS 19
#define STATES 47

// Kinds of decision: a coefficient of the pass, a sign, a run of four coefficients of a column, or two bits for the
// position of the first of them that is significant.
#define NOTHING 0
#define A_SIGN 1
#define A_RUN 2
#define A_PLACE 3
#define ITS_END 4
#ifndef TRIES
#define TRIES 3  // columns without a decision that are skipped at once
#endif

// Fields as in ops/codecs/jpeg2000/on_gpu.py.
struct Block {
    long long source;  // its first byte
    long long place;   // index of its first coefficient
    int pitch;         // coefficients from one row to the next
    int size, width, height;
    int kind;          // kind of its band: 0 LL, 1 HL, 2 LH, 3 HH
    int planes, passes;
    float step;        // quantisation step / 2; 0 for integers
};

// Table C.2: the probability, the next state after the more probable symbol, and after the less probable one; the
// latter is odd if the symbols are swapped.
__constant__ unsigned short PROBABILITY[STATES] = {
    0x5601, 0x3401, 0x1801, 0x0ac1, 0x0521, 0x0221, 0x5601, 0x5401, 0x4801, 0x3801, 0x3001, 0x2401,
    0x1c01, 0x1601, 0x5601, 0x5401, 0x5101, 0x4801, 0x3801, 0x3401, 0x3001, 0x2801, 0x2401, 0x2201,
    0x1c01, 0x1801, 0x1601, 0x1401, 0x1201, 0x1101, 0x0ac1, 0x09c1, 0x08a1, 0x0521, 0x0441, 0x02a1,
    0x0221, 0x0141, 0x0111, 0x0085, 0x0049, 0x0025, 0x0015, 0x0009, 0x0005, 0x0001, 0x5601};
__constant__ unsigned char AFTER_MORE[STATES] = {
    1,  2,  3,  4,  5,  38, 7,  8,  9,  10, 11, 12, 13, 29, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
    25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 45, 46};
__constant__ unsigned char AFTER_LESS[STATES] = {
    1,  6,  9,  12, 29, 33, 6,  14, 14, 14, 17, 18, 20, 21, 14, 14, 15, 16, 17, 18, 19, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 46};

// Return the entry of a state and its more probable symbol: the probability (bits 0 ... 15), the entries that follow
// (16 ... 22 and 23 ... 29), and the symbol (30).
__device__ __forceinline__ unsigned state_entry(int k) {
    const int state = k >> 1, more = k & 1;
    const bool changes = state == 0 || state == 6 || state == 14;
    const unsigned next = AFTER_MORE[state] * 2 + more, other = AFTER_LESS[state] * 2 + (changes ? !more : more);
    return PROBABILITY[state] | next << 16 | other << 23 | static_cast<unsigned>(more) << 30;
}

// Table D.1. `around`: whether the three rows of the left column (bits 0 ... 2) and of the right column (3 ... 5), the
// coefficient above and the one below (6, 7) are significant. `table`: 0 for bands LL and LH, 1 for HL, 2 for HH.
__device__ __forceinline__ unsigned significance_context(int table, unsigned around) {
    int across = (around >> 1 & 1) + (around >> 4 & 1), down = (around >> 6 & 1) + (around >> 7);
    const int diagonal = (around & 1) + (around >> 2 & 1) + (around >> 3 & 1) + (around >> 5 & 1);
    if (table == 2) {
        const int straight = across + down;
        if (diagonal >= 3) return 8;
        if (diagonal == 2) return straight ? 7 : 6;
        if (diagonal == 1) return straight >= 2 ? 5 : 3 + straight;
        return straight >= 2 ? 2 : straight;
    }
    if (table == 1) {
        const int other = across;
        across = down, down = other;
    }
    if (across == 2) return 8;
    if (across == 1) return down ? 7 : diagonal ? 6 : 5;
    if (down) return 2 + down;
    return diagonal >= 2 ? 2 : diagonal;
}

// Tables D.2 and D.3. `around`: whether the neighbours on the left, on the right, above and below are significant (bits
// 0 ... 3), and negative (4 ... 7). Return the context; bit 7: whether the sign is inverted.
__device__ __forceinline__ unsigned sign_context(unsigned around) {
    int sums[2];
    for (int k = 0; k < 2; ++k) {
        int sum = 0;
        for (int j = 2 * k; j < 2 * k + 2; ++j)
            if (around >> j & 1) sum += around >> (j + 4) & 1 ? -1 : 1;
        sums[k] = max(-1, min(1, sum));
    }
    const bool changed = sums[0] < 0 || (sums[0] == 0 && sums[1] < 0);
    const int across = changed ? -sums[0] : sums[0], down = changed ? -sums[1] : sums[1];
    return (across ? 12 + down : 9 + down) | (changed ? 0x80u : 0u);
}

// The arithmetic decoder (annex C.3). After the end, it reads bytes of ones. The standard adds a byte to the code when
// all bits of the previous byte are used; here up to five are added at once, below the bits that are compared. Only a
// byte whose first bit counts as part of the previous byte must be added exactly when the standard does.
struct Decoder {
    const unsigned char *bytes;
    unsigned *contexts;      // LANES apart
    const unsigned *states;  // results of `state_entry`
    int size, at, left;
    unsigned last, range;
    unsigned long long code;  // 16 bits to compare, followed by `left` further bits

    __device__ __forceinline__ unsigned byte(int k) const { return k < size ? bytes[k] : 0xffu; }
    __device__ __forceinline__ void more_bytes() {
        unsigned some[5];
        for (int k = 0; k < 5; ++k) some[k] = byte(at + 1 + k);
        bool ended = false;
#pragma unroll
        for (int k = 0; k < 5; ++k) {
            const bool marked = last == 0xff;
            ended |= marked && some[k] > 0x8f;
            const bool shorter = marked && !ended;
            if (shorter && some[k] >> 7 && left) break;
            code += static_cast<unsigned long long>(ended ? 0xffu : some[k]) << ((shorter ? 41 : 40) - left);
            left += shorter ? 7 : 8;
            if (!ended) last = some[k], ++at;
        }
    }
    __device__ __forceinline__ void begin() {
        at = 0, left = 0, last = byte(0), code = static_cast<unsigned long long>(last) << 48;
        more_bytes();
        code <<= 7, left -= 7, range = 0x8000;
    }
    __device__ __forceinline__ unsigned bit(int context) {
        const unsigned entry = contexts[context * LANES], probability = entry & 0xffff, more = entry >> 30;
        const bool low = static_cast<unsigned>(code >> 48) < probability;
        range -= probability;
        if (!low) {
            code -= static_cast<unsigned long long>(probability) << 48;
            if (range & 0x8000) return more;
        }
        const bool less = (range < probability) != low;
        if (low) range = probability;
        contexts[context * LANES] = states[less ? entry >> 23 & 127 : entry >> 16 & 127];
        int shift = __clz(static_cast<int>(range)) - 16;
        range <<= shift;
        while (shift > left) {
            code <<= left, shift -= left, left = 0;
            more_bytes();
        }
        code <<= shift, left -= shift;
        return less ? !more : more;
    }
};

// Return a column of a stripe and the rows above and below: six rows, significant (bits 0 ... 5) and negative (8 ...
// 13).
__device__ __forceinline__ unsigned six_rows(unsigned above, unsigned own, unsigned below) {
    return (above >> 3 & 0x101u) | (own & 0xf0fu) << 1 | (below & 0x101u) << 5;
}

// grid (blocks / LANES), 32 threads: decode `count` blocks and write their coefficients, dequantised.
extern "C" __global__ void __launch_bounds__(32)
    jpeg2000_blocks(const unsigned char *packed, const Block *blocks, int count, int *coefficients) {
    __shared__ __align__(4) unsigned short words[WORDS * LANES];
    __shared__ unsigned contexts[CONTEXTS * LANES];
    __shared__ unsigned states[2 * STATES];
    __shared__ unsigned char significance[3 * 256], signs[256];
    const int me = threadIdx.x, first = blockIdx.x * LANES, some = min(LANES, count - first);
    for (int k = me; k < 2 * STATES; k += 32) states[k] = state_entry(k);
    for (int k = me; k < 256; k += 32) {
        signs[k] = sign_context(k);
        for (int table = 0; table < 3; ++table) significance[table * 256 + k] = significance_context(table, k);
    }
    unsigned *zeros = reinterpret_cast<unsigned *>(words);
    for (int k = me; k < WORDS * LANES / 2; k += 32) zeros[k] = 0;
    __syncwarp();
    for (int k = me; k < CONTEXTS * LANES; k += 32) {
        const int context = k / LANES;
        contexts[k] = states[2 * (context == 0 ? 4 : context == RUN ? 3 : context == UNIFORM ? 46 : 0)];
    }
    for (int k = 0; k < some; ++k) {
        const Block b = blocks[first + k];
        for (int j = me; j < b.width * b.height; j += 32)
            coefficients[b.place + static_cast<long long>(j / b.width) * b.pitch + j % b.width] = 0;
    }
    __syncwarp();
    if (me < some) {
        const Block b = blocks[first + me];
        Decoder d{packed + b.source, contexts + me, states, b.size};
        d.begin();
        const unsigned char *table = significance + (b.kind == 3 ? 512 : b.kind == 1 ? 256 : 0);
        const int stripes = (b.height + 3) >> 2, passes = min(b.passes, 3 * b.planes - 2), up = b.width * LANES;
        // A step of the loop makes one decision, after moving to the next column that needs one. Each thread is at its
        // own column.
        int pass = -1, stripe = stripes, x = b.width, kind = 0, half = 0, row = 0, about = NOTHING;
        unsigned own = 0, changed = 0, next = 0, left = 0, here = 0, right = 0, rest = 0, wanted = 0;
        unsigned live = stripes > 32 ? ~0u : 0;  // bits of stripes that contain a significant coefficient
        unsigned short *line = words + me;
        int *out = coefficients + b.place;
        while (pass < passes) {
            for (int tries = 0; tries < TRIES && about == NOTHING && wanted == 0 && pass < passes; ++tries) {
                if (changed != own) *line = changed;
                if (++x < b.width) {
                    left = here, here = right, own = next, line += LANES, ++out;
                } else {
                    ++stripe;
                    if (stripe < stripes && stripes <= 32 && kind != 2) {
                        const unsigned near = (kind ? live : live | live << 1 | live >> 1) >> stripe;
                        stripe = near ? stripe + __ffs(near) - 1 : stripes;
                    }
                    own = changed;  // nothing to write
                    if (stripe >= stripes) {
                        stripe = -1, x = b.width, ++pass;
                        kind = (pass + 2) % 3, half = 1 << (b.planes - (pass + 2) / 3) >> 1;
                        continue;
                    }
                    x = 0, left = 0;
                    line = words + me + stripe * up;
                    out = coefficients + b.place + static_cast<long long>(4 * stripe) * b.pitch;
                    own = line[0];
                    here = six_rows(stripe ? line[-up] : 0, own, stripe + 1 < stripes ? line[up] : 0);
                }
                right = next = 0;
                if (x + 1 < b.width) {
                    next = line[LANES];
                    right = six_rows(stripe ? line[LANES - up] : 0, next, stripe + 1 < stripes ? line[LANES + up] : 0);
                }
                const int rows = min(4, b.height - 4 * stripe);
                const unsigned known = own | own >> VISITED, sides = left | right;
                changed = own, rest = (1u << rows) - 1;
                if (kind == 1) rest = own & ~(own >> VISITED) & 15;
                if (kind == 2) {
                    rest &= ~known, changed &= ~(15u << VISITED);
                    if (rows == 4 && ((sides | here) & 0x3f) == 0) about = A_RUN;
                }
                wanted = rest;
                if (kind == 0) wanted &= (sides | sides >> 1 | sides >> 2 | here | here >> 2) & ~(here >> 1);
            }
            if (about == NOTHING && wanted == 0) continue;
            int context = about == A_RUN ? RUN : UNIFORM;
            unsigned turned = 0;
            if (about == NOTHING) {
                row = __ffs(wanted) - 1;
                rest &= ~1u << row;
                const unsigned around = (left >> row & 7) | (right >> row & 7) << 3 | (here >> row & 1) << 6 |
                                        (here >> (row + 2) & 1) << 7;
                context = kind != 1 ? table[around] : changed >> (REFINED + row) & 1 ? 16 : around ? 15 : 14;
            } else if (about == A_SIGN) {
                const unsigned both = (left >> (row + 1) & 0x101u) | (right >> (row + 1) & 0x101u) << 1 |
                                      (here >> row & 0x101u) << 2 | (here >> (row + 2) & 0x101u) << 3;
                const unsigned sign = signs[(both | both >> 4) & 0xff];
                context = sign & 0x7f, turned = sign >> 7;
            }
            const unsigned bit = d.bit(context) ^ turned;
            int *at = out + static_cast<long long>(row) * b.pitch;
            if (about == A_SIGN) {
                *at = bit ? -3 * half : 3 * half;
                changed |= (1u | bit << NEGATIVE) << row;
                here |= (1u | bit << 8) << (row + 1);
                if (stripes <= 32) live |= 1u << stripe;
                about = NOTHING;
            } else if (about == NOTHING) {
                if (kind == 1) {
                    changed |= 1u << (REFINED + row);
                    atomicAdd(at, (own >> (NEGATIVE + row) & 1) != bit ? half : -half);
                } else {
                    if (kind == 0) changed |= 1u << (VISITED + row);
                    if (bit) about = A_SIGN;
                }
            } else if (about == A_RUN) {
                about = bit ? A_PLACE : NOTHING;
                if (!bit) rest = 0;
            } else if (about == A_PLACE) {
                row = bit << 1, about = ITS_END;
            } else {
                row |= bit, rest &= ~1u << row, about = A_SIGN;
            }
            wanted = rest;
            if (kind == 0) {
                const unsigned sides = left | right;
                wanted &= (sides | sides >> 1 | sides >> 2 | here | here >> 2) & ~(here >> 1);
            }
        }
    }
    __syncwarp();
    for (int k = 0; k < some; ++k) {
        const Block b = blocks[first + k];
        for (int j = me; j < b.width * b.height; j += 32) {
            int *at = coefficients + b.place + static_cast<long long>(j / b.width) * b.pitch + j % b.width;
            const int value = *at;
            *at = b.step == 0 ? value / 2 : __float_as_int(__fmul_rn(static_cast<float>(value), b.step));
        }
    }
}

// -- the wavelet transform ---------------------------------------------------------------------------------------------

struct Tile {
    long long place;  // index of its first coefficient
    int pitch, left, top, right, bottom;
    int levels, reversible, unused;
};

__device__ __forceinline__ int up(int number, int shift) { return -(-number >> shift); }

// A row or a column of samples, `apart` elements apart, whose low frequencies are stored before the high ones.
// Positions count from `begin` on, and low frequencies have even positions; beyond its ends, the signal is mirrored.
struct Line {
    const int *samples;
    long long apart;
    int begin, end;

    __device__ __forceinline__ int at(int place) const {
        while (place < begin || place >= end) place = place < begin ? 2 * begin - place : 2 * (end - 1) - place;
        const int low = place & 1 ? ((end + 1) >> 1) - ((begin + 1) >> 1) + (place >> 1) - (begin >> 1)
                                  : (place >> 1) - ((begin + 1) >> 1);
        return samples[low * apart];
    }
};

// Compute samples `2 * pair` and the next one (F.3.8.2.1.1).
__device__ __forceinline__ void integers(const Line &line, int pair, int *even, int *odd) {
    int high[3], low[2];
    for (int k = 0; k < 3; ++k) high[k] = line.at(2 * (pair + k) - 1);
    for (int k = 0; k < 2; ++k) low[k] = line.at(2 * (pair + k)) - ((high[k] + high[k + 1] + 2) >> 2);
    *even = low[0], *odd = high[1] + ((low[0] + low[1]) >> 1);
}

__device__ __forceinline__ float lifted(float middle, float one, float other, float by) {
    return __fadd_rn(middle, __fmul_rn(__fadd_rn(one, other), by));
}

// The same for real numbers (F.3.8.2.1.2). Each product is rounded before it is added. High frequencies are twice those
// of the standard, and their quantisation steps half.
__device__ __forceinline__ void reals(const Line &line, int pair, int *even, int *odd) {
    float high[5], low[4];
    for (int k = 0; k < 5; ++k) high[k] = __fmul_rn(__int_as_float(line.at(2 * (pair + k) - 3)), 1.625732422f);
    for (int k = 0; k < 4; ++k) low[k] = __fmul_rn(__int_as_float(line.at(2 * (pair + k) - 2)), 1.230174105f);
    for (int k = 0; k < 4; ++k) low[k] = lifted(low[k], high[k], high[k + 1], -0.443506852f);
    for (int k = 1; k < 4; ++k) high[k] = lifted(high[k], low[k - 1], low[k], -0.882911075f);
    for (int k = 1; k < 3; ++k) low[k] = lifted(low[k], high[k], high[k + 1], 0.052980118f);
    *even = __float_as_int(low[1]), *odd = __float_as_int(lifted(high[2], low[1], low[2], 1.586134342f));
}

// grid (tiles, any number): combine the bands of level `round` of each tile from `from` to `to`, along rows (`down` 0)
// or columns.
extern "C" __global__ void __launch_bounds__(256)
    jpeg2000_wavelet(const Tile *tiles, int round, int down, const int *from, int *to) {
    const Tile t = tiles[blockIdx.x];
    const int level = t.levels - 1 - round;
    if (level < 0) return;
    const int x0 = up(t.left, level), y0 = up(t.top, level), x1 = up(t.right, level), y1 = up(t.bottom, level);
    const int width = x1 - x0, height = y1 - y0, begin = down ? y0 : x0, end = down ? y1 : x1;
    if (width <= 0 || height <= 0) return;
    const int first = begin >> 1, pairs = ((end + 1) >> 1) - first;
    const int lines = down ? width : height;
    const long long step = down ? t.pitch : 1, across = down ? 1 : t.pitch;
    const long long count = static_cast<long long>(lines) * pairs;
    for (long long k = blockIdx.y * blockDim.x + threadIdx.x; k < count; k += gridDim.y * blockDim.x) {
        const int line = static_cast<int>(down ? k % lines : k / pairs);
        const int pair = first + static_cast<int>(down ? k / lines : k % pairs);
        const Line l{from + t.place + line * across, step, begin, end};
        int even, odd;
        if (end - begin == 1) {
            even = odd = l.samples[0];
            if (t.reversible) odd /= 2;
        } else if (t.reversible)
            integers(l, pair, &even, &odd);
        else
            reals(l, pair, &even, &odd);
        int *out = to + t.place + line * across;
        const int place = 2 * pair - begin;
        if (place >= 0) out[place * step] = even;
        if (place + 1 < end - begin) out[(place + 1) * step] = odd;
    }
}

// -- pixels ------------------------------------------------------------------------------------------------------------

struct Picture {
    long long place;        // index of its first coefficient
    long long destination;  // index of the output's first channel
    int width, height, components, y, x, shown_rows, shown_columns, channels, bgr, mixed, reversible, unused;
};

__device__ __forceinline__ int sample(int value, bool reversible) {
    if (!reversible) {
        const float limit = 1 << 20;
        value = __float2int_rn(fminf(fmaxf(__int_as_float(value), -limit), limit));
    }
    return min(max(value, -128), 127) + 128;
}

// grid (images, any number): undo the component transform (annex G), and write pixels.
extern "C" __global__ void __launch_bounds__(256)
    jpeg2000_pixels(const Picture *pictures, const int *coefficients, unsigned char *out) {
    const Picture p = pictures[blockIdx.x];
    const long long apart = static_cast<long long>(p.width) * p.height;
    const int count = p.shown_rows * p.shown_columns;
    for (int k = blockIdx.y * blockDim.x + threadIdx.x; k < count; k += gridDim.y * blockDim.x) {
        const int *at = coefficients + p.place + static_cast<long long>(p.y + k / p.shown_columns) * p.width + p.x +
                        k % p.shown_columns;
        int c[3];
        for (int i = 0; i < 3; ++i) c[i] = at[i < p.components ? i * apart : 0];
        if (p.mixed && p.reversible) {
            const int green = c[0] - ((c[1] + c[2]) >> 2), red = c[2] + green, blue = c[1] + green;
            c[0] = red, c[1] = green, c[2] = blue;
        } else if (p.mixed) {
            const float y = __int_as_float(c[0]), u = __int_as_float(c[1]), v = __int_as_float(c[2]);
            c[0] = __float_as_int(__fadd_rn(y, __fmul_rn(v, 1.402f)));
            c[1] = __float_as_int(__fadd_rn(__fadd_rn(y, __fmul_rn(u, -0.34413f)), __fmul_rn(v, -0.71414f)));
            c[2] = __float_as_int(__fadd_rn(y, __fmul_rn(u, 1.772f)));
        }
        unsigned char *to = out + p.destination + static_cast<long long>(k) * p.channels;
        for (int i = 0; i < p.channels; ++i)
            to[i] = static_cast<unsigned char>(sample(c[p.bgr ? p.channels - 1 - i : i], p.reversible));
    }
}
