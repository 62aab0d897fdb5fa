"""Compiled loops of `filter`: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001, ARG005

from __future__ import annotations

import numba
import numpy as np
from numba import types
from numba.extending import overload

from ..copies.strided_cpu import put
from .filter_simd_cpu import BLOCK, two_lines
from .separable_cpu import mirrored

jit = numba.njit(nogil=True, cache=True)


@jit
def outside(i, n, border):
    """Return the index inside a line of ``n`` values that replaces index ``i``, by a mode of `axes.BORDERS`; -1 for the
    mode that uses a constant."""
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
    """Copy ``count`` pixels of a line from column ``first`` on; columns outside the image follow the border mode."""
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
def _by_lines(src, origin, before, after, extents, pads, border, fill, weights, first, dst, out_at):
    """Filter an image from copies of its lines, which are float32 and extended beyond the image's border."""
    _, depth, height, width, channels = after
    _, slices, rows, columns, _ = before
    p, q, r = extents
    n, count = width * channels, width + r - 1
    blocks = -(-n // BLOCK)
    totals = np.empty(2 * blocks * BLOCK, np.float32)
    pitch = blocks * BLOCK + (r - 1) * channels
    lines = np.zeros(p * (q + 1) * pitch, np.float32)  # also the lines that the next rows need
    held, begins = np.full(p * (q + 1), -1), np.empty(p * (q + 1), np.int64)
    o = out_at
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
                    slice_ = outside(z + a - pads[0], slices, border)
                    row = outside(y + b - pads[1], rows, border)
                    if slice_ < 0 or row < 0:
                        line[:] = fill
                    else:
                        start = origin + (slice_ * rows + row) * columns * channels
                        _line(line, src, start, -pads[2], count, columns, channels, border, fill)
            two_lines(lines, begins, p, q, r, channels, weights, first, blocks, totals, 0, blocks * BLOCK)
            for k in range(min(2, height - y)):
                target, total = dst[o : o + n], totals[k * blocks * BLOCK : k * blocks * BLOCK + n]
                for x in range(n):
                    target[x] = put(total[x], dst)
                o += n


def _straight(src, origin, before, after, extents, pads, border, weights, first, dst, out_at):
    raise NotImplementedError("compiled code calls it")


@overload(_straight)
def _straight_of(src, origin, before, after, extents, pads, border, weights, first, dst, out_at):
    """Filter a float32 image to float32 without copying lines, for outputs whose filter stays inside of lines. Return
    False if types or sizes do not allow it."""
    if src.dtype != types.float32 or dst.dtype != types.float32:
        return lambda src, origin, before, after, extents, pads, border, weights, first, dst, out_at: False
    return _in_place


def _in_place(src, origin, before, after, extents, pads, border, weights, first, dst, out_at):
    _, depth, height, width, channels = after
    _, slices, rows, columns, _ = before
    p, q, r = extents
    n, left = width * channels, pads[2] * channels
    right = min(n, (columns + pads[2] - r + 1) * channels)  # from this value on, a filter extends beyond the end
    if right - left < BLOCK or height < 2 or border == 4:
        return False
    blocks, rest = (right - left) // BLOCK, (right - left) % BLOCK
    # Border values and their neighbours: both ends of all lines side by side, from which the results at both ends are
    # computed.
    beyond = (r - 1) * channels
    of_ends = -(-(left + beyond + n - right) // BLOCK)
    pitch = of_ends * BLOCK + beyond
    ends, totals = np.zeros(p * (height + q) * pitch, np.float32), np.empty(2 * of_ends * BLOCK, np.float32)
    inside = np.zeros(pitch, np.int64)
    for k in range(left + beyond + n - right + beyond):
        value = k - left if k < left + beyond else right - left + k - left - beyond
        inside[k] = outside(value // channels, columns, border) * channels + value % channels
    begins, of_lines = np.empty(p * (q + 1), np.int64), np.empty(p * (height + q), np.int64)
    for z in range(depth):
        for a in range(p):
            slice_ = outside(z + a - pads[0], slices, border)
            for y in range(height + q):
                row = outside(y - pads[1], rows, border)
                line = a * (height + q) + y
                of_lines[line] = origin + (slice_ * rows + row) * columns * channels
                for k in range(pitch):
                    ends[line * pitch + k] = src[of_lines[line] + inside[k]]
        for pair in range(0, height, 2):
            y = min(pair, height - 2)  # if the number of lines is odd, one line is computed twice
            at = out_at + (z * height + y) * n
            for k in range(p * (q + 1)):
                begins[k] = of_lines[k // (q + 1) * (height + q) + y + k % (q + 1)]
            two_lines(src, begins, p, q, r, channels, weights, first, blocks, dst, at + left, n)
            if rest > 0:  # overlap with values before
                for k in range(p * (q + 1)):
                    begins[k] += right - left - BLOCK
                two_lines(src, begins, p, q, r, channels, weights, first, 1, dst, at + right - BLOCK, n)
            for k in range(p * (q + 1)):
                begins[k] = (k // (q + 1) * (height + q) + y + k % (q + 1)) * pitch
            two_lines(ends, begins, p, q, r, channels, weights, first, of_ends, totals, 0, of_ends * BLOCK)
            for k in range(2):
                for x in range(left):
                    dst[at + k * n + x] = totals[k * of_ends * BLOCK + x]
                for x in range(n - right):
                    dst[at + k * n + right + x] = totals[k * of_ends * BLOCK + left + beyond + x]
    return True


@jit
def correlate(src, base, before, after, weights, places, extents, pads, border, fills, dst, out_base):
    """Correlate images of ``before`` [M, 5] with filters of ``extents`` [M, 3]; results have sizes ``after``. Two lines
    are computed at a time."""
    for i in range(len(base)):
        pictures, depth, height, width, channels = after[i]
        _, slices, rows, columns, _ = before[i]
        if pictures == 0:
            continue
        p, q, r = extents[i]
        for picture in range(pictures):
            origin = base[i] + picture * slices * rows * columns * channels
            at = out_base[i] + picture * depth * height * width * channels
            given, made, first, reach = before[i], after[i], places[i], (p, q, r)
            if not _straight(src, origin, given, made, reach, pads[i], border, weights, first, dst, at):
                _by_lines(src, origin, given, made, reach, pads[i], border, fills[i], weights, first, dst, at)
