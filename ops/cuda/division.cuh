// Conversion of element counts to positions in arrays.
#pragma once

// Replace `rest` by `rest` / `n`, and return `rest` modulo `n`; neither is negative. Nearly all counts fit into 32
// bits, in which a division takes a fraction of the time: with 64 bits it took most of the time of simple kernels.
__device__ __forceinline__ long long split(long long& rest, long long n) {
    const long long all = rest;
    if (((all | n) >> 32) == 0) rest = static_cast<unsigned int>(all) / static_cast<unsigned int>(n);
    else rest = all / n;
    return all - rest * n;
}
