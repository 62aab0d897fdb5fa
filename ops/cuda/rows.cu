// Copies whose lines are runs of bytes on both sides (ops/copies/strided.py): windows, canvases, parts of joined samples.
// A group of lanes writes one line, or a piece of a long one, in aligned words of 16 bytes; what a line takes to be
// found is worked out once for all of it.

enum Column { SHAPE, STRIDE, ANCHOR, EXTENT, OUT_STRIDE, COLUMNS };
constexpr int PIECE = 16384;  // bytes of a line that a group of lanes writes (ops/copies/strided.py has the same number)
constexpr int WORDS = 4;      // of 16 bytes that a lane has under way

typedef unsigned char byte;

__device__ __forceinline__ int place(const void* at, int of) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(at) & (of - 1));
}

// The 16 bytes that begin at `from`, out of aligned words. Those that hold none of them are not read.
__device__ __forceinline__ uint4 bytes_at(const byte* from) {
    const unsigned shift = place(from, 4);
    const unsigned* words = reinterpret_cast<const unsigned*>(from - shift);
    const unsigned a = words[0], b = words[1], c = words[2], d = words[3], e = shift ? words[4] : 0;
    return make_uint4(__funnelshift_r(a, b, 8 * shift), __funnelshift_r(b, c, 8 * shift),
                      __funnelshift_r(c, d, 8 * shift), __funnelshift_r(d, e, 8 * shift));
}

// The ends of a run, outside of the aligned words of the output: at most 15 bytes each, one a lane.
struct Ends {
    int head, tail, words;
    __device__ __forceinline__ Ends(const byte* to, int n) {
        head = min(static_cast<int>(-reinterpret_cast<unsigned long long>(to) & 15), n);
        words = (n - head) / 16;
        tail = n - head - 16 * words;
    }
};

__device__ __forceinline__ void copied(const byte* __restrict__ from, byte* __restrict__ to, int n, int lane, int lanes) {
    const Ends ends(to, n);
    byte first = 0, last = 0;
    if (lane < ends.head) first = from[lane];
    if (lane < ends.tail) last = from[n - ends.tail + lane];
    const byte* inner = from + ends.head;
    uint4* words = reinterpret_cast<uint4*>(to + ends.head);
    if (place(inner, 16) == 0) {
        const uint4* given = reinterpret_cast<const uint4*>(inner);
        for (int w = lane; w < ends.words; w += WORDS * lanes) {
            uint4 read[WORDS];
            #pragma unroll
            for (int k = 0; k < WORDS; ++k)
                if (w + k * lanes < ends.words) read[k] = given[w + k * lanes];
            #pragma unroll
            for (int k = 0; k < WORDS; ++k)
                if (w + k * lanes < ends.words) words[w + k * lanes] = read[k];
        }
    } else {
        for (int w = lane; w < ends.words; w += WORDS * lanes) {
            uint4 read[WORDS];
            #pragma unroll
            for (int k = 0; k < WORDS; ++k)
                if (w + k * lanes < ends.words) read[k] = bytes_at(inner + 16 * (w + k * lanes));
            #pragma unroll
            for (int k = 0; k < WORDS; ++k)
                if (w + k * lanes < ends.words) words[w + k * lanes] = read[k];
        }
    }
    if (lane < ends.head) to[lane] = first;
    if (lane < ends.tail) to[n - ends.tail + lane] = last;
}

// `fill` holds `period` bytes, and again from the first on, 16 bytes more at least. `at`: the first byte's place in it.
__device__ __forceinline__ void filled(const byte* fill, unsigned period, unsigned at, byte* to, int n, int lane, int lanes) {
    const Ends ends(to, n);
    if (lane < ends.head) to[lane] = fill[(at + lane) % period];
    if (lane < ends.tail) to[n - ends.tail + lane] = fill[(at + n - ends.tail + lane) % period];
    uint4* words = reinterpret_cast<uint4*>(to + ends.head);
    const unsigned step = 16u * lanes % period;
    unsigned phase = (at + ends.head + 16u * lane) % period;
    uint4 word = bytes_at(fill + phase);
    for (int w = lane; w < ends.words; w += lanes) {
        words[w] = word;
        if (step == 0) continue;
        phase += step;
        if (phase >= period) phase -= period;
        word = bytes_at(fill + phase);
    }
}

// grid (groups, samples) of `lanes` (16 or 32) threads a line, or one of its `pieces`. `dims` is [N][ndim][COLUMNS], in
// elements of `size` bytes. `fills` [1 or N][variants][fill_width] holds what stands outside, `period` bytes of it; a
// variant for each place along dimension `channel`, or one.
extern "C" __global__ void __launch_bounds__(256)
    rows(const byte* __restrict__ source, byte* __restrict__ target, const long long* __restrict__ dims, int ndim,
         const long long* __restrict__ base, const long long* __restrict__ out_base, int size, int lanes, int pieces,
         const byte* __restrict__ fills, int fill_width, unsigned period, int variants, int fill_rows, int channel) {
    const int sample = blockIdx.y, lane = threadIdx.x % lanes;
    const unsigned group = blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    dims += static_cast<long long>(sample) * ndim * COLUMNS;
    const long long* last = dims + (ndim - 1) * COLUMNS;
    const long long length = last[SHAPE], anchor = last[ANCHOR], extent = last[EXTENT];
    unsigned rest = pieces == 1 ? group : group / pieces;
    const long long begin = pieces == 1 ? 0 : static_cast<long long>(group - rest * pieces) * PIECE;
    const long long width = length * size;
    if (begin >= width) return;

    long long from = base[sample] + anchor, to = out_base[sample];
    bool inside = true;
    unsigned variant = 0;
    for (int d = ndim - 2; d >= 0; --d) {
        const long long* dim = dims + d * COLUMNS;
        const unsigned n = static_cast<unsigned>(dim[SHAPE]);
        if (n == 0) return;
        const unsigned above = rest / n, i = rest - above * n;
        rest = above;
        const long long at = i + dim[ANCHOR];
        if (at < 0 || at >= dim[EXTENT]) inside = false;
        from += at * dim[STRIDE];
        to += i * dim[OUT_STRIDE];
        if (d == channel) variant = i;
    }
    if (rest != 0) return;

    const long long end = min(begin + PIECE, width);
    long long low = min(max(-anchor, 0ll), length) * size, high = min(max(extent - anchor, 0ll), length) * size;
    if (!inside || high < low) low = high = width;
    low = min(max(low, begin), end), high = min(max(high, begin), end);
    byte* out = target + to * size;
    if (low > begin || high < end) {
        const byte* fill = fills + (static_cast<long long>(fill_rows) * sample * variants + variant) * fill_width;
        const auto phase = [&](long long at) {  // in 32 bits where that is enough, as it is a fifth of the work
            return at >> 32 == 0 ? static_cast<unsigned>(at) % period : static_cast<unsigned>(at % period);
        };
        if (low > begin) filled(fill, period, phase(begin), out + begin, static_cast<int>(low - begin), lane, lanes);
        if (high < end) filled(fill, period, phase(high), out + high, static_cast<int>(end - high), lane, lanes);
    }
    if (high > low) copied(source + from * size + low, out + low, static_cast<int>(high - low), lane, lanes);
}
