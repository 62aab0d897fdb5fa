// lookup_table and equalize (ops/color/tables.py).
#include "convert.cuh"
#include "fours.cuh"

typedef unsigned char byte;

// Return the entry of `table` for `v`; its last entry, number `last`, for values that it does not contain.
template <typename In, typename Out> __device__ __forceinline__ Out entry(In v, const Out* table, int last) {
    const bool inside = !(v < 0) && static_cast<unsigned long long>(v) < static_cast<unsigned long long>(last);
    return table[inside ? static_cast<int>(v) : last];
}

// grid (tiles * samples), 256 threads that look up 16 values each. The table for all bytes is in shared memory.
template <typename In, typename Out>
__global__ void look_up(const In* source, const long long* base, const long long* sizes, int tiles, const Out* table,
                        int last, Out* target, const long long* out_base) {
    constexpr bool BYTES = sizeof(In) == 1;
    __shared__ Out known[BYTES ? 256 : 1];
    const int sample = blockIdx.x / tiles;
    const long long size = sizes[sample], first = static_cast<long long>(blockIdx.x % tiles) * blockDim.x * 16;
    if (first >= size) return;
    if constexpr (BYTES) {
        known[threadIdx.x] = entry(static_cast<In>(static_cast<unsigned char>(threadIdx.x)), table, last);
        __syncthreads();
    }
    const auto found = [&](In v) { return BYTES ? known[static_cast<unsigned char>(v)] : entry(v, table, last); };
    const In* from = source + base[sample] + first;
    Out* to = target + out_base[sample] + first;
    if (aligned(from) && first + 16 * blockDim.x <= size) {
        Fours<In> read[4];
        #pragma unroll
        for (int k = 0; k < 4; ++k) read[k] = four(from + 4 * (k * blockDim.x + threadIdx.x), true);
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            Fours<Out> made;
            #pragma unroll
            for (int e = 0; e < 4; ++e) made.v[e] = found(read[k].v[e]);
            put_four(to + 4 * (k * blockDim.x + threadIdx.x), made);
        }
        return;
    }
    for (int k = 0; k < 16; ++k) {
        const long long i = static_cast<long long>(k) * blockDim.x + threadIdx.x;
        if (first + i < size) to[i] = found(from[i]);
    }
}

// Adjacent bytes, all samples of a batch as one: `table` has a byte for each of their 256 values. Each lane has a copy
// of the table in a bank of its own, so that lanes do not wait for each other.
constexpr int LANES = 32, WORDS_OF_TABLE = 64, LOOKED_UP = 4;  // 16-byte words per thread

extern "C" __global__ void __launch_bounds__(256)
    look_up_bytes(const byte* __restrict__ source, long long total, const unsigned* __restrict__ table, byte* __restrict__ target) {
    __shared__ unsigned copies[WORDS_OF_TABLE * LANES];
    for (int i = threadIdx.x; i < WORDS_OF_TABLE * LANES; i += blockDim.x) copies[i] = table[i / LANES];
    __syncthreads();
    const byte* own = reinterpret_cast<const byte*>(copies) + 4 * (threadIdx.x % LANES);
    const auto of = [&](unsigned v) { return static_cast<unsigned>(own[(v & 252) * LANES + (v & 3)]); };
    const long long lead = static_cast<long long>(reinterpret_cast<unsigned long long>(target) & 15);
    #pragma unroll
    for (int run = 0; run < LOOKED_UP; ++run) {
        const long long first = ((static_cast<long long>(blockIdx.x) * LOOKED_UP + run) * blockDim.x + threadIdx.x) * 16 - lead;
        if (first >= total) return;
        if (first < 0 || first + 16 > total) {
            for (long long i = max(first, 0ll); i < min(first + 16, total); ++i) target[i] = static_cast<byte>(of(source[i]));
            continue;
        }
        const byte* from = source + first;
        const unsigned shift = static_cast<unsigned>(reinterpret_cast<unsigned long long>(from) & 3);
        const unsigned* aligned = reinterpret_cast<const unsigned*>(from - shift);
        unsigned word[5];
        #pragma unroll
        for (int k = 0; k < 4; ++k) word[k] = aligned[k];
        word[4] = shift ? aligned[4] : 0;
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            const unsigned v = __funnelshift_r(word[k], word[k + 1], 8 * shift);
            word[k] = of(v & 255) | of(v >> 8 & 255) << 8 | of(v >> 16 & 255) << 16 | of(v >> 24) << 24;
        }
        *reinterpret_cast<uint4*>(target + first) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

// grid (planes * samples): a block counts, and replaces, the values of one channel of one image. `geometry` [3] is
// images, pixels, channels.
extern "C" __global__ void __launch_bounds__(512)
    equalize(const byte* source, const long long* base, const long long* geometry, int planes, byte* target,
             const long long* out_base) {
    const int COPIES = 4;  // copies of the histogram, so that threads rarely collide
    __shared__ unsigned counts[COPIES][256];
    __shared__ byte table[256];
    const int sample = blockIdx.x / planes, plane = blockIdx.x % planes;
    const long long pixels = geometry[3 * sample + 1], channels = geometry[3 * sample + 2];
    if (plane >= geometry[3 * sample] * channels) return;
    const long long start = plane / channels * pixels * channels + plane % channels;
    const byte* s = source + base[sample] + start;
    byte* o = target + out_base[sample] + start;
    for (int i = threadIdx.x; i < COPIES * 256; i += blockDim.x) (&counts[0][0])[i] = 0;
    __syncthreads();
    for (long long i = threadIdx.x; i < pixels; i += blockDim.x) atomicAdd(&counts[threadIdx.x % COPIES][s[i * channels]], 1u);
    __syncthreads();
    if (threadIdx.x < 256)
        for (int k = 1; k < COPIES; ++k) counts[0][threadIdx.x] += counts[k][threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        int low = 0;
        while (low < 255 && counts[0][low] == 0) ++low;
        const float scale = 255.0f / static_cast<float>(pixels - counts[0][low]);
        unsigned long long sum = 0;
        for (int v = 0; v < 256; ++v) {
            if (v > low) sum += counts[0][v];
            table[v] = counts[0][low] == pixels ? low
                       : v <= low ? 0
                                  : static_cast<byte>(fminf(rintf(__fmul_rn(static_cast<float>(sum), scale)), 255.0f));
        }
    }
    __syncthreads();
    for (long long i = threadIdx.x; i < pixels; i += blockDim.x) o[i * channels] = table[s[i * channels]];
}
