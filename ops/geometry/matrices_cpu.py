"""Compiled loop that composes affine maps."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def follow(before, after, out):
    """Compose affine maps [N, d, d + 1], float64: first ``before``, then ``after``. ``out`` is a third array."""
    n, d = before.shape[:2]
    for i in range(n):
        for row in range(d):
            for column in range(d + 1):
                total = after[i, row, 0] * before[i, 0, column]
                for k in range(1, d):
                    total += after[i, row, k] * before[i, k, column]
                out[i, row, column] = total + after[i, row, d] if column == d else total
