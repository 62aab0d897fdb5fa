// LZW and PackBits as TIFF has them (TIFF 6.0, sections 13 and 9): a warp unpacks a strip or tile.
//
// Each code but the first of a round, which begins with an empty table, defines the next one: what was written for the
// code before, and one byte more. So the bits of a code follow from its place in the round alone, and 32 codes are read
// at once; a code's string is a piece of what is written already, whose place and length the places of codes tell.
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

// A stream, by a warp. `places`: where what the codes of the round became begins.
template <typename Place>
__device__ __forceinline__ void unpack(const unsigned char *packed, const Stream &s, unsigned char *rows, int *bad,
                                       Place *places) {
    const int lane = threadIdx.x;
    const unsigned *words = reinterpret_cast<const unsigned *>(packed + s.source);
    const unsigned bits = static_cast<unsigned>(s.size) * 8, count = (bits + 31) / 32;
    unsigned char *out = rows + s.rows;
    int made = 0, from = 0;  // bytes written; codes of the round that are done
    int work = 1024 + s.size / 16;  // steps: one of 32 codes takes 36 bytes or more, so this is for countless rounds
    unsigned begin = 9;             // the round's first bit
    bool sound = s.size >= 2 && packed[s.source] == CLEAR >> 1 && !(packed[s.source + 1] >> 7), done = false;
    while (sound && !done) {
        const int k = from + lane;
        const unsigned width = bits_of(k), at = begin + bits_before(k), word = at >> 5;
        const bool there = k < MOST && at + width <= bits;
        const unsigned high = there ? __byte_perm(words[word], 0, 0x0123) : 0;
        const unsigned low = there && word + 1 < count ? __byte_perm(words[word + 1], 0, 0x0123) : 0;
        const unsigned code = __funnelshift_l(low, high, at) >> (32 - width);
        const int as = static_cast<int>(code - DEFINED);  // its string is what was written for that code, and a byte
        const bool again = there && code >= DEFINED && as < k, sensible = again || (there && code < 256);
        const unsigned stops = __ballot_sync(ALL, !sensible);
        const int codes = stops ? __ffs(stops) - 1 : 32;
        const bool here = again && as >= from;  // by a code of this step
        int up = here && lane < codes ? as - from : -1;
        unsigned length = 1;  // of its string, or what it is longer than that of code `up`
        if (again && !here) length += (as + 1 < from ? places[as + 1] : made) - places[as];
        while (__any_sync(ALL, up >= 0)) {
            const int whose = up >= 0 ? up : lane;
            const unsigned more = __shfl_sync(ALL, length, whose);
            const int next = __shfl_sync(ALL, up, whose);
            if (up >= 0) length += more, up = next;
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
        const unsigned to = made + sum - length;
        const unsigned same = __shfl_sync(ALL, to, as - from & 31), earlier = again && !here ? places[as] : 0;
        const bool mine = lane < used;
        if (mine) places[k] = to;
        if (mine && !again) out[to] = code;
        __syncwarp();
        copy_round(out, mine && again, to, length, to - (here ? same : earlier), lane);
        made += __shfl_sync(ALL, sum, used ? used - 1 : 0) * (used > 0);
        done = last;
        from += 32;
        if (done || codes == 32) continue;
        // the code that stopped the step empties the table, or is out of order
        const bool clear = there && code == CLEAR && k > 0;
        sound = __shfl_sync(ALL, clear, codes);
        begin = __shfl_sync(ALL, at + width, codes);
        from = 0;
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
