"""The CPU loop of `filter`: all pictures in one call, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from ..copies.strided_cpu import put
from .separable_cpu import _add, mirrored

jit = numba.njit(nogil=True, cache=True)


@jit
def outside(i, n, border):
    """Place ``i`` of a line of ``n`` continued as `axes.BORDERS` say; -1 for the constant."""
    if 0 <= i < n:
        return i
    if border == 4:
        return -1
    if border == 3:
        return 0 if i < 0 else n - 1
    if border == 2:
        return i % n
    if border == 1:
        i %= 2 * n
        return i if i < n else 2 * n - 1 - i
    return mirrored(i, n)


@jit
def _line(target, source, start, first, count, columns, channels, border, fill):
    """Values of a line from column ``first`` on, which may be outside of its ``columns``."""
    for x in range(count):
        column = outside(first + x, columns, border)
        for c in range(channels):
            value = fill
            if column >= 0:
                value = np.float32(source[start + column * channels + c])
            target[x * channels + c] = value


@jit
def correlate(src, base, before, after, weights, places, extents, pads, border, fills, dst, out_base):
    """Pictures of ``before`` [M, 5] with filters of ``extents`` [M, 3], to pictures of ``after``."""
    for i in range(len(base)):
        pictures, depth, height, width, channels = after[i]
        _, slices, rows, columns, _ = before[i]
        if pictures == 0:
            continue
        p, q, r = extents[i]
        total = np.empty(width * channels, np.float32)
        line = np.empty((width + r - 1) * channels, np.float32)
        fill = fills[i]
        for picture in range(pictures):
            origin = base[i] + picture * slices * rows * columns * channels
            o = out_base[i] + picture * depth * height * width * channels
            for z in range(depth):
                for y in range(height):
                    total[:] = 0
                    for a in range(p):
                        slice_ = outside(z + a - pads[i, 0], slices, border)
                        for b in range(q):
                            row = outside(y + b - pads[i, 1], rows, border)
                            if slice_ < 0 or row < 0:
                                line[:] = fill
                            else:
                                start = origin + (slice_ * rows + row) * columns * channels
                                count = width + r - 1
                                _line(line, src, start, -pads[i, 2], count, columns, channels, border, fill)
                            at = places[i] + (a * q + b) * r
                            for c in range(r):
                                _add(total, line[c * channels : c * channels + len(total)], weights[at + c])
                    for x in range(len(total)):
                        dst[o + x] = put(total[x], dst)
                    o += len(total)
