"""Compiled CPU kernels of `libraries`: taps of the libraries' filters, and their fixed-point passes, horizontal
first."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numba
import numpy as np

from .libraries import Arithmetic, Filter
from .simd_cpu import BLOCK, LANES, transpose, weigh_narrow, weigh_wide

jit = numba.njit(nogil=True, cache=True)

# Integers instead of enumeration members: Numba makes constants of them, but looks members up.
_NEAREST, _CENTRE, _BOX, _LINEAR, _HAMMING, _CUBIC, _LANCZOS = (int(f) for f in list(Filter)[:7])
_LINEAR_2, _CUBIC_4, _LANCZOS_8, _AREA, _AREA_UP = (int(f) for f in list(Filter)[7:])
_BYTES_22, DOWN_FIRST, _BYTES_15, _LINEAR_11, _FIXED_11, FLOATS = (int(a) for a in list(Arithmetic)[:6])


@jit
def _cubic(x, a):
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    if x < 2:
        return (((x - 5) * x + 8) * x - 4) * a
    return 0.0


@jit
def _sinc(x):
    if x == 0:
        return 1.0
    x *= math.pi
    return math.sin(x) / x


@jit
def _widened(kind, x):
    """Return the value at ``x`` of filter ``kind``, one of those that widen with the scale; ``x`` is in units of the
    filter."""
    if kind == _BOX:
        return 1.0 if -0.5 < x <= 0.5 else 0.0
    if kind == _LINEAR:
        return max(0.0, 1.0 - abs(x))
    if kind == _HAMMING:
        # Pillow writes these two as float32
        return _sinc(x) * (np.float32(0.54) + np.float32(0.46) * math.cos(math.pi * x)) if abs(x) < 1 else 0.0
    if kind == _CUBIC:
        return _cubic(x, -0.5)
    return _sinc(x) * _sinc(x / 3) if -3 <= x < 3 else 0.0


@jit
def _fixed(kind, x, k, taps):
    """Return weight ``k`` of a filter with a fixed width of ``taps`` pixels, for an output ``x`` in [0, 1) beyond pixel
    taps / 2 - 1."""
    away = x + (taps // 2 - 1 - k)
    if kind == _CUBIC_4:
        return _cubic(away, -0.75)
    if kind == _LANCZOS_8:
        return _sinc(away) * _sinc(away / 4)
    return 1 - abs(away)


@jit
def taps(kind, rule, lo, hi, size, n, first, count, loose):
    """Return the source pixels and filter weights of ``count`` outputs from ``first`` on. All ``size`` outputs cover
    [``lo``, ``hi``) of ``n`` pixels. Results are starts int32[count] and weights float64[count, taps]. Outputs beyond
    the ends equal those at the ends.

    If ``loose``, OpenCV's linear filter keeps source pixels outside the image, for callers that clamp them on use."""
    # OpenCV's formula, and that of the other libraries
    scale = 1 / (size / (hi - lo)) if rule > _BYTES_15 else (hi - lo) / size
    starts = np.empty(count, np.int32)
    wide = max(scale, 1.0)
    if kind <= _CENTRE:
        _nearest(kind, rule, lo, scale, n, first, size, starts)
        return starts, np.ones((count, 1))
    if kind == _AREA:
        kept = min(n, math.ceil(scale) + 2)
    elif kind >= _LINEAR_2:
        kept = 2 if loose else min(n, 4 if kind == _CUBIC_4 else 8 if kind == _LANCZOS_8 else 2)
    else:
        radius = 0.5 if kind == _BOX else 2.0 if kind == _CUBIC else 3.0 if kind == _LANCZOS else 1.0
        kept = min(n, math.ceil(2 * radius * wide) + 1)
    weights = np.zeros((count, kept))
    for j in range(count):
        at = min(max(first + j, 0), size - 1)
        row = weights[j]
        if kind == _AREA:
            starts[j] = _area(lo + at * scale, scale, n, row)
        elif kind >= _LINEAR_2:
            starts[j] = _interpolate(kind, rule, lo, scale, size / (hi - lo), at, n, row, loose)
        else:
            starts[j] = _antialias(kind, lo + (at + 0.5) * scale, radius * wide, 1.0 / wide, n, row)
    return starts, weights


@jit
def _nearest(kind, rule, lo, scale, n, first, size, starts):
    single = np.float32(scale)  # PyTorch multiplies in float32
    place = lo + scale * 0.5  # Pillow adds up
    done = 0
    for j in range(len(starts)):
        at = min(max(first + j, 0), size - 1)
        if rule == _BYTES_15:
            half = np.float32(0.5 if kind == _CENTRE else 0.0)
            x = math.floor(lo + (np.float32(at) + half) * single)
        elif rule <= DOWN_FIRST:
            while done < at:
                place += scale
                done += 1
            x = math.floor(place)
        else:
            x = math.floor(lo + (at + (0.5 if kind == _CENTRE else 0.0)) * scale)
        starts[j] = min(max(x, 0), n - 1)


@jit
def _antialias(kind, centre, support, inverse, n, row):
    begin = max(int(centre - support + 0.5), 0)
    end = min(int(centre + support + 0.5), n)
    start = max(min(begin, n - len(row)), 0)
    total = 0.0
    for k in range(begin, end):
        w = _widened(kind, (k - centre + 0.5) * inverse)
        row[k - start] = w
        total += w
    if total != 0:
        for k in range(len(row)):
            row[k] /= total
    return start


@jit
def _interpolate(kind, rule, lo, scale, inverse, at, n, row, loose):
    length = 4 if kind == _CUBIC_4 else 8 if kind == _LANCZOS_8 else 2
    if kind == _AREA_UP:
        below = math.floor(at * scale)
        x = float(np.float32((at + 1) - (below + 1) * inverse))
        x = 0.0 if x <= 0 else x - math.floor(x)
        below += math.floor(lo)
    else:
        place = lo + (at + 0.5) * scale - 0.5
        if rule == _BYTES_15:
            below = math.floor(place)
            x = place - below
        else:  # OpenCV computes positions in float32
            single = np.float32(place)
            below = math.floor(single)
            x = float(single - np.float32(below))
    begin = below - (length // 2 - 1)
    start = begin if loose else max(min(begin, n - len(row)), 0)
    total = 0.0
    if kind == _LANCZOS_8:
        for k in range(length):
            total += _fixed(kind, x, k, length)
    for k in range(length):
        w = _fixed(kind, x, k, length)
        if total != 0:
            w /= total
        if rule in (_LINEAR_11, _FIXED_11):
            w = np.rint(np.float64(np.float32(w)) * 2048.0) / 2048.0
        row[k if loose else min(max(begin + k, 0), n - 1) - start] += w
    return start


@jit
def _area(begin, scale, n, row):
    end = begin + scale
    cell = min(scale, n - begin)
    inner, outer = math.ceil(begin), min(math.floor(end), n - 1)
    inner = min(inner, outer)
    partly = inner - begin > 1e-3
    start = max(min(inner - 1 if partly else inner, n - len(row)), 0)
    if partly:
        row[inner - 1 - start] += (inner - begin) / cell
    for k in range(inner, outer):
        row[k - start] += 1 / cell
    if end - outer > 1e-3:
        row[outer - start] += min(min(end - outer, 1.0), cell) / cell
    return start


@jit
def _whole(weights, rule, top):
    """Return the ``weights`` as int32, and the number of their fractional bits: PyTorch uses as many as 16-bit integers
    can hold for the largest weight, ``top``."""
    bits = 11
    if rule <= DOWN_FIRST:
        bits = 22
    elif rule == _BYTES_15:
        bits = 0
        while bits < 22 and int(0.5 + top * (1 << (bits + 1))) < 1 << 15:
            bits += 1
    out = np.empty(weights.shape, np.int32)
    for j in range(weights.shape[0]):
        for k in range(weights.shape[1]):
            w = weights[j, k] * (1 << bits)
            out[j, k] = int(w - 0.5) if w < 0 else int(w + 0.5)
    return out, bits


@jit
def _top(rule, lo, hi, size, kind, n, anchor, weights):
    """Return the largest filter weight of an axis if it determines how many bits weights have, else 1. All outputs of
    the axis count, so that a window gets the same bits as the whole axis; of very long axes only the ends are examined,
    where the largest weights are."""
    if rule != _BYTES_15:
        return 1.0
    if anchor == 0 and len(weights) == size:
        return weights.max()
    count = min(size, 8192)
    first = taps(kind, rule, lo, hi, size, n, 0, count, False)[1].max()
    return max(first, taps(kind, rule, lo, hi, size, n, size - count, count, False)[1].max())


@jit
def _trimmed(starts, weights, end):
    """Return starts and weights without first and last columns that are zero for all outputs. No start is moved so that
    pixels at ``end`` or beyond would be read."""
    count, wide = weights.shape
    begins, kept = np.empty(count, np.int32), 1
    for j in range(count):
        a, b = 0, wide
        while a < wide - 1 and weights[j, a] == 0:
            a += 1
        while b > a + 1 and weights[j, b - 1] == 0:
            b -= 1
        begins[j] = a
        kept = max(kept, b - a)
    made, places = np.zeros((count, kept), np.int32), np.empty(count, np.int32)
    for j in range(count):
        places[j] = min(starts[j] + begins[j], end - kept)
        skipped = places[j] - starts[j]
        for k in range(max(-skipped, 0), min(kept, wide - skipped)):
            made[j, k] = weights[j, skipped + k]
    return places, made


@jit
def _axis(rule, lo, hi, size, anchor, count, kind, flip, begin, end, loose):
    starts, weights = taps(kind, rule, lo - begin, hi - begin, size, end - begin, anchor, count, loose)
    if flip:
        starts, weights = starts[::-1].copy(), weights[::-1].copy()
    starts += begin
    return starts, weights


@jit
def _whole_axis(rule, lo, hi, size, anchor, count, kind, flip, begin, end, loose):
    """Return the filter weights of an axis as integers: for each output the first source pixel and the weights, and the
    number of their fractional bits; see `_axis`."""
    starts, weights = _axis(rule, lo, hi, size, anchor, count, kind, flip, begin, end, loose)
    whole, bits = _whole(weights, rule, _top(rule, lo - begin, hi - begin, size, kind, end - begin, anchor, weights))
    if not loose:
        starts, whole = _trimmed(starts, whole, end)
    return starts, whole, np.int32(bits)


@jit
def _alike(i, k, lo, hi, size, anchor, shape, kind, flip, domain, rules):
    """Return whether the axes of samples ``i`` and ``k`` have the same filter weights, so that one result serves
    both."""
    same = rules[i] == rules[k]
    for a in range(2):
        same = same and lo[i, a] == lo[k, a] and hi[i, a] == hi[k, a] and size[i, a] == size[k, a]
        same = same and anchor[i, a] == anchor[k, a] and shape[i, a] == shape[k, a] and kind[i, a] == kind[k, a]
        same = same and flip[i, a] == flip[k, a]
        same = same and domain[i, a, 0] == domain[k, a, 0] and domain[i, a, 1] == domain[k, a, 1]
    return same


@jit
def whole_axes(lo, hi, size, anchor, shape, kind, flip, domain, rules):
    """Compute the filter weights of all axes of a plan's arrays [N, 2] (y, x), one after the other. Return first source
    pixels, weights, and a table [N, 2, 6]: for each axis its first index in both, weights per output, fractional bits,
    and first and number of the source pixels that they cover. A sample equal to the one before shares its row."""
    table = np.zeros((len(lo), 2, 6), np.int64)
    starts, weights = np.empty(shape.sum(), np.int32), np.empty(0, np.int32)
    at, to = 0, 0
    for i in range(len(lo)):
        if i > 0 and _alike(i, i - 1, lo, hi, size, anchor, shape, kind, flip, domain, rules):
            table[i] = table[i - 1]
            continue
        for a in range(2):
            count, end = shape[i, a], domain[i, a, 1]
            first, taken, bits = _whole_axis(rules[i], lo[i, a], hi[i, a], size[i, a], anchor[i, a], count, kind[i, a],
                                             flip[i, a], domain[i, a, 0], end, False)  # fmt: skip
            if to + taken.size > len(weights):
                grown = np.empty(2 * (to + taken.size), np.int32)
                grown[:to] = weights[:to]
                weights = grown
            starts[at : at + count] = first
            weights[to : to + taken.size] = taken.reshape(-1)
            row = table[i, a]
            row[0], row[1], row[2], row[3] = at, to, taken.shape[1], bits
            if count:
                row[4] = max(first.min(), domain[i, a, 0])
                row[5] = min(first.max() + taken.shape[1], end) - row[4]
            at, to = at + count, to + taken.size
    return starts[:at], weights[:to], table


@jit
def taps_of_extent(rule, extent, size, anchor, count, kind, flip):
    """Return an axis' filter weights for all of its pixels: first source pixels, weights, fractional bits."""
    return _whole_axis(rule, 0.0, float(extent), size, anchor, count, kind, flip, 0, extent, False)


@jit
def known_axes(lo, hi, size, anchor, shape, kind, flip, domain, rules, known, table, missing):
    """Fill ``table`` as `whole_axes` does, from the rows that are cached in ``known`` [2, E, 6] by axis and window
    length. In these rows, pixels are counted from the start of a window. Return the number of rows that are ``missing``
    in the cache, which are listed there as (axis, length); -1 if samples differ in more than their windows, or windows
    do not begin and end at pixel borders."""
    count = 0
    for i in range(len(lo)):
        if rules[i] != rules[0]:
            return -1
        for a in range(2):
            begin, end = domain[i, a, 0], domain[i, a, 1]
            if lo[i, a] != begin or hi[i, a] != end or size[i, a] != size[0, a] or anchor[i, a] != anchor[0, a]:
                return -1
            if shape[i, a] != shape[0, a] or kind[i, a] != kind[0, a] or flip[i, a] != flip[0, a]:
                return -1
            extent = end - begin
            if extent >= known.shape[1] or known[a, extent, 2] == 0:
                missing[count, 0], missing[count, 1] = a, extent
                count += 1
                continue
            for k in range(6):
                table[i, a, k] = known[a, extent, k]
            table[i, a, 4] += begin
    return count


@jit
def fixed_images(
    src, offsets, frames, extents, channels, lo, hi, size, anchor, shape, kind, flip, domain, rules, dst, dst_offsets
):
    """Resample 8-bit images [frames, height, width, channels] in integer arithmetic: src[offsets[i]:] to
    dst[dst_offsets[i]:].

    From ``lo`` on, a plan's arrays [N, 2] (y, x); ``rules`` [N] is `libraries.Arithmetic`. Rules FLOATS are skipped.
    """
    none, nothing = np.empty(0, np.int32), np.empty((0, 0), np.int32)
    sy, vertical, bits_y, sx, across, bits_x = none, nothing, np.int32(0), none, nothing, np.int32(0)
    planned = -1
    for i in range(len(offsets)):
        C, rule = channels[i], rules[i]
        if rule >= FLOATS or shape[i, 0] * shape[i, 1] * C * frames[i] == 0:
            continue
        begin, end = domain[i, 0, 0], domain[i, 0, 1]
        loose = kind[i, 0] > _CENTRE and rule == _LINEAR_11
        if planned < 0 or not _alike(i, planned, lo, hi, size, anchor, shape, kind, flip, domain, rules):
            planned = i
            sy, vertical, bits_y = _whole_axis(rule, lo[i, 0], hi[i, 0], size[i, 0], anchor[i, 0], shape[i, 0],
                                               kind[i, 0], flip[i, 0], begin, end, loose)  # fmt: skip
            begin_x, end_x = domain[i, 1, 0], domain[i, 1, 1]
            sx, across, bits_x = _whole_axis(rule, lo[i, 1], hi[i, 1], size[i, 1], anchor[i, 1], shape[i, 1],
                                             kind[i, 1], flip[i, 1], begin_x, end_x, False)  # fmt: skip
        top, left = max(sy.min(), begin), sx.min()
        rows, n = min(sy.max() + vertical.shape[1], end) - top, (sx.max() + across.shape[1] - left) * C
        m, stride, taken, places = shape[i, 1] * C, extents[i, 1] * C, shape[i, 0], sx - left
        tile, made = np.empty(n * LANES, np.uint8), np.empty(m * LANES, np.uint8)
        first, between = sy - top, np.empty(taken * n if rule == DOWN_FIRST else rows * m, np.uint8)
        for f in range(frames[i]):
            base, to = offsets[i] + (f * extents[i, 0] + top) * stride + left * C, dst_offsets[i] + f * taken * m
            if rule == DOWN_FIRST:
                _down(src, base, stride, first, vertical, bits_y, n, between, 0)
                _across(between, 0, n, taken, n, places, across, bits_x, C, tile, made, dst, to)
            elif rule <= _BYTES_15:
                _across(src, base, stride, rows, n, places, across, bits_x, C, tile, made, between, 0)
                _down(between, 0, m, first, vertical, bits_y, m, dst, to)
            else:
                sums = np.empty(rows * m, np.int32)
                _across(src, base, stride, rows, n, places, across, bits_x, C, tile, np.empty(m * LANES, np.int32),
                        sums, 0)  # fmt: skip
                for y in range(taken):
                    _down_exactly(sums, m, rows, first[y], vertical, y, rule, dst[to + y * m : to + (y + 1) * m])


@jit
def _across(src, base, stride, lines, n, starts, weights, bits, C, tile, made, dst, to):
    """Run the horizontal pass over ``lines`` lines of ``n`` bytes, src[base:], ``stride`` apart, to dst[to:].

    Several lines are transposed to columns, so that one weight applies to a row of neighbours."""
    count, taps = weights.shape
    m, flat = count * C, weights.reshape(-1)
    for first in range(0, lines, LANES):
        blocks = min(LANES // BLOCK, -(-(lines - first) // BLOCK))
        for b in range(blocks):
            line = max(min(first + b * BLOCK, lines - BLOCK), 0)  # the last lines may be processed twice
            _turned(src, base + line * stride, stride, min(lines, BLOCK), n, tile, b * BLOCK, LANES)
        for x in range(count):
            for c in range(C):
                at, out = (np.int64(starts[x]) * C + c) * LANES, (x * C + c) * LANES
                if blocks == LANES // BLOCK:
                    weigh_wide(tile, at, C * LANES, flat, x * taps, taps, bits, made, out)
                else:
                    for b in range(0, blocks * BLOCK, BLOCK):
                        weigh_narrow(tile, at + b, C * LANES, flat, x * taps, taps, bits, made, out + b)
        for b in range(blocks):
            line = max(min(first + b * BLOCK, lines - BLOCK), 0)
            _turned(made, b * BLOCK, LANES, m, min(lines, BLOCK), dst, to + line * m, m)


@jit
def _turned(src, at, pitch, rows, columns, dst, to, step):
    """Transpose ``rows`` of ``columns``: src[at:], ``pitch`` apart, become columns in dst[to:], ``step`` apart."""
    if rows < BLOCK or columns < BLOCK or src.itemsize > 1:
        for y in range(rows):
            for x in range(columns):
                dst[to + x * step + y] = src[at + y * pitch + x]
        return
    for y in range(0, rows, BLOCK):
        j = min(y, rows - BLOCK)
        for x in range(0, columns, BLOCK):
            k = min(x, columns - BLOCK)
            transpose(src, at + j * pitch + k, pitch, dst, to + k * step + j, step)


@jit
def _down(src, base, stride, starts, weights, bits, n, dst, to):
    """Run the vertical pass of a resize: compute rows of ``n`` bytes from rows that are ``stride`` apart."""
    count, taps = weights.shape
    flat, half = weights.reshape(-1), np.int32((1 << bits) >> 1)
    for y in range(count):
        at, out = base + np.int64(starts[y]) * stride, to + y * n
        x = 0
        while x + LANES <= n:
            weigh_wide(src, at + x, stride, flat, y * taps, taps, bits, dst, out + x)
            x += LANES
        while x < n and n >= BLOCK:
            k = min(x, n - BLOCK)
            weigh_narrow(src, at + k, stride, flat, y * taps, taps, bits, dst, out + k)
            x += BLOCK
        for k in range(x, n):
            total = half
            for tap in range(taps):
                total += weights[y, tap] * np.int32(src[at + tap * stride + k])
            dst[out + k] = min(max(total >> bits, 0), 255)


@jit
def _down_exactly(sums, n, rows, start, weights, y, rule, out):
    """Run OpenCV's vertical pass: compute ``n`` bytes of output ``y`` from unrounded sums of the horizontal pass."""
    if rule == _LINEAR_11:  # two taps; high halves of products with the rest of 15 bits
        first, second = min(max(start, 0), rows - 1) * n, min(max(start + 1, 0), rows - 1) * n
        u, v = weights[y, 0], weights[y, 1]
        a, b = sums[first : first + n], sums[second : second + n]
        for j in range(n):
            out[j] = min(max((((u * (a[j] >> 4)) >> 16) + ((v * (b[j] >> 4)) >> 16) + 2) >> 2, 0), 255)
    else:
        for j in range(n):
            exact = 0.0
            for k in range(weights.shape[1]):
                exact += np.float64(weights[y, k]) * np.float64(sums[(start + k) * n + j])
            out[j] = np.int32(min(max(np.rint(exact * (1.0 / (1 << 22))), 0.0), 255.0))


@jit
def float_images(
    src, offsets, frames, extents, channels, lo, hi, size, anchor, shape, kind, flip, domain, rules, dst, dst_offsets
):
    """Resize float32 images to float32, in floating point; arguments as in `fixed_images`."""
    for i in range(len(offsets)):
        if shape[i, 0] * shape[i, 1] * channels[i] * frames[i] == 0:
            continue
        C, rule = channels[i], rules[i]
        plain = rule if rule <= _BYTES_15 else FLOATS  # this value only decides how positions are computed
        sy, wy = _axis(plain, lo[i, 0], hi[i, 0], size[i, 0], anchor[i, 0], shape[i, 0], kind[i, 0], flip[i, 0],
                       domain[i, 0, 0], domain[i, 0, 1], False)  # fmt: skip
        sx, wx = _axis(plain, lo[i, 1], hi[i, 1], size[i, 1], anchor[i, 1], shape[i, 1], kind[i, 1], flip[i, 1],
                       domain[i, 1, 0], domain[i, 1, 1], False)  # fmt: skip
        top, rows = sy.min(), sy.max() + wy.shape[1] - sy.min()
        stride, m = extents[i, 1] * C, shape[i, 1] * C
        narrow = np.empty((rows, m), np.float32)
        for f in range(frames[i]):
            base = offsets[i] + (f * extents[i, 0] + top) * stride
            for y in range(rows):
                row = src[base + y * stride : base + (y + 1) * stride]
                for x in range(shape[i, 1]):
                    for c in range(C):
                        total = 0.0
                        for k in range(wx.shape[1]):
                            total += wx[x, k] * row[(sx[x] + k) * C + c]
                        narrow[y, x * C + c] = total
            for y in range(shape[i, 0]):
                at = dst_offsets[i] + (f * shape[i, 0] + y) * m
                start = sy[y] - top
                for j in range(m):
                    total = 0.0
                    for k in range(wy.shape[1]):
                        total += wy[y, k] * narrow[start + k, j]
                    dst[at + j] = total
