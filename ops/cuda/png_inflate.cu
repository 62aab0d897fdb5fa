// Inflate zlib streams (RFC 1950, 1951): one warp per stream, all of whose lanes read codes at the same time.
//
// The bits after a block's header are divided into parts, one per lane. Where the first code of a part begins is
// unknown, but Huffman codes resynchronise: each lane begins at a guess, then takes the end of the previous lane as its
// beginning and reads again, until no beginning changes. Then the number of bytes of each lane and their place are
// known: the lanes read once more and write literals; matches are put into a queue and copied afterwards.
//
// A stream with anything unusual is rejected here, and the CPU decodes it. Accepted is only what every decoder accepts:
// complete codes (or one distance code of one bit), no undefined symbols, all sizes as declared.

#include "streams.cuh"

#ifndef LITERAL_BITS
#define LITERAL_BITS 11  // bits of a literal's or a length's code that one lookup decodes
#endif
#ifndef PART_WORDS
#define PART_WORDS 25    // words of the stream per lane: odd, so that lanes read different banks of shared memory
#endif
#ifndef GUESS_BITS
#define GUESS_BITS 320   // bits from a lane's first guess to the end of its part
#endif
#ifndef SECOND
#define SECOND 512       // entries for longer codes of literals and lengths, which are 2 % of a photo's
#endif
#ifndef SHORT
#define SHORT 16         // bytes of a match that one lane copies
#endif
#define DISTANCE_BITS 8
#define LONGEST 15
#define QUEUE 512        // matches in the queue; a part has fewer than 32 * PART_WORDS / 2 + 1
static_assert(16 * PART_WORDS < QUEUE, "the matches of one part have to fit");
#define STAGED (32 * PART_WORDS + 16)

// An entry of a table: bits of the code (0 ... 4), extra bits after it (5 ... 8), number of literals (9, 10), its kind
// (below), and from bit 16 on the literals, or the minimum length or distance.
#define IS_LENGTH 0x800u
#define IS_DISTANCE 0x1000u
#define IS_STOP 0x2000u  // the end of the block or, without IS_END, an undefined symbol
#define IS_END 0x4000u
#define IS_RARE 0x8000u  // IS_STOP, or a longer code
#define NO_SYMBOL (IS_RARE | IS_STOP | 1u)
// counts one match, in the bits of a register above the number of bytes of a part, which is below 32 * PART_WORDS / 2 *
// 258
#define MATCH (1u << 20)

// A canonical Huffman code. Codes are compared as 15 bits, the first bit highest: those below limit[n] have at most n
// bits.
struct Code {
    unsigned limit[16];
    unsigned first[16];  // index in `sorted` of the first code of n bits
    unsigned count[16];
    unsigned short sorted[288];
    unsigned least, most;  // bits of the shortest and of the longest code
};

struct Work {
    unsigned words[STAGED];  // words of the stream
    unsigned table[(1 << LITERAL_BITS) + (1 << DISTANCE_BITS)];
    unsigned second[SECOND];
    // the 15-bit code of the first entry of `second`, and the bits by which codes are shifted to index it
    unsigned second_from, second_shift;
    unsigned places[QUEUE], matches[QUEUE];  // place of each match; its length (from bit 16 on) and its distance - 1
    Code literals, distances;
    unsigned char lengths[320];
};

__device__ __forceinline__ unsigned window_at(const Work &w, unsigned at) {
    return __funnelshift_r(w.words[at >> 5], w.words[(at >> 5) + 1], at);
}

// Load words of the stream from `first` on; 0 after its end.
__device__ __forceinline__ void stage(Work &w, const unsigned *words, unsigned first, unsigned count, int lane) {
    __syncwarp();
    for (int k = lane; k < STAGED; k += 32) w.words[k] = first + k < count ? words[first + k] : 0;
    __syncwarp();
}

// -- codes -------------------------------------------------------------------------------------------------------------

// Build the code of `n` symbols from their lengths in bits. Return the unused part of 1 << 15 codes: 0 if the code is
// complete.
__device__ int arrange(Code &code, const unsigned char *lengths, int n, int lane) {
    if (lane < 16) code.count[lane] = 0;
    __syncwarp();
    for (int pass = 0; pass < 2; ++pass) {
        for (int from = 0; from < n; from += 32) {
            const int s = from + lane;
            const unsigned bits = s < n ? lengths[s] : 0;
            const unsigned same = __match_any_sync(ALL, bits);
            const unsigned before = __popc(same & ((1u << lane) - 1)), seen = code.count[bits];
            __syncwarp();
            if (pass && bits) code.sorted[seen + before] = s;
            if (before == 0) code.count[bits] = seen + __popc(same);
            __syncwarp();
        }
        if (pass) break;
        const unsigned mine = lane > 0 && lane < 16 ? code.count[lane] : 0;
        unsigned place = mine, limit = lane < 16 ? mine << (LONGEST - lane) : 0;
        for (int step = 1; step < 16; step *= 2) {
            const unsigned p = __shfl_up_sync(ALL, place, step), q = __shfl_up_sync(ALL, limit, step);
            if (lane >= step) place += p, limit += q;
        }
        const unsigned used = __ballot_sync(ALL, mine != 0);
        __syncwarp();
        if (lane < 16) code.limit[lane] = limit, code.first[lane] = code.count[lane] = place - mine;
        if (lane == 0) code.least = used ? __ffs(used) - 1 : LONGEST, code.most = used ? 31 - __clz(used) : 0;
        __syncwarp();
    }
    return (1 << LONGEST) - static_cast<int>(code.limit[LONGEST]);
}

__device__ __forceinline__ unsigned first_bits(unsigned window) { return __brev(window) >> (32 - LONGEST); }

// Return the symbol whose code begins the 15 bits, if it has `from` ... `to` bits, and that number (from bit 16 on);
// otherwise -1.
__device__ __forceinline__ int symbol_of(const Code &code, unsigned bits, int from, int to) {
    for (int n = from; n <= to; ++n)
        if (bits < code.limit[n])
            return n << 16 | code.sorted[code.first[n] + ((bits - code.limit[n - 1]) >> (LONGEST - n))];
    return -1;
}

__device__ __forceinline__ unsigned literal_entry(int found) {
    const unsigned bits = found >> 16, symbol = found & 0xffff;
    if (symbol < 256) return bits | 1 << 9 | symbol << 16;
    if (symbol == 256) return bits | IS_RARE | IS_STOP | IS_END;
    const unsigned k = symbol - 257;
    if (k > 28) return NO_SYMBOL;
    if (k == 28) return bits | IS_LENGTH | 258u << 16;
    if (k < 8) return bits | IS_LENGTH | (3 + k) << 16;
    const unsigned extra = (k >> 2) - 1;
    return bits | extra << 5 | IS_LENGTH | (3 + ((4 + (k & 3)) << extra)) << 16;
}

__device__ __forceinline__ unsigned distance_entry(int found) {
    const unsigned bits = found >> 16, symbol = found & 0xffff;
    if (symbol > 29) return NO_SYMBOL;
    if (symbol < 2) return bits | IS_DISTANCE | (1 + symbol) << 16;
    const unsigned extra = (symbol >> 1) - 1;
    return bits | extra << 5 | IS_DISTANCE | (1 + ((2 + (symbol & 1)) << extra)) << 16;
}

// Return the entry of a code that is not in a table.
__device__ __noinline__ unsigned longer(const Work &w, unsigned window, bool distance) {
    const unsigned bits = first_bits(window);
    const int found = distance ? symbol_of(w.distances, bits, DISTANCE_BITS + 1, LONGEST)
                               : symbol_of(w.literals, bits, LITERAL_BITS + 1, LONGEST);
    return found < 0 ? NO_SYMBOL : distance ? distance_entry(found) : literal_entry(found);
}

// Fill the tables of both codes.
__device__ void fill(Work &w, int lane) {
    for (int i = lane; i < 1 << LITERAL_BITS; i += 32) {
        const int found = symbol_of(w.literals, first_bits(i), w.literals.least, LITERAL_BITS);
        w.table[i] = found < 0 ? IS_RARE : literal_entry(found);
    }
    for (int i = lane; i < 1 << DISTANCE_BITS; i += 32) {
        const int found = symbol_of(w.distances, first_bits(i), w.distances.least, DISTANCE_BITS);
        w.table[(1 << LITERAL_BITS) + i] = found < 0 ? IS_RARE : distance_entry(found);
    }
    // Codes without an entry are the last ones; they are indexed by the bits of the longest code.
    const unsigned from = w.literals.limit[LITERAL_BITS], shift = LONGEST - w.literals.most;
    for (unsigned i = lane; i < SECOND && from + (i << shift) < 1u << LONGEST; i += 32)
        w.second[i] = literal_entry(symbol_of(w.literals, from + (i << shift), LITERAL_BITS + 1, LONGEST));
    if (lane == 0) w.second_from = from, w.second_shift = shift;
    __syncwarp();
    // Put two literals into one entry. The entry of the second literal has a smaller index, so it still has one
    // literal.
    for (int begin = (1 << LITERAL_BITS) - 32; begin >= 0; begin -= 32) {
        const unsigned i = begin + lane, one = w.table[i], bits = one & 31;
        const unsigned two = w.table[i >> bits], both = bits + (two & 31);
        const bool pair = (one >> 9 & 3) == 1 && (two >> 9 & 3) == 1 && both <= LITERAL_BITS;
        __syncwarp();
        if (pair) w.table[i] = both | 2 << 9 | (one >> 16 & 255) << 16 | (two >> 16 & 255) << 24;
        __syncwarp();
    }
}

__constant__ unsigned char ORDER[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};

// Read the code lengths of a dynamic block, whose header begins at bit `at` of `words` with the three bits that all
// blocks have. Return the bits of the header; 0 if it is invalid. All lanes do the same.
__device__ unsigned read_lengths(Work &w, unsigned at, int &literals, int &distances, int lane) {
    const unsigned begun = at, head = window_at(w, at);
    literals = (head >> 3 & 31) + 257, distances = (head >> 8 & 31) + 1;
    const int given = (head >> 13 & 15) + 4;
    if (literals > 286 || distances > 30) return 0;
    at += 17;
    w.lengths[lane] = 0;
    __syncwarp();
    if (lane < given) w.lengths[ORDER[lane]] = window_at(w, at + 3 * lane) & 7;
    __syncwarp();
    at += 3 * given;
    if (arrange(w.literals, w.lengths, 19, lane)) return 0;
    for (int i = lane; i < 128; i += 32) w.table[i] = symbol_of(w.literals, first_bits(i), 1, 7);
    __syncwarp();
    const int whole = literals + distances;
    unsigned before = 16;  // no length precedes
    for (int n = 0; n < whole;) {
        const unsigned window = window_at(w, at), found = w.table[window & 127];
        const unsigned bits = found >> 16, symbol = found & 31, more = window >> bits;
        at += bits;
        unsigned value = symbol, times = 1;
        if (symbol == 16) value = before, times = 3 + (more & 3), at += 2;
        if (symbol == 17) value = 0, times = 3 + (more & 7), at += 3;
        if (symbol == 18) value = 0, times = 11 + (more & 127), at += 7;
        if (value > LONGEST || times > static_cast<unsigned>(whole - n)) return 0;
        for (unsigned k = lane; k < times; k += 32) w.lengths[n + k] = value;
        n += times;
        before = value;
    }
    __syncwarp();
    return w.lengths[256] ? at - begun : 0;
}

// -- parts -------------------------------------------------------------------------------------------------------------

struct Part {
    unsigned at;             // position after the part, in bits
    unsigned made, matches;  // number of bytes, and of matches among them
    unsigned stop;           // 0, or the entry that ended it
};

// Read codes from bit `at` on until one ends at or after `limit`, or ends the block. WRITE: write literals to `out`,
// and put matches into the queue from `queued` on, with places relative to `out - base`.
template <bool WRITE>
__device__ __forceinline__ Part read_part(Work &w, unsigned at, unsigned limit, unsigned char *out, unsigned base,
                                          unsigned queued) {
    unsigned word = at >> 5, sums = 0, length = 0, stop = 0;
    unsigned low = w.words[word], high = w.words[word + 1];
    const unsigned *table = w.table;
    unsigned mask = (1u << LITERAL_BITS) - 1;
    while (at < limit || table != w.table) {
        const unsigned next = w.words[word + 2];  // needed only at the end of the turn, so nothing waits for it
        const unsigned window = __funnelshift_r(low, high, at);
        unsigned entry = table[window & mask];
        if (entry & IS_RARE) {
            if (!(entry & IS_STOP)) {
                const unsigned place = (first_bits(window) - w.second_from) >> w.second_shift;
                entry = table == w.table && place < SECOND ? w.second[place] : longer(w, window, table != w.table);
            }
            stop = entry & IS_STOP ? entry : 0;
        }
        const unsigned bits = entry & 31, extra = entry >> 5 & 15;
        const unsigned value = (entry >> 16) + (window >> bits & ((1u << extra) - 1));
        at += bits + extra;
        if (stop) break;
        const bool is_length = entry & IS_LENGTH;
        if (WRITE) {
            const unsigned made = sums & (MATCH - 1);
            if (entry & 0x600) out[made] = value;
            if (entry & 0x400) out[made + 1] = value >> 8;
            if (is_length) w.places[queued] = base + made, length = value << 16;
            if (entry & IS_DISTANCE) w.matches[queued] = length | (value - 1), ++queued;
        }
        // all bytes of a match, although its distance is read later
        sums += is_length ? value + MATCH : entry >> 9 & 3;
        table = is_length ? w.table + (1 << LITERAL_BITS) : w.table;
        mask = is_length ? (1u << DISTANCE_BITS) - 1 : (1u << LITERAL_BITS) - 1;
        if (at >> 5 != word) {
            ++word;
            low = high, high = next;
        }
    }
    return {at, sums & (MATCH - 1), sums / MATCH, stop};
}

// Copy one match per lane if ``mine``: `length` bytes to place `to`, from `back` bytes before it. Places are relative
// to `out` and increase from lane to lane; all bytes that do not belong to matches have been written.
__device__ __forceinline__ void copy_round(unsigned char *out, bool mine, int to, int length, int back, int lane) {
    const int needs = min(to, to - back + length);  // the match needs all bytes before this place
    unsigned left = __ballot_sync(ALL, mine);
    while (left) {
        const int first = __ffs(left) - 1;
        const int there = __shfl_sync(ALL, to, first), bytes = __shfl_sync(ALL, length, first);
        unsigned done = 1u << first;
        if (bytes > SHORT) {
            const int apart = __shfl_sync(ALL, back, first);
            unsigned char *begin = out + there;
            for (int k = lane; k < bytes; k += 32) begin[k] = begin[(k < apart ? k : k % apart) - apart];
        } else {
            const bool ready = (left >> lane & 1) && length <= SHORT && needs <= there;
            if (ready) {
                unsigned char *begin = out + to;
                const unsigned char *source = begin - back;
                int k = 0;
                if (back >= 4)
                    for (; k + 3 < length; k += 4) {
                        const unsigned char a = source[k], b = source[k + 1], c = source[k + 2], d = source[k + 3];
                        begin[k] = a, begin[k + 1] = b, begin[k + 2] = c, begin[k + 3] = d;
                    }
                for (; k < length; ++k) begin[k] = source[k];
            }
            done = __ballot_sync(ALL, ready);
        }
        left &= ~done;
        __syncwarp();
    }
}

// Copy `count` matches of the queue; places are relative to `out`, before which there are `made` bytes. Return false if
// a match begins before those.
__device__ bool copy_matches(const Work &w, unsigned count, unsigned char *out, int made, int lane) {
    for (unsigned from = 0; from < count; from += 32) {
        const bool mine = from + lane < count;
        const int to = mine ? w.places[from + lane] : 0;
        const int what = mine ? w.matches[from + lane] : 0, length = what >> 16, back = (what & 0x7fff) + 1;
        if (__any_sync(ALL, mine && back > made + to)) return false;
        copy_round(out, mine, to, length, back, lane);
    }
    return true;
}

// How far the stream has been read and its output written.
struct Progress {
    const unsigned *words;
    unsigned count, bits;  // size of the stream in words, and in bits
    unsigned at;           // position of the next bit
    unsigned char *out;
    int made, room;        // bytes written, and bytes that fit
    int work;              // limit of parts that may still be read
};

#define NOWHERE 0xffffffffu  // position after the end of the block
#define NOT_YET 0xfffffffeu

// Inflate a block of Huffman codes.
__device__ bool read_block(Work &w, Progress &p, int lane) {
    while (true) {
        stage(w, p.words, p.at >> 5, p.count, lane);
        const unsigned base = p.at & 31, limit = base + (lane + 1) * 32 * PART_WORDS;
        Part part = read_part<false>(w, limit - GUESS_BITS, limit, nullptr, 0, 0);
        unsigned end = part.stop ? limit : part.at, begin = NOT_YET;
        while (true) {
            const unsigned before = __shfl_up_sync(ALL, end, 1), from = lane ? before : base;
            const bool changed = from != begin;
            if (!__any_sync(ALL, changed)) break;
            if (--p.work < 0) return false;
            if (!changed) continue;
            begin = end = from;
            part = {from, 0, 0, 0};
            if (from != NOWHERE) {
                part = read_part<false>(w, from, limit, nullptr, 0, 0);
                end = part.stop ? NOWHERE : part.at;
            }
        }
        if (__any_sync(ALL, part.stop && !(part.stop & IS_END))) return false;
        unsigned made = part.made, matches = part.matches;
        for (int step = 1; step < 32; step *= 2) {
            const unsigned m = __shfl_up_sync(ALL, made, step), q = __shfl_up_sync(ALL, matches, step);
            if (lane >= step) made += m, matches += q;
        }
        // number of lanes whose matches fit the queue; they are the first ones, because the sums only increase
        const unsigned lanes = __popc(__ballot_sync(ALL, matches <= QUEUE));
        const unsigned whole = __shfl_sync(ALL, made, lanes - 1), queued = __shfl_sync(ALL, matches, lanes - 1);
        if (whole > static_cast<unsigned>(p.room - p.made)) return false;
        unsigned char *out = p.out + p.made;
        const bool mine = lane < lanes;
        if (mine && begin != NOWHERE)
            read_part<true>(w, begin, limit, out + (made - part.made), made - part.made, matches - part.matches);
        __syncwarp();
        if (!copy_matches(w, queued, out, p.made, lane)) return false;
        p.made += whole;
        const unsigned ended = __ballot_sync(ALL, mine && part.stop);
        p.at += __shfl_sync(ALL, part.at, ended ? __ffs(ended) - 1 : lanes - 1) - base;
        if (p.at > p.bits) return false;
        if (ended) return true;
    }
}

// Copy a stored block, which begins at the next bit.
__device__ bool copy_stored(Progress &p, int lane) {
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(p.words);
    const unsigned at = (p.at + 10) >> 3, end = p.bits >> 3;
    if (end < at + 4) return false;
    const unsigned size = bytes[at] | bytes[at + 1] << 8, other = bytes[at + 2] | bytes[at + 3] << 8;
    if ((size ^ other) != 0xffff || size > end - at - 4 || size > static_cast<unsigned>(p.room - p.made)) return false;
    for (unsigned k = lane; k < size; k += 32) p.out[p.made + k] = bytes[at + 4 + k];
    p.made += size;
    p.at = (at + 4 + size) * 8;
    __syncwarp();
    return true;
}

// grid (streams), 32 threads. `bad` [number of the stream] becomes 1 if the stream is invalid or unusual; otherwise
// `sums` becomes the checksum at its end.
extern "C" __global__ void __launch_bounds__(32)
    inflate_streams(const unsigned char *packed, const Stream *streams, unsigned char *rows, unsigned *sums, int *bad) {
    __shared__ Work w;
    const Stream s = streams[blockIdx.x];
    const int lane = threadIdx.x;
    const unsigned char *bytes = packed + s.source;
    const unsigned bits = static_cast<unsigned>(s.size) * 8;
    Progress p = {reinterpret_cast<const unsigned *>(bytes), (bits + 31) / 32, bits, 16, rows + s.rows, 0, s.room,
                  1024 + s.size / 64};
    bool sound = s.size >= 6, last = false;
    if (sound) sound = (bytes[0] & 0x8f) == 8 && !(bytes[1] & 0x20) && (bytes[0] << 8 | bytes[1]) % 31 == 0;
    while (sound && !last) {
        stage(w, p.words, p.at >> 5, p.count, lane);
        const unsigned head = window_at(w, p.at & 31), kind = head >> 1 & 3;
        last = head & 1;
        p.work -= 4;
        if (kind == 3 || p.work < 0 || p.at + 3 > p.bits) {
            sound = false;
        } else if (kind == 0) {
            sound = copy_stored(p, lane);
        } else {
            int literals = 288, distances = 32;
            if (kind == 1) {
                for (int k = lane; k < 320; k += 32)
                    w.lengths[k] = k < 144 ? 8 : k < 256 ? 9 : k < 280 ? 7 : k < 288 ? 8 : 5;
                __syncwarp();
                p.at += 3;
            } else {
                const unsigned taken = read_lengths(w, p.at & 31, literals, distances, lane);
                p.at += taken;
                sound = taken && p.at <= p.bits;
            }
            if (sound) sound = arrange(w.literals, w.lengths, literals, lane) == 0;
            if (sound) {
                const int left = arrange(w.distances, w.lengths + literals, distances, lane);
                sound = left == 0 || left == 1 << LONGEST || (left == 1 << (LONGEST - 1) && w.distances.least == 1);
            }
            if (sound) {
                fill(w, lane);
                sound = read_block(w, p, lane);
            }
        }
    }
    const unsigned end = (p.at + 7) >> 3;
    sound = sound && p.made == p.room && end + 4 == bits >> 3;
    if (lane) return;
    bad[s.number] = !sound;
    if (sound)
        sums[s.number] = static_cast<unsigned>(bytes[end]) << 24 | bytes[end + 1] << 16 | bytes[end + 2] << 8 | bytes[end + 3];
}

// -- files -------------------------------------------------------------------------------------------------------------

struct Piece {
    long long source, destination, size;
};

// grid (pieces), any number of threads: copy bytes of files to the places where streams are assembled.
extern "C" __global__ void gather_pieces(const unsigned char *files, const Piece *pieces, unsigned char *packed) {
    const Piece p = pieces[blockIdx.x];
    for (long long k = threadIdx.x; k < p.size; k += blockDim.x) packed[p.destination + k] = files[p.source + k];
}

// -- checksums ---------------------------------------------------------------------------------------------------------

#define SUM_THREADS 256
#define PRIME 65521u

// grid (streams), SUM_THREADS. `bad` becomes 2 if the Adler-32 (RFC 1950, 8.2) of the rows differs from `sums`.
extern "C" __global__ void __launch_bounds__(SUM_THREADS)
    check_sums(const unsigned char *rows, const Stream *streams, const unsigned *sums, int *bad) {
    __shared__ unsigned long long ones[SUM_THREADS], twos[SUM_THREADS];
    const Stream s = streams[blockIdx.x];
    const int me = threadIdx.x;
    unsigned long long one = 0, two = 0;
    if (!bad[s.number]) {
        const uint4 *from = reinterpret_cast<const uint4 *>(rows + s.rows);
        for (int k = me; k < s.room / 16; k += SUM_THREADS) {
            const uint4 four = from[k];
            const unsigned words[4] = {four.x, four.y, four.z, four.w};
            unsigned sum = 0, later = 0;  // sum of the bytes; sum of each byte times its position
            for (int j = 0; j < 16; ++j) {
                const unsigned byte = words[j / 4] >> (8 * (j % 4)) & 255;
                sum += byte, later += j * byte;
            }
            one += sum;
            two += static_cast<unsigned long long>(s.room - 16 * k) * sum - later;
        }
        const int rest = (s.room & ~15) + me;
        if (rest < s.room) {
            const unsigned byte = rows[s.rows + rest];
            one += byte;
            two += static_cast<unsigned long long>(s.room - rest) * byte;
        }
    }
    ones[me] = one % PRIME, twos[me] = two % PRIME;
    __syncthreads();
    for (int half = SUM_THREADS / 2; half; half /= 2) {
        if (me < half) ones[me] += ones[me + half], twos[me] += twos[me + half];
        __syncthreads();
    }
    if (me || bad[s.number]) return;
    const unsigned a = (1 + ones[0]) % PRIME, b = (s.room + twos[0]) % PRIME;
    if ((b << 16 | a) != sums[s.number]) bad[s.number] = 2;
}
