"""Compiled loops of coord_transform and coord_flip: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np


@numba.njit(nogil=True, cache=True)
def transform(src, base, counts, matrices, shifts, dst, out_base):
    """Multiply the ``counts[i]`` points of sample i by ``matrices[i]`` [m, n] and add ``shifts[i]`` [m]; in float32."""
    rows, columns = matrices.shape[1], matrices.shape[2]
    for i in range(len(base)):
        m, t = matrices[i], shifts[i]
        for p in range(counts[i]):
            s, o = base[i] + p * columns, out_base[i] + p * rows
            for r in range(rows):
                total = np.float32(0)
                for c in range(columns):
                    total += m[r, c] * src[s + c]
                dst[o + r] = total + t[r]


@numba.njit(nogil=True, cache=True)
def flip(src, base, sizes, factors, shifts, dst, out_base):
    """Multiply the n coordinates of each point by ``factors`` and add ``shifts``, both [N or 1, n]."""
    width = factors.shape[1]
    for i in range(len(base)):
        row, moved = min(i, len(factors) - 1), min(i, len(shifts) - 1)
        for c in range(width):
            m, t = factors[row, c], shifts[moved, c]
            for p in range(c, sizes[i], width):
                dst[out_base[i] + p] = np.float32(src[base[i] + p] * m) + t
