"""Compiled loop of `random_window`, one image after the other. All arithmetic is float32, as in DALI."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from ..draws.philox_cpu import block

F = np.float32
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_NONE = (np.uint64(0),) * 4
"""Placeholder for the block of four random words before the first word is used."""


@njit
def _next(key: Any, sequence: Any, at: Any, words: Any) -> Any:
    """Return random word ``at`` of a stream, and the block of four words that contains it. ``words`` is the block of
    the previous word, which is reused if possible."""
    if at & 3 == 0:
        words = block(key, sequence, at >> 2)
    return words[at & 3], words


@njit
def _real(word: Any, low: Any, high: Any) -> Any:
    """Convert a random word to float32 in [low, high), like C++'s std::uniform_real_distribution."""
    unit = F(F(word) * F(2.0**-32))
    if unit >= F(1):
        unit = F(0.99999994)  # the largest float32 below 1
    return F(F(unit * F(high - low)) + low)


@njit
def _integer(key: Any, sequence: Any, at: Any, words: Any, n: Any) -> Any:
    """Return a random number in [0, n), made from random word ``at`` on by Lemire's reduction (ACM TOMACS 29(1), 2019),
    the index of the next word, and the block of the last word."""
    n = np.uint64(n)
    word, words = _next(key, sequence, at, words)
    product = word * n
    at += 1
    if (product & _LOW) < n:
        threshold = ((np.uint64(1) << _32) - n) % n
        while (product & _LOW) < threshold:
            word, words = _next(key, sequence, at, words)
            product = word * n
            at += 1
    return np.int64(product >> _32), at, words


@njit
def _nearest(x: Any) -> Any:
    return max(np.int64(1), np.int64(math.floor(np.float64(x) + 0.5)))


_REST = "uint64[:], int64[:], int64[:], float32[::1], float32[::1], int64, int64[:, ::1], int64[:, ::1]"


@njit([f"void(uint64, {_REST})", f"void(UniTuple(uint64, 3), {_REST})"], nogil=True, cache=True)
def windows(
    key: Any, sequences: Any, heights: Any, widths: Any, aspect: Any, area: Any, attempts: Any, anchors: Any,
    shapes: Any,
) -> None:  # fmt: skip
    """Draw a random window in each image: fill ``anchors`` (y, x) and ``shapes`` (h, w) [N, 2]."""
    narrow, wide = aspect[0], aspect[1]
    log_narrow, log_wide = F(math.log(narrow)), F(math.log(wide))
    one = np.int64(1)
    for i in range(len(heights)):
        H, W, sequence = heights[i], widths[i], sequences[i]
        if H <= 0 or W <= 0:
            anchors[i], shapes[i] = 0, 0
            continue
        at, words = 0, _NONE
        least = F(F(W * H) * area[0])
        widest = max(one, np.int64(F(F(H) * wide)))
        tallest = max(one, np.int64(F(F(W) * F(F(1) / narrow))))
        h, w = H, W
        if F(H * widest) < least:
            w = min(widest, W)  # larger only if an area above 1 is requested
        elif F(W * tallest) < least:
            h = min(tallest, H)
        else:
            found = False
            for _ in range(attempts):
                word, words = _next(key, sequence, at, words)
                wanted = F(_real(word, area[0], area[1]) * F(H * W))
                word, words = _next(key, sequence, at + 1, words)
                ratio = F(math.exp(_real(word, log_narrow, log_wide)))
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
        anchors[i, 0], at, words = _integer(key, sequence, at, words, H - h + 1)
        anchors[i, 1], at, words = _integer(key, sequence, at, words, W - w + 1)
        shapes[i, 0], shapes[i, 1] = h, w
