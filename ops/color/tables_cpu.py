"""The CPU loop of equalize: all images in one call, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@jit
def equalized(counts, total, table):
    """OpenCV's equalizeHist as a table: the cumulative histogram from the first value that occurs, as 0 ... 255."""
    first = 0
    while first < 255 and counts[first] == 0:
        first += 1
    if counts[first] == total:
        table[:] = first
        return
    scale = np.float32(255.0) / np.float32(total - counts[first])
    sum_ = 0
    table[: first + 1] = 0
    for v in range(first + 1, 256):
        sum_ += counts[v]
        table[v] = np.uint8(min(np.rint(np.float32(sum_) * scale), np.float32(255)))


@jit
def equalize(src, base, geometry, dst, out_base):
    """``geometry`` [N, 3]: pictures, pixels and channels, which follow each other in a pixel."""
    for i in range(len(base)):
        pictures, pixels, channels = geometry[i]
        if pictures == 0:
            continue
        counts, table = np.empty((channels, 256), np.int64), np.empty((channels, 256), np.uint8)
        for p in range(pictures):
            s = src[base[i] + p * pixels * channels : base[i] + (p + 1) * pixels * channels]
            o = dst[out_base[i] + p * pixels * channels : out_base[i] + (p + 1) * pixels * channels]
            counts[:] = 0
            for x in range(pixels):
                for c in range(channels):
                    counts[c, s[x * channels + c]] += 1
            for c in range(channels):
                equalized(counts[c], pixels, table[c])
            for x in range(pixels):
                for c in range(channels):
                    o[x * channels + c] = table[c, s[x * channels + c]]
