// Copy records from anywhere in host memory that is registered with CUDA to adjacent places in device memory.
//
// Records begin at any byte of the source and at multiples of 16 of the output. Reads cross the bus in aligned words of
// 16 bytes, and in whole lines of 128 bytes if a record contains them; an output word is combined from two source
// words. Only words that contain bytes of records are read, so nothing beyond the pages of the records is.

struct Record {
    unsigned long long source;    // address of the first byte
    long long destination, size;  // bytes; destinations grow by sizes rounded up to 16
};

constexpr int GROUPS = 4;  // words that a thread requests before it waits: pending reads hide the latency of the bus
constexpr int LINE = 8;    // words per line

struct Halves {
    unsigned long long low, high;
};

__device__ __forceinline__ Halves halves(uint4 v) {
    return {static_cast<unsigned long long>(v.y) << 32 | v.x, static_cast<unsigned long long>(v.w) << 32 | v.z};
}

// Return the 16 bytes that begin `bytes` after the start of `first`.
__device__ __forceinline__ Halves behind(Halves first, Halves second, int bytes) {
    unsigned long long a = first.low, b = first.high, c = second.low;
    if (bytes >= 8) a = first.high, b = second.low, c = second.high;
    int bits = bytes % 8 * 8;
    if (bits == 0) return {a, b};
    return {a >> bits | b << (64 - bits), b >> bits | c << (64 - bits)};
}

// Return the first `count` of eight bytes, followed by zeros.
__device__ __forceinline__ unsigned long long first_bytes(unsigned long long v, long long count) {
    if (count <= 0) return 0;
    return count >= 8 ? v : v & ((1ULL << 8 * count) - 1);
}

__device__ __forceinline__ uint4 from_next_lane(uint4 v, int lane) {
    int next = (lane + 1) % 32;
    return make_uint4(__shfl_sync(~0u, v.x, next), __shfl_sync(~0u, v.y, next), __shfl_sync(~0u, v.z, next),
                      __shfl_sync(~0u, v.w, next));
}

// Copy words [first, last) of a record, with one warp.
__device__ void bring(const Record &r, long long first, long long last, unsigned char *output, int lane) {
    int shift = static_cast<int>(r.source % 16);
    const uint4 *source = reinterpret_cast<const uint4 *>(r.source - shift);
    uint4 *out = reinterpret_cast<uint4 *>(output + r.destination);
    long long words = (shift + r.size + 15) / 16;         // source words that contain bytes of the record
    long long stop = min(words, last + (shift ? 1 : 0));  // end of the source words to read
    long long lead = static_cast<long long>((r.source / 16 + first) % LINE);
    for (long long start = first - lead; start < last; start += 32 * GROUPS) {
        uint4 word[GROUPS + 1];  // of the last one, only the first lane's is used
#pragma unroll
        for (int g = 0; g <= GROUPS; g++) {
            long long j = start + 32 * g + lane;
            bool wanted = j >= first && j < stop && (g < GROUPS || lane == 0);
            word[g] = wanted ? source[j] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            long long j = start + 32 * g + lane;
            uint4 next = from_next_lane(lane == 0 ? word[g + 1] : word[g], lane);
            if (j < first || j >= last) continue;
            Halves v = behind(halves(word[g]), halves(next), shift);
            long long left = r.size - 16 * j;
            v.low = first_bytes(v.low, left), v.high = first_bytes(v.high, left - 8);
            out[j] = make_uint4(static_cast<unsigned>(v.low), static_cast<unsigned>(v.low >> 32),
                                static_cast<unsigned>(v.high), static_cast<unsigned>(v.high >> 32));
        }
    }
}

// Copy `count` records, `total` bytes of output. Each warp writes an equal part of the output: so a few warps, which
// leave room for other kernels, are all busy until the end.
extern "C" __global__ void gather(const Record *records, int count, long long total, unsigned char *output) {
    int lane = threadIdx.x % 32, warps_in_block = blockDim.x / 32;
    long long warps = static_cast<long long>(gridDim.x) * warps_in_block;
    long long warp = static_cast<long long>(blockIdx.x) * warps_in_block + threadIdx.x / 32;
    long long share = (total / 16 + warps - 1) / warps * 16;
    long long at = warp * share, end = min(at + share, total);
    if (at >= end) return;
    int low = 0, high = count;  // the last record that begins at `at` or before
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (records[middle].destination <= at) low = middle;
        else high = middle;
    }
    for (int i = low; i < count; i++) {
        Record r = records[i];
        if (r.destination >= end) break;
        long long room = (r.size + 15) / 16 * 16;
        long long first = max(at - r.destination, 0LL), last = min(end - r.destination, room);
        if (first < last) bring(r, first / 16, last / 16, output, lane);
    }
}
