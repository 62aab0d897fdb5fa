"""The CPU loop of `filter`: all pictures in one call, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from ..copies.strided_cpu import put
from .filter_simd_cpu import BLOCK, two_lines
from .separable_cpu import mirrored

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
    low = min(max(-first, 0), count)
    high = max(min(columns - first, count), low)
    inner = target[low * channels : high * channels]
    given = source[start + (first + low) * channels : start + (first + low) * channels + len(inner)]
    for x in range(len(inner)):
        inner[x] = np.float32(given[x])
    for k in range(count - (high - low)):
        x = k if k < low else k - low + high
        column = outside(first + x, columns, border)
        for c in range(channels):
            value = fill
            if column >= 0:
                value = np.float32(source[start + column * channels + c])
            target[x * channels + c] = value


@jit
def correlate(src, base, before, after, weights, places, extents, pads, border, fills, dst, out_base):
    """Pictures of ``before`` [M, 5] with filters of ``extents`` [M, 3], to pictures of ``after``; two lines at once."""
    for i in range(len(base)):
        pictures, depth, height, width, channels = after[i]
        _, slices, rows, columns, _ = before[i]
        if pictures == 0:
            continue
        p, q, r = extents[i]
        n, count = width * channels, width + r - 1
        blocks = -(-n // BLOCK)
        totals = np.empty(2 * blocks * BLOCK, np.float32)
        pitch = blocks * BLOCK + (r - 1) * channels
        lines = np.zeros(p * (q + 1) * pitch, np.float32)  # those that the next rows need, too
        held, begins = np.empty(p * (q + 1), np.int64), np.empty(p * (q + 1), np.int64)
        fill = fills[i]
        for picture in range(pictures):
            origin = base[i] + picture * slices * rows * columns * channels
            o = out_base[i] + picture * depth * height * n
            held[:] = -1
            for z in range(depth):
                for y in range(0, height, 2):
                    for a in range(p):
                        for b in range(q + 1):
                            slot = (z + a) % p * (q + 1) + (y + b) % (q + 1)
                            wanted = (z + a) * (height + q + 1) + y + b
                            begins[a * (q + 1) + b] = slot * pitch
                            if held[slot] == wanted:
                                continue
                            held[slot] = wanted
                            line = lines[slot * pitch : slot * pitch + count * channels]
                            slice_ = outside(z + a - pads[i, 0], slices, border)
                            row = outside(y + b - pads[i, 1], rows, border)
                            if slice_ < 0 or row < 0:
                                line[:] = fill
                            else:
                                start = origin + (slice_ * rows + row) * columns * channels
                                _line(line, src, start, -pads[i, 2], count, columns, channels, border, fill)
                    two_lines(lines, begins, p, q, r, channels, weights, places[i], blocks, totals, blocks * BLOCK)
                    for k in range(min(2, height - y)):
                        target, total = dst[o : o + n], totals[k * blocks * BLOCK : k * blocks * BLOCK + n]
                        for x in range(n):
                            target[x] = put(total[x], dst)
                        o += n
