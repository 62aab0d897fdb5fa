// random.* for many numbers (ops/draws/numbers.py): a thread draws one element. `numbers` is [N][width], see `Drawn`.
#include "convert.cuh"
#include "normal.cuh"
#include "philox.cuh"

// contents of `numbers`: limit; first, factor, below; mean, stddev; numbers to draw from
enum Drawn { FLIP, UNIFORM, NORMAL, CHOSEN };

// grid (tiles * samples)
template <typename Out, int KIND>
__global__ void draw(unsigned long long key, unsigned long long low, int phase, const unsigned long long* sequences,
                     int skip, int tiles, const long long* counts, const double* numbers, int width,
                     Out* target, const long long* out_base) {
    const int sample = blockIdx.x / tiles;
    const long long j = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (j >= counts[sample]) return;
    Draws draws(key, sequences[sample], low, phase, static_cast<unsigned long long>(j) * skip);
    Out* to = target + out_base[sample] + j;
    numbers += static_cast<long long>(width) * sample;
    if (KIND == CHOSEN) {
        const unsigned long long scaled = static_cast<unsigned long long>(draws.next()) * static_cast<unsigned>(width);
        *to = saturate<Out>(static_cast<float>(numbers[scaled >> 32]));
        return;
    }
    const double first = numbers[0], second = numbers[1], third = numbers[2];
    if (KIND == FLIP) {
        *to = saturate<Out>(static_cast<int>(static_cast<double>(draws.next()) <= first));
    } else if (KIND == UNIFORM) {
        const double drawn = static_cast<double>(static_cast<float>(draws.next()));
        const float value = static_cast<float>(drawn * second + first);
        *to = saturate<Out>(fminf(value, static_cast<float>(third)));
    } else {
        const unsigned one = draws.next(), other = draws.next();
        const double normal = static_cast<double>(standard_normal(one, other));
        *to = saturate<Out>(static_cast<float>(__dadd_rn(__dmul_rn(normal, second), first)));
    }
}
