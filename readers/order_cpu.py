"""Compiled loops of `readers.order`: exchanges of a shuffle, and the random numbers of DALI's shuffling buffer."""

from __future__ import annotations

from typing import Any

import numba


@numba.njit("void(int64[::1], int64[::1], int64)", nogil=True, cache=True)
def swap(values: Any, targets: Any, first: Any) -> None:
    """For one k after the other, exchange element ``first + k`` with element ``targets[k]``, in place."""
    for k in range(len(targets)):
        i, j = first + k, targets[k]
        kept = values[i]
        values[i] = values[j]
        values[j] = kept


MINSTD = 2147483647
"""Modulus of minstd_rand0 (ISO C++ [rand.predef]), a prime: its words are powers of 16807 modulo it."""


@numba.njit("int64(int64[::1], int64, int64)", nogil=True, cache=True)
def window(values: Any, state: Any, fill: Any) -> Any:
    """Shuffle within a window: exchange each element with a random one of the ``fill`` elements from it on, in place.
    Return the random generator's state after that.

    Like libstdc++'s uniform_int_distribution, divide the generator's range into equal buckets, and draw again for words
    past the last full one.
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
