// LZW and PackBits as TIFF has them (TIFF 6.0, sections 13 and 9): a warp unpacks a strip or tile.
//
// Each code but the first of a round, which begins with an empty table, defines the next one: what was written for the
// code before, and one byte more. So the bits of a code follow from its place in the round alone, and 32 codes are read
// at once; a code's string is a piece of what is written already, whose place and length the places of codes tell. Lanes
// then write the bytes of those 32 strings, one each, side by side: each looks for the code that its byte is of, and
// for where that byte stood before the step began, so that none of them waits for another one's.
//
// A strip with anything unusual about it is refused, and the CPU decides.

#include "streams.cuh"

#define CLEAR 256u
#define DEFINED 258u  // the code that the second one of a round defines
#define MOST 3838     // codes of a round: the last one that may be read defines code 4,094

// The bits of a round before its code `k`, and those of the code: 9 up to code 510, then one more for 511, 1,023, 2,047.
__device__ __forceinline__ unsigned bits_before(int k) {
    return 9 * k + max(0, k - 254) + max(0, k - 766) + max(0, k - 1790);
}
__device__ __forceinline__ unsigned bits_of(int k) { return 9 + (k >= 254) + (k >= 766) + (k >= 1790); }

// A code of a stream: its bits, whether the stream holds them, and the bit after them.
struct Code {
    unsigned bits, after;
    bool there;
};

// Code `k` of the round that begins at bit `begin` of a stream of so many bits, which is `words`.
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

// The string of a step's code, one a lane. One of an earlier step, and a byte more, stands at `from`. One that is a
// byte longer than that of the step's code `parent` begins with that of code `root`, which is no such one, and `depth`
// is how many bytes longer it is.
struct String {
    unsigned begin, length;  // where its bytes go, from the step's first one on; 0 bytes: it is not written
    unsigned from;           // or the byte itself, and BYTE
    unsigned ancestry;       // length, depth << 12, parent << 17, root << 22
};
constexpr unsigned BYTE = 1u << 31;

// Write the strings of a step to `out` from `made` on, `total` bytes.
__device__ __forceinline__ void write_strings(unsigned char *out, unsigned made, unsigned total, const String &mine, int lane) {
    constexpr int AT_ONCE = 2;  // bytes of a lane that are on their way
    const unsigned head = __shfl_sync(ALL, mine.from, 0);
    unsigned before = 0;        // strings that begin before byte `first`
    for (unsigned first = 0; first < total; first += 32 * AT_ONCE) {
        unsigned bytes[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            const unsigned low = first + 32 * n, at = low + lane;
            const unsigned begins = any_of_warp(mine.length && mine.begin - low < 32 ? 1u << (mine.begin - low) : 0);
            int code = before + __popc(begins & ~0u >> (31 - lane)) - 1;
            before += __popc(begins);
            unsigned within = at - __shfl_sync(ALL, mine.begin, code), of = __shfl_sync(ALL, mine.ancestry, code);
            // bytes that the strings of the step's codes do not begin with: the first one of a string, in the end
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
            if (!(from & BYTE) && from + within == made) from = head, within = 0;  // the first byte of this step
            bytes[n] = at >= total || from & BYTE ? from : out[from + within];
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n)
            if (const unsigned at = first + 32 * n + lane; at < total) out[made + at] = bytes[n];
    }
}

// A stream, by a warp. `places`: where what the codes of the round became begins.
template <typename Place>
__device__ __forceinline__ void unpack(const unsigned char *packed, const Stream &s, unsigned char *rows, int *bad,
                                       Place *places) {
    const int lane = threadIdx.x;
    const unsigned *words = reinterpret_cast<const unsigned *>(packed + s.source);
    const unsigned bits = static_cast<unsigned>(s.size) * 8;
    unsigned char *out = rows + s.rows;
    int made = 0, from = 0;  // bytes written; codes of the round that are done
    int work = 1024 + s.size / 16;  // steps: one of 32 codes takes 36 bytes or more, so this is for countless rounds
    unsigned begin = 9;             // the round's first bit
    bool sound = s.size >= 2 && packed[s.source] == CLEAR >> 1 && !(packed[s.source + 1] >> 7), done = false;
    Code next = code_at(words, bits, begin, lane);
    while (sound && !done) {
        const int k = from + lane;
        const Code mine = next;
        next = code_at(words, bits, begin, k + 32);  // on its way while this step is at work
        const unsigned code = mine.bits;
        const int as = static_cast<int>(code - DEFINED);  // its string is what was written for that code, and a byte
        const bool again = mine.there && code >= DEFINED && as < k, sensible = again || (mine.there && code < 256);
        const unsigned stops = __ballot_sync(ALL, !sensible);
        const int codes = stops ? __ffs(stops) - 1 : 32;
        const bool here = again && as >= from && lane < codes;  // by a code of this step
        unsigned length = 1;  // of its string, or what it is longer than that of code `root`
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
        const int used = last ? __ffs(last) : codes;  // what comes after the last byte is not looked at
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
        // the code that stopped the step empties the table, or is out of order
        const bool clear = mine.there && code == CLEAR && k > 0;
        sound = __shfl_sync(ALL, clear, codes);
        begin = __shfl_sync(ALL, mine.after, codes);
        from = 0;
        next = code_at(words, bits, begin, lane);
    }
    if (lane == 0) bad[s.number] = !sound;
}

// grid (streams), 32 threads, for streams that hold 65,536 bytes at most: shared memory is what limits how many run at
// once. `bad` of a stream's number becomes 1 where it does not hold exactly what it should.
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

// The same for PackBits: runs, and bytes as they are.
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
