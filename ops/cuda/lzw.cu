// Unpack LZW and PackBits of TIFF (TIFF 6.0, sections 13 and 9): one warp per strip or tile.
//
// A round begins with an empty table. Each code of the round but the first defines the next table entry: the string of
// the previous code and one byte more. So the number of bits of a code depends only on its index in the round, and 32
// codes are read at once. The string of a code is a part of the output that exists already; the positions of the codes
// give its place and length. Then the lanes write the bytes of those 32 strings, one byte per lane at a time: each lane
// finds the code to which its byte belongs, and the place of that byte before this step, so that no lane waits for
// another one's byte.
//
// A strip with anything unusual is rejected here, and the CPU decodes it.

#include "streams.cuh"

#define CLEAR 256u
#define DEFINED 258u  // the code that the second code of a round defines
#define MOST 3838     // maximum codes of a round: the last one that may be read defines code 4,094

// Return the bits of a round before its code `k`, and (below) those of the code: 9 up to code 510, one more from 511,
// 1,023 and 2,047 on.
__device__ __forceinline__ unsigned bits_before(int k) {
    return 9 * k + max(0, k - 254) + max(0, k - 766) + max(0, k - 1790);
}
__device__ __forceinline__ unsigned bits_of(int k) { return 9 + (k >= 254) + (k >= 766) + (k >= 1790); }

// A code of a stream: its bits, the bit after it, and whether the stream contains it.
struct Code {
    unsigned bits, after;
    bool there;
};

// Return code `k` of the round that begins at bit `begin` of the stream `words` of ``bits`` bits.
__device__ __forceinline__ Code code_at(const unsigned *words, unsigned bits, unsigned begin, int k) {
    const unsigned width = bits_of(k), at = begin + bits_before(k), word = at >> 5;
    const bool there = k < MOST && at + width <= bits;
    const unsigned high = there ? __byte_perm(words[word], 0, 0x0123) : 0;
    const unsigned low = there && word + 1 < (bits + 31) / 32 ? __byte_perm(words[word + 1], 0, 0x0123) : 0;
    return {__funnelshift_l(low, high, at) >> (32 - width), at + width, there};
}

__device__ __forceinline__ unsigned any_of_warp(unsigned bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    for (int apart = 1; apart < 32; apart *= 2) bits |= __shfl_xor_sync(ALL, bits, apart);
    return bits;
#else
    return __reduce_or_sync(ALL, bits);
#endif
}

// The string of one of a step's 32 codes, one per lane. If the code was defined in an earlier step, its string begins
// at `from` in the output. If the code of this step with index `parent` defined it, its string is that one's and one
// byte more; following parents ends at code `root`, whose string is already known, and `depth` counts the parents.
struct String {
    unsigned begin, length;  // offset of its bytes in the step's output; length 0: it is not written
    unsigned from;           // place of its bytes in the output, or the byte itself | BYTE
    unsigned ancestry;       // length, depth << 12, parent << 17, root << 22
};
constexpr unsigned BYTE = 1u << 31;

// Write the strings of a step, `total` bytes, to `out` + `made`.
__device__ __forceinline__ void write_strings(unsigned char *out, unsigned made, unsigned total, const String &mine, int lane) {
    constexpr int AT_ONCE = 2;  // bytes that a lane has in flight
    const unsigned head = __shfl_sync(ALL, mine.from, 0);
    unsigned before = 0;        // number of strings that begin before byte `first`
    for (unsigned first = 0; first < total; first += 32 * AT_ONCE) {
        unsigned bytes[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            const unsigned low = first + 32 * n, at = low + lane;
            const unsigned begins = any_of_warp(mine.length && mine.begin - low < 32 ? 1u << (mine.begin - low) : 0);
            int code = before + __popc(begins & ~0u >> (31 - lane)) - 1;
            before += __popc(begins);
            unsigned within = at - __shfl_sync(ALL, mine.begin, code), of = __shfl_sync(ALL, mine.ancestry, code);
            // Whether this lane's byte is one that its code appends to the string of an earlier code of the step; it is
            // then the first byte of a string.
            const auto last = [&] { return at < total && within >= (of & 4095) - (of >> 12 & 31); };
            while (__any_sync(ALL, last())) {
                if (last()) {
                    const bool ends = within == (of & 4095) - 1;
                    code = (of >> 17 & 31) + ends;
                    if (ends) within = 0;
                }
                of = __shfl_sync(ALL, mine.ancestry, code);
            }
            unsigned from = __shfl_sync(ALL, mine.from, of >> 22);
            if (!(from & BYTE) && from + within == made) from = head, within = 0;  // this is the first byte of the step
            bytes[n] = at >= total || from & BYTE ? from : out[from + within];
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n)
            if (const unsigned at = first + 32 * n + lane; at < total) out[made + at] = bytes[n];
    }
}

// Unpack a stream with one warp. `places`: begin of the output of each code of the round.
template <typename Place>
__device__ __forceinline__ void unpack(const unsigned char *packed, const Stream &s, unsigned char *rows, int *bad,
                                       Place *places) {
    const int lane = threadIdx.x;
    const unsigned *words = reinterpret_cast<const unsigned *>(packed + s.source);
    const unsigned bits = static_cast<unsigned>(s.size) * 8;
    unsigned char *out = rows + s.rows;
    int made = 0, from = 0;  // bytes written; finished codes of the round
    // limit of steps: one of 32 codes takes at least 36 bytes, so the rest allows for short rounds
    int work = 1024 + s.size / 16;
    unsigned begin = 9;             // first bit of the round
    bool sound = s.size >= 2 && packed[s.source] == CLEAR >> 1 && !(packed[s.source + 1] >> 7), done = false;
    Code next = code_at(words, bits, begin, lane);
    while (sound && !done) {
        const int k = from + lane;
        const Code mine = next;
        next = code_at(words, bits, begin, k + 32);  // loaded while this step is computed
        const unsigned code = mine.bits;
        const int as = static_cast<int>(code - DEFINED);  // its string is that of the code with this index, and a byte
        const bool again = mine.there && code >= DEFINED && as < k, sensible = again || (mine.there && code < 256);
        const unsigned stops = __ballot_sync(ALL, !sensible);
        const int codes = stops ? __ffs(stops) - 1 : 32;
        const bool here = again && as >= from && lane < codes;  // whether a code of this step defined it
        unsigned length = 1;  // length of its string, or by how much it is longer than that of code `root`
        if (again && as < from) length += (as + 1 < from ? places[as + 1] : made) - places[as];
        int up = here ? as - from : -1, root = lane;
        unsigned depth = here;
        while (__any_sync(ALL, up >= 0)) {
            const int whose = up >= 0 ? up : lane;
            const unsigned more = __shfl_sync(ALL, length, whose), deeper = __shfl_sync(ALL, depth, whose);
            const int above = __shfl_sync(ALL, up, whose), its = __shfl_sync(ALL, root, whose);
            if (up >= 0) length += more, depth += deeper, root = its, up = above;
        }
        if (lane >= codes) length = 0;
        unsigned sum = length;
        for (int step = 1; step < 32; step *= 2) {
            const unsigned before = __shfl_up_sync(ALL, sum, step);
            if (lane >= step) sum += before;
        }
        const unsigned left = s.room - made;
        const unsigned last = __ballot_sync(ALL, lane < codes && sum == left);
        const int used = last ? __ffs(last) : codes;  // codes after the last byte are ignored
        sound = --work >= 0 && (last || !__any_sync(ALL, sum > left));
        if (!sound) break;
        String string = {sum - length, lane < used ? length : 0, code | BYTE,
                         length | depth << 12 | (as - from & 31) << 17 | root << 22};
        if (again && as < from) string.from = places[as];
        const unsigned total = used ? __shfl_sync(ALL, sum, used - 1) : 0;
        if (lane < used) places[k] = made + string.begin;
        write_strings(out, made, total, string, lane);
        __syncwarp();
        made += total;
        done = last;
        from += 32;
        if (done || codes == 32) continue;
        // The code that stopped the step clears the table, or is invalid.
        const bool clear = mine.there && code == CLEAR && k > 0;
        sound = __shfl_sync(ALL, clear, codes);
        begin = __shfl_sync(ALL, mine.after, codes);
        from = 0;
        next = code_at(words, bits, begin, lane);
    }
    if (lane == 0) bad[s.number] = !sound;
}

// grid (streams), 32 threads, for streams of at most 65,536 bytes: shared memory limits how many run concurrently.
// `bad` [number of the stream] becomes 1 if the stream does not contain exactly the bytes that it should.
extern "C" __global__ void __launch_bounds__(32)
    unpack_lzw(const unsigned char *packed, const Stream *streams, unsigned char *rows, int *bad) {
    __shared__ unsigned short places[MOST];
    unpack(packed, streams[blockIdx.x], rows, bad, places);
}

// The same for streams of any size.
extern "C" __global__ void __launch_bounds__(32)
    unpack_large_lzw(const unsigned char *packed, const Stream *streams, unsigned char *rows, int *bad) {
    __shared__ unsigned places[MOST];
    unpack(packed, streams[blockIdx.x], rows, bad, places);
}

// The same for PackBits: runs, and literal bytes.
extern "C" __global__ void __launch_bounds__(32)
    unpack_bits(const unsigned char *packed, const Stream *streams, unsigned char *rows, int *bad) {
    const Stream s = streams[blockIdx.x];
    const int lane = threadIdx.x;
    const unsigned char *bytes = packed + s.source;
    unsigned char *out = rows + s.rows;
    int at = 0, made = 0;
    while (made < s.room && at < s.size) {
        const int head = bytes[at++];
        if (head == 128) continue;
        const bool run = head > 128;
        const int count = run ? 257 - head : head + 1, taken = run ? 1 : count;
        if (taken > s.size - at || count > s.room - made) break;
        for (int k = lane; k < count; k += 32) out[made + k] = bytes[at + (run ? 0 : k)];
        at += taken;
        made += count;
    }
    if (lane == 0) bad[s.number] = made != s.room;
}
