"""Affine maps, one applied after another."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def follow(before, after, out):
    """The maps ``after`` [N, d, d + 1] of the maps ``before``, float64, into ``out``, which is neither."""
    n, d = before.shape[:2]
    for i in range(n):
        for row in range(d):
            for column in range(d + 1):
                total = after[i, row, 0] * before[i, 0, column]
                for k in range(1, d):
                    total += after[i, row, k] * before[i, k, column]
                out[i, row, column] = total + after[i, row, d] if column == d else total
