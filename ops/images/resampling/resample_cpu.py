"""Compiled CPU kernels of `resample`: taps of a filter, and the two passes over an image, row by row.

Vertical passes add whole rows (LLVM vectorises them), horizontal ones walk pixels of a float32 row that is in the
first-level cache. Sums run in the order of the taps, without fused multiply-adds, so that every machine, window and
batch gives the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from ...copies.strided_cpu import runs
from ...copies.words_cpu import PACKED, load_word, store_pixels
from .resample import NEAREST, TABLE, TABLE_SIZE, TABLE_START, TRIANGULAR
from .simd_cpu import add_pixels

F = np.float32
_HALF = F(0.5)
ROOM = 8
"""Number of values beyond the end of a row that `add_pixels` may read and write."""


@njit(nogil=True, cache=True)
def taps(
    lo: Any, hi: Any, size: Any, first: Any, kind: Any, support: Any, n: Any, stepwise: Any, starts: Any, weights: Any
) -> None:
    """Compute the source pixels and filter weights of outputs ``first``, ``first`` + 1, ...: fill starts[count] and
    weights[count, min(taps, n)]. Weights beyond the ``n`` source pixels count for the pixel at the edge.

    ``size`` outputs cover the source interval [``lo``, ``hi``); float32 in the order of DALI 2.4's operations.
    ``stepwise``: nearest pixels are found by adding up steps from the corner of the region, as DALI does for all axes
    but the last; it matters for outputs half-way between two pixels.
    """
    scale = F(F(hi - lo) / F(size))
    if kind == NEAREST:
        corner = min(max(math.floor(min(lo, hi)), 0), n)
        origin = F(lo - F(corner))
        place = F(0)
        for j in range(min(first, 0), first + len(starts)):
            if j <= 0 or not stepwise:
                place = F(origin + F(F(F(j) + _HALF) * scale))
            else:
                place = F(place + scale)
            if j >= first:
                starts[j - first] = np.int32(min(max(math.floor(place) + corner, 0), n - 1))
                weights[j - first, 0] = F(1)
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
    """Return the filter's value at ``x``, interpolated between entries of its table; zero outside the table."""
    if kind == TRIANGULAR:
        return max(F(0), F(1) - abs(x - F(1)))
    if not (x > F(-1) and x < F(last + 1)):
        return F(0)
    below = math.floor(x)
    a = TABLE[table + below] if below >= 0 else F(0)
    b = TABLE[table + below + 1] if below < last else F(0)
    return a + F(x - F(below)) * F(b - a)


@njit(nogil=True, cache=True)
def _vertical(src: Any, base: Any, stride: Any, start: Any, weights: Any, y: Any, n: Any, out: Any) -> None:
    """Compute row ``y``: the sum over k of weights[y, k] * (``n`` values at ``base`` + (``start`` + k) *
    ``stride``)."""
    at = base + start * stride
    count = weights.shape[1]
    a = src[at : at + n]
    w0 = weights[y, 0]
    if count == 1:
        for j in range(n):
            out[j] = w0 * F(a[j])
        return
    b = src[at + stride : at + stride + n]
    w1 = weights[y, 1]
    if count == 2:
        for j in range(n):
            out[j] = w0 * F(a[j]) + w1 * F(b[j])
        return
    at += 2 * stride
    c = src[at : at + n]
    w2 = weights[y, 2]
    for j in range(n):
        out[j] = w0 * F(a[j]) + w1 * F(b[j]) + w2 * F(c[j])
    for k in range(3, count - 1, 2):
        at += stride
        a, b = src[at : at + n], src[at + stride : at + stride + n]
        at += stride
        w0, w1 = weights[y, k], weights[y, k + 1]
        for j in range(n):
            out[j] = out[j] + w0 * F(a[j]) + w1 * F(b[j])
    if count % 2 == 0:
        at += stride
        a = src[at : at + n]
        w0 = weights[y, count - 1]
        for j in range(n):
            out[j] += w0 * F(a[j])


@njit(nogil=True, cache=True)
def _horizontal(
    rows: Any, pitch: Any, starts: Any, weights: Any, count: Any, channels: Any, out: Any, out_pitch: Any
) -> None:  # fmt: skip
    """Compute out[x, c] = sum over k of weights[x, k] * row[starts[x] + k, c] for x < ``count``, all flat: for the
    first row of ``rows`` and the one ``pitch`` after it, whose results are ``out_pitch`` apart (0 for a single row)."""
    taps = weights.shape[1]
    if channels == 3 or channels == 4:
        flat = weights.reshape(-1)
        # with constants, loops over taps are unrolled: 1.7x as fast
        if channels == 4:
            add_pixels(rows, pitch, starts, flat, taps, 4, count, out, out_pitch)
        elif taps == 2:
            add_pixels(rows, pitch, starts, flat, 2, 3, count, out, out_pitch)
        elif taps == 3:
            add_pixels(rows, pitch, starts, flat, 3, 3, count, out, out_pitch)
        elif taps == 4:
            add_pixels(rows, pitch, starts, flat, 4, 3, count, out, out_pitch)
        elif taps == 5:
            add_pixels(rows, pitch, starts, flat, 5, 3, count, out, out_pitch)
        else:
            add_pixels(rows, pitch, starts, flat, taps, 3, count, out, out_pitch)
        return
    for k in range(2 if out_pitch > 0 else 1):
        row, made = rows[k * pitch :], out[k * out_pitch :]
        if channels == 1:
            for x in range(count):
                q = np.uint64(starts[x])
                total = F(0)
                for t in range(taps):
                    total += weights[x, t] * row[q + np.uint64(t)]
                made[x] = total
        else:
            for x in range(count):
                _vertical(row, 0, channels, starts[x], weights, x, channels, made[x * channels :])


@njit(nogil=True, cache=True, fastmath={"nnan", "nsz"})
def _store(row: Any, dst: Any, at: Any, n: Any, rounds: Any) -> None:
    """Write ``n`` values to dst[at:], rounded half away from zero and saturated to [0, 255] if ``rounds``."""
    out = dst[at : at + n]
    if rounds:
        for j in range(n):
            out[j] = np.int32(min(max(row[j], F(0)), F(255)) + _HALF)
    else:
        for j in range(n):
            out[j] = row[j]


@njit(nogil=True, cache=True)
def _axis(
    lo: Any, hi: Any, size: Any, first: Any, count: Any, kind: Any, support: Any, n: Any, flip: Any, stepwise: Any
) -> Any:  # fmt: skip
    """Compute `taps` for one axis of a sample. Return first source pixels and weights, in reverse order if ``flip``."""
    kept = 1 if kind == NEAREST else min(n, max(1, math.ceil(support)))
    starts = np.empty(count, np.int32)
    weights = np.empty((count, kept), np.float32)
    taps(lo, hi, size, first, kind, support, n, stepwise, starts, weights)
    if flip:
        return starts[::-1].copy(), weights[::-1].copy()
    return starts, weights


@njit(nogil=True, cache=True)
def _picked(
    src: Any, base: Any, stride: Any, sy: Any, sx: Any, rows: Any, columns: Any, C: Any, dst: Any, at: Any
) -> None:  # fmt: skip
    """Copy the source pixels in rows ``sy`` and columns ``sx`` to the output. Pixels of three bytes that stay bytes are
    read as words of four, and sixteen are written at once."""
    last, packed = 3 * np.int64(sx.max()) + 4, columns // PACKED * PACKED
    words = np.empty(packed, np.uint32)
    for y in range(rows):
        line = base + sy[y] * stride
        if C == 3:
            done = packed if dst.itemsize == 1 and line + last <= len(src) else 0
            for x in range(done):
                words[np.uint64(x)] = load_word(src, line + 3 * sx[np.uint64(x)])
            for x in range(0, done, PACKED):
                store_pixels(words, x, dst, at + 3 * x)
            for x in range(done, columns):
                s, o = np.uint64(line + 3 * sx[np.uint64(x)]), np.uint64(at + 3 * x)
                dst[o], dst[o + _ONE], dst[o + _TWO] = src[s], src[s + _ONE], src[s + _TWO]
        else:
            for x in range(columns):
                s, o = line + C * sx[np.uint64(x)], at + C * x
                for c in range(C):
                    dst[np.uint64(o + c)] = src[np.uint64(s + c)]
        at += columns * C


_ONE, _TWO = np.uint64(1), np.uint64(2)


@njit(nogil=True, cache=True)
def images(
    src: Any, offsets: Any, frames: Any, extents: Any, channels: Any, columns_first: Any,
    lo: Any, hi: Any, size: Any, anchor: Any, shape: Any, kind: Any, support: Any, flip: Any, rounds: Any,
    dst: Any, dst_offsets: Any,
) -> None:  # fmt: skip
    """Resample images [frames, height, width, channels]: sample i from src[offsets[i]:] to dst[dst_offsets[i]:].

    The arguments from ``lo`` on are arrays [N, 2] (y, x) of a plan. Results are rounded and saturated to [0, 255] if
    ``rounds``.
    """
    for i in range(len(offsets)):
        if shape[i, 0] * shape[i, 1] * channels[i] * frames[i] == 0:
            continue
        sy, wy, sx, wx, corner, n, rows = _view(i, extents, channels, lo, hi, size, anchor, shape, kind, support, flip)
        C, count, stride = channels[i], shape[i, 1], extents[i, 1] * channels[i]
        m = count * C
        if src.itemsize == 1 and kind[i, 0] == NEAREST and kind[i, 1] == NEAREST:  # bytes need no arithmetic
            for f in range(frames[i]):
                base, at = offsets[i] + f * extents[i, 0] * stride + corner, dst_offsets[i] + f * shape[i, 0] * m
                _picked(src, base, stride, sy, sx, shape[i, 0], count, C, dst, at)
            continue
        wide, made = np.empty(2 * (n + ROOM), np.float32), np.empty(2 * (m + ROOM), np.float32)
        narrow = np.empty(rows * (m + ROOM) if columns_first[i] else 0, np.float32)
        for f in range(frames[i]):
            base = offsets[i] + f * extents[i, 0] * stride + corner
            if columns_first[i]:
                _narrow(src, base, stride, rows, n, sx, wx, count, C, wide, narrow)
            at = dst_offsets[i] + f * shape[i, 0] * m
            for y in range(0, shape[i, 0], 2):
                _two_rows(src, base, stride, n, sy, wy, sx, wx, y, shape[i, 0], count, C, wide, narrow, made)
                for k in range(min(2, shape[i, 0] - y)):
                    _store(made[k * (m + ROOM) :], dst, at + (y + k) * m, m, rounds)


@njit(nogil=True, cache=True)
def finished_images(
    src: Any, offsets: Any, frames: Any, extents: Any, channels: Any, columns_first: Any,
    lo: Any, hi: Any, size: Any, anchor: Any, shape: Any, kind: Any, support: Any, flip: Any, rounds: Any,
    dst: Any, dst_offsets: Any, factors: Any, strides: Any,
) -> None:  # fmt: skip
    """Resize `images` of one frame each, whose rounded values then go through `strided_cpu.runs` (see `Finish`)."""
    for i in range(len(offsets)):
        if shape[i, 0] * shape[i, 1] * channels[i] * frames[i] == 0:
            continue
        sy, wy, sx, wx, corner, n, rows = _view(i, extents, channels, lo, hi, size, anchor, shape, kind, support, flip)
        C, count, stride = channels[i], shape[i, 1], extents[i, 1] * channels[i]
        m = count * C
        wide, made = np.empty(2 * (n + ROOM), np.float32), np.empty(2 * (m + ROOM), np.float32)
        narrow = np.empty(rows * (m + ROOM) if columns_first[i] else 0, np.float32)
        rounded = np.empty(shape[i, 0] * m, src.dtype)
        factor = factors[i if factors.shape[0] > 1 else 0]
        base = offsets[i] + corner
        if columns_first[i]:
            _narrow(src, base, stride, rows, n, sx, wx, count, C, wide, narrow)
        for y in range(0, shape[i, 0], 2):
            _two_rows(src, base, stride, n, sy, wy, sx, wx, y, shape[i, 0], count, C, wide, narrow, made)
            for k in range(min(2, shape[i, 0] - y)):
                _store(made[k * (m + ROOM) :], rounded, (y + k) * m, m, rounds)
        runs(rounded, dst, 0, dst_offsets[i], shape[i, 0] * count, C, C, 1, strides[i, 0], strides[i, 1], 0, factor)


@njit(nogil=True, cache=True)
def finished(
    src: Any, offsets: Any, pixels: Any, channels: Any, dst: Any, dst_offsets: Any, factors: Any, strides: Any
) -> None:  # fmt: skip
    """Apply `Finish` (normalisation and placement) to images that are resampled already."""
    for i in range(len(offsets)):
        factor, C = factors[i if factors.shape[0] > 1 else 0], channels[i]
        runs(src, dst, offsets[i], dst_offsets[i], pixels[i], C, C, 1, strides[i, 0], strides[i, 1], 0, factor)


@njit(nogil=True, cache=True)
def _view(
    i: Any, extents: Any, channels: Any, lo: Any, hi: Any, size: Any, anchor: Any, shape: Any, kind: Any,
    support: Any, flip: Any,
) -> Any:  # fmt: skip
    """Return which values of sample ``i`` are read: starts of rows and columns relative to the top left corner of these
    values, the offset of that corner, the number of elements of a source row, and the number of rows."""
    H, W, C = extents[i, 0], extents[i, 1], channels[i]
    sy, wy = _axis(
        lo[i, 0], hi[i, 0], size[i, 0], anchor[i, 0], shape[i, 0], kind[i, 0], support[i, 0], H, flip[i, 0], True
    )
    sx, wx = _axis(
        lo[i, 1], hi[i, 1], size[i, 1], anchor[i, 1], shape[i, 1], kind[i, 1], support[i, 1], W, flip[i, 1], False
    )
    top, left = sy.min(), sx.min()
    rows, columns = sy.max() + wy.shape[1] - top, sx.max() + wx.shape[1] - left
    sy -= top
    sx -= left
    return sy, wy, sx, wx, top * W * C + left * C, columns * C, rows


@njit(nogil=True, cache=True)
def _narrow(
    src: Any, base: Any, stride: Any, rows: Any, n: Any, sx: Any, wx: Any, count: Any, C: Any, wide: Any, narrow: Any
) -> None:  # fmt: skip
    """Run the horizontal pass over ``rows`` rows of ``n`` values, to rows with `ROOM` values between them; ``wide`` is
    scratch memory for two rows."""
    pitch, out_pitch = n + ROOM, count * C + ROOM
    for y in range(0, rows, 2):
        more = min(2, rows - y)
        for k in range(more):
            at = base + (y + k) * stride
            a, row = src[at : at + n], wide[k * pitch : k * pitch + n]
            for j in range(n):
                row[j] = F(a[j])
        _horizontal(wide, (more - 1) * pitch, sx, wx, count, C, narrow[y * out_pitch :], (more - 1) * out_pitch)


@njit(nogil=True, cache=True)
def _two_rows(
    src: Any, base: Any, stride: Any, n: Any, sy: Any, wy: Any, sx: Any, wx: Any, y: Any, rows: Any, count: Any, C: Any,
    wide: Any, narrow: Any, made: Any,
) -> None:  # fmt: skip
    """Compute output rows ``y`` and y + 1, if there is a second one, into ``made``, the second one `ROOM` after the
    first: from ``narrow`` if the horizontal pass came first, otherwise from rows of ``src`` with ``n`` values; ``wide``
    is scratch memory for two."""
    pitch, out_pitch = n + ROOM, count * C + ROOM
    more = min(2, rows - y)
    for k in range(more):
        if len(narrow) > 0:
            _vertical(narrow, 0, out_pitch, sy[y + k], wy, y + k, count * C, made[k * out_pitch :])
        else:
            _vertical(src, base, stride, sy[y + k], wy, y + k, n, wide[k * pitch :])
    if len(narrow) == 0:
        _horizontal(wide, (more - 1) * pitch, sx, wx, count, C, made, (more - 1) * out_pitch)


@njit(nogil=True, cache=True)
def slices(
    src: Any, offsets: Any, frames: Any, extents: Any, sizes: Any,
    lo: Any, hi: Any, size: Any, anchor: Any, shape: Any, kind: Any, support: Any, flip: Any,
    dst: Any, dst_offsets: Any,
) -> None:  # fmt: skip
    """Resample arrays [frames, extent, slice of ``sizes`` elements] along the middle axis, to float32."""
    for i in range(len(offsets)):
        n = sizes[i]
        if shape[i] * n * frames[i] == 0:
            continue
        starts, weights = _axis(
            lo[i], hi[i], size[i], anchor[i], shape[i], kind[i], support[i], extents[i], flip[i], True
        )
        for f in range(frames[i]):
            for z in range(shape[i]):
                at = dst_offsets[i] + (f * shape[i] + z) * n
                base = offsets[i] + f * extents[i] * n
                _vertical(src, base, n, starts[z], weights, z, n, dst[at : at + n])
