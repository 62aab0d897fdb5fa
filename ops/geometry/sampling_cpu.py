"""Compiled loops of all operators that take pixels from other positions: one call per batch, without the GIL.

Coordinates refer to pixel centres: (0, 0) is the centre of the first pixel.
"""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001, ARG005

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import overload

from ..copies.strided_cpu import put
from ..copies.words_cpu import PACKED, load_two, load_word, store_pixels

jit = numba.njit(nogil=True, cache=True, error_model="numpy")  # checking each division would keep loops scalar

PERSPECTIVE, AFFINE, WATER, SPHERE, MAPS = range(5)
NEAREST, NEAREST_EVEN, LINEAR, CUBIC = range(4)
_FAR = 1e8
_CACHED = 1 << 19
"""Maximum bytes of an image that stays in the L2 cache while it is sampled."""
_TOGETHER = 512
"""Maximum number of pixels, taken from several rows, that are computed together: calls for each row of a small image
would take longer than its pixels."""
_NOWHERE = np.uint32(0xFFFFFFFF)
_NEXT = np.uint64(24)
"""Number of bits between two pixels in a 64-bit word that holds both."""
_FIRST, _ONE = np.uint64(0), np.uint64(1)


@jit
def sample(src, base, geometry, kind, params, map_x, map_y, map_base, interp, border, fills, dst, out_base):
    """Resample images at given source positions. ``geometry`` [N, 6]: planes, rows, columns and channels of the input,
    height and width of the output; ``params`` [N, 9] ``map_x`` and ``map_y``: see `sampling.PixelSources`; ``fills`` [N
    or 1, K or 1]: values outside if ``border`` is 0."""
    room = 0
    for i in range(len(base)):
        if geometry[i, 0] * geometry[i, 3] > 0:
            room = max(room, geometry[i, 5], min(geometry[i, 4] * geometry[i, 5], _TOGETHER))
    sx, sy = np.empty(room, np.float64), np.empty(room, np.float64)
    x0, y0 = np.empty(room, np.int32), np.empty(room, np.int32)
    fx, fy = np.empty(room, np.float32), np.empty(room, np.float32)
    wave, words = np.empty(room, np.float32), np.empty((2, room), np.uint32)
    pairs, taps = np.empty((2, room), np.uint64), np.empty((4, room), np.float32)
    for i in range(len(base)):
        planes, rows, columns, channels, height, width = geometry[i]
        if planes * channels == 0:
            continue
        p, fill = params[i], fills[i if fills.shape[0] > 1 else 0]
        # Reads cross rows at a slant, which processors do not prefetch. Reading the image in order first brings it into
        # the L2 cache.
        size = planes * rows * columns * channels
        if 0 < size * src.itemsize <= _CACHED:
            read_in_order(src[base[i] : base[i] + size])
        if kind == WATER:
            for x in range(width):
                wave[x] = np.float32(p[1]) * np.cos(np.float32(p[3]) * np.float32(x) + np.float32(p[5]))
        step = max(1, _TOGETHER // max(1, width))
        for first in range(0, height, step):
            behind = min(first + step, height)
            pixels = (behind - first) * width
            _coordinates(
                kind, p, wave, first, behind, width, rows, columns, map_x, map_y, map_base[i, 0], map_base[i, 1], sx, sy
            )
            _cells(interp, pixels, sx, sy, x0, y0, fx, fy)
            for plane in range(planes):
                start = base[i] + plane * rows * columns * channels
                o = out_base[i] + (plane * height + first) * width * channels
                if channels == 3 and _bytes(src, dst) and interp != CUBIC:
                    _pixels(
                        src, start, rows, columns, pixels, interp == LINEAR, x0, y0, fx, fy, border, fill, dst, o,
                        words, pairs,
                    )  # fmt: skip
                elif interp == LINEAR and channels == 1:
                    _linear_plane(
                        src, start, rows, columns, pixels, x0, y0, fx, fy, border, fill[0], dst, o, pairs[0], taps
                    )
                elif interp == LINEAR:
                    _linear(src, start, rows, columns, channels, pixels, x0, y0, fx, fy, border, fill, dst, o)
                elif interp == CUBIC:
                    _cubic(src, start, rows, columns, channels, pixels, x0, y0, fx, fy, border, fill, dst, o)
                else:
                    _nearest(src, start, rows, columns, channels, pixels, x0, y0, border, fill, dst, o)


@jit
def read_in_order(values):
    """Read one value per cache line to fill the cache. The result only prevents the compiler from removing the loop."""
    seen, step = values[0], max(64 // values.itemsize, 1)
    for k in range(0, len(values), step):
        seen = max(seen, values[k])
    return seen


@jit
def _coordinates(kind, p, wave, first, behind, width, rows, columns, map_x, map_y, base_x, base_y, sx, sy):
    """Compute the source positions of the output pixels in rows [first, behind). Indices are unsigned: a check for
    counting from the end would keep the loops scalar."""
    half_x, half_y = np.float32(columns * 0.5), np.float32(rows * 0.5)
    reach = np.float32(max(int(max(half_x, half_y)), 1))
    for y in range(first, behind):
        at, v = (y - first) * width, np.float64(y)
        if kind == PERSPECTIVE:
            a, b, c = p[1] * v + p[2], p[4] * v + p[5], p[7] * v + p[8]
            for x in range(width):
                k = np.uint64(at + x)
                u = np.float64(x)
                w = p[6] * u + c
                scale = 1 / w if w != 0 else 0.0
                sx[k], sy[k] = (p[0] * u + a) * scale, (p[3] * u + b) * scale
        elif kind == AFFINE:
            a, b = p[1] * v + p[2], p[4] * v + p[5]
            for x in range(width):
                k = np.uint64(at + x)
                u = np.float64(x)
                sx[k], sy[k] = p[0] * u + a, p[3] * u + b
        elif kind == WATER:
            shift = np.float32(p[0]) * np.sin(np.float32(p[2]) * np.float32(y) + np.float32(p[4]))
            for x in range(width):
                k = np.uint64(at + x)
                sx[k] = np.float64(np.float32(x) + shift) - 0.5
                sy[k] = np.float64(np.float32(y) + wave[x]) - 0.5
        elif kind == SPHERE:
            dy = np.float32(y + 0.5) - half_y
            for x in range(width):
                k = np.uint64(at + x)
                dx = np.float32(x + 0.5) - half_x
                far = np.sqrt(dx * dx + dy * dy) / reach
                sx[k], sy[k] = np.float64(half_x + far * dx) - 0.5, np.float64(half_y + far * dy) - 0.5
        else:
            a, b = base_x + y * width, base_y + y * width
            for x in range(width):
                k = np.uint64(at + x)
                sx[k], sy[k] = np.float64(map_x[a + x]) - p[0], np.float64(map_y[b + x]) - p[0]


@jit
def _cells(interp, width, sx, sy, x0, y0, fx, fy):
    """Split coordinates into the pixel at or before them and the remaining fraction of a pixel; or round them to the
    nearest pixels. NaN becomes a position far outside."""
    if interp >= LINEAR:
        for x in range(width):
            a, b = sx[x], sy[x]
            a = a if a > -_FAR else -_FAR
            b = b if b > -_FAR else -_FAR
            a = a if a < _FAR else _FAR
            b = b if b < _FAR else _FAR
            i, j = np.floor(a), np.floor(b)
            x0[x], y0[x] = np.int32(i), np.int32(j)
            fx[x], fy[x] = np.float32(a - i), np.float32(b - j)
        return
    for x in range(width):
        a, b = sx[x], sy[x]
        sx[x] = _FAR if a > _FAR else a if a > -_FAR else -_FAR
        sy[x] = _FAR if b > _FAR else b if b > -_FAR else -_FAR
    if interp == NEAREST:
        for x in range(width):
            x0[x], y0[x] = np.int32(np.floor(sx[x] + 0.5)), np.int32(np.floor(sy[x] + 0.5))
    else:
        for x in range(width):
            x0[x], y0[x] = np.int32(np.rint(sx[x])), np.int32(np.rint(sy[x]))


@jit
def _inside(i, n, border):
    """Return the index inside [0, n) that replaces ``i``, or -1 if the fill value is used (`strided.Border`)."""
    if 0 <= i < n:
        return i
    if border == 0:
        return -1
    if border == 1 or n == 1:
        return 0 if i < 0 else n - 1
    if border == 4:
        return i % n
    if border == 2:
        i %= 2 * n
        return i if i < n else 2 * n - 1 - i
    i %= 2 * n - 2
    return i if i < n else 2 * n - 2 - i


@jit
def _nearest(src, start, rows, columns, channels, width, x0, y0, border, fill, dst, o):
    for x in range(width):
        i, j, to = _inside(np.int64(x0[x]), columns, border), _inside(np.int64(y0[x]), rows, border), o + x * channels
        if i < 0 or j < 0:
            for c in range(channels):
                dst[to + c] = put(fill[c if fill.shape[0] > 1 else 0], dst)
            continue
        at = start + (j * columns + i) * channels
        for c in range(channels):
            dst[to + c] = _as(src[at + c], dst)


@jit
def _linear(src, start, rows, columns, channels, width, x0, y0, fx, fy, border, fill, dst, o):
    line = columns * channels
    for x in range(width):
        i, j, to = np.int64(x0[x]), np.int64(y0[x]), o + x * channels
        u, v = fx[x], fy[x]
        if 0 <= i < columns - 1 and 0 <= j < rows - 1:
            at = start + j * line + i * channels
            for c in range(channels):
                a, b = np.float32(src[at + c]), np.float32(src[at + channels + c])
                d, e = np.float32(src[at + line + c]), np.float32(src[at + line + channels + c])
                upper, lower = a + (b - a) * u, d + (e - d) * u
                dst[to + c] = put(upper + (lower - upper) * v, dst)
            continue
        i0, i1 = _inside(i, columns, border), _inside(i + 1, columns, border)
        j0, j1 = _inside(j, rows, border), _inside(j + 1, rows, border)
        for c in range(channels):
            out = fill[c if fill.shape[0] > 1 else 0]
            a, b = _tap(src, start, line, channels, i0, j0, c, out), _tap(src, start, line, channels, i1, j0, c, out)
            d, e = _tap(src, start, line, channels, i0, j1, c, out), _tap(src, start, line, channels, i1, j1, c, out)
            upper, lower = a + (b - a) * u, d + (e - d) * u
            dst[to + c] = put(upper + (lower - upper) * v, dst)


@jit
def _linear_plane(src, start, rows, columns, width, x0, y0, fx, fy, border, out, dst, o, here, taps):
    """Do the work of `_linear` for images of one channel: only pixels are loaded one by one, all else is vectorised."""
    outside, line = np.uint64(len(src)), np.uint64(columns)
    for x in range(width):
        i, j = np.int64(x0[x]), np.int64(y0[x])
        within = (i >= 0) & (i < columns - 1) & (j >= 0) & (j < rows - 1)
        here[x] = np.uint64(start + j * columns + i) if within else outside
    for x in range(width):
        at = here[x]
        if at != outside:
            taps[0, x], taps[1, x] = np.float32(src[at]), np.float32(src[at + _ONE])
            taps[2, x], taps[3, x] = np.float32(src[at + line]), np.float32(src[at + line + _ONE])
            continue
        i, j = np.int64(x0[x]), np.int64(y0[x])
        if border == 0 and not (-1 <= i < columns and -1 <= j < rows):
            taps[0, x] = taps[1, x] = taps[2, x] = taps[3, x] = out
            continue
        i0, i1 = _inside(i, columns, border), _inside(i + 1, columns, border)
        j0, j1 = _inside(j, rows, border), _inside(j + 1, rows, border)
        taps[0, x] = _tap(src, start, columns, 1, i0, j0, 0, out)
        taps[1, x] = _tap(src, start, columns, 1, i1, j0, 0, out)
        taps[2, x] = _tap(src, start, columns, 1, i0, j1, 0, out)
        taps[3, x] = _tap(src, start, columns, 1, i1, j1, 0, out)
    for x in range(width):
        u, v = fx[x], fy[x]
        upper, lower = taps[0, x] + (taps[1, x] - taps[0, x]) * u, taps[2, x] + (taps[3, x] - taps[2, x]) * u
        dst[o + x] = put(upper + (lower - upper) * v, dst)


@jit
def _tap(src, start, line, channels, i, j, c, out):
    return out if i < 0 or j < 0 else np.float32(src[start + j * line + i * channels + c])


@jit
def _cubic(src, start, rows, columns, channels, width, x0, y0, fx, fy, border, fill, dst, o):
    across, down = np.empty(4, np.float32), np.empty(4, np.float32)
    i, j = np.empty(4, np.int64), np.empty(4, np.int64)
    for x in range(width):
        _keys(fx[x], across)
        _keys(fy[x], down)
        for k in range(4):
            i[k] = _inside(np.int64(x0[x]) + k - 1, columns, border)
            j[k] = _inside(np.int64(y0[x]) + k - 1, rows, border)
        for c in range(channels):
            out, total = fill[c if fill.shape[0] > 1 else 0], np.float32(0)
            for r in range(4):
                line = np.float32(0)
                for k in range(4):
                    line += across[k] * _tap(src, start, columns * channels, channels, i[k], j[r], c, out)
                total += down[r] * line
            dst[o + x * channels + c] = put(total, dst)


@jit
def _keys(t, weights):
    """Compute the four weights of Keys' cubic filter with a = -3/4, as in OpenCV."""
    a, one = np.float32(-0.75), np.float32(1)
    u, s = t + one, one - t
    weights[0] = ((a * u - 5 * a) * u + 8 * a) * u - 4 * a
    weights[1] = ((a + 2) * t - (a + 3)) * t * t + one
    weights[2] = ((a + 2) * s - (a + 3)) * s * s + one
    weights[3] = one - weights[0] - weights[1] - weights[2]


def _bytes(src: Any, dst: Any) -> Any:
    """Whether both arrays are of uint8 (compiled below)."""


@overload(_bytes)
def _bytes_compiled(src, dst):
    if src.dtype == types.uint8 and dst.dtype == types.uint8:
        return lambda src, dst: True
    return lambda src, dst: False


def _pixels(src, start, rows, columns, width, linear, x0, y0, fx, fy, border, fill, dst, o, words, pairs):
    """Compute a row of pixels of three uint8 channels (compiled below)."""


@overload(_pixels)
def _pixels_compiled(src, start, rows, columns, width, linear, x0, y0, fx, fy, border, fill, dst, o, words, pairs):
    if src.dtype == types.uint8 and dst.dtype == types.uint8:
        return _pixels_of_bytes
    return lambda src, start, rows, columns, width, linear, x0, y0, fx, fy, border, fill, dst, o, words, pairs: None


def _pixels_of_bytes(src, start, rows, columns, width, linear, x0, y0, fx, fy, border, fill, dst, o, words, pairs):
    """Compute a row of pixels of three uint8 channels. A pixel is loaded as a word of four bytes, two neighbours as a
    word of eight, so that only loading is scalar; the sums are vectorised."""
    line = columns * 3
    limit = len(src) - 8 - line - start
    wide = fill.shape[0] > 1
    blank = _rounded(fill[0]) | _rounded(fill[1 if wide else 0]) << np.uint32(8)
    blank |= _rounded(fill[2 if wide else 0]) << np.uint32(16)
    end = len(src) - 3  # no word can be loaded from here on
    tail = np.uint32(src[end]) | np.uint32(src[end + 1]) << np.uint32(8) | np.uint32(src[end + 2]) << np.uint32(16)
    out = words[0, :width]
    here = words[1, :width]  # for pixels whose neighbours are all inside: position of the first neighbour
    near, far = pairs[0, :width], pairs[1, :width]  # pixels (j, i) and (j, i + 1), and the pixels below them
    for k in range(width):
        i, j = x0[k], y0[k]
        at = np.int64(j) * line + np.int64(i) * 3
        within = (i >= 0) & (i < columns - 1) & (j >= 0) & (j < rows - 1) & (at <= limit)
        here[k] = np.uint32(at) if within else _NOWHERE
    behind: Any = np.uint64(width)
    x: Any = _FIRST  # unsigned, so that no check for counting from the end is needed
    while x < behind:
        first = x  # inner pixels are usually contiguous: a loop of nothing else keeps its addresses in registers
        while x < behind and here[x] != _NOWHERE:
            x += _ONE
        if linear:
            for k in range(first, x):
                at = start + np.int64(here[k])
                near[k], far[k] = load_two(src, at), load_two(src, at + line)
        else:
            for k in range(first, x):
                out[k] = load_word(src, start + np.int64(here[k]))
        while x < behind and here[x] == _NOWHERE:
            a = b = d = e = blank
            i, j = np.int64(x0[x]), np.int64(y0[x])
            if border != 0 or (-1 <= i < columns and -1 <= j < rows):
                i0, j0 = _inside(i, columns, border), _inside(j, rows, border)
                a = _pixel(src, start, line, i0, j0, blank, tail)
                if linear:
                    i1, j1 = _inside(i + 1, columns, border), _inside(j + 1, rows, border)
                    b, d = _pixel(src, start, line, i1, j0, blank, tail), _pixel(src, start, line, i0, j1, blank, tail)
                    e = _pixel(src, start, line, i1, j1, blank, tail)
            if linear:
                near[x], far[x] = _pair(a, b), _pair(d, e)
            else:
                out[x] = a
            x += _ONE
    if linear:
        for k in range(width):
            u, v = fx[k], fy[k]
            a, b = np.uint32(near[k]), np.uint32(near[k] >> _NEXT)
            d, e = np.uint32(far[k]), np.uint32(far[k] >> _NEXT)
            first, second, third = _byte(a, b, d, e, 0, u, v), _byte(a, b, d, e, 8, u, v), _byte(a, b, d, e, 16, u, v)
            out[k] = first | second << np.uint32(8) | third << np.uint32(16)
    packed = width // PACKED * PACKED
    for k in range(0, packed, PACKED):
        store_pixels(out, k, dst, o + 3 * k)
    for k in range(packed, width):
        to, word = o + 3 * k, out[k]
        dst[to], dst[to + 1], dst[to + 2] = word & 255, word >> 8 & 255, word >> 16 & 255


@jit
def _pair(one, other):
    """Return two pixels in one 64-bit word, as `load_two` does."""
    return np.uint64(one & np.uint32(0xFFFFFF)) | np.uint64(other) << _NEXT


@jit
def _rounded(value):
    """Round a float of 0 to 255 to an integer."""
    return np.uint32(np.int32(value + np.float32(0.5)))


@numba.njit(inline="always")
def _pixel(src, start, line, i, j, blank, tail):
    """Return the word that holds a pixel's three bytes, and an arbitrary fourth byte."""
    at = start + j * line + i * 3 if i >= 0 and j >= 0 else -1
    return blank if at < 0 else load_word(src, at) if at <= len(src) - 4 else tail


@jit
def _byte(a, b, d, e, shift, fx, fy):
    """Interpolate one channel between four pixels, with rounding."""
    s, m = np.uint32(shift), np.uint32(255)
    a, b = np.float32(np.int32(a >> s & m)), np.float32(np.int32(b >> s & m))
    d, e = np.float32(np.int32(d >> s & m)), np.float32(np.int32(e >> s & m))
    upper, lower = a + (b - a) * fx, d + (e - d) * fx
    return np.uint32(np.int32(upper + (lower - upper) * fy + np.float32(0.5)))


def _as(value, dst):
    """Convert a value to the element type of ``dst`` (compiled below)."""


@overload(_as)
def _as_compiled(value, dst):
    if value == dst.dtype:
        return lambda value, dst: value
    return lambda value, dst: put(np.float32(value), dst)
