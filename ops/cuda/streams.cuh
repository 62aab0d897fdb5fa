// Packed streams, which warps unpack: deflate (png_inflate.cu), LZW and PackBits (lzw.cu).

#define ALL 0xffffffffu

// Row names as in ops/codecs/rows/streams.py.
struct Stream {
    long long source;  // its first byte, a multiple of 16; it may be read up to the next multiple after its end
    long long rows;    // first byte of what it holds, a multiple of 16
    int size, room;    // bytes of the stream, and of what it should hold
    int number, unused;  // its place in marks and sums
};
