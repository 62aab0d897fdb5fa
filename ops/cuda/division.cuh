// Positions in arrays from counts of elements.
#pragma once

// `rest`, which becomes `rest` / `n`, modulo `n`; neither is negative. Nearly all counts fit into 32 bits, in which a
// division takes a fraction of the time: with 64 it was most of what simple kernels did.
__device__ __forceinline__ long long split(long long& rest, long long n) {
    const long long all = rest;
    if (((all | n) >> 32) == 0) rest = static_cast<unsigned int>(all) / static_cast<unsigned int>(n);
    else rest = all / n;
    return all - rest * n;
}
