"""The loops of shuffles: exchanges, and what libstdc++ draws for DALI's buffer."""

from __future__ import annotations

from typing import Any

import numba


@numba.njit("void(int64[::1], int64[::1], int64)", nogil=True, cache=True)
def swap(values: Any, targets: Any, first: Any) -> None:
    """Exchange place ``first + k`` with place ``targets[k]``, one after the other, in place."""
    for k in range(len(targets)):
        i, j = first + k, targets[k]
        kept = values[i]
        values[i] = values[j]
        values[j] = kept


MINSTD = 2147483647
"""Words of minstd_rand0 (ISO C++ [rand.predef]) are powers of 16807 modulo this prime."""


@numba.njit("int64(int64[::1], int64, int64)", nogil=True, cache=True)
def window(values: Any, state: Any, fill: Any) -> Any:
    """For each place, exchange it with a random one of the ``fill`` places from there on, in place. Returns the
    generator's state after that.

    libstdc++'s uniform_int_distribution divides the generator's range by a scale, and draws again what is past the last
    whole bucket.
    """
    n = len(values)
    bound, scale = 0, 0
    for k in range(n):
        if bound != min(fill, n - k):
            bound = min(fill, n - k)
            scale = (MINSTD - 2) // bound
        state = state * 16807 % MINSTD
        while state - 1 >= scale * bound:
            state = state * 16807 % MINSTD
        j = k + (state - 1) // scale
        kept = values[k]
        values[k] = values[j]
        values[j] = kept
    return state
