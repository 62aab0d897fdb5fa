"""The window algorithm of `random_window`, one image after the other. All arithmetic is float32, as in DALI."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from .philox_cpu import draw

F = np.float32
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@njit(nogil=True, cache=True)
def _real(word: Any, low: Any, high: Any) -> Any:
    """A draw as float32 in [low, high), the way of C++'s std::uniform_real_distribution."""
    unit = F(F(word) * F(2.0**-32))
    if unit >= F(1):
        unit = F(0.99999994)  # the largest float32 below 1
    return F(F(unit * F(high - low)) + low)


@njit(nogil=True, cache=True)
def _integer(key: Any, sequence: Any, at: Any, n: Any) -> Any:
    """A number in [0, n) from draw ``at`` on, and the draw after: Lemire's reduction (ACM TOMACS 29(1), 2019)."""
    n = np.uint64(n)
    product = draw(key, sequence, at) * n
    at += 1
    if (product & _LOW) < n:
        threshold = ((np.uint64(1) << _32) - n) % n
        while (product & _LOW) < threshold:
            product = draw(key, sequence, at) * n
            at += 1
    return np.int64(product >> _32), at


@njit(nogil=True, cache=True)
def _nearest(x: Any) -> Any:
    return max(np.int64(1), np.int64(math.floor(np.float64(x) + 0.5)))


@njit(nogil=True, cache=True)
def windows(
    key: Any, sequences: Any, heights: Any, widths: Any, aspect: Any, area: Any, attempts: Any, out: Any
) -> None:
    """Fill ``out`` int64[N, 4] with (y, x, h, w)."""
    narrow, wide = aspect[0], aspect[1]
    log_narrow, log_wide = F(math.log(narrow)), F(math.log(wide))
    one = np.int64(1)
    for i in range(len(out)):
        H, W, sequence = heights[i], widths[i], sequences[i]
        if H <= 0 or W <= 0:
            continue
        at = 0
        least = F(F(W * H) * area[0])
        widest = max(one, np.int64(F(F(H) * wide)))
        tallest = max(one, np.int64(F(F(W) * F(F(1) / narrow))))
        h, w = H, W
        if F(H * widest) < least:
            w = widest
        elif F(W * tallest) < least:
            h = tallest
        else:
            found = False
            for _ in range(attempts):
                wanted = F(_real(draw(key, sequence, at), area[0], area[1]) * F(H * W))
                ratio = F(math.exp(_real(draw(key, sequence, at + 1), log_narrow, log_wide)))
                at += 2
                w = _nearest(F(math.sqrt(F(wanted * ratio))))
                h = _nearest(F(math.sqrt(F(wanted / ratio))))
                rounded = F(F(w) / F(h))
                if w <= W and h <= H and narrow <= rounded and rounded <= wide:
                    found = True
                    break
            if not found:
                h, w = H, W
                shape = F(F(W) / F(H))
                if shape > wide:
                    w = widest
                elif shape < narrow:
                    h = tallest
                shrink = F(math.sqrt(min(F(1), F(F(F(area[1] * F(W)) * F(H)) / F(h * w)))))
                h = max(one, np.int64(F(F(h) * shrink)))
                w = max(one, np.int64(F(F(w) * shrink)))
        y, at = _integer(key, sequence, at, H - h + 1)
        x, at = _integer(key, sequence, at, W - w + 1)
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = y, x, h, w
