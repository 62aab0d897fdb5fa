"""Compiled loops of `morphology`: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import overload

from .filter_cpu import outside

jit = numba.njit(nogil=True, cache=True)


def window_middle(source: Any, rows: Any, columns: Any, channels: Any, h: Any, w: Any, out: Any) -> None:
    """Compute an image's medians of windows (compiled below: by histograms for bytes, by sorting for other types)."""


@jit
def _larger(total, values):
    for x in range(len(total)):
        total[x] = max(total[x], values[x])


@jit
def _smaller(total, values):
    for x in range(len(total)):
        total[x] = min(total[x], values[x])


@jit
def extreme(src, base, geometry, masks, border, largest, dst, out_base):
    """Write the largest or smallest value in a rectangle around each pixel; ``masks`` [M, 4]: height and width of the
    rectangle, and which of its elements lies on the pixel."""
    for i in range(len(base)):
        pictures, _, rows, columns, channels = geometry[i]
        if pictures == 0:
            continue
        h, w, top, left = masks[i]
        width = columns * channels
        line = np.empty((columns + w - 1) * channels, src.dtype)
        between = np.empty(rows * width, src.dtype)
        for p in range(pictures):
            s = src[base[i] + p * rows * width : base[i] + (p + 1) * rows * width]
            o = dst[out_base[i] + p * rows * width : out_base[i] + (p + 1) * rows * width]
            for y in range(rows):
                own = between[y * width : (y + 1) * width]
                own[:] = s[y * width : (y + 1) * width]
                if w > 1:
                    for x in range(columns + w - 1):
                        column = outside(x - left, columns, border)
                        if column < 0:  # a repeated value changes nothing
                            column = min(max(x - left, 0), columns - 1)
                        for c in range(channels):
                            line[x * channels + c] = s[y * width + column * channels + c]
                    own[:] = line[:width]
                    for k in range(1, w):
                        if largest:
                            _larger(own, line[k * channels : k * channels + width])
                        else:
                            _smaller(own, line[k * channels : k * channels + width])
            for y in range(rows):
                own = o[y * width : (y + 1) * width]
                fresh = True
                for k in range(h):
                    row = outside(y + k - top, rows, border)
                    if row < 0:
                        continue
                    if fresh:
                        own[:] = between[row * width : (row + 1) * width]
                    elif largest:
                        _larger(own, between[row * width : (row + 1) * width])
                    else:
                        _smaller(own, between[row * width : (row + 1) * width])
                    fresh = False


@jit
def _clamp(i, n):
    return min(max(i, 0), n - 1)


@jit
def _by_histogram(source, rows, columns, channels, h, w, out):
    """Compute medians of bytes as Huang does: a window's histogram moves along a row, and the median is updated."""
    half, counts = h * w // 2, np.empty(256, np.int32)
    for c in range(channels):
        for y in range(rows):
            counts[:] = 0
            for j in range(-(h // 2), h // 2 + 1):
                start = _clamp(y + j, rows) * columns
                for k in range(-(w // 2), w // 2 + 1):
                    counts[source[(start + _clamp(k, columns)) * channels + c]] += 1
            middle, below = np.int64(0), np.int64(0)  # below: number of values that are smaller than the median
            for x in range(columns):
                if x > 0:
                    old, new = _clamp(x - 1 - w // 2, columns), _clamp(x + w // 2, columns)
                    for j in range(-(h // 2), h // 2 + 1):
                        start = _clamp(y + j, rows) * columns
                        gone = source[(start + old) * channels + c]
                        come = source[(start + new) * channels + c]
                        counts[gone] -= 1
                        counts[come] += 1
                        below += np.int64(come < middle) - np.int64(gone < middle)
                while below > half:
                    middle -= 1
                    below -= counts[middle]
                while below + counts[middle] <= half:
                    below += counts[middle]
                    middle += 1
                out[(y * columns + x) * channels + c] = middle


@jit
def _by_sorting(source, rows, columns, channels, h, w, out):
    values = np.empty(h * w, source.dtype)
    for y in range(rows):
        for x in range(columns):
            for c in range(channels):
                at = 0
                for j in range(-(h // 2), h // 2 + 1):
                    start = _clamp(y + j, rows) * columns
                    for k in range(-(w // 2), w // 2 + 1):
                        values[at] = source[(start + _clamp(x + k, columns)) * channels + c]
                        at += 1
                values.sort()
                out[(y * columns + x) * channels + c] = values[at // 2]


@overload(window_middle)
def _window_middle(source, rows, columns, channels, h, w, out):  # noqa: ARG001 - the type of source selects it
    def by_histogram(source, rows, columns, channels, h, w, out):
        _by_histogram(source, rows, columns, channels, h, w, out)

    def by_sorting(source, rows, columns, channels, h, w, out):
        _by_sorting(source, rows, columns, channels, h, w, out)

    return by_histogram if source.dtype == types.uint8 else by_sorting


@jit
def median(src, base, geometry, masks, dst, out_base):
    """Compute the median in a window around each pixel; ``masks`` [M, 4] begins with its height and width."""
    for i in range(len(base)):
        pictures, _, rows, columns, channels = geometry[i]
        size = rows * columns * channels
        for p in range(pictures):
            s = src[base[i] + p * size : base[i] + (p + 1) * size]
            o = dst[out_base[i] + p * size : out_base[i] + (p + 1) * size]
            window_middle(s, rows, columns, channels, masks[i, 0], masks[i, 1], o)
