// Copies whose lines are runs of bytes in source and output (ops/copies/strided.py): windows, canvases, parts of joined
// samples. A group of lanes writes one line, or a piece of a long one, in aligned words of 16 bytes; the position of a
// line is computed once for the whole line.

enum Column { SHAPE, STRIDE, ANCHOR, EXTENT, OUT_STRIDE, COLUMNS };
// 16-byte words per lane that are in progress, and their number if lines begin within words
constexpr int WORDS = 4, UNEVEN = 2;

typedef unsigned char byte;

__device__ __forceinline__ int place(const void* at, int of) {
    return static_cast<int>(reinterpret_cast<unsigned long long>(at) & (of - 1));
}

// Load the 16 bytes from `from` on, out of aligned words. Words that contain none of them are not read.
__device__ __forceinline__ uint4 bytes_at(const byte* from) {
    const unsigned shift = place(from, 4);
    const unsigned* words = reinterpret_cast<const unsigned*>(from - shift);
    const unsigned a = words[0], b = words[1], c = words[2], d = words[3], e = shift ? words[4] : 0;
    return make_uint4(__funnelshift_r(a, b, 8 * shift), __funnelshift_r(b, c, 8 * shift),
                      __funnelshift_r(c, d, 8 * shift), __funnelshift_r(d, e, 8 * shift));
}

// The ends of a run outside of the output's aligned words: at most 15 bytes each, one per lane.
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
        for (int w = lane; w < ends.words; w += UNEVEN * lanes) {
            uint4 read[UNEVEN];
            #pragma unroll
            for (int k = 0; k < UNEVEN; ++k)
                if (w + k * lanes < ends.words) read[k] = bytes_at(inner + 16 * (w + k * lanes));
            #pragma unroll
            for (int k = 0; k < UNEVEN; ++k)
                if (w + k * lanes < ends.words) words[w + k * lanes] = read[k];
        }
    }
    if (lane < ends.head) to[lane] = first;
    if (lane < ends.tail) to[n - ends.tail + lane] = last;
}

// Convert bytes to floats.
__device__ __forceinline__ float value_of(unsigned word, int k) {  // without conversion instructions, which are slow
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650 + k)) - 8388608.0f;
}

__device__ __forceinline__ void floated(const byte* __restrict__ from, float* __restrict__ to, int n, int lane, int lanes) {
    const int head = min(static_cast<int>(-reinterpret_cast<unsigned long long>(to) & 15) / 4, n), count = (n - head) / 4;
    const int tail = n - head - 4 * count;
    if (lane < head) to[lane] = value_of(from[lane], 0);
    if (lane < tail) to[n - tail + lane] = value_of(from[n - tail + lane], 0);
    const byte* inner = from + head;
    const unsigned shift = place(inner, 4);
    const unsigned* given = reinterpret_cast<const unsigned*>(inner - shift);
    float4* made = reinterpret_cast<float4*>(to + head);
    for (int w = lane; w < count; w += WORDS * lanes) {
        unsigned read[WORDS];
        #pragma unroll
        for (int k = 0; k < WORDS; ++k) {
            const int at = w + k * lanes;
            if (at < count) read[k] = __funnelshift_r(given[at], shift ? given[at + 1] : 0, 8 * shift);
        }
        #pragma unroll
        for (int k = 0; k < WORDS; ++k)
            if (w + k * lanes < count)
                made[w + k * lanes] = make_float4(value_of(read[k], 0), value_of(read[k], 1), value_of(read[k], 2), value_of(read[k], 3));
    }
}

// Write fill bytes. `fill` holds `period` bytes, and repeats them for at least 16 more. `at`: index of the first byte.
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

// grid (groups, samples) with `lanes` (16 or 32) threads per line, or per piece of `piece` bytes of a line. `dims` is
// [N][ndim][COLUMNS], in elements of `size` bytes. `fills` [1 or N][variants][fill_width] holds the bytes outside of
// the source, `period` of them; one variant per index along dimension `channel`, or a single one.
template <bool FLOATS>
__device__ __forceinline__ void
    line_of(const byte* __restrict__ source, byte* __restrict__ target, const long long* __restrict__ dims, int ndim,
         const long long* __restrict__ base, const long long* __restrict__ out_base, int size, int lanes, int piece, int pieces,
         const byte* __restrict__ fills, int fill_width, unsigned period, int variants, int fill_rows, int channel) {
    const int sample = blockIdx.y, lane = threadIdx.x % lanes;
    const unsigned group = blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    dims += static_cast<long long>(sample) * ndim * COLUMNS;
    const long long* last = dims + (ndim - 1) * COLUMNS;
    const long long length = last[SHAPE], anchor = last[ANCHOR], extent = last[EXTENT];
    unsigned rest = pieces == 1 ? group : group / pieces;
    const unsigned number = group - rest * pieces;
    const long long width = length * size;
    if (width == 0) return;

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

    byte* out = target + to * size;
    long long begin = 0, end = width;
    if (pieces > 1) {  // pieces begin where words of the output begin
        const long long shift = place(out, 16);
        begin = number == 0 ? 0 : static_cast<long long>(number) * piece - shift;
        end = min(static_cast<long long>(number + 1) * piece - shift, width);
        if (begin >= width) return;
    }
    long long low = min(max(-anchor, 0ll), length) * size, high = min(max(extent - anchor, 0ll), length) * size;
    if (!inside || high < low) low = high = width;
    low = min(max(low, begin), end), high = min(max(high, begin), end);
    if (low > begin || high < end) {
        const byte* fill = fills + (static_cast<long long>(fill_rows) * sample * variants + variant) * fill_width;
        const auto phase = [&](long long at) {  // in 32 bits if possible, which is a fifth of the work
            return at >> 32 == 0 ? static_cast<unsigned>(at) % period : static_cast<unsigned>(at % period);
        };
        if (low > begin) filled(fill, period, phase(begin), out + begin, static_cast<int>(low - begin), lane, lanes);
        if (high < end) filled(fill, period, phase(high), out + high, static_cast<int>(end - high), lane, lanes);
    }
    if (high <= low) return;
    if (FLOATS) floated(source + from + low / 4, reinterpret_cast<float*>(out + low), static_cast<int>(high - low) / 4, lane, lanes);
    else copied(source + from * size + low, out + low, static_cast<int>(high - low), lane, lanes);
}

#define GIVEN                                                                                                        \
    const byte* source, byte* target, const long long* dims, int ndim, const long long* base, const long long* out_base, \
        int size, int lanes, int piece, int pieces, const byte* fills, int fill_width, unsigned period, int variants,    \
        int fill_rows, int channel
#define PASSED \
    source, target, dims, ndim, base, out_base, size, lanes, piece, pieces, fills, fill_width, period, variants, fill_rows, channel

extern "C" __global__ void __launch_bounds__(256) rows(GIVEN) { line_of<false>(PASSED); }

// The kernel `rows` for bytes that become floats: `size` is that of the output.
extern "C" __global__ void __launch_bounds__(256) rows_of_floats(GIVEN) { line_of<true>(PASSED); }
