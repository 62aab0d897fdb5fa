// Compressed streams, each of which a warp unpacks: deflate (png_inflate.cu), LZW and PackBits (lzw.cu).

#define ALL 0xffffffffu

// Fields as in ops/codecs/gpu_streams/streams.py.
struct Stream {
    long long source;  // its first byte, a multiple of 16; it may be read up to the next multiple after its end
    long long rows;    // first byte of its unpacked data, a multiple of 16
    int size, room;    // bytes of the stream, and of its unpacked data
    int number, unused;  // its index in `bad` and `sums`
};
