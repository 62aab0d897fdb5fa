"""Compiled loops of batch_permutation."""

# Numba has no type annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

_DRAWS = types.Array(types.uint32, 1, "A", readonly=True)
_PLACES = types.Array(types.int64, 1, "C")


@numba.njit(types.UniTuple(types.int64, 2)(_DRAWS, types.int64, types.int64), nogil=True, cache=True)
def _below(draws: Any, at: Any, limit: Any) -> Any:
    """Return a number in [0, limit) by Lemire's method ("Fast random integer generation in an interval", 2019), and the
    number of random words used so far; -1 if there are too few."""
    threshold = (np.int64(1) << 32) % limit
    while at < len(draws):
        product = np.uint64(draws[at]) * np.uint64(limit)
        at += 1
        if np.int64(product & np.uint64(0xFFFFFFFF)) >= threshold:
            return np.int64(product >> np.uint64(32)), at
    return np.int64(0), np.int64(-1)


@numba.njit(types.boolean(_DRAWS, types.int64, _PLACES), nogil=True, cache=True)
def permuted(draws: Any, kind: Any, out: Any) -> Any:
    """Fill ``out`` with random indices. ``kind`` is the sum of 1 for no_fixed_points and 2 for allow_repetitions.
    Return False if there are too few random words.

    Permutations are made as the GNU C++ library's std::shuffle does, with two swaps per draw; those without fixed
    points by Sattolo's algorithm; DALI 2.4 does the same.
    """
    n, at = len(out), np.int64(0)
    moved = kind & 1 and n > 1
    if kind & 2:
        for i in range(n):
            value, at = _below(draws, at, n - 1 if moved else n)
            if at < 0:
                return False
            out[i] = value + 1 if moved and value >= i else value
        return True
    for i in range(n):
        out[i] = i
    if moved:
        for i in range(n - 1):
            value, at = _below(draws, at, n - 1 - i)
            if at < 0:
                return False
            other = i + 1 + value
            out[i], out[other] = out[other], out[i]
        return True
    pairs = n <= 65535  # the library draws two indices at once if their product fits into 32 bits
    i = 1
    while i < n:
        together = pairs and not (i == 1 and n % 2 == 0)
        value, at = _below(draws, at, (i + 1) * (i + 2) if together else i + 1)
        if at < 0:
            return False
        other = value // (i + 2) if together else value
        out[i], out[other] = out[other], out[i]
        i += 1
        if together:
            other = value % (i + 1)
            out[i], out[other] = out[other], out[i]
            i += 1
    return True
