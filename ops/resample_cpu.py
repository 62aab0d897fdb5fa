"""The CPU kernels of `resample`: taps of a filter, and the two passes over an image, row by row.

Vertical passes add whole rows (LLVM vectorises them), horizontal ones walk pixels of a float32 row that sits in the
first-level cache. Sums run in the order of the taps, without fused multiply-adds, so that every machine, window and
batch gives the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from .resample import NEAREST, TABLE, TABLE_SIZE, TABLE_START, TRIANGULAR
from .strided_cpu import runs

F = np.float32
_HALF = F(0.5)


@njit(nogil=True, cache=True)
def taps(lo: Any, hi: Any, size: Any, first: Any, kind: Any, support: Any, n: Any, starts: Any, weights: Any) -> None:
    """The source pixels and weights of outputs ``first``, ``first`` + 1, ...: fills starts[count] and
    weights[count, min(taps, n)]. Taps beyond the ``n`` source pixels count for the pixel at the edge.

    ``size`` outputs cover the source interval [``lo``, ``hi``); float32 in the order of DALI 2.4's operations.
    """
    scale = F(F(hi - lo) / F(size))
    if kind == NEAREST:
        for j in range(len(starts)):
            nearest = math.floor(F(lo + F(F(F(first + j) + _HALF) * scale)))
            starts[j] = np.int32(min(max(nearest, 0), n - 1))
            weights[j, 0] = F(1)
        return
    table, last = TABLE_START[kind], TABLE_SIZE[kind] - 1
    count = max(1, math.ceil(support))
    kept = weights.shape[1]
    density = F(F(last) / support)
    origin = F(F(lo + F(F(_HALF * scale) - _HALF)) - F(F(last * _HALF) / density))
    raw = np.empty(count, np.float32)
    for j in range(len(starts)):
        at = F(F(F(first + j) * scale) + origin)
        start = math.ceil(at)
        total = F(0)
        for k in range(count):
            raw[k] = _window(kind, table, last, F(F(F(start + k) - at) * density))
            total += raw[k]
        starts[j] = kept_start = min(max(start, 0), n - kept)
        row = weights[j]
        if kept_start == start and kept == count:
            for k in range(count):
                row[k] = raw[k] / total
        else:
            row[:] = F(0)
            for k in range(count):
                row[min(max(start + k, 0), n - 1) - kept_start] += raw[k] / total


@njit(nogil=True, cache=True)
def _window(kind: Any, table: Any, last: Any, x: Any) -> Any:
    """The tabulated filter at ``x``, linear between entries, zero outside of the table."""
    if kind == TRIANGULAR:
        return max(F(0), F(1) - abs(x - F(1)))
    if not (x > F(-1) and x < F(last + 1)):
        return F(0)
    below = math.floor(x)
    a = TABLE[table + below] if below >= 0 else F(0)
    b = TABLE[table + below + 1] if below < last else F(0)
    return a + F(x - F(below)) * F(b - a)


@njit(nogil=True, cache=True)
def _vertical(src: Any, base: Any, stride: Any, start: Any, w: Any, n: Any, out: Any) -> None:
    """out[:n] = sum over k of w[k] * (the row of ``n`` values at ``base`` + (``start`` + k) * ``stride``)."""
    at = base + start * stride
    count = len(w)
    if count == 1:
        a = src[at : at + n]
        w0 = w[0]
        for j in range(n):
            out[j] = w0 * F(a[j])
        return
    a, b = src[at : at + n], src[at + stride : at + stride + n]
    w0, w1 = w[0], w[1]
    if count == 2:
        for j in range(n):
            out[j] = w0 * F(a[j]) + w1 * F(b[j])
        return
    at += 2 * stride
    c = src[at : at + n]
    w2 = w[2]
    for j in range(n):
        out[j] = w0 * F(a[j]) + w1 * F(b[j]) + w2 * F(c[j])
    k = 3
    while k + 1 < count:
        at += stride
        a, b = src[at : at + n], src[at + stride : at + stride + n]
        at += stride
        w0, w1 = w[k], w[k + 1]
        for j in range(n):
            out[j] = out[j] + w0 * F(a[j]) + w1 * F(b[j])
        k += 2
    if k < count:
        at += stride
        a = src[at : at + n]
        w0 = w[k]
        for j in range(n):
            out[j] += w0 * F(a[j])


@njit(nogil=True, cache=True)
def _horizontal(row: Any, starts: Any, weights: Any, channels: Any, out: Any) -> None:
    """out[x, c] = sum over k of weights[x, k] * row[starts[x] + k, c], both flat."""
    count = weights.shape[1]
    if channels == 3 and count == 2:
        for x in range(len(starts)):
            q, o = np.uint64(3 * starts[x]), np.uint64(3 * x)
            w0, w1 = weights[x, 0], weights[x, 1]
            for c in range(3):
                i = q + np.uint64(c)
                out[o + np.uint64(c)] = w0 * row[i] + w1 * row[i + np.uint64(3)]
    elif channels == 3 and count == 3:
        for x in range(len(starts)):
            q, o = np.uint64(3 * starts[x]), np.uint64(3 * x)
            w0, w1, w2 = weights[x, 0], weights[x, 1], weights[x, 2]
            for c in range(3):
                i = q + np.uint64(c)
                out[o + np.uint64(c)] = w0 * row[i] + w1 * row[i + np.uint64(3)] + w2 * row[i + np.uint64(6)]
    elif channels == 3:
        for x in range(len(starts)):
            q, o = np.uint64(3 * starts[x]), np.uint64(3 * x)
            s0, s1, s2 = F(0), F(0), F(0)
            for k in range(count):
                w = weights[x, k]
                s0 += w * row[q]
                s1 += w * row[q + np.uint64(1)]
                s2 += w * row[q + np.uint64(2)]
                q += np.uint64(3)
            out[o], out[o + np.uint64(1)], out[o + np.uint64(2)] = s0, s1, s2
    elif channels == 1:
        for x in range(len(starts)):
            q = np.uint64(starts[x])
            s0 = F(0)
            for k in range(count):
                s0 += weights[x, k] * row[q + np.uint64(k)]
            out[x] = s0
    else:
        for x in range(len(starts)):
            _vertical(row, starts[x] * channels, channels, 0, weights[x], channels, out[x * channels :])


@njit(nogil=True, cache=True, fastmath={"nnan", "nsz"})
def _store(row: Any, out: Any, low: Any, high: Any) -> None:
    """Round half away from zero and saturate to [low, high]; as it is where both are zero."""
    if low == high:
        for j in range(len(out)):
            out[j] = row[j]
    elif low == 0:
        for j in range(len(out)):
            out[j] = np.int32(min(max(row[j], F(0)), F(high)) + _HALF)
    else:
        for j in range(len(out)):
            v = min(max(row[j], F(low)), F(high))
            out[j] = np.int32(v + (_HALF if v >= 0 else -_HALF))


@njit(nogil=True, cache=True)
def _axis(lo: Any, hi: Any, size: Any, first: Any, count: Any, kind: Any, support: Any, n: Any, flip: Any) -> Any:
    """`taps` in new arrays, the outputs in reverse order where ``flip``."""
    kept = 1 if kind == NEAREST else min(n, max(1, math.ceil(support)))
    starts = np.empty(count, np.int32)
    weights = np.empty((count, kept), np.float32)
    taps(lo, hi, size, first, kind, support, n, starts, weights)
    if flip:
        return starts[::-1].copy(), weights[::-1].copy()
    return starts, weights


@njit(nogil=True, cache=True)
def images(
    src: Any, offsets: Any, frames: Any, extents: Any, channels: Any, columns_first: Any,
    lo: Any, hi: Any, size: Any, anchor: Any, shape: Any, kind: Any, support: Any, flip: Any, low: Any, high: Any,
    dst: Any, dst_offsets: Any,
) -> None:  # fmt: skip
    """Resample images [frames, height, width, channels]: sample i from src[offsets[i]:] to dst[dst_offsets[i]:].

    From ``lo`` on, a plan's arrays [N, 2] (y, x). Results are rounded and saturated to [``low``, ``high``], or kept
    as they are where both are zero.
    """
    for i in range(len(offsets)):
        if shape[i, 0] * shape[i, 1] * channels[i] * frames[i] == 0:
            continue
        view = _view(i, extents, channels, lo, hi, size, anchor, shape, kind, support, flip)
        n = shape[i, 1] * channels[i]
        row = np.empty(n, np.float32)
        scratch = _scratch(view, columns_first[i])
        for f in range(frames[i]):
            base = offsets[i] + f * extents[i, 0] * extents[i, 1] * channels[i]
            _prepare(src, base, view, scratch, columns_first[i])
            for y in range(shape[i, 0]):
                _row(src, base, view, scratch, columns_first[i], y, row)
                at = dst_offsets[i] + (f * shape[i, 0] + y) * n
                _store(row, dst[at : at + n], low, high)


@njit(nogil=True, cache=True)
def finished_images(
    src: Any, offsets: Any, frames: Any, extents: Any, channels: Any, columns_first: Any,
    lo: Any, hi: Any, size: Any, anchor: Any, shape: Any, kind: Any, support: Any, flip: Any, low: Any, high: Any,
    dst: Any, dst_offsets: Any, factors: Any, strides: Any,
) -> None:  # fmt: skip
    """`images` of one frame each, whose rounded values then go through `strided_cpu.runs` (see `Finish`)."""
    for i in range(len(offsets)):
        if shape[i, 0] * shape[i, 1] * channels[i] * frames[i] == 0:
            continue
        view = _view(i, extents, channels, lo, hi, size, anchor, shape, kind, support, flip)
        n = shape[i, 1] * channels[i]
        row, rounded = np.empty(n, np.float32), np.empty(shape[i, 0] * n, src.dtype)
        scratch = _scratch(view, columns_first[i])
        _prepare(src, offsets[i], view, scratch, columns_first[i])
        for y in range(shape[i, 0]):
            _row(src, offsets[i], view, scratch, columns_first[i], y, row)
            _store(row, rounded[y * n : (y + 1) * n], low, high)
        runs(
            rounded, dst, 0, dst_offsets[i], shape[i, 0] * shape[i, 1], channels[i], channels[i], 1, strides[i, 0],
            strides[i, 1], 0, factors[i if factors.shape[0] > 1 else 0],
        )  # fmt: skip


@njit(nogil=True, cache=True)
def _view(
    i: Any, extents: Any, channels: Any, lo: Any, hi: Any, size: Any, anchor: Any, shape: Any, kind: Any,
    support: Any, flip: Any,
) -> Any:  # fmt: skip
    """What is read of sample ``i``: taps relative to (top, left), elements of a source row, their part that is read,
    rows and channels."""
    H, W, C = extents[i, 0], extents[i, 1], channels[i]
    sy, wy = _axis(lo[i, 0], hi[i, 0], size[i, 0], anchor[i, 0], shape[i, 0], kind[i, 0], support[i, 0], H, flip[i, 0])
    sx, wx = _axis(lo[i, 1], hi[i, 1], size[i, 1], anchor[i, 1], shape[i, 1], kind[i, 1], support[i, 1], W, flip[i, 1])
    top, left = sy.min(), sx.min()
    rows, columns = sy.max() + wy.shape[1] - top, sx.max() + wx.shape[1] - left
    sy -= top
    sx -= left
    return sy, wy, sx, wx, top * W * C + left * C, W * C, columns * C, rows, C


@njit(nogil=True, cache=True)
def _scratch(view: Any, columns_first: Any) -> Any:
    """A row of the source after the vertical pass or before the horizontal one, and all rows after the latter."""
    _, _, sx, _, _, _, n, rows, C = view
    return np.empty(n, np.float32), np.empty(rows * len(sx) * C if columns_first else 0, np.float32)


@njit(nogil=True, cache=True)
def _prepare(src: Any, base: Any, view: Any, scratch: Any, columns_first: Any) -> None:
    """The horizontal pass over all rows, where it comes first."""
    if not columns_first:
        return
    _, _, sx, wx, corner, stride, n, rows, C = view
    wide, narrow = scratch
    m = len(sx) * C
    for y in range(rows):
        at = base + corner + y * stride
        a = src[at : at + n]
        for j in range(n):
            wide[j] = F(a[j])
        _horizontal(wide, sx, wx, C, narrow[y * m : (y + 1) * m])


@njit(nogil=True, cache=True)
def _row(src: Any, base: Any, view: Any, scratch: Any, columns_first: Any, y: Any, row: Any) -> None:
    """Row ``y`` of the output, float32."""
    sy, wy, sx, wx, corner, stride, n, _, C = view
    wide, narrow = scratch
    if columns_first:
        _vertical(narrow, 0, len(row), sy[y], wy[y], len(row), row)
    else:
        _vertical(src, base + corner, stride, sy[y], wy[y], n, wide)
        _horizontal(wide, sx, wx, C, row)


@njit(nogil=True, cache=True)
def slices(
    src: Any, offsets: Any, frames: Any, extents: Any, sizes: Any,
    lo: Any, hi: Any, size: Any, anchor: Any, shape: Any, kind: Any, support: Any, flip: Any,
    dst: Any, dst_offsets: Any,
) -> None:  # fmt: skip
    """Resample [frames, extent, slice of ``sizes`` elements] along the middle axis, to float32. All arrays [N]."""
    for i in range(len(offsets)):
        n = sizes[i]
        if shape[i] * n * frames[i] == 0:
            continue
        starts, weights = _axis(lo[i], hi[i], size[i], anchor[i], shape[i], kind[i], support[i], extents[i], flip[i])
        for f in range(frames[i]):
            for z in range(shape[i]):
                at = dst_offsets[i] + (f * shape[i] + z) * n
                base = offsets[i] + f * extents[i] * n
                _vertical(src, base, n, starts[z], weights[z], n, dst[at : at + n])
