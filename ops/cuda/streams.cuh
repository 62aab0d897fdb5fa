// Packed streams, which warps unpack: deflate (png_inflate.cu), LZW and PackBits (lzw.cu).

#define ALL 0xffffffffu
#ifndef SHORT
#define SHORT 16  // bytes of a match that one lane copies
#endif

// Row names as in ops/codecs/rows/streams.py.
struct Stream {
    long long source;  // its first byte, a multiple of 16; it may be read up to the next multiple after its end
    long long rows;    // first byte of what it holds, a multiple of 16
    int size, room;    // bytes of the stream, and of what it should hold
    int number, unused;  // its place in marks and sums
};

// Copy a match of each lane where it is `mine`: `length` bytes to place `to`, from `back` bytes before. Places are from
// `out` on and grow from lane to lane; all bytes that are no match's are there.
__device__ __forceinline__ void copy_round(unsigned char *out, bool mine, int to, int length, int back, int lane) {
    const int needs = min(to, to - back + length);  // bytes before this place
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
