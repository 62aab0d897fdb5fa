"""The CPU loop of jitter: all images in one call, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from .noise_cpu import _two

jit = numba.njit(nogil=True, cache=True)


@jit
def _among(draw, count):
    """A number of 0 ... ``count`` - 1 from a draw: low bits of powers of two, else by multiplication."""
    draw, count = np.uint64(draw), np.uint64(count)
    one = np.uint64(1)
    return np.int64(draw & (count - one)) if count & (count - one) == 0 else np.int64(draw * count >> np.uint64(32))


@jit
def jitter(key, sequences, skip, src, base, sizes, reach, dst, out_base):
    """``sizes`` [N, 3] of rows, columns, channels; ``reach`` [N] places to move to, 1 for none."""
    for i in range(len(base)):
        rows, columns, channels = sizes[i]
        n, j = reach[i], 0
        for y in range(rows):
            for x in range(columns):
                for c in range(channels):
                    u, v = x, y
                    if n > 1:
                        across, down = _two(key, sequences[i], j * skip)
                        u = min(max(x + _among(across, n) - (n >> 1), 0), columns - 1)
                        v = min(max(y + _among(down, n) - (n >> 1), 0), rows - 1)
                    dst[out_base[i] + j] = src[base[i] + (v * columns + u) * channels + c]
                    j += 1
