"""Compiled loop of grid_mask: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@jit
def mask(src, base, geometry, grid, dst, out_base):
    """Mask all samples by a grid of squares; ``geometry`` [N, 4]: planes, rows and columns of a sample, and elements
    per pixel; ``grid``: see `GridMask._grid`."""
    for i in range(len(base)):
        planes, rows, columns, pixel = geometry[i]
        cos, sin, left, top, ratio = grid[i]
        keep = np.empty(columns, np.bool_)
        for y in range(rows):
            v = np.float32(y)
            for x in range(columns):
                u = np.float32(x)
                fx, fy = u * cos - v * sin - left, u * sin + v * cos - top
                keep[x] = fx - np.floor(fx) >= ratio or fy - np.floor(fy) >= ratio
            for plane in range(planes):
                at = (plane * rows + y) * columns * pixel
                s, o = base[i] + at, out_base[i] + at
                a, b = src[s : s + columns * pixel], dst[o : o + columns * pixel]
                if pixel == 3:
                    for x in range(columns):
                        for c in range(3):
                            b[3 * x + c] = a[3 * x + c] if keep[x] else 0
                elif pixel == 1:
                    for x in range(columns):
                        b[x] = a[x] if keep[x] else 0
                else:
                    for x in range(columns):
                        for c in range(pixel):
                            b[pixel * x + c] = a[pixel * x + c] if keep[x] else 0
