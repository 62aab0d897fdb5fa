"""Compiled loop of jitter: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from .noise_cpu import _two

jit = numba.njit(nogil=True, cache=True)


@jit
def _among(draw, count):
    """Convert a random word to a number below ``count``: by its low bits for powers of two, else by multiplication."""
    draw, count = np.uint64(draw), np.uint64(count)
    one = np.uint64(1)
    return np.int64(draw & (count - one)) if count & (count - one) == 0 else np.int64(draw * count >> np.uint64(32))


@jit
def jitter(key, sequences, skip, src, base, sizes, reach, dst, out_base):
    """Replace each value by that of a random nearby pixel; ``sizes`` [N, 3]: rows, columns, channels; ``reach`` [N]:
    number of possible shifts per axis, 1 for none."""
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
