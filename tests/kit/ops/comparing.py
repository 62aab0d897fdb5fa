"""Differences between arrays of numbers."""

from __future__ import annotations

import numpy as np


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the elementwise difference: in levels for integers; for floats relative to the larger of 1 and the value,
    ignoring one float16 step."""
    same = (a == b) | ((a != a) & (b != b))  # also infinities and NaN
    have, want = (np.where(same, 0, x).astype(np.float64) for x in (a, b))
    off = np.abs(have - want)
    if b.dtype.kind == "f":
        off /= np.maximum(1, np.abs(want))
        if b.dtype == np.float16:
            off[off <= np.finfo(np.float16).eps] = 0
    return off
