"""Compiled steps of `torchvision_cpu` that move pixels: flips, quarter turns, windows (crops and pads), affine and
perspective maps."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from .fma_cpu import fma

jit = numba.njit(nogil=True, cache=True, error_model="numpy")

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
CONSTANT, EDGE, REFLECT, SYMMETRIC = range(4)


@jit
def copy(a, b):
    """Copy ``a`` to ``b``, element by element, which is faster than Numba's assignment of slices."""
    for i in range(len(b)):
        b[i] = a[i]


@jit
def _fill(b, value):
    for i in range(len(b)):
        b[i] = value


@jit
def flip(s, rows, columns, channels, axes, o):
    """Mirror an image; ``axes``: 1 left to right, 2 upside down, 3 both."""
    for line in range(channels * rows):
        y = line % rows
        to = line - y + (rows - 1 - y if axes & 2 else y)
        a, b = s[line * columns : (line + 1) * columns], o[to * columns : (to + 1) * columns]
        if axes & 1:
            end = np.uint64(columns - 1)  # unsigned: no check for a sign
            for x in range(np.uint64(columns)):
                b[x] = a[end - x]
        else:
            copy(a, b)


@jit
def turn(s, rows, columns, channels, quarters, o):
    """Rotate an image counter-clockwise by a number of quarter turns."""
    if quarters % 4 == 2:
        flip(s, rows, columns, channels, 3, o)
        return
    for c in range(channels):
        plane, out = s[c * rows * columns : (c + 1) * rows * columns], o[c * rows * columns : (c + 1) * rows * columns]
        if quarters % 4 == 0:
            copy(plane, out)
        for y in range(columns if quarters % 2 else 0):  # rows of the result
            line = out[y * rows : (y + 1) * rows]
            if quarters % 4 == 1:
                for x in range(rows):
                    line[x] = plane[x * columns + columns - 1 - y]
            else:
                for x in range(rows):
                    line[x] = plane[(rows - 1 - x) * columns + y]


@jit
def _inside(i, n, mode):
    """Return the index inside [0, n) from which index ``i`` is read by the border ``mode``, or -1 for the fill
    value."""
    if 0 <= i < n:
        return i
    if mode == CONSTANT:
        return -1
    if mode == EDGE or n == 1:
        return 0 if i < 0 else n - 1
    if mode == REFLECT:
        i %= 2 * n - 2
        return i if i < n else 2 * n - 2 - i
    i %= 2 * n
    return i if i < n else 2 * n - 1 - i


@jit
def window(s, rows, columns, channels, top, left, height, width, mode, fill, o):
    """Copy ``height`` x ``width`` pixels from (``top``, ``left``) on; pixels outside the image follow ``mode``."""
    first, last = min(max(-left, 0), width), max(min(columns - left, width), 0)  # columns that lie inside
    last = max(last, first)
    beside = np.empty(width, np.int64)
    for x in range(width):
        beside[x] = _inside(left + x, columns, mode) if x < first or x >= last else -1
    for c in range(channels):
        value = np.uint8(np.int64(fill[min(c, 3)]))
        for y in range(height):
            out = o[(c * height + y) * width : (c * height + y + 1) * width]
            j = _inside(top + y, rows, mode)
            if j < 0:
                _fill(out, value)
                continue
            line = s[(c * rows + j) * columns : (c * rows + j + 1) * columns]
            copy(line[max(left, 0) : max(left, 0) + last - first], out[first:last])
            if mode == CONSTANT:
                _fill(out[:first], value)
                _fill(out[last:], value)
            else:
                for x in range(first):
                    out[x] = line[np.uint64(beside[x])]
                for x in range(last, width):
                    out[x] = line[np.uint64(beside[x])]


@jit
def _places(projective, p, v, rows, columns, width, sx, sy):
    """Compute the positions in the input from which the pixels of one output row are read, as torchvision's grid and
    PyTorch's grid_sample do."""
    half_x, half_y = np.float32(columns * 0.5), np.float32(rows * 0.5)
    a, b, c = np.float32(p[2]) / half_x, np.float32(p[3]) / half_x, np.float32(p[4]) / half_x
    d, e, f = np.float32(p[5]) / half_y, np.float32(p[6]) / half_y, np.float32(p[7]) / half_y
    down_x, down_y = v * b, v * e
    if projective:
        g, h = np.float32(p[8]), np.float32(p[9])
        down = v * h
        for x in range(width):
            u = np.float32(x) + _HALF
            below = u * g + down + _ONE
            sx[x] = (u * a + down_x + c) / below - _ONE
            sy[x] = (u * d + down_y + f) / below - _ONE
    else:
        begin = np.float32(width - 1) * _HALF
        for x in range(width):
            u = np.float32(x) - begin
            sx[x] = u * a + down_x + c
            sy[x] = u * d + down_y + f
    for x in range(width):
        sx[x] = fma(sx[x] + _ONE, half_x, -_HALF)
        sy[x] = fma(sy[x] + _ONE, half_y, -_HALF)


@jit
def warp(s, rows, columns, channels, projective, p, height, width, o):
    """Warp an image: read each output pixel where a map places it in the input. ``p``: whether bilinear, whether there
    is a fill value, the two rows of the map, from (x, y, 1) with the origin in the centre of the output (for projective
    maps: in its corner) to the input likewise; then, for projective maps, two numbers of the third row, or else the
    size of the output; from index 12 on the fill values."""
    linear, filled = p[0] != 0, p[1] != 0
    sx, sy = np.empty(width, np.float32), np.empty(width, np.float32)
    place, inside = np.empty(width, np.uint32), np.empty(width, np.uint8)
    weights = np.empty((5, width), np.float32)
    x0, y0 = np.empty(width, np.int32), np.empty(width, np.int32)
    pixels, picked = np.empty(rows * columns, np.uint32), np.empty((4, width), np.uint32)
    for begin in range(0, channels, 4):  # up to four channels are packed into one number
        count = min(channels - begin, 4)
        _together(s[begin * rows * columns : (begin + count) * rows * columns], count, pixels)
        for y in range(height):
            v = np.float32(y) + _HALF if projective else np.float32(y) - np.float32(height - 1) * _HALF
            _places(projective, p, v, rows, columns, width, sx, sy)
            if linear:
                _corners(sx, sy, rows, columns, x0, y0, weights, place, inside)
            else:
                _nearest(sx, sy, rows, columns, place, inside)
            first, last = _run(inside)
            if linear:
                _four(pixels, np.uint64(columns), place, first, last, picked)
            else:
                _pick(pixels, place, first, last, picked[0])
            for c in range(begin, begin + count):
                line = o[(c * height + y) * width : (c * height + y + 1) * width]
                fill, shift = p[12 + min(c, 3)], np.uint32(8 * (c - begin))
                outside = np.uint8(np.rint(fill)) if filled else np.uint8(0)
                if not linear:
                    _one(picked[0], shift, inside, outside, line)
                    continue
                plane = s[c * rows * columns : (c + 1) * rows * columns]
                for x in range(2):
                    _mix_edge(plane, rows, columns, x0, y0, weights, filled, np.float32(fill), last if x else 0,
                              width if x else first, line)  # fmt: skip
                _mix(picked, shift, weights, filled, np.float32(fill), first, last, line)


@jit
def _together(s, count, pixels):
    """Pack pixels of up to four channels into 32-bit numbers."""
    n = len(pixels)
    for c in range(count):
        plane, shift = s[c * n : (c + 1) * n], np.uint32(8 * c)
        if c == 0:
            for i in range(n):
                pixels[i] = np.uint32(plane[i])
        else:
            for i in range(n):
                pixels[i] |= np.uint32(plane[i]) << shift


@jit
def _run(inside):
    """Return the range of the pixels of a row that lie inside the image, or an empty range if they are not contiguous;
    maps that keep lines straight make them contiguous."""
    first, last, count = 0, len(inside), np.uint32(0)
    for x in range(len(inside)):
        count += np.uint32(inside[x])
    while first < last and not inside[first]:
        first += 1
    while last > first and not inside[last - 1]:
        last -= 1
    return (first, last) if last - first == count else (0, 0)


@jit
def _nearest(sx, sy, rows, columns, place, inside):
    for x in range(len(sx)):
        a, b = np.rint(sx[x]), np.rint(sy[x])
        within = a >= 0 and a < columns and b >= 0 and b < rows
        inside[x] = within
        place[x] = np.uint32(np.int32(b) * np.int32(columns) + np.int32(a)) if within else np.uint32(0)


@jit
def _pick(pixels, place, first, last, picked):
    if first == last:
        first, last = 0, len(place)  # positions outside are 0
    at, to = place[first:last], picked[first:last]
    for x in range(len(to)):
        to[x] = pixels[at[x]]


@jit
def _one(picked, shift, inside, outside, line):
    """Write one channel of a row of pixels; ``picked`` holds a pixel in each 32-bit number. Pixels that are not
    ``inside`` become ``outside``."""
    for x in range(len(line)):
        line[x] = np.uint8((picked[x] >> shift) & np.uint32(255)) if inside[x] else outside


@jit
def _four(pixels, columns, place, first, last, picked):
    at, one = place[first:last], np.uint64(1)
    a, b, c, d = picked[0, first:last], picked[1, first:last], picked[2, first:last], picked[3, first:last]
    for x in range(len(at)):
        k = np.uint64(at[x])
        a[x], b[x] = pixels[k], pixels[k + one]
        k += columns
        c[x], d[x] = pixels[k], pixels[k + one]


@jit
def _corners(sx, sy, rows, columns, x0, y0, weights, place, inside):
    """Compute for each position its upper left pixel, the weights of the four pixels around it, and whether all four
    lie inside the image."""
    nw, ne, sw, se, mask = weights[0], weights[1], weights[2], weights[3], weights[4]
    for x in range(len(sx)):
        a, b = np.floor(sx[x]), np.floor(sy[x])
        fx, fy = sx[x] - a, sy[x] - b
        gx, gy = _ONE - fx, _ONE - fy
        nw[x], ne[x], sw[x], se[x] = gx * gy, fx * gy, gx * fy, fx * fy
        near = a >= -1 and a < columns and b >= -1 and b < rows
        i, j = np.int32(a if near else np.float32(-2)), np.int32(b if near else np.float32(-2))
        x0[x], y0[x] = i, j
        west, east = i >= 0, i >= -1 and i < columns - 1
        north, south = j >= 0, j >= -1 and j < rows - 1
        place[x] = np.uint32(j * np.int32(columns) + i)
        inside[x] = west and east and north and south
        m = nw[x] if north and west else _ZERO
        m = fma(_ONE if north and east else _ZERO, ne[x], m)
        m = fma(_ONE if south and west else _ZERO, sw[x], m)
        mask[x] = fma(_ONE if south and east else _ZERO, se[x], m) if near else _ZERO


@jit
def _byte(pixel, shift):
    return np.float32(np.int32((pixel >> shift) & np.uint32(255)))


@jit
def _mix(picked, shift, weights, filled, fill, first, last, line):
    """Write one channel of a row's pixels [first, last), interpolated between neighbours inside the image."""
    to, mask = line[first:last], weights[4, first:last]
    nw, ne, sw, se = weights[0, first:last], weights[1, first:last], weights[2, first:last], weights[3, first:last]
    a, b, c, d = picked[0, first:last], picked[1, first:last], picked[2, first:last], picked[3, first:last]
    for x in range(len(to)):
        value = fma(_byte(b[x], shift), ne[x], _byte(a[x], shift) * nw[x])
        value = fma(_byte(d[x], shift), se[x], fma(_byte(c[x], shift), sw[x], value))
        if filled:
            value = (value - fill) * mask[x] + fill
        to[x] = np.uint8(np.int32(np.rint(value)))


@jit
def _mix_edge(plane, rows, columns, x0, y0, weights, filled, fill, first, last, line):
    """Write one channel of a row's pixels [first, last), interpolated; neighbours may lie outside of the image."""
    nw, ne, sw, se, mask = weights[0], weights[1], weights[2], weights[3], weights[4]
    outside = np.uint8(np.rint(fill)) if filled else np.uint8(0)
    for x in range(first, last):
        i, j = np.int64(x0[x]), np.int64(y0[x])
        if i < -1:
            line[x] = outside
            continue
        at = j * columns + i
        west, east, north, south = i >= 0, i < columns - 1, j >= 0, j < rows - 1
        a = np.float32(plane[at]) if north and west else _ZERO
        b = np.float32(plane[at + 1]) if north and east else _ZERO
        c = np.float32(plane[at + columns]) if south and west else _ZERO
        d = np.float32(plane[at + columns + 1]) if south and east else _ZERO
        value = fma(d, se[x], fma(c, sw[x], fma(b, ne[x], a * nw[x])))
        if filled:
            value = (value - fill) * mask[x] + fill
        line[x] = np.uint8(np.int32(np.rint(value)))
