// Copy samples that the CPU decoded to their places in the batch, in one launch per batch; blockIdx.y is the sample.

// Copy ranges of bytes: (source, destination, size) for each.
struct Range {
    long long source, destination, size;
};

extern "C" __global__ void scatter(const unsigned char *sources, const Range *ranges, unsigned char *output) {
    Range r = ranges[blockIdx.y];
    const unsigned char *from = sources + r.source;
    unsigned char *to = output + r.destination;
    long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    bool words = ((reinterpret_cast<unsigned long long>(from) | reinterpret_cast<unsigned long long>(to)) & 3) == 0;
    long long done = 0;
    if (words) {
        done = r.size & ~3LL;
        const unsigned *from4 = reinterpret_cast<const unsigned *>(from);
        unsigned *to4 = reinterpret_cast<unsigned *>(to);
        for (long long i = first; i < r.size / 4; i += step) to4[i] = from4[i];
    }
    for (long long i = done + first; i < r.size; i += step) to[i] = from[i];
}
