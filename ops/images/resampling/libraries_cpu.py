"""The CPU kernels of `libraries`: taps of the libraries' filters, and their fixed-point passes, horizontal first."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numba
import numpy as np

from .libraries import Arithmetic, Filter
from .resample_cpu import ROOM, paired
from .simd_cpu import add_pixel_pairs

jit = numba.njit(nogil=True, cache=True)

# As plain integers: Numba makes constants of them, but looks enumeration members up.
_NEAREST, _CENTRE, _BOX, _LINEAR, _HAMMING, _CUBIC, _LANCZOS = (int(f) for f in list(Filter)[:7])
_LINEAR_2, _CUBIC_4, _LANCZOS_8, _AREA, _AREA_UP = (int(f) for f in list(Filter)[7:])
_BYTES_22, _BYTES_22_DOWN, _BYTES_15, _LINEAR_11, _FIXED_11, FLOATS = (int(a) for a in list(Arithmetic)[:6])


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
    """The filters that widen with the scale, at ``x`` in their own units."""
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
    """Weight ``k`` of the filters of ``taps`` pixels, the output lying ``x`` in [0, 1) beyond pixel taps / 2 - 1."""
    away = x + (taps // 2 - 1 - k)
    if kind == _CUBIC_4:
        return _cubic(away, -0.75)
    if kind == _LANCZOS_8:
        return _sinc(away) * _sinc(away / 4)
    return 1 - abs(away)


@jit
def taps(kind, rule, lo, hi, size, n, first, count, loose):
    """The source pixels and weights of outputs ``first``, ... of ``size`` that cover [``lo``, ``hi``) of ``n`` pixels:
    starts int32[count] and weights float64[count, taps]. Outputs beyond the ends are those at the ends.

    Where ``loose``, taps of OpenCV's linear filter outside the image stay there, for callers that clamp them on use."""
    scale = 1 / (size / (hi - lo)) if rule > _BYTES_15 else (hi - lo) / size  # OpenCV's way, and the others'
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
        elif rule <= _BYTES_22_DOWN:
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
        else:  # OpenCV's places are float32
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
    """Weights as int32, and their bits: PyTorch takes as many as 16-bit integers hold for the largest, ``top``."""
    bits = 11
    if rule <= _BYTES_22_DOWN:
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
def _top(rule, lo, hi, size, kind, n):
    """The largest weight of an axis, where it matters: of all its outputs, so that windows get the same bits. Of very
    long axes only their ends are looked at, where the largest weights are."""
    if rule != _BYTES_15:
        return 1.0
    count = min(size, 8192)
    first = taps(kind, rule, lo, hi, size, n, 0, count, False)[1].max()
    return max(first, taps(kind, rule, lo, hi, size, n, size - count, count, False)[1].max())


@jit
def _axis(rule, lo, hi, size, anchor, count, kind, flip, begin, end, loose):
    starts, weights = taps(kind, rule, lo - begin, hi - begin, size, end - begin, anchor, count, loose)
    if flip:
        starts, weights = starts[::-1].copy(), weights[::-1].copy()
    starts += begin
    return starts, weights


@jit
def fixed_images(
    src, offsets, frames, extents, channels, lo, hi, size, anchor, shape, kind, flip, domain, rules, dst, dst_offsets
):
    """Resample 8-bit images [frames, height, width, channels] in integers: src[offsets[i]:] to dst[dst_offsets[i]:].

    From ``lo`` on, a plan's arrays [N, 2] (y, x); ``rules`` [N] is `libraries.Arithmetic`. FLOATS are skipped.
    """
    for i in range(len(offsets)):
        C, rule = channels[i], rules[i]
        if rule >= FLOATS or shape[i, 0] * shape[i, 1] * C * frames[i] == 0:
            continue
        begin, end = domain[i, 0, 0], domain[i, 0, 1]
        loose = kind[i, 0] > _CENTRE and rule == _LINEAR_11
        sy, wy = _axis(rule, lo[i, 0], hi[i, 0], size[i, 0], anchor[i, 0], shape[i, 0], kind[i, 0], flip[i, 0],
                       begin, end, loose)  # fmt: skip
        sx, wx = _axis(rule, lo[i, 1], hi[i, 1], size[i, 1], anchor[i, 1], shape[i, 1], kind[i, 1], flip[i, 1],
                       domain[i, 1, 0], domain[i, 1, 1], False)  # fmt: skip
        vertical, bits_y = _whole(
            wy, rule, _top(rule, lo[i, 0] - begin, hi[i, 0] - begin, size[i, 0], kind[i, 0], end - begin)
        )
        begin_x, end_x = domain[i, 1, 0], domain[i, 1, 1]
        across, bits_x = _whole(
            wx, rule, _top(rule, lo[i, 1] - begin_x, hi[i, 1] - begin_x, size[i, 1], kind[i, 1], end_x - begin_x)
        )
        top = max(sy.min(), begin)
        rows = min(sy.max() + wy.shape[1], end) - top
        left = sx.min()
        n, m = (sx.max() + wx.shape[1] - left) * C, shape[i, 1] * C
        sx -= left
        down = rule == _BYTES_22_DOWN
        four = C == 1 and not down  # four rows of a plane go together as the channels of a pixel would
        even, pairs = paired(sx, across, 4 if four else C)
        stride = extents[i, 1] * C
        pitch = m + ROOM
        narrow = np.empty(0 if down else rows * pitch, np.int32)
        wide, total = np.empty((4 if four else 1) * n + ROOM, np.int32), np.empty(pitch, np.int32)
        quad = np.empty(4 * pitch if four else 0, np.int32)
        for f in range(frames[i]):
            base = offsets[i] + (f * extents[i, 0] + top) * stride + left * C
            if four:
                _four_rows(src, base, stride, rows, n, wide, even, pairs, across, quad, m, pitch, bits_x, rule, narrow)
            for y in range(0 if down or four else rows):
                _copy(src, base + y * stride, wide, 0, n)
                row = narrow[y * pitch : (y + 1) * pitch]
                _across(wide, even, across, pairs, C, row)
                if rule <= _BYTES_15:
                    _bytes(row, m, bits_x)
            for y in range(shape[i, 0]):
                at = dst_offsets[i] + (f * shape[i, 0] + y) * m
                if down:
                    _sum(src, base + (sy[y] - top) * stride, stride, vertical, y, n, wide)
                    _bytes(wide, n, bits_y)
                    _across(wide, even, across, pairs, C, total)
                    _bytes(total, m, bits_x)
                else:
                    _down(narrow, pitch, rows, sy[y] - top, vertical, y, m, bits_y, rule, total)
                _copy(total, 0, dst, at, m)


@jit
def _across(row, starts, weights, pairs, C, out):
    count, taps = weights.shape
    if C == 3:
        add_pixel_pairs(row, starts, pairs, taps, 3, (count + 1) // 2, out)
        return
    if C == 4:
        add_pixel_pairs(row, starts, pairs, taps, 4, (count + 1) // 2, out)
        return
    for x in range(count):
        for c in range(C):
            total = np.int32(0)
            at = np.uint64(starts[x] * C + c)
            for k in range(weights.shape[1]):
                total += weights[x, k] * np.int32(row[at + np.uint64(k * C)])
            out[x * C + c] = total


@jit
def _four_rows(src, base, stride, rows, n, wide, even, pairs, across, quad, m, pitch, bits, rule, narrow):
    """The horizontal pass over ``rows`` of a plane."""
    count, taps = across.shape
    for y in range(0, rows, 4):
        last = rows - 1
        a, b = base + y * stride, base + min(y + 1, last) * stride
        c, d = base + min(y + 2, last) * stride, base + min(y + 3, last) * stride
        first, second, third, fourth = src[a : a + n], src[b : b + n], src[c : c + n], src[d : d + n]
        for x in range(np.uint64(n)):  # unsigned: no check for a sign, so that the four are stored together
            at = np.uint64(4) * x
            wide[at], wide[at + np.uint64(1)] = first[x], second[x]
            wide[at + np.uint64(2)], wide[at + np.uint64(3)] = third[x], fourth[x]
        add_pixel_pairs(wide, even, pairs, taps, 4, (count + 1) // 2, quad)
        if rule <= _BYTES_15:
            _bytes(quad, 4 * m, bits)
        a, b, c, d = y * pitch, min(y + 1, last) * pitch, min(y + 2, last) * pitch, min(y + 3, last) * pitch
        first, second = narrow[a : a + m], narrow[b : b + m]
        third, fourth = narrow[c : c + m], narrow[d : d + m]
        for x in range(np.uint64(m)):  # the last row may come again and again: it is the same each time
            at = np.uint64(4) * x
            first[x], second[x] = quad[at], quad[at + np.uint64(1)]
            third[x], fourth[x] = quad[at + np.uint64(2)], quad[at + np.uint64(3)]


@jit
def _copy(src, at, dst, to, n):
    a, b = src[at : at + n], dst[to : to + n]  # slices are vectorised, sums as indices are not
    for j in range(n):
        b[j] = a[j]


@jit
def _bytes(values, n, bits):
    """Sums of ``bits`` fractional bits rounded to 0 ... 255."""
    half = np.int32((1 << bits) >> 1)
    for j in range(n):
        values[j] = min(max((values[j] + half) >> bits, 0), 255)


@jit
def _down(narrow, pitch, rows, start, weights, y, n, bits, rule, out):
    """The vertical pass: ``n`` bytes of output ``y`` from rows that lie ``pitch`` apart."""
    if rule == _LINEAR_11:  # two taps; the high halves of products with what is left of 15 bits
        first, second = min(max(start, 0), rows - 1) * pitch, min(max(start + 1, 0), rows - 1) * pitch
        u, v = weights[y, 0], weights[y, 1]
        a, b = narrow[first : first + n], narrow[second : second + n]
        for j in range(n):
            out[j] = min(max((((u * (a[j] >> 4)) >> 16) + ((v * (b[j] >> 4)) >> 16) + 2) >> 2, 0), 255)
    elif rule == _FIXED_11:
        for j in range(n):
            exact = 0.0
            for k in range(weights.shape[1]):
                exact += np.float64(weights[y, k]) * np.float64(narrow[(start + k) * pitch + j])
            out[j] = np.int32(min(max(np.rint(exact * (1.0 / (1 << 22))), 0.0), 255.0))
    else:
        _sum(narrow, start * pitch, pitch, weights, y, n, out)
        _bytes(out, n, bits)


@jit
def _sum(rows, at, stride, weights, y, n, total):
    """``n`` sums of rows that lie ``stride`` apart, weighted as for output ``y``."""
    for k in range(weights.shape[1]):
        a, w = rows[at + k * stride : at + k * stride + n], weights[y, k]
        if k == 0:
            for j in range(n):
                total[j] = w * np.int32(a[j])
        else:
            for j in range(n):
                total[j] += w * np.int32(a[j])


@jit
def float_images(
    src, offsets, frames, extents, channels, lo, hi, size, anchor, shape, kind, flip, domain, rules, dst, dst_offsets
):
    """As `fixed_images`, float32 images to float32, in floating point."""
    for i in range(len(offsets)):
        if shape[i, 0] * shape[i, 1] * channels[i] * frames[i] == 0:
            continue
        C, rule = channels[i], rules[i]
        plain = rule if rule <= _BYTES_15 else FLOATS  # which only says how places are computed
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
