"""Compiled window of torchvision's RandomResizedCrop, from words of PyTorch's generator."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

_TRIES = 10


@numba.njit("float64(uint32, float64, float64)", nogil=True, cache=True)
def _between(word: Any, span: Any, first: Any) -> Any:
    """Convert one random word to a number from ``first`` on, less than ``span`` above it, as PyTorch's ``uniform_``
    does."""
    return np.float64(np.float32(np.float64(word & np.uint32(0xFFFFFF)) * 2.0**-24 * span + first))


@numba.njit("void(uint32[::1], int64, int64, int64, float64[::1], int64[::1])", nogil=True, cache=True)
def crop_window(words: Any, at: Any, height: Any, width: Any, ranges: Any, out: Any) -> None:
    """Draw a crop window: fill ``out`` with top, left, height, width, and the index of the next random word. The height
    is 0 if no attempt succeeded; the index is -1 if there may be too few words after ``at``.

    ``ranges``: width and start of the range of the area, and of that of the logarithm of the aspect ratio.
    """
    out[:] = 0
    out[4] = -1
    if at + 2 * _TRIES + 2 > len(words):
        return
    for _ in range(_TRIES):
        area = (height * width) * _between(words[at], ranges[0], ranges[1])
        ratio = np.float64(np.float32(math.exp(_between(words[at + 1], ranges[2], ranges[3]))))
        at += 2
        w, h = np.int64(np.rint(math.sqrt(area * ratio))), np.int64(np.rint(math.sqrt(area / ratio)))
        if 0 < w <= width and 0 < h <= height:
            out[0], out[1] = np.int64(words[at]) % (height - h + 1), np.int64(words[at + 1]) % (width - w + 1)
            out[2], out[3] = h, w
            at += 2
            break
    out[4] = at


@numba.njit("UniTuple(int64, 2)(uint32[::1], int64, int64, int64, float64[::1], int64[:, :])", nogil=True, cache=True)
def crop_windows(words: Any, at: Any, height: Any, width: Any, ranges: Any, out: Any) -> Any:
    """Draw one crop window per row of ``out`` with `crop_window`, until no attempt succeeds. Return the number of
    windows, and the index of the next random word."""
    one = np.empty(5, np.int64)
    for i in range(len(out)):
        crop_window(words, at, height, width, ranges, one)
        if one[4] < 0 or one[2] == 0:
            return i, at
        out[i, :] = one[:4]
        at = one[4]
    return len(out), at
