// grid_mask (ops/regions/grid_mask.py): a thread writes 16 bytes of a sample.
#include "division.cuh"

enum Geometry { PLANES, ROWS, COLUMNS, PIXEL, FIELDS };

// grid (tiles, samples); `grids` [N][5]: cos, sin and shifts in units of tiles, and the ratio. Products are rounded
// before they are added, as on the CPU.
template <typename T>
__global__ void grid_mask(const T* source, const long long* base, const long long* geometry, const float* grids,
                          T* target, const long long* out_base) {
    constexpr int V = 16 / sizeof(T);
    const int sample = blockIdx.y;
    geometry += static_cast<long long>(sample) * FIELDS;
    const float* g = grids + 5LL * sample;
    const long long rows = geometry[ROWS], columns = geometry[COLUMNS], pixel = geometry[PIXEL];
    const long long total = geometry[PLANES] * rows * columns * pixel;
    source += base[sample];
    target += out_base[sample];
    const long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
    if (first >= total) return;
    const int count = total - first < V ? static_cast<int>(total - first) : V;
    long long at = first, left = pixel - split(at, pixel);
    long long x = split(at, columns), y = split(at, rows);
    const float cosine = g[0], sine = g[1], shift_x = g[2], shift_y = g[3], ratio = g[4];
    const auto kept = [&] {
        const float u = static_cast<float>(x), v = static_cast<float>(y);
        const float fx = __fsub_rn(__fsub_rn(__fmul_rn(u, cosine), __fmul_rn(v, sine)), shift_x);
        const float fy = __fsub_rn(__fadd_rn(__fmul_rn(u, sine), __fmul_rn(v, cosine)), shift_y);
        return fx - floorf(fx) >= ratio || fy - floorf(fy) >= ratio;
    };
    bool keep = kept();
    const T* from = source + first;
    T* to = target + first;
    const bool aligned = count == V && ((reinterpret_cast<unsigned long long>(from) | reinterpret_cast<unsigned long long>(to)) & 15) == 0;
    alignas(16) T values[V];
    if (aligned) *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(from);
    #pragma unroll
    for (int i = 0; i < V; ++i) {
        if (!aligned && i < count) values[i] = from[i];
        if (!keep) values[i] = T(0);
        if (--left > 0) continue;
        left = pixel;
        if (++x == columns) {
            x = 0;
            if (++y == rows) y = 0;
        }
        keep = kept();
    }
    if (aligned) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
    } else {
        #pragma unroll
        for (int i = 0; i < V; ++i)
            if (i < count) to[i] = values[i];
    }
}

// The kernel for pixels of three bytes: a thread computes sixteen pixels, three words of memory that begin at a word.
extern "C" __global__ void __launch_bounds__(256)
    grid_mask_colours(const unsigned char* source, const long long* base, const long long* geometry, const float* grids,
                      unsigned char* target, const long long* out_base) {
    constexpr int PIXELS = 16;
    const int sample = blockIdx.y;
    geometry += static_cast<long long>(sample) * FIELDS;
    const float* g = grids + 5LL * sample;
    const unsigned rows = static_cast<unsigned>(geometry[ROWS]), columns = static_cast<unsigned>(geometry[COLUMNS]);
    const unsigned total = static_cast<unsigned>(geometry[PLANES]) * rows * columns;
    if (total == 0) return;
    source += base[sample];
    target += out_base[sample];
    // Number of pixels before the sample, such that three times as many bytes lead back to a multiple of 16: 3 * 11 is
    // 1 more.
    const unsigned lead = static_cast<unsigned>(reinterpret_cast<unsigned long long>(target) & 15) * 11 % 16;
    const unsigned place = (blockIdx.x * blockDim.x + threadIdx.x) * PIXELS;
    if (place >= total + lead) return;
    const int skip = place < lead ? static_cast<int>(lead - place) : 0;
    const unsigned first = place + skip - lead;
    const int count = total - first < PIXELS - skip ? static_cast<int>(total - first) + skip : PIXELS;
    unsigned y = first / columns;
    unsigned x = first - y * columns;
    y %= rows;
    const float cosine = g[0], sine = g[1], shift_x = g[2], shift_y = g[3], ratio = g[4];
    float u = static_cast<float>(x), down_sine = 0, down_cosine = 0;
    const auto next_row = [&] {
        const float v = static_cast<float>(y);
        down_sine = __fmul_rn(v, sine), down_cosine = __fmul_rn(v, cosine);
    };
    next_row();
    const auto kept = [&] {
        const float fx = __fsub_rn(__fsub_rn(__fmul_rn(u, cosine), down_sine), shift_x);
        const float fy = __fsub_rn(__fadd_rn(__fmul_rn(u, sine), down_cosine), shift_y);
        return fx - floorf(fx) >= ratio || fy - floorf(fy) >= ratio;
    };
    const unsigned char* from = source + 3LL * first;
    unsigned char* to = target + 3LL * first;
    const auto next = [&] {
        u += 1.0f;  // exact: there are fewer than 2^24 columns, otherwise float could not represent them
        if (++x == columns) {
            x = 0, u = 0;
            if (++y == rows) y = 0;
            next_row();
        }
    };
    if (skip || count < PIXELS || columns > 16777216u) {
        for (int k = skip; k < count; ++k, next()) {
            if (columns > 16777216u) u = static_cast<float>(x);
            const bool keep = kept();
            for (int c = 0; c < 3; ++c, ++from, ++to) *to = keep ? *from : 0;
        }
        return;
    }
    alignas(16) unsigned words[12];
    if ((reinterpret_cast<unsigned long long>(from) & 15) == 0) {
        #pragma unroll
        for (int k = 0; k < 3; ++k) {
            const uint4 four = reinterpret_cast<const uint4*>(from)[k];
            words[4 * k] = four.x, words[4 * k + 1] = four.y, words[4 * k + 2] = four.z, words[4 * k + 3] = four.w;
        }
    } else {
        const unsigned shift = static_cast<unsigned>(reinterpret_cast<unsigned long long>(from) & 3);
        const unsigned* aligned = reinterpret_cast<const unsigned*>(from - shift);
        unsigned word = aligned[0];
        #pragma unroll
        for (int k = 0; k < 12; ++k) {
            const unsigned after = k < 11 || shift ? aligned[k + 1] : 0;
            words[k] = __funnelshift_r(word, after, 8 * shift);
            word = after;
        }
    }
    #pragma unroll
    for (int k = 0; k < PIXELS; ++k) {
        if (!kept()) {
            const unsigned long long bytes = 0xffffffULL << (8 * (3 * k % 4));
            words[3 * k / 4] &= ~static_cast<unsigned>(bytes);
            if (3 * k % 4 > 1) words[3 * k / 4 + 1] &= ~static_cast<unsigned>(bytes >> 32);
        }
        next();
    }
    #pragma unroll
    for (int k = 0; k < 3; ++k)
        reinterpret_cast<uint4*>(to)[k] = make_uint4(words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]);
}
