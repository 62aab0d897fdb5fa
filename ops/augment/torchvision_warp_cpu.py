"""Steps of `torchvision_cpu` that move pixels: flips, turns, windows (crops and pads), affine and perspective maps."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from .fma_cpu import fma

jit = numba.njit(nogil=True, cache=True, error_model="numpy")

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
CONSTANT, EDGE, REFLECT, SYMMETRIC = range(4)


@jit
def flip(s, rows, columns, channels, axes, o):
    """``axes``: 1 mirrors left to right, 2 upside down, 3 both."""
    for line in range(channels * rows):
        y = line % rows
        to = line - y + (rows - 1 - y if axes & 2 else y)
        a, b = s[line * columns : (line + 1) * columns], o[to * columns : (to + 1) * columns]
        if axes & 1:
            end = np.uint64(columns - 1)  # unsigned: no check for a sign
            for x in range(np.uint64(columns)):
                b[x] = a[end - x]
        else:
            for x in range(columns):
                b[x] = a[x]


@jit
def turn(s, rows, columns, channels, quarters, o):
    """Counter-clockwise by quarters of a turn."""
    if quarters % 4 == 2:
        flip(s, rows, columns, channels, 3, o)
        return
    for c in range(channels):
        plane, out = s[c * rows * columns : (c + 1) * rows * columns], o[c * rows * columns : (c + 1) * rows * columns]
        if quarters % 4 == 0:
            out[:] = plane
        for y in range(columns if quarters % 2 else 0):  # the result's rows
            line = out[y * rows : (y + 1) * rows]
            if quarters % 4 == 1:
                for x in range(rows):
                    line[x] = plane[x * columns + columns - 1 - y]
            else:
                for x in range(rows):
                    line[x] = plane[(rows - 1 - x) * columns + y]


@jit
def _inside(i, n, mode):
    """Index ``i`` as one inside [0, n), or -1 for the fill value."""
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
    """``height`` x ``width`` pixels from (``top``, ``left``) on, which may lie outside."""
    first, last = min(max(-left, 0), width), max(min(columns - left, width), 0)  # columns that lie inside
    last = max(last, first)
    for c in range(channels):
        value = np.uint8(np.int64(fill[min(c, 3)]))
        for y in range(height):
            out = o[(c * height + y) * width : (c * height + y + 1) * width]
            j = _inside(top + y, rows, mode)
            if j < 0:
                out[:] = value
                continue
            line = s[(c * rows + j) * columns : (c * rows + j + 1) * columns]
            middle, inner = out[first:last], line[max(left, 0) : max(left, 0) + last - first]
            for x in range(len(middle)):
                middle[x] = inner[x]
            for x in range(first):
                i = _inside(left + x, columns, mode)
                out[x] = value if i < 0 else line[i]
            for x in range(last, width):
                i = _inside(left + x, columns, mode)
                out[x] = value if i < 0 else line[i]


@jit
def _places(projective, p, v, rows, columns, width, sx, sy):
    """Where the pixels of a row come from, as torchvision's grid and PyTorch's grid_sample compute it."""
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
    """Each pixel from where the map takes it. ``p``: whether bilinear, whether there is a fill value, the two rows of
    the map, from (x, y, 1) with the origin in the middle of the output (of projective maps: in its corner) to the input
    likewise, of projective maps two numbers of the third row or the size of the output; from 12 on the fill values."""
    linear, filled = p[0] != 0, p[1] != 0
    sx, sy = np.empty(width, np.float32), np.empty(width, np.float32)
    place, all_in = np.empty(width, np.int32), np.empty(width, np.uint8)
    weights = np.empty((5, width), np.float32)
    x0, y0 = np.empty(width, np.int32), np.empty(width, np.int32)
    for y in range(height):
        v = np.float32(y) + _HALF if projective else np.float32(y) - np.float32(height - 1) * _HALF
        _places(projective, p, v, rows, columns, width, sx, sy)
        if linear:
            _corners(sx, sy, rows, columns, x0, y0, weights, place, all_in)
            for c in range(channels):
                line = o[(c * height + y) * width : (c * height + y + 1) * width]
                fill = np.float32(p[12 + min(c, 3)])
                _mix(s[c * rows * columns : (c + 1) * rows * columns], rows, columns, x0, y0, place, all_in, weights,
                     filled, fill, line)  # fmt: skip
        else:
            for x in range(width):
                a, b = np.rint(sx[x]), np.rint(sy[x])
                inside = a >= 0 and a < columns and b >= 0 and b < rows
                place[x] = np.int32(b) * np.int32(columns) + np.int32(a) if inside else np.int32(-1)
            for c in range(channels):
                line = o[(c * height + y) * width : (c * height + y + 1) * width]
                plane = s[c * rows * columns : (c + 1) * rows * columns]
                outside = np.uint8(np.rint(p[12 + min(c, 3)])) if filled else np.uint8(0)
                for x in range(width):
                    line[x] = plane[place[x]] if place[x] >= 0 else outside


@jit
def _corners(sx, sy, rows, columns, x0, y0, weights, place, all_in):
    """The upper left one of each place's four pixels, the four weights, and what of them lies inside."""
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
        place[x] = j * np.int32(columns) + i
        all_in[x] = west and east and north and south
        m = nw[x] if north and west else _ZERO
        m = fma(_ONE if north and east else _ZERO, ne[x], m)
        m = fma(_ONE if south and west else _ZERO, sw[x], m)
        mask[x] = fma(_ONE if south and east else _ZERO, se[x], m) if near else _ZERO


@jit
def _mix(plane, rows, columns, x0, y0, place, all_in, weights, filled, fill, line):
    nw, ne, sw, se, mask = weights[0], weights[1], weights[2], weights[3], weights[4]
    for x in range(len(line)):
        at = np.int64(place[x])
        if all_in[x]:
            a, b = np.float32(plane[at]), np.float32(plane[at + 1])
            c, d = np.float32(plane[at + columns]), np.float32(plane[at + columns + 1])
        else:
            i, j = x0[x], y0[x]
            if i < -1:
                line[x] = np.uint8(np.rint(fill)) if filled else 0
                continue
            west, east, north, south = i >= 0, i < columns - 1, j >= 0, j < rows - 1
            a = np.float32(plane[at]) if north and west else _ZERO
            b = np.float32(plane[at + 1]) if north and east else _ZERO
            c = np.float32(plane[at + columns]) if south and west else _ZERO
            d = np.float32(plane[at + columns + 1]) if south and east else _ZERO
        value = fma(d, se[x], fma(c, sw[x], fma(b, ne[x], a * nw[x])))
        if filled:
            value = (value - fill) * mask[x] + fill
        line[x] = np.uint8(np.int32(np.rint(value)))
