"""The CPU loop of `filter`: all pictures in one call, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from ..copies.strided_cpu import put
from .separable_cpu import _add, fast, mirrored

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
    for x in range(count):
        if low <= x < high:
            continue
        column = outside(first + x, columns, border)
        for c in range(channels):
            value = fill
            if column >= 0:
                value = np.float32(source[start + column * channels + c])
            target[x * channels + c] = value


@fast
def _add_four(total, line, apart, weights):
    """``weights`` times the values of a line at four columns, ``apart`` from each other."""
    n = len(total)
    v0, v1, v2, v3 = line[:n], line[apart : apart + n], line[2 * apart : 2 * apart + n], line[3 * apart : 3 * apart + n]
    w0, w1, w2, w3 = weights[0], weights[1], weights[2], weights[3]
    for x in range(n):
        total[x] += (w0 * v0[x] + w1 * v1[x]) + (w2 * v2[x] + w3 * v3[x])


@fast
def _add_five(total, lines, slot, apart, weights, at, n):
    """The same of five columns, in one pass and in the order of `_add_four` and then one more. Indices have no sign, or
    they might count from the end; views would be counted references."""
    w0, w1, w2, w3, w4 = weights[at], weights[at + 1], weights[at + 2], weights[at + 3], weights[at + 4]
    line = np.uint64(slot)
    for x in range(n):
        v0, v1 = lines[line, np.uint64(x)], lines[line, np.uint64(x + apart)]
        v2, v3 = lines[line, np.uint64(x + 2 * apart)], lines[line, np.uint64(x + 3 * apart)]
        four = total[np.uint64(x)] + ((w0 * v0 + w1 * v1) + (w2 * v2 + w3 * v3))
        total[np.uint64(x)] = four + w4 * lines[line, np.uint64(x + 4 * apart)]


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
        count = width + r - 1
        lines = np.empty((p * q, count * channels), np.float32)  # those that the next rows need, too
        held = np.empty(p * q, np.int64)
        fill = fills[i]
        for picture in range(pictures):
            origin = base[i] + picture * slices * rows * columns * channels
            o = out_base[i] + picture * depth * height * width * channels
            held[:] = -1
            for z in range(depth):
                for y in range(height):
                    total[:] = 0
                    for a in range(p):
                        for b in range(q):
                            slot, wanted = (z + a) % p * q + (y + b) % q, (z + a) * (height + q) + y + b
                            line = lines[slot]
                            if held[slot] != wanted:
                                held[slot] = wanted
                                slice_ = outside(z + a - pads[i, 0], slices, border)
                                row = outside(y + b - pads[i, 1], rows, border)
                                if slice_ < 0 or row < 0:
                                    line[:] = fill
                                else:
                                    start = origin + (slice_ * rows + row) * columns * channels
                                    _line(line, src, start, -pads[i, 2], count, columns, channels, border, fill)
                            at = places[i] + (a * q + b) * r
                            if r == 5:
                                _add_five(total, lines, slot, channels, weights, at, len(total))
                                continue
                            c = 0
                            while c + 4 <= r:
                                _add_four(total, line[c * channels :], channels, weights[at + c : at + c + 4])
                                c += 4
                            while c < r:
                                _add(total, line[c * channels : c * channels + len(total)], weights[at + c])
                                c += 1
                    target = dst[o : o + len(total)]
                    for x in range(len(total)):
                        target[x] = put(total[x], dst)
                    o += len(total)
