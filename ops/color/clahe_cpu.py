"""Compiled loop of clahe, and conversion to and from 8-bit Lab as in OpenCV's cvtColor: one call per batch, without the
GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@cache
def tables() -> tuple[Any, Any]:
    """Return two look-up tables: sRGB's curve for bytes, int32[256], scaled to 255 with 3 fractional bits; and Lab's
    cube root, int32[3072], with 15 fractional bits."""
    v = np.arange(256) / 255
    linear = np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)
    x = np.arange(3072) / (255.0 * 8)
    root = np.where(x < 0.008856, x * 7.787 + 16 / 116, np.cbrt(x))
    return np.rint(255 * 8 * linear).astype(np.int32), np.rint(32768 * root).astype(np.int32)


_GAMMA, _ROOT = (t.astype(np.float32) for t in tables())
_XYZ = np.array([[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]])
_WHITE = np.array([[0.950456], [1.0], [1.088754]])
_TO = np.rint(4096 * _XYZ / _WHITE).astype(np.float32)
_FROM = np.linalg.inv(_XYZ) @ np.diag(_WHITE[:, 0])


TILE = 1024
"""Number of pixels that are converted at once. Table look-ups have loops of their own, so that others vectorise."""


@jit
def _lab(s, values, places, lightness, across, down):
    """Convert up to TILE RGB pixels to Lab, stored as three lines of bytes; working memory: ``values`` float32[3, TILE]
    and ``places`` uint32[3, TILE]. All numbers are integers below 2^24, or are truncated: float32 represents them
    exactly, and a register holds as many as of 32-bit integers, which Numba would widen to 64 bits."""
    n = len(lightness)
    first, second, third = values[0, :n], values[1, :n], values[2, :n]
    for x in range(n):
        k = np.uint64(3 * x)  # unsigned indices need no check for counting from the end
        first[x], second[x] = _GAMMA[s[k]], _GAMMA[s[k + np.uint64(1)]]
        third[x] = _GAMMA[s[k + np.uint64(2)]]
    for c in range(3):
        line, half, part = places[c, :n], np.float32(2048), np.float32(1 / 4096)
        for x in range(n):
            v = first[x] * _TO[c, 0] + second[x] * _TO[c, 1] + third[x] * _TO[c, 2]
            line[x] = np.uint32(np.int32((v + half) * part))
    one, other, last = places[0, :n], places[1, :n], places[2, :n]
    for x in range(n):
        first[x], second[x], third[x] = _ROOT[one[x]], _ROOT[other[x]], _ROOT[last[x]]
    half, grey = np.float32(16384 - 1336934), np.float32((128 << 15) + 16384)
    for x in range(n):
        fx, fy, fz = first[x], second[x], third[x]
        lightness[x] = _cut(np.float32(296) * fy + half)
        across[x] = _cut(np.float32(500) * (fx - fy) + grey)
        down[x] = _cut(np.float32(200) * (fy - fz) + grey)


@jit
def _cut(v):
    """Convert a fixed-point number with 15 fractional bits to a byte."""
    v = v * np.float32(1 / 32768)
    v = v if v > np.float32(0) else np.float32(0)
    return np.uint8(np.int32(v if v < np.float32(255) else np.float32(255)))


@jit
def _cubed(f):
    return f * f * f if f > 6.0 / 29 else (f - 16.0 / 116) / 7.787


@jit
def _level(v):
    """Apply sRGB's curve to a value from 0 to 1; return a byte."""
    v = v * 12.92 if v <= 0.0031308 else 1.055 * v ** (1 / 2.4) - 0.055
    return np.uint8(v * 255 + 0.5)


_STEPS = 1 << 14


@cache
def curve() -> tuple[Any, Any]:
    """Return tables that replace sRGB's power function, which takes longer than all other work on a pixel.
    float64[257]: for each byte the smallest number for which `_level` returns it, then a number above all. uint8[_STEPS
    + 1]: the byte of each multiple of 1 / _STEPS; from one multiple to the next it grows by at most 1."""
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


@cache
def parts() -> tuple[Any, Any]:
    """Return two tables for Lab bytes. For lightness, [256, 2]: the cube root that the byte stands for, and Y. For a
    and b, [256, 2]: the amounts by which they change that root."""
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
def _rgb(lightness, across, down, values, places, out):
    """Convert up to TILE Lab values of three bytes to RGB pixels; working memory: ``values`` float64[3, TILE] and
    ``places`` uint32[3, TILE]."""
    n = len(lightness)
    first, second, third = values[0, :n], values[1, :n], values[2, :n]
    for k in range(n):
        byte = lightness[k]
        root = _LIGHTNESS[byte, 0]
        first[k], third[k] = root + _ACROSS[across[k], 0], root - _ACROSS[down[k], 1]
        second[k] = _LIGHTNESS[byte, 1]
    for k in range(n):
        x, y, z = _cubed(first[k]), second[k], _cubed(third[k])
        first[k] = _within(_FROM[0, 0] * x + _FROM[0, 1] * y + _FROM[0, 2] * z)
        second[k] = _within(_FROM[1, 0] * x + _FROM[1, 1] * y + _FROM[1, 2] * z)
        third[k] = _within(_FROM[2, 0] * x + _FROM[2, 1] * y + _FROM[2, 2] * z)
    one, other, last = places[0, :n], places[1, :n], places[2, :n]
    for k in range(n):
        one[k], other[k] = np.uint32(np.int32(first[k] * _STEPS)), np.uint32(np.int32(second[k] * _STEPS))
        last[k] = np.uint32(np.int32(third[k] * _STEPS))
    for k in range(n):
        at = np.uint64(3 * k)
        out[at], out[at + np.uint64(1)] = _level_of(one[k], first[k]), _level_of(other[k], second[k])
        out[at + np.uint64(2)] = _level_of(last[k], third[k])


@jit
def _level_of(place, v):
    level = _NEAR[place]
    return level + np.uint8(v >= _LEAST[np.uint64(level) + np.uint64(1)])


@jit
def _within(v):
    v = v if v > 0.0 else 0.0
    return v if v < 1.0 else 1.0


@jit
def _tile_table(plane, rows, columns, top, left, height, width, clip, table):
    """Compute the look-up table of one tile of the image. Parts of the tile outside the image mirror the image without
    repeating its edge."""
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
    """Equalise one channel in place, interpolating between the look-up tables of the four nearest tiles."""
    if rows % down == 0 and columns % across == 0:
        height, width = rows // down, columns // across
    else:  # OpenCV pads both axes to a multiple of the tile count if either is not one
        height, width = (rows + down - rows % down) // down, (columns + across - columns % across) // across
    found = np.empty((down, across, 256), np.uint8)
    for j in range(down):
        for i in range(across):
            _tile_table(plane, rows, columns, j * height, i * width, height, width, clip, found[j, i])
    down_step, across_step = np.float32(1) / np.float32(height), np.float32(1) / np.float32(width)
    one, parts = np.float32(1), np.empty(columns, np.float32)
    ends = np.zeros(across + 1, np.int64)  # ends of the runs of columns that lie between the same two tiles
    for x in range(columns):
        fx = np.float32(x) * across_step - np.float32(0.5)
        column = int(np.floor(fx))
        parts[x] = fx - np.float32(column)
        ends[min(column + 1, across)] = x + 1
    four, words = np.empty((across + 1, 256), np.uint32), np.empty(columns, np.uint32)
    before = -2
    for y in range(rows):
        fy = np.float32(y) * down_step - np.float32(0.5)
        row = int(np.floor(fy))
        ya = fy - np.float32(row)
        if row != before:  # one word per value: its new values in the four tiles around
            before = row
            upper, lower = found[max(row, 0)], found[min(row + 1, down - 1)]
            for k in range(across + 1):
                left, right = max(k - 1, 0), min(k, across - 1)
                for v in range(256):
                    high = np.uint32(upper[left, v]) | np.uint32(upper[right, v]) << np.uint32(8)
                    low = np.uint32(lower[left, v]) | np.uint32(lower[right, v]) << np.uint32(8)
                    four[k, v] = high | low << np.uint32(16)
        line, first = plane[y * columns : (y + 1) * columns], 0
        for k in range(across + 1):
            table = four[k]
            for x in range(first, ends[k]):
                words[np.uint64(x)] = table[line[np.uint64(x)]]
            first = max(first, ends[k])
        for x in range(columns):
            word, xa = words[x], parts[x]
            a, b = _of(word, 0) * (one - xa) + _of(word, 8) * xa, _of(word, 16) * (one - xa) + _of(word, 24) * xa
            line[x] = np.uint8(np.int32(min(np.rint(a * (one - ya) + b * ya), np.float32(255))))


@jit
def _of(word, shift):
    return np.float32(np.int32(word >> np.uint32(shift) & np.uint32(255)))


@jit
def clahe(src, base, sizes, down, across, clip, luma, dst, out_base):
    """Apply CLAHE (equalisation with limited contrast) to all images; ``sizes`` [N, 3]: rows, columns, channels."""
    numbers, values = np.empty((3, TILE), np.float32), np.empty((3, TILE), np.float64)
    places = np.empty((3, TILE), np.uint32)
    for i in range(len(base)):
        rows, columns, channels = sizes[i]
        pixels = rows * columns
        if pixels * channels == 0:
            continue
        s, o = src[base[i] : base[i] + pixels * channels], dst[out_base[i] : out_base[i] + pixels * channels]
        plane = np.empty(pixels, np.uint8)
        if channels == 3 and luma:
            across_, down_ = np.empty(pixels, np.uint8), np.empty(pixels, np.uint8)
            for first in range(0, pixels, TILE):
                end = min(first + TILE, pixels)
                _lab(s[3 * first : 3 * end], numbers, places, plane[first:end], across_[first:end], down_[first:end])
            _equalized(plane, rows, columns, down, across, clip)
            for first in range(0, pixels, TILE):
                end = min(first + TILE, pixels)
                given = plane[first:end], across_[first:end], down_[first:end]
                _rgb(given[0], given[1], given[2], values, places, o[3 * first : 3 * end])
            continue
        for c in range(channels):
            for p in range(pixels):
                plane[p] = s[p * channels + c]
            _equalized(plane, rows, columns, down, across, clip)
            for p in range(pixels):
                o[p * channels + c] = plane[p]
