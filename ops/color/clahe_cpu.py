"""The CPU loop of clahe, and 8-bit Lab as OpenCV's cvtColor has it: all images in one call, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@cache
def tables() -> tuple[Any, Any]:
    """int32[256]: sRGB's curve with 3 fractional bits of 255; int32[3072]: Lab's cube root with 15."""
    v = np.arange(256) / 255
    linear = np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)
    x = np.arange(3072) / (255.0 * 8)
    root = np.where(x < 0.008856, x * 7.787 + 16 / 116, np.cbrt(x))
    return np.rint(255 * 8 * linear).astype(np.int32), np.rint(32768 * root).astype(np.int32)


_GAMMA, _ROOT = tables()
_XYZ = np.array([[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]])
_WHITE = np.array([[0.950456], [1.0], [1.088754]])
_TO = np.rint(4096 * _XYZ / _WHITE).astype(np.int64)
_FROM = np.linalg.inv(_XYZ) @ np.diag(_WHITE[:, 0])


@jit
def _lab(r, g, b):
    """Lab of a pixel as three bytes."""
    r, g, b = np.int64(_GAMMA[r]), np.int64(_GAMMA[g]), np.int64(_GAMMA[b])
    fx = np.int64(_ROOT[(r * _TO[0, 0] + g * _TO[0, 1] + b * _TO[0, 2] + 2048) >> 12])
    fy = np.int64(_ROOT[(r * _TO[1, 0] + g * _TO[1, 1] + b * _TO[1, 2] + 2048) >> 12])
    fz = np.int64(_ROOT[(r * _TO[2, 0] + g * _TO[2, 1] + b * _TO[2, 2] + 2048) >> 12])
    lightness = (296 * fy - 1336934 + 16384) >> 15
    a = (500 * (fx - fy) + (128 << 15) + 16384) >> 15
    b = (200 * (fy - fz) + (128 << 15) + 16384) >> 15
    return min(max(lightness, 0), 255), min(max(a, 0), 255), min(max(b, 0), 255)


@jit
def _cubed(f):
    return f * f * f if f > 6.0 / 29 else (f - 16.0 / 116) / 7.787


@jit
def _level(v):
    """sRGB's curve from 0 to 1, as a byte."""
    v = v * 12.92 if v <= 0.0031308 else 1.055 * v ** (1 / 2.4) - 0.055
    return np.uint8(v * 255 + 0.5)


_STEPS = 1 << 14


@cache
def curve() -> tuple[Any, Any]:
    """float64[257]: the least number of which `_level` makes each byte, and one that is above all; uint8[_STEPS + 1]:
    the byte of each multiple of 1 / _STEPS. A power takes longer than the rest of a pixel."""
    least = np.zeros(257)
    for level in range(1, 256):
        low, high = 0.0, 1.0
        while np.nextafter(low, 1) < high:
            middle = (low + high) / 2
            low, high = (low, middle) if _level.py_func(middle) >= level else (middle, high)
        least[level] = high
    least[256] = np.inf
    places = np.arange(_STEPS + 1) / _STEPS
    return least, np.searchsorted(least[1:256], places, side="right").astype(np.uint8)


_LEAST, _NEAR = curve()


@jit
def _byte(v):
    v = min(max(v, 0.0), 1.0)
    level = np.int64(_NEAR[np.int64(v * _STEPS)])
    while v >= _LEAST[level + 1]:
        level += 1
    return np.uint8(level)


@cache
def parts() -> tuple[Any, Any]:
    """The numbers that bytes of a Lab stand for: of lightness [256, 2] its root and Y; of a and b [256, 2] the parts
    that are added to that root and taken from it."""
    lightness = np.empty((256, 2))
    for byte in range(256):
        level = byte * (100.0 / 255)
        root = (level + 16) / 116
        y = level / 903.3 if level <= 8 else root * root * root
        lightness[byte] = 7.787 * y + 16.0 / 116 if level <= 8 else root, y
    across = np.arange(256) - 128
    return lightness, np.stack([across / 500.0, across / 200.0], axis=1)


_LIGHTNESS, _ACROSS = parts()


@jit
def _rgb(lightness, a, b, out, at):
    """The pixel of a Lab of three bytes."""
    fy, y = _LIGHTNESS[lightness, 0], _LIGHTNESS[lightness, 1]
    x, z = _cubed(fy + _ACROSS[a, 0]), _cubed(fy - _ACROSS[b, 1])
    for c in range(3):
        out[at + c] = _byte(_FROM[c, 0] * x + _FROM[c, 1] * y + _FROM[c, 2] * z)


@jit
def _tile_table(plane, rows, columns, top, left, height, width, clip, table):
    """The new values of a tile; outside of the image it is mirrored without repeating the edge."""
    counts = np.zeros(256, np.int64)
    for y in range(top, top + height):
        v = y if y < rows else 2 * rows - 2 - y
        v = min(max(v, 0), rows - 1)
        for x in range(left, left + width):
            u = x if x < columns else 2 * columns - 2 - x
            counts[plane[v * columns + min(max(u, 0), columns - 1)]] += 1
    total = height * width
    if clip > 0:
        limit = np.int64(max(clip * total / 256, 1.0))
        cut = np.int64(0)
        for v in range(256):
            if counts[v] > limit:
                cut += counts[v] - limit
                counts[v] = limit
        each = cut // 256
        rest = cut - each * 256
        counts += each
        if rest:
            step = 256 // rest if rest < 256 else 1
            for k in range(min(rest, -(-256 // step))):
                counts[k * step] += 1
    scale, sum_ = np.float32(255) / np.float32(total), np.int64(0)
    for v in range(256):
        sum_ += counts[v]
        table[v] = np.uint8(min(np.rint(np.float32(sum_) * scale), np.float32(255)))


@jit
def _equalized(plane, rows, columns, down, across, clip):
    """The plane, every value mixed of what the four nearest tiles make of it; in place."""
    if rows % down == 0 and columns % across == 0:
        height, width = rows // down, columns // across
    else:  # OpenCV adds a whole tile's rest to both, where either does not fit
        height, width = (rows + down - rows % down) // down, (columns + across - columns % across) // across
    found = np.empty((down, across, 256), np.uint8)
    for j in range(down):
        for i in range(across):
            _tile_table(plane, rows, columns, j * height, i * width, height, width, clip, found[j, i])
    down_step, across_step = np.float32(1) / np.float32(height), np.float32(1) / np.float32(width)
    beside, parts = np.empty((2, columns), np.int64), np.empty(columns, np.float32)
    for x in range(columns):
        fx = np.float32(x) * across_step - np.float32(0.5)
        column = int(np.floor(fx))
        parts[x] = fx - np.float32(column)
        beside[0, x], beside[1, x] = max(column, 0), min(column + 1, across - 1)
    for y in range(rows):
        fy = np.float32(y) * down_step - np.float32(0.5)
        row = int(np.floor(fy))
        ya = fy - np.float32(row)
        upper, lower = max(row, 0), min(row + 1, down - 1)
        for x in range(columns):
            left, right, xa = beside[0, x], beside[1, x], parts[x]
            v = plane[y * columns + x]
            one = np.float32(1)
            a = np.float32(found[upper, left, v]) * (one - xa) + np.float32(found[upper, right, v]) * xa
            b = np.float32(found[lower, left, v]) * (one - xa) + np.float32(found[lower, right, v]) * xa
            plane[y * columns + x] = np.uint8(min(np.rint(a * (one - ya) + b * ya), np.float32(255)))


@jit
def clahe(src, base, sizes, down, across, clip, luma, dst, out_base):
    """``sizes`` [N, 3]: rows, columns, channels."""
    for i in range(len(base)):
        rows, columns, channels = sizes[i]
        pixels = rows * columns
        if pixels * channels == 0:
            continue
        s, o = src[base[i] : base[i] + pixels * channels], dst[out_base[i] : out_base[i] + pixels * channels]
        plane = np.empty(pixels, np.uint8)
        if channels == 3 and luma:
            colours = np.empty((2, pixels), np.uint8)
            for p in range(pixels):
                plane[p], colours[0, p], colours[1, p] = _lab(s[3 * p], s[3 * p + 1], s[3 * p + 2])
            _equalized(plane, rows, columns, down, across, clip)
            for p in range(pixels):
                _rgb(plane[p], np.int64(colours[0, p]), np.int64(colours[1, p]), o, 3 * p)
            continue
        for c in range(channels):
            for p in range(pixels):
                plane[p] = s[p * channels + c]
            _equalized(plane, rows, columns, down, across, clip)
            for p in range(pixels):
                o[p * channels + c] = plane[p]
