"""Compiled loops of color_space_conversion: a matrix for every pixel of every sample, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from ..copies.strided_cpu import put
from .gray_simd_cpu import PIXELS, weighed

jit = numba.njit(nogil=True, cache=True)


TILE = 1024
"""Number of pixels whose channels are separated and joined at a time: they fit into the L1 cache, and arithmetic reads
and writes without steps of three bytes, which would prevent vectorisation."""


@jit
def _channel(a, b, c, d, r, g, b_, to, out):
    for x in range(len(to)):
        v = a * np.float32(r[x]) + b * np.float32(g[x]) + c * np.float32(b_[x])
        to[x] = put(v + d, out)


@jit
def _gray(a, b, c, d, s, to, out):
    """Compute one output channel from three interleaved input channels."""
    n = len(to)
    if n >= PIXELS:
        for first in range(0, n, PIXELS):
            x = min(first, n - PIXELS)  # the last pixels overlap earlier ones, which are computed again
            weighed(s, 3 * x, (a, b, c, d), to, x)
        return
    for x in range(n):
        v = a * np.float32(s[3 * x]) + b * np.float32(s[3 * x + 1]) + c * np.float32(s[3 * x + 2])
        to[x] = put(v + d, out)


@jit
def _joined(one, other, third, to):
    for x in range(len(to) // 3):
        to[3 * x], to[3 * x + 1], to[3 * x + 2] = one[x], other[x], third[x]


@jit
def mix(src, base, pixels, channels, matrix, offset, out, out_base):
    """Compute 1 or 3 outputs per pixel: ``matrix`` [outputs, 3] times its 1 or 3 channels, plus ``offset``."""
    outputs = len(offset)
    given, made = np.empty((3, TILE), np.uint8), np.empty((3, TILE), np.uint8)
    for i in range(len(base)):
        if channels == 3 and outputs == 1:
            s, o = src[base[i] : base[i] + 3 * pixels[i]], out[out_base[i] : out_base[i] + pixels[i]]
            _gray(matrix[0, 0], matrix[0, 1], matrix[0, 2], offset[0], s, o, out)
            continue
        for first in range(0, pixels[i], TILE):
            n = min(TILE, pixels[i] - first)
            r, g, b = given[0, :n], given[1, :n], given[2, :n]
            s = src[base[i] + first * channels : base[i] + (first + n) * channels]
            if channels == 1:
                r = g = b = s  # the factors of the others are 0
            else:
                for x in range(n):
                    r[x], g[x], b[x] = s[3 * x], s[3 * x + 1], s[3 * x + 2]
            o = out[out_base[i] + first * outputs : out_base[i] + (first + n) * outputs]
            for k in range(outputs):
                _channel(matrix[k, 0], matrix[k, 1], matrix[k, 2], offset[k], r, g, b, made[k, :n], out)
            _joined(made[0], made[1], made[2], o)


# -- formulas of other libraries --------------------------------------------------------------------------------------


def _table(factor, zero):
    """Return Pillow's products of ``factor`` and all bytes, with 6 fractional bits (ConvertYCbCr.c). ``zero`` is the
    byte that counts as 0."""
    return np.trunc((np.arange(256) - zero) * factor * 64 + 0.5).astype(np.int32)


_PILLOW_YCC = np.stack(
    [_table(f, 0) for f in (0.299, 0.587, 0.114, -0.16874, -0.33126, 0.5, 0.5, -0.41869, -0.08131)]
).reshape(3, 3, 256)
_PILLOW_RGB = np.stack([_table(f, 128) for f in (0, 1.402, -0.34414, -0.71414, 1.772, 0)]).reshape(3, 2, 256)

GRAY_PILLOW, GRAY_OPENCV, GRAY_TORCHVISION, YCC_PILLOW, YCC_OPENCV, RGB_PILLOW, RGB_OPENCV, FIRST, NEUTRAL = range(9)
"""Rules of `convert`, as of the named library. FIRST keeps the first channel, NEUTRAL adds chroma without colour."""


@jit
def _byte(value):
    return min(max(value, 0), 255)


@jit
def _pixel(a, b, c, rule):
    """Convert one pixel (R, G, B or Y, Cb, Cr; gray in ``a``) by ``rule``."""
    if rule == GRAY_PILLOW:
        return (a * 19595 + b * 38470 + c * 7471 + 0x8000) >> 16, 0, 0
    if rule == GRAY_OPENCV:
        return (a * 9798 + b * 19235 + c * 3735 + 0x4000) >> 15, 0, 0
    if rule == GRAY_TORCHVISION:
        value = np.float32(0.2989) * np.float32(a) + np.float32(0.587) * np.float32(b)
        return np.int64(value + np.float32(0.114) * np.float32(c)), 0, 0
    if rule == YCC_PILLOW:
        t = _PILLOW_YCC
        cb, cr = t[1, 0, a] + t[1, 1, b] + t[1, 2, c], t[2, 0, a] + t[2, 1, b] + t[2, 2, c]
        return (t[0, 0, a] + t[0, 1, b] + t[0, 2, c]) >> 6, (cb >> 6) + 128, (cr >> 6) + 128
    if rule == YCC_OPENCV:
        y = (a * 4899 + b * 9617 + c * 1868 + 8192) >> 14
        return y, ((c - y) * 9241 + (128 << 14) + 8192) >> 14, ((a - y) * 11682 + (128 << 14) + 8192) >> 14
    if rule == RGB_PILLOW:
        u = _PILLOW_RGB
        return a + (u[0, 1, c] >> 6), a + ((u[1, 0, b] + u[1, 1, c]) >> 6), a + (u[2, 0, b] >> 6)
    if rule == RGB_OPENCV:
        b, c = b - 128, c - 128
        green = a + ((b * -5636 + c * -11698 + 8192) >> 14)
        return a + ((c * 22987 + 8192) >> 14), green, a + ((b * 29049 + 8192) >> 14)
    return a, 128, 128


@jit
def convert(src, base, pixels, channels, turned_in, turned_out, rule, outputs, out, out_base):
    """Convert images of ``pixels`` [N] by ``rule``, from 1 or 3 channels to 1 or 3. ``turned_in`` and ``turned_out``
    say whether blue is the first channel (BGR) before and after."""
    for i in range(len(base)):
        for x in range(pixels[i]):
            s, o = base[i] + x * channels, out_base[i] + x * outputs
            if channels == 1:
                p, q, r = _pixel(np.int64(src[s]), 0, 0, rule)
            elif turned_in:
                p, q, r = _pixel(np.int64(src[s + 2]), np.int64(src[s + 1]), np.int64(src[s]), rule)
            else:
                p, q, r = _pixel(np.int64(src[s]), np.int64(src[s + 1]), np.int64(src[s + 2]), rule)
            if outputs == 1:
                out[o] = _byte(p)
            else:
                out[o + 2 if turned_out else o] = _byte(p)
                out[o + 1] = _byte(q)
                out[o if turned_out else o + 2] = _byte(r)
