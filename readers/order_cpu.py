"""The exchanges of a shuffle, for long lists."""

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
