// Strided copies of a whole batch (ops/copies/strided.py): one block writes one tile of one sample, in the order of memory.
#include "affine.cuh"
#include "convert.cuh"
#include "division.cuh"

enum Column { SHAPE, STRIDE, ANCHOR, EXTENT, OUT_STRIDE, COLUMNS };
enum Border { FILL, EDGE, REFLECT_1001, REFLECT_101, WRAP };

// Index `i` outside [0, n) as one inside.
__device__ long long reflect(long long i, long long n, int border) {
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

// BYTES bytes, in the widest pieces that both addresses allow.
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

// grid (tiles, samples); a thread writes 16 bytes. `dims` is [N][D][COLUMNS]; `packed`: samples are written without
// gaps; `fill` [1 or N][fill_width] and `factors` [1 or N][factor_width][3] (mean, mul, add) run along `channel` where
// they are wider than 1, one row a sample where `*_rows` is 1.
template <typename In, typename Out, int D, bool AFFINE>
__global__ void strided(const In* source, Out* target, const long long* dims, const long long* base,
                        const long long* out_base, int packed, int border, int channel, const Out* fill, int fill_width,
                        int fill_rows, const float* factors, int factor_width, int factor_rows) {
    constexpr int V = 16 / sizeof(Out);
    const long long sample = blockIdx.y;
    dims += sample * D * COLUMNS;
    fill += fill_rows * sample * fill_width;
    factors += factor_rows * sample * factor_width * 3;
    source += base[sample];
    target += out_base[sample];

    long long total = 1;
    for (int d = 0; d < D; ++d) total *= dims[d * COLUMNS + SHAPE];
    const long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
    if (first >= total) return;

    long long index[D];
    long long rest = first;
    #pragma unroll
    for (int d = D - 1; d >= 0; --d) index[d] = split(rest, dims[d * COLUMNS + SHAPE]);

    alignas(16) Out values[V];
    const int count = total - first < V ? static_cast<int>(total - first) : V;
    const bool vector = packed && count == V && reinterpret_cast<unsigned long long>(target + first) % 16 == 0;
    const long long* last = dims + (D - 1) * COLUMNS;
    const int width = static_cast<int>(last[SHAPE]);
    const long long anchor = last[ANCHOR], extent = last[EXTENT], stride = last[STRIDE], out_stride = last[OUT_STRIDE];
    int column = static_cast<int>(index[D - 1]), other = 0;  // `other`: the place along `channel`, if that is not the last
    long long row = 0, out_row = 0;  // where the line of the source begins, and that of the output
    bool inside = true, fresh = true;
    const auto next_line = [&] {
        row = out_row = 0;
        inside = true;
        #pragma unroll
        for (int d = 0; d < D - 1; ++d) {
            const long long* dim = dims + d * COLUMNS;
            long long at = index[d] + dim[ANCHOR];
            if (at < 0 || at >= dim[EXTENT]) {
                if (border == FILL) inside = false;
                else at = reflect(at, dim[EXTENT], border);
            }
            row += at * dim[STRIDE];
            out_row += index[d] * dim[OUT_STRIDE];
            if (d == channel) other = static_cast<int>(index[d]);
        }
        fresh = false;
    };
    if constexpr (!AFFINE) {  // most threads copy from one line, or write nothing but one value
        if (count == V && column + V <= width && (vector || out_stride == 1)) {
            next_line();
            const long long at = column + anchor;
            const bool nothing = !inside || (border == FILL && (at + V <= 0 || at >= extent));
            if ((inside && at >= 0 && at + V <= extent) || (nothing && fill_width == 1)) {
                const In* from = source + row + at * stride;
                if (!nothing && stride == 1) {
                    alignas(16) In given[V];
                    moved<V * static_cast<int>(sizeof(In))>(from, given);
                    #pragma unroll
                    for (int v = 0; v < V; ++v) values[v] = saturate<Out>(given[v]);
                } else {
                    #pragma unroll
                    for (int v = 0; v < V; ++v) values[v] = nothing ? fill[0] : saturate<Out>(from[v * stride]);
                }
                moved<16>(values, packed ? target + first : target + out_row + column);
                return;
            }
        }
    }
    #pragma unroll
    for (int v = 0; v < V; ++v) {
        if (v >= count) break;
        if (fresh) next_line();
        const int k = channel == D - 1 ? column : other;
        long long at = column + anchor;
        bool known = inside;
        if (at < 0 || at >= extent) {
            if (border == FILL) known = false;
            else at = reflect(at, extent, border);
        }
        Out value = known ? converted<In, Out, AFFINE>(source[row + at * stride], factors + (factor_width > 1 ? 3 * k : 0))
                          : fill[fill_width > 1 ? k : 0];
        if (vector) values[v] = value;
        else target[packed ? first + v : out_row + column * out_stride] = value;
        if (++column < width) continue;
        column = 0;
        fresh = true;
        bool carry = true;
        #pragma unroll
        for (int d = D - 2; d >= 0; --d) {
            index[d] += carry;
            carry = carry && index[d] == dims[d * COLUMNS + SHAPE];
            if (carry) index[d] = 0;
        }
    }
    if (vector) *reinterpret_cast<uint4*>(target + first) = *reinterpret_cast<const uint4*>(values);
}
