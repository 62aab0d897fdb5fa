"""Compiled loops that compute Gaussian windows: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numba
import numpy as np


@numba.njit(nogil=True, cache=True)
def sizes(sigma, length, widest, found, deviation):
    """Compute lengths and standard deviations of Gaussian windows from ``sigma`` and ``length`` [M, A], either of which
    may be 0. Return the longest length, or -1 if a window is impossible: its length is then 0."""
    longest, wrong = 1, False
    for m in range(len(sigma)):
        for a in range(sigma.shape[1]):
            s, n = sigma[m, a], length[m, a]
            found[m, a], deviation[m, a] = 0, 1
            if not (0 <= s <= widest and 0 <= n <= 6 * widest) or (n > 0 and n % 2 == 0) or (s == 0 and n == 0):
                wrong = True
                continue
            found[m, a] = 2 * math.ceil(np.float32(3) * s) + 1 if n == 0 else n
            radius = (found[m, a] - 1) // 2
            deviation[m, a] = np.float32(radius - 1) * np.float32(0.3) + np.float32(0.8) if s == 0 else s
            longest = max(longest, found[m, a])
    return -1 if wrong else longest


@numba.njit(nogil=True, cache=True)
def windows(length, deviation, out, lengths):
    """Compute Gaussian windows [M, 1, 3, L] for depth, height and width, and their lengths [M, 1, 3]."""
    axes = length.shape[1]
    for m in range(len(length)):
        for a in range(3):
            window = out[m, 0, a]
            window[:] = 0
            lengths[m, 0, a] = 1
            if a < 3 - axes:
                window[0] = 1
                continue
            count, s = length[m, a - 3 + axes], deviation[m, a - 3 + axes]
            radius, scale, total = (count - 1) // 2, np.float32(0.5) / (s * s), np.float32(0)
            for k in range(count):
                away = k - radius
                window[k] = math.exp(-np.float32(away * away * scale))
                total += window[k]
            for k in range(count):
                window[k] /= total
            lengths[m, 0, a] = count
