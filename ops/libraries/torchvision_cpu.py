"""Compiled loops of the operator torchvision: planar uint8 images pass through their steps, one image after the other
while it is in the cache.

Formulas: torchvision's transforms/v2/functional and the PyTorch kernels that it calls. Every float32 operation is done
in PyTorch's order, with product and sum in one rounding (`fma`) where its vector code does so: results are equal to the
bit.
"""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from .fma_cpu import fma
from .torchvision_blur_cpu import blur
from .torchvision_warp_cpu import copy, flip, turn, warp, window

jit = numba.njit(nogil=True, cache=True, error_model="numpy")

# Plain integers, because Numba treats them as constants. `torchvision.Step` has the same numbers; a test compares them.
BRIGHTNESS, CONTRAST, SATURATION, HUE, POSTERIZE, SOLARIZE, INVERT, AUTOCONTRAST, EQUALIZE = range(1, 10)
SHARPNESS, GRAY, PERMUTE, BLUR, FLIP, TURN, WINDOW, AFFINE, PERSPECTIVE = range(10, 19)

_RED, _GREEN, _BLUE = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
_ZERO, _ONE, _TOP = np.float32(0), np.float32(1), np.float32(255)


@jit
def _byte(value):
    """Clip a float32 to 0 ... 255 and truncate it."""
    return np.uint8(np.int32(min(max(value, _ZERO), _TOP)))


@jit
def _gray(r, g, b):
    return fma(np.float32(b), _BLUE, fma(np.float32(g), _GREEN, np.float32(r) * _RED))


@jit
def _brightness(s, factor, o):
    for i in range(len(s)):
        o[i] = _byte(np.float32(s[i]) * factor)


@jit
def _mean(s, pixels, channels):
    """Return the mean of an image in gray, whose gray values are truncated to integers."""
    total = np.int64(0)
    if channels == 3:
        r, g, b = s[:pixels], s[pixels : 2 * pixels], s[2 * pixels :]
        for i in range(pixels):
            total += np.int64(np.int32(_gray(r[i], g[i], b[i])))
    else:
        for i in range(len(s)):
            total += s[i]
    return np.float32(total) / np.float32(pixels)


@jit
def _contrast(s, pixels, channels, factor, rest, o):
    mean = _mean(s, pixels, channels)
    for i in range(len(s)):
        o[i] = _byte(fma(mean, rest, np.float32(s[i]) * factor))


@jit
def _saturation(s, pixels, factor, rest, o):
    r, g, b = s[:pixels], s[pixels : 2 * pixels], s[2 * pixels :]
    u, v, w = o[:pixels], o[pixels : 2 * pixels], o[2 * pixels :]
    for i in range(pixels):
        gray = np.floor(_gray(r[i], g[i], b[i]))
        u[i] = _byte(fma(gray, rest, np.float32(r[i]) * factor))
        v[i] = _byte(fma(gray, rest, np.float32(g[i]) * factor))
        w[i] = _byte(fma(gray, rest, np.float32(b[i]) * factor))


@jit
def _grays(s, pixels, channels, o):
    """Convert an image to gray, and write the result to each channel of ``o``."""
    u = o[:pixels]
    if channels == 1:
        copy(s, u)
    else:
        r, g, b = s[:pixels], s[pixels : 2 * pixels], s[2 * pixels : 3 * pixels]
        for i in range(pixels):
            u[i] = _byte(_gray(r[i], g[i], b[i]))
    for c in range(1, len(o) // max(pixels, 1)):
        copy(u, o[c * pixels : (c + 1) * pixels])


@jit
def _hue(s, pixels, shift, o):
    scale, sixth, wide = np.float32(1 / 255), np.float32(1 / 6), np.float32(255 + 1 - 1e-3)
    two, four, six = np.float32(2), np.float32(4), np.float32(6)
    red, green, blue = s[:pixels], s[pixels : 2 * pixels], s[2 * pixels :]
    x, y, z = o[:pixels], o[pixels : 2 * pixels], o[2 * pixels :]
    for i in range(pixels):
        r, g, b = np.float32(red[i]) * scale, np.float32(green[i]) * scale, np.float32(blue[i]) * scale
        top, low = max(max(r, g), b), min(min(r, g), b)
        flat = top == low
        span = top - low
        s_ = span / (_ONE if flat else top)
        span = _ONE if flat else span
        rc, gc, bc = (top - r) / span, (top - g) / span, (top - b) / span
        h = bc - gc if top == r else (rc + two - bc if top == g else gc + four - rc)
        h = h * sixth + _ONE
        h = h - _ONE if h >= 1 else h
        h += shift
        h = h - _ONE if h >= 1 else h
        h = h + _ONE if h < 0 else h
        h *= six
        whole = np.floor(h)
        f = h - whole
        k = np.int32(_ZERO if whole == six else whole)
        sf, rest = s_ * f, _ONE - s_
        q = min(max((_ONE - sf) * top, _ZERO), _ONE)
        t = min(max((sf + rest) * top, _ZERO), _ONE)
        p = min(max(rest * top, _ZERO), _ONE)
        u = top if k == 0 or k == 5 else q if k == 1 else t if k == 4 else p
        v = t if k == 0 else top if k == 1 or k == 2 else q if k == 3 else p
        w = p if k == 0 or k == 1 else t if k == 2 else q if k == 5 else top
        x[i] = np.uint8(np.int32(u * wide))
        y[i] = np.uint8(np.int32(v * wide))
        z[i] = np.uint8(np.int32(w * wide))


@jit
def _solarize(s, threshold, o):
    for i in range(len(s)):
        o[i] = 255 - s[i] if np.float32(s[i]) >= threshold else s[i]


@jit
def _masked(s, keep, flip_, o):
    for i in range(len(s)):
        o[i] = (s[i] & keep) ^ flip_


@jit
def _autocontrast(s, o):
    low, top = np.uint8(255), np.uint8(0)
    for i in range(len(s)):
        low, top = min(low, s[i]), max(top, s[i])
    if low == top:
        copy(s, o)
        return
    base, span = np.float32(low), np.float32(np.float32(top) - np.float32(low)) * np.float32(1 / 255)
    for i in range(len(s)):
        o[i] = _byte((np.float32(s[i]) - base) / span)


@jit
def _equalize(s, o):
    counts, table = np.zeros((4, 256), np.int32), np.zeros(256, np.uint8)
    n = len(s) // 4 * 4
    for i in range(0, n, 4):  # counted in four tables, so that an increment need not wait for the previous one
        counts[0, s[i]] += 1
        counts[1, s[i + 1]] += 1
        counts[2, s[i + 2]] += 1
        counts[3, s[i + 3]] += 1
    for i in range(n, len(s)):
        counts[0, s[i]] += 1
    last = 255
    while last > 0 and counts[:, last].sum() == 0:
        last -= 1
    step = (len(s) - counts[:, last].sum()) // 255
    if step == 0:
        copy(s, o)
        return
    total = 0
    for v in range(1, 256):
        total += counts[0, v - 1] + counts[1, v - 1] + counts[2, v - 1] + counts[3, v - 1]
        table[v] = min((total + step // 2) // step, 255)
    for i in range(len(s)):
        o[i] = table[s[i]]


@jit
def _sharpness(s, rows, columns, rest, o):
    """Sharpen: apply the 3x3 filter with weights 1/13, and 5/13 in the centre, rounded; ties do not occur. Borders are
    unchanged."""
    if rows <= 2 or columns <= 2:
        copy(s, o)
        return
    copy(s[:columns], o[:columns])
    copy(s[(rows - 1) * columns :], o[(rows - 1) * columns :])
    for y in range(1, rows - 1):
        at, n = y * columns, columns - 2
        o[at], o[at + columns - 1] = s[at], s[at + columns - 1]
        a, b, c = s[at - columns : at], s[at : at + columns], s[at + columns : at + 2 * columns]
        line, a1, a2, b1, b2, c1, c2 = o[at + 1 : at + 1 + n], a[1:], a[2:], b[1:], b[2:], c[1:], c[2:]
        for x in range(n):
            total = np.uint32(a[x]) + np.uint32(a1[x]) + np.uint32(a2[x]) + np.uint32(b[x]) + np.uint32(b2[x])
            total += np.uint32(c[x]) + np.uint32(c1[x]) + np.uint32(c2[x]) + np.uint32(5) * np.uint32(b1[x])
            smooth = np.float32(np.int32(np.uint32((np.uint32(2) * total + np.uint32(13)) // np.uint32(26))))
            middle = np.float32(b1[x])
            line[x] = _byte(fma(smooth - middle, rest, middle))


@jit
def _pointwise(kind, p, s, pixels, channels, o):
    """Apply a step that changes pixels one by one. A step that needs colours leaves images without them unchanged."""
    if kind == BRIGHTNESS:
        _brightness(s, np.float32(p[0]), o)
    elif kind == CONTRAST:
        _contrast(s, pixels, channels, np.float32(p[0]), np.float32(1.0 - p[0]), o)
    elif kind == SATURATION and channels == 3:
        _saturation(s, pixels, np.float32(p[0]), np.float32(1.0 - p[0]), o)
    elif kind == HUE and channels == 3:
        _hue(s, pixels, np.float32(p[0]), o)
    elif kind == POSTERIZE:
        _masked(s, np.uint8(256 - (1 << (8 - int(p[0]))) if p[0] > 0 else 0), np.uint8(0), o)
    elif kind == SOLARIZE:
        _solarize(s, np.float32(p[0]), o)
    elif kind == INVERT:
        _masked(s, np.uint8(255), np.uint8(255), o)
    elif kind == PERMUTE:
        for c in range(channels):
            k = int(p[c])
            copy(s[k * pixels : (k + 1) * pixels], o[c * pixels : (c + 1) * pixels])
    else:
        copy(s, o)


@jit
def _planes(kind, p, s, rows, columns, channels, o):
    """Apply a step that processes each channel of an image separately."""
    pixels = rows * columns
    for c in range(channels):
        plane, out = s[c * pixels : (c + 1) * pixels], o[c * pixels : (c + 1) * pixels]
        if kind == AUTOCONTRAST:
            _autocontrast(plane, out)
        elif kind == EQUALIZE:
            _equalize(plane, out)
        else:
            _sharpness(plane, rows, columns, np.float32(1.0 - p[0]), out)


@jit
def _apart(s, pixels, channels, o):
    for c in range(channels):
        plane = o[c * pixels : (c + 1) * pixels]
        for i in range(pixels):
            plane[i] = s[i * channels + c]


@jit
def _joined(s, pixels, channels, o):
    for c in range(channels):
        plane = s[c * pixels : (c + 1) * pixels]
        for i in range(pixels):
            o[i * channels + c] = plane[i]


@jit
def run(src, base, shapes, kinds, numbers, interleaved, dst, out_base):
    """Apply the steps ``kinds`` [N, K] with their ``numbers`` [N, K, WIDTH] to image i, src[base[i]:] of ``shapes`` [N,
    K + 1, 3] (channels, rows, columns before each step and at the end); an image with kind 0 skips the step.
    ``interleaved`` images have adjacent channels (HWC)."""
    largest = 0
    for i in range(len(base)):
        for k in range(0 if interleaved else 1, shapes.shape[1] - (0 if interleaved else 1)):
            largest = max(largest, shapes[i, k, 0] * shapes[i, k, 1] * shapes[i, k, 2])
    first, second = np.empty(largest, np.uint8), np.empty(largest, np.uint8)
    for i in range(len(base)):
        last = -1
        for k in range(kinds.shape[1]):
            last = k if kinds[i, k] else last
        channels, rows, columns = shapes[i, 0]
        s = src[base[i] : base[i] + channels * rows * columns]
        if last < 0:
            copy(s, dst[out_base[i] : out_base[i] + len(s)])
            continue
        turns = 0
        if interleaved:
            _apart(s, rows * columns, channels, second)
            s = second[: len(s)]
        for k in range(last + 1):
            kind, p = kinds[i, k], numbers[i, k]
            if kind == 0:
                continue
            channels, rows, columns = shapes[i, k]
            after, height, width = shapes[i, k + 1]
            size = after * height * width
            if k == last and not interleaved:
                o = dst[out_base[i] : out_base[i] + size]
            else:
                o = first[:size] if turns % 2 == 0 else second[:size]
            turns += 1
            if size == 0:
                pass
            elif kind in (AUTOCONTRAST, EQUALIZE, SHARPNESS):
                _planes(kind, p, s, rows, columns, channels, o)
            elif kind == GRAY:
                _grays(s, rows * columns, channels, o)
            elif kind == BLUR:
                blur(s, rows, columns, channels, int(p[0]), int(p[1]), p[2], p[3], o)
            elif kind == FLIP:
                flip(s, rows, columns, channels, int(p[0]), o)
            elif kind == TURN:
                turn(s, rows, columns, channels, int(p[0]), o)
            elif kind == WINDOW:
                window(s, rows, columns, channels, int(p[0]), int(p[1]), height, width, int(p[4]), p[5:], o)
            elif kind in (AFFINE, PERSPECTIVE):
                warp(s, rows, columns, channels, kind == PERSPECTIVE, p, height, width, o)
            else:
                _pointwise(kind, p, s, rows * columns, channels, o)
            s = o
        if interleaved:
            channels, rows, columns = shapes[i, last + 1]
            _joined(s, rows * columns, channels, dst[out_base[i] :])


@jit
def to_floats(src, base, channels, pixels, divide, mean, std, dst, out_base):
    """Compute (value / 255 - mean) / std per channel, each operation rounded to float32; without ``divide`` multiply by
    1 / 255 instead. Without ``mean``, values are not normalised."""
    scale, by = np.float32(1 / 255), np.float32(255)
    for i in range(len(base)):
        for c in range(channels[i]):
            s = src[base[i] + c * pixels[i] : base[i] + (c + 1) * pixels[i]]
            o = dst[out_base[i] + c * pixels[i] : out_base[i] + (c + 1) * pixels[i]]
            if len(mean) == 0:
                for k in range(len(s)):
                    o[k] = np.float32(s[k]) / by if divide else np.float32(s[k]) * scale
                continue
            m, d = mean[c % len(mean)], std[c % len(std)]
            for k in range(len(s)):
                o[k] = ((np.float32(s[k]) / by if divide else np.float32(s[k]) * scale) - m) / d
