"""Compiled loops of `separable`: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from ..copies.strided_cpu import put

jit = numba.njit(nogil=True, cache=True)
fast = numba.njit(nogil=True, cache=True, fastmath={"contract"})


@jit
def mirrored(i, n):
    """Return the index of value ``i`` in a line of ``n`` values that is mirrored repeatedly at its ends, without
    repeating them."""
    if 0 <= i < n:
        return i
    if n == 1:
        return 0
    i = abs(i) % (2 * n - 2)
    return 2 * n - 2 - i if i >= n else i


@fast
def _add(total, values, weight):
    for x in range(len(total)):
        total[x] += weight * values[x]


@jit
def _copy(target, values):
    for x in range(len(target)):
        target[x] = np.float32(values[x])


@jit
def _across(picture, lines, columns, channels, window):
    """Filter every line of an image with ``window``, in place."""
    radius, width = len(window) // 2, columns * channels
    line = np.empty(width + 2 * radius * channels, np.float32)
    total = np.empty(width, np.float32)
    for y in range(lines):
        own = picture[y * width : (y + 1) * width]
        _copy(line[radius * channels : radius * channels + width], own)
        for k in range(radius):
            before, after = mirrored(-1 - k, columns), mirrored(columns + k, columns)
            for c in range(channels):
                line[(radius - 1 - k) * channels + c] = own[before * channels + c]
                line[radius * channels + width + k * channels + c] = own[after * channels + c]
        total[:] = 0
        for k in range(len(window)):
            _add(total, line[k * channels : k * channels + width], window[k])
        own[:] = total


@jit
def _down(source, target, blocks, count, width, window):
    """Filter across the lines of ``blocks`` images, with ``count`` lines of ``width`` values each: every line is a
    weighted sum of the lines before and after it."""
    radius = len(window) // 2
    for b in range(blocks):
        start = b * count * width
        for y in range(count):
            total = target[start + y * width : start + (y + 1) * width]
            total[:] = 0
            for k in range(len(window)):
                at = start + mirrored(y + k - radius, count) * width
                _add(total, source[at : at + width], window[k])


@jit
def separable(src, base, geometry, windows, lengths, factors, dst, out_base):
    """Filter along depth, height and width with ``windows``. The output is the sum of several such results, each times
    its number in ``factors``; ``geometry``: see `axes.geometry`."""
    for i in range(len(base)):
        pictures, depth, height, width, channels = geometry[i]
        size = depth * height * width * channels
        if pictures == 0:
            continue
        first, second = np.empty(size, np.float32), np.empty(size, np.float32)
        total = np.empty(size, np.float32)
        for p in range(pictures):
            source = src[base[i] + p * size : base[i] + (p + 1) * size]
            out = dst[out_base[i] + p * size : out_base[i] + (p + 1) * size]
            for t in range(windows.shape[1]):
                _copy(first, source)
                current, other = first, second
                if lengths[i, t, 2] > 1:
                    _across(current, depth * height, width, channels, windows[i, t, 2, : lengths[i, t, 2]])
                if lengths[i, t, 1] > 1:
                    _down(current, other, depth, height, width * channels, windows[i, t, 1, : lengths[i, t, 1]])
                    current, other = other, current
                if lengths[i, t, 0] > 1:
                    run = height * width * channels
                    _down(current, other, 1, depth, run, windows[i, t, 0, : lengths[i, t, 0]])
                    current, other = other, current
                if t == 0:
                    total[:] = 0
                _add(total, current, factors[i, t])
            for x in range(size):
                out[x] = put(total[x], dst)
