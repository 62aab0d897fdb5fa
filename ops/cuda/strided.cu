// Strided copies of a whole batch (ops/copies/strided.py): one block writes one tile of one sample, in memory order.
#include "affine.cuh"
#include "convert.cuh"

enum Column { SHAPE, STRIDE, ANCHOR, EXTENT, OUT_STRIDE, COLUMNS };
enum Border { FILL, EDGE, REFLECT_1001, REFLECT_101, WRAP };

// Map index `i` outside [0, n) to an index inside. Not inlined, because it is rare and its divisions are long.
__device__ __noinline__ long long reflect(long long i, long long n, int border) {
    if (border == EDGE || n == 1) return i < 0 ? 0 : i >= n ? n - 1 : i;
    long long period = border == WRAP ? n : border == REFLECT_1001 ? 2 * n : 2 * n - 2;
    i %= period;
    if (i < 0) i += period;
    if (i < n) return i;
    return border == REFLECT_1001 ? 2 * n - 1 - i : 2 * n - 2 - i;
}

template <typename In, typename Out, bool AFFINE> __device__ __forceinline__ Out converted(In v, const float* factor) {
    if constexpr (AFFINE) {
        return saturate<Out>(affine(static_cast<float>(plain(v)), factor));
    } else {
        return saturate<Out>(v);
    }
}

// BYTES bytes, copied in the widest pieces that both addresses allow.
template <int BYTES>
__device__ __forceinline__ void moved(const void* from, void* to) {
    const unsigned long long places = reinterpret_cast<unsigned long long>(from) | reinterpret_cast<unsigned long long>(to);
    if (BYTES % 16 == 0 && places % 16 == 0) {
        #pragma unroll
        for (int i = 0; i < BYTES / 16; ++i) static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
    } else if (BYTES % 4 == 0 && places % 4 == 0) {
        #pragma unroll
        for (int i = 0; i < BYTES / 4; ++i) static_cast<unsigned*>(to)[i] = static_cast<const unsigned*>(from)[i];
    } else {
        #pragma unroll
        for (int i = 0; i < BYTES; ++i) static_cast<unsigned char*>(to)[i] = static_cast<const unsigned char*>(from)[i];
    }
}

// Load N adjacent elements; bytes are taken from aligned words, and only words that contain one of them are read.
template <int N, typename In> __device__ __forceinline__ void run_of(const In* from, In* given) {
    if constexpr (sizeof(In) == 1 && N % 4 == 0) {
        const unsigned shift = static_cast<unsigned>(reinterpret_cast<unsigned long long>(from) & 3);
        const unsigned* words = reinterpret_cast<const unsigned*>(reinterpret_cast<unsigned long long>(from) - shift);
        unsigned word = words[0];
        #pragma unroll
        for (int i = 0; i < N / 4; ++i) {
            const unsigned next = i + 1 < N / 4 || shift ? words[i + 1] : 0;
            const unsigned bytes = __funnelshift_r(word, next, 8 * shift);
            memcpy(given + 4 * i, &bytes, 4);
            word = next;
        }
    } else {
        #pragma unroll
        for (int i = 0; i < N; ++i) given[i] = from[i];
    }
}

// Store 16 bytes from registers, in pieces as large as their alignment allows.
template <typename Out> __device__ __forceinline__ void put_run(const Out* values, Out* to) {
    const unsigned long long place = reinterpret_cast<unsigned long long>(to);
    if (place % 16 == 0) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
    } else if (place % 4 == 0) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) reinterpret_cast<unsigned*>(to)[i] = reinterpret_cast<const unsigned*>(values)[i];
    } else {
        #pragma unroll
        for (int v = 0; v < static_cast<int>(16 / sizeof(Out)); ++v) to[v] = values[v];
    }
}

// Call `what` for the numbers from 0 to N - 1, which are constants if it is inlined. Loops that contain calls are not
// unrolled, and arrays are then not kept in registers. (NVRTC 13.0 does not support lambdas with `auto` arguments.)
template <int N, typename What> __device__ __forceinline__ void each(const What& what) {
    if constexpr (N > 0) {
        each<N - 1>(what);
        what(N - 1);
    }
}

constexpr int RUNS = 4;  // 16-byte words per thread, `blockDim.x` words apart

// grid (tiles, samples). `dims` is [N][D][COLUMNS]; `packed`: samples are written without gaps; `fill` [1 or
// N][fill_width] and `factors` [1 or N][factor_width][3] (mean, mul, add) vary along `channel` if they are wider than
// 1, with one row per sample if `*_rows` is 1.
template <typename In, typename Out, int D, bool AFFINE>
__global__ void __launch_bounds__(256)
    strided(const In* __restrict__ source, Out* __restrict__ target, const long long* __restrict__ dims,
            const long long* __restrict__ base, const long long* __restrict__ out_base, int packed, int border, int channel,
            const Out* __restrict__ fill, int fill_width, int fill_rows, const float* __restrict__ factors,
            int factor_width, int factor_rows) {
    constexpr int V = 16 / sizeof(Out);
    // elements that are written at once if a word spans several lines
    constexpr int E = sizeof(Out) < 4 ? 4 / sizeof(Out) : V;
    const long long sample = blockIdx.y;
    dims += sample * D * COLUMNS;
    fill += fill_rows * sample * fill_width;
    factors += factor_rows * sample * factor_width * 3;
    source += base[sample];
    target += out_base[sample];

    unsigned int total = 1;  // samples have fewer than 2^31 values (ops/copies/strided.py: MAX_ELEMENTS)
    #pragma unroll
    for (int d = 0; d < D; ++d) total *= static_cast<unsigned int>(dims[d * COLUMNS + SHAPE]);
    const long long* last = dims + (D - 1) * COLUMNS;
    const unsigned int width = static_cast<unsigned int>(last[SHAPE]);
    const long long anchor = last[ANCHOR], extent = last[EXTENT], stride = last[STRIDE], out_stride = last[OUT_STRIDE];
    if (total == 0) return;
    // Words are aligned in memory: the first one may contain bytes before the sample.
    const unsigned int lead = packed ? static_cast<unsigned int>(reinterpret_cast<unsigned long long>(target) % 16 / sizeof(Out)) : 0;
    // Columns [low, low + span) of a line within the source lie in the source.
    const unsigned int low = static_cast<unsigned int>(min(max(-anchor, 0ll), static_cast<long long>(width)));
    const unsigned int high = static_cast<unsigned int>(min(max(extent - anchor, 0ll), static_cast<long long>(width)));
    const unsigned int span = high > low ? high - low : 0;

    #pragma unroll 1
    for (int run = 0; run < RUNS; ++run) {
        const unsigned int word = ((blockIdx.x * RUNS + run) * blockDim.x + threadIdx.x) * V;
        if (word >= total + lead) return;
        // elements of the word that lie before the sample
        const int skip = word < lead ? static_cast<int>(lead - word) : 0;
        const unsigned int first = word + skip - lead;
        const int count = total - first < V - skip ? static_cast<int>(total - first) + skip : V;
        unsigned int index[D], rest = first;
        #pragma unroll
        for (int d = D - 1; d > 0; --d) {
            const unsigned int n = static_cast<unsigned int>(dims[d * COLUMNS + SHAPE]), whole = rest / n;
            index[d] = rest - whole * n;
            rest = whole;
        }
        index[0] = rest;

        const bool vector = packed && skip == 0 && count == V;
        const In* line = source;  // position of the line's first element, which may lie outside of the source
        long long out_row = 0;    // position of the line in the output
        int other = 0;            // index along `channel`, if that is not the last dimension
        bool inside = true;
        const auto find_line = [&] {
            long long row = anchor * stride;
            out_row = 0;
            inside = true;
            each<D - 1>([&](int d) {
                const long long* dim = dims + d * COLUMNS;
                long long at = index[d] + dim[ANCHOR];
                if (at < 0 || at >= dim[EXTENT]) {
                    if (border == FILL) inside = false;
                    else at = reflect(at, dim[EXTENT], border);
                }
                row += at * dim[STRIDE];
                out_row += index[d] * dim[OUT_STRIDE];
                if (d == channel) other = static_cast<int>(index[d]);
            });
            line = source + row;
        };
        find_line();
        unsigned int column = index[D - 1];
        if constexpr (!AFFINE) {  // most threads copy from one line, or write a single value
            if (count - skip == V && column + V <= width && (packed || out_stride == 1)) {
                const bool all = inside && column - low < span && column + V - 1 - low < span;
                const bool nothing = !inside || (border == FILL && (column >= low + span || column + V <= low));
                if (all || (nothing && fill_width == 1)) {
                    const In* from = line + column * stride;
                    alignas(16) Out values[V];
                    if (nothing) {
                        #pragma unroll
                        for (int v = 0; v < V; ++v) values[v] = fill[0];
                    } else if (stride == 1) {
                        In given[V];
                        run_of<V>(from, given);
                        #pragma unroll
                        for (int v = 0; v < V; ++v) values[v] = saturate<Out>(given[v]);
                    } else {
                        #pragma unroll
                        for (int v = 0; v < V; ++v) values[v] = saturate<Out>(from[v * stride]);
                    }
                    put_run(values, packed ? target + first : target + out_row + column);
                    continue;
                }
            }
        }
        const In* from = line + column * stride;
        #pragma unroll 1
        for (int part = 0; part < V; part += E) {
            alignas(16) Out values[E];
            #pragma unroll
            for (int e = 0; e < E; ++e) {
                const int v = part + e;
                if (v < skip) continue;
                if (v >= count) break;
                const int k = channel == D - 1 ? static_cast<int>(column) : other;
                Out value;
                if (inside && column - low < span) {
                    value = converted<In, Out, AFFINE>(*from, factors + (factor_width > 1 ? 3 * k : 0));
                } else if (border != FILL) {
                    const long long at = static_cast<long long>(column) + anchor;
                    const bool outside = at < 0 || at >= extent;
                    value = converted<In, Out, AFFINE>(
                        line[((outside ? reflect(at, extent, border) : at) - anchor) * stride], factors + (factor_width > 1 ? 3 * k : 0));
                } else {
                    value = fill[fill_width > 1 ? k : 0];
                }
                if (vector) values[e] = value;
                else target[packed ? first + (v - skip) : out_row + column * out_stride] = value;
                from += stride;
                if (++column < width) continue;
                column = 0;
                if constexpr (D > 1) {
                    const long long* dim = dims + (D - 2) * COLUMNS;
                    if (++index[D - 2] < static_cast<unsigned int>(dim[SHAPE]) && border == FILL) {  // the next line
                        const bool before = index[D - 2] - 1 + dim[ANCHOR] >= 0 && index[D - 2] - 1 + dim[ANCHOR] < dim[EXTENT];
                        const bool now = index[D - 2] + dim[ANCHOR] >= 0 && index[D - 2] + dim[ANCHOR] < dim[EXTENT];
                        if (before == now) {
                            line += dim[STRIDE];
                            out_row += dim[OUT_STRIDE];
                            if (channel == D - 2) ++other;
                            from = line;
                            continue;
                        }
                    }
                    bool carry = true;
                    #pragma unroll
                    for (int d = D - 2; d > 0; --d) {
                        carry = carry && index[d] >= static_cast<unsigned int>(dims[d * COLUMNS + SHAPE]);
                        index[d] = carry ? 0 : index[d];
                        index[d - 1] += carry;
                    }
                    find_line();
                    from = line;
                }
            }
            if (!vector) continue;
            if constexpr (E < V) *reinterpret_cast<unsigned*>(target + first + part) = *reinterpret_cast<const unsigned*>(values);
            else *reinterpret_cast<uint4*>(target + first) = *reinterpret_cast<const uint4*>(values);
        }
    }
}
