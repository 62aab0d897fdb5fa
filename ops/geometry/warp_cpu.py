"""Compiled loop of rotate and warp_affine for volumes: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from ..copies.strided_cpu import put

jit = numba.njit(nogil=True, cache=True)


@jit
def warp_volumes(src, base, geometry, matrices, linear, filled, fill, dst, out_base):
    """Warp volumes by affine maps. ``geometry`` [N, 8]: 1 (0 for an empty output), depth, height, width, channels of
    the input, depth, height and width of the output; ``matrices`` [N, 3, 4] map the output's voxel centres (x, y, z, 1)
    to the input."""
    for i in range(len(base)):
        present, slices, rows, columns, channels, depth, height, width = geometry[i]
        if present == 0:
            continue
        m, o = matrices[i], out_base[i]
        inner = (slices, rows, columns, channels)
        for z in range(depth):
            w = z + 0.5
            for y in range(height):
                v = y + 0.5
                for x in range(width):
                    u = x + 0.5
                    sx = m[0, 0] * u + m[0, 1] * v + m[0, 2] * w + m[0, 3]
                    sy = m[1, 0] * u + m[1, 1] * v + m[1, 2] * w + m[1, 3]
                    sz = m[2, 0] * u + m[2, 1] * v + m[2, 2] * w + m[2, 3]
                    if linear:
                        sx, sy, sz = sx - 0.5, sy - 0.5, sz - 0.5
                    _voxel(src, base[i], inner, sx, sy, sz, linear, filled, fill, dst, o)
                    o += channels


@jit
def _voxel(src, start, inner, sx, sy, sz, linear, filled, fill, dst, o):
    """Write an output voxel: the nearest input voxel, or the mean of eight neighbours weighted by distance."""
    slices, rows, columns, channels = inner
    x, y, z = _cell(sx, columns), _cell(sy, rows), _cell(sz, slices)
    fx, fy, fz = np.float32(0), np.float32(0), np.float32(0)
    if linear:
        fx = np.float32(min(max(sx - x, 0.0), 1.0))
        fy = np.float32(min(max(sy - y, 0.0), 1.0))
        fz = np.float32(min(max(sz - z, 0.0), 1.0))
    for c in range(channels):
        value = np.float32(0)
        for corner in range(8 if linear else 1):
            i, j, k = x + (corner & 1), y + (corner >> 1 & 1), z + (corner >> 2)
            outside = filled and (i < 0 or j < 0 or k < 0 or i >= columns or j >= rows or k >= slices)
            i, j, k = min(max(i, 0), columns - 1), min(max(j, 0), rows - 1), min(max(k, 0), slices - 1)
            one = fill if outside else np.float32(src[start + ((k * rows + j) * columns + i) * channels + c])
            weight = (fx if corner & 1 else 1 - fx) * (fy if corner & 2 else 1 - fy) * (fz if corner & 4 else 1 - fz)
            value += one * np.float32(weight)
        dst[o + c] = put(value, dst)


@jit
def _cell(value, limit):
    """Return the integer below ``value``, clipped to the range -1 ... ``limit``."""
    return int(np.floor(min(max(value, -2.0), limit + 1.0)))
