// Join samples of several inputs along an axis with short runs (ops/arrays/join.py), such as channels of pixels. A
// thread computes an aligned word of 16 bytes, and takes its elements from input after input.

// BASE and RUN belong to the inputs: start of a sample, and number of adjacent elements. TO is the start of the joined
// sample, OUTER the number of runs per input. All in elements.
template <int PARTS> struct Columns {
    static constexpr int BASE = 0, RUN = PARTS, TO = 2 * PARTS, OUTER = 2 * PARTS + 1, COUNT = 2 * PARTS + 2;
};

// The current input, and the ones after it.
template <typename T, int PARTS> struct Turn {
    const T* at[PARTS];
    unsigned run[PARTS];

    __device__ __forceinline__ void pass() {
        const T* first = at[0];
        const unsigned length = run[0];
        #pragma unroll
        for (int p = 0; p + 1 < PARTS; ++p) at[p] = at[p + 1], run[p] = run[p + 1];
        at[PARTS - 1] = first, run[PARTS - 1] = length;
    }
};

// grid (tiles, samples).
template <typename T, int PARTS>
__global__ void __launch_bounds__(256)
    weave(const T* a, const T* b, const T* c, const T* d, const long long* __restrict__ table, T* __restrict__ target) {
    using C = Columns<PARTS>;
    constexpr unsigned V = 16 / sizeof(T);
    table += static_cast<long long>(blockIdx.y) * C::COUNT;
    unsigned length = 0;
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) length += static_cast<unsigned>(table[C::RUN + p]);
    const unsigned total = length * static_cast<unsigned>(table[C::OUTER]);
    target += table[C::TO];
    const unsigned lead = static_cast<unsigned>(reinterpret_cast<unsigned long long>(target) % 16 / sizeof(T));
    const unsigned word = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (total == 0 || word >= total + lead) return;
    const unsigned skip = word < lead ? lead - word : 0, first = word + skip - lead;
    const unsigned count = min(total - first + skip, V);

    const unsigned outer = first / length;
    unsigned rest = first - outer * length;
    Turn<T, PARTS> turn;
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const T* given = p == 0 ? a : p == 1 ? b : p == 2 ? c : d;
        turn.run[p] = static_cast<unsigned>(table[C::RUN + p]);
        turn.at[p] = given + table[C::BASE + p] + static_cast<long long>(outer) * turn.run[p];
    }
    #pragma unroll
    for (int p = 0; p + 1 < PARTS; ++p) {
        if (rest < turn.run[0]) break;
        rest -= turn.run[0];
        turn.at[0] += turn.run[0];
        turn.pass();
    }
    turn.at[0] += rest;
    unsigned left = turn.run[0] - rest;
    alignas(16) T values[V];
    #pragma unroll
    for (unsigned v = 0; v < V; ++v) {
        if (v < skip || v >= count) continue;
        while (left == 0) {
            turn.pass();
            left = turn.run[0];
        }
        values[v] = *turn.at[0]++;
        --left;
    }
    T* to = target + first - skip;
    if (skip == 0 && count == V) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
    } else {
        #pragma unroll
        for (unsigned v = 0; v < V; ++v)
            if (v >= skip && v < count) to[v] = values[v];
    }
}
