// Inflate LZ4 blocks (ops/codecs/inflate.py), one warp per block. All lanes read the lengths, and share the copying.

__device__ long long lz4_length(const unsigned char* data, long long& at, long long end, int nibble) {
    if (nibble < 15) return nibble;
    long long length = 15;
    while (at < end) {
        const int byte = data[at++];
        length += byte;
        if (byte != 255) return length;
    }
    return -1;
}

// grid (blocks of the batch), 32 threads. `good` [C] becomes 1 for each block that contains exactly the bytes that it
// should. A block is the bytes `starts`, `sizes` of `data`, and is written to `out_starts`, `out_sizes`.
extern "C" __global__ void inflate(const unsigned char* data, const long long* starts, const long long* sizes, unsigned char* out,
                        const long long* out_starts, const long long* out_sizes, int* good) {
    const int c = blockIdx.x, lane = threadIdx.x;
    long long at = starts[c];
    const long long end = at + sizes[c], start = out_starts[c], stop = start + out_sizes[c];
    long long to = start;
    bool whole = false;
    while (at < end) {
        const int token = data[at++];
        const long long literals = lz4_length(data, at, end, token >> 4);
        if (literals < 0 || literals > end - at || literals > stop - to) break;
        for (long long k = lane; k < literals; k += 32) out[to + k] = data[at + k];
        at += literals;
        to += literals;
        if (at == end) {
            whole = to == stop;
            break;
        }
        if (end - at < 2) break;
        const long long back = data[at] | data[at + 1] << 8;
        at += 2;
        const long long match = lz4_length(data, at, end, token & 15);
        if (match < 0 || back == 0 || back > to - start || match + 4 > stop - to) break;
        __syncwarp();
        // the copy may overlap itself: then it repeats its first `back` bytes, which exist already
        for (long long k = lane; k < match + 4; k += 32) out[to + k] = out[to - back + (k < back ? k : k % back)];
        to += match + 4;
        __syncwarp();
    }
    if (lane == 0) good[c] = whole;
}
