"""The CPU loops of `clusters`: sorts by bits of hashes, comparisons within runs, a union-find. Without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

jit = numba.njit(nogil=True, cache=True)

_AT_ONCE = 64
"""Number of hashes that are compared with one hash before the results of the comparisons are inspected."""


def _ones(_typing, word):
    """Return the number of bits of a uint64 that are 1 (an LLVM intrinsic)."""

    def generate(_context, builder, _signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


ones: Any = intrinsic(_ones)


@jit
def permute(hashes, table):
    """Permute the bits of each hash in place. ``table`` uint64[8, 256]: the permuted bits of each value of each
    byte."""
    for i in range(len(hashes)):
        word, image = hashes[i], np.uint64(0)
        for k in range(8):
            image |= table[k, word & np.uint64(255)]
            word >>= np.uint64(8)
        hashes[i] = image


@jit
def sort_pass(hashes, rows, shift, bits, to_hashes, to_rows):
    """Sort stably by the ``bits`` bits from bit ``shift`` on; write the result to ``to_hashes`` and ``to_rows``."""
    mask = np.uint64((1 << bits) - 1)
    places = np.zeros((1 << bits) + 1, np.int64)
    for i in range(len(hashes)):
        places[np.int64((hashes[i] >> np.uint64(shift)) & mask) + 1] += 1
    for k in range(1 << bits):
        places[k + 1] += places[k]
    for i in range(len(hashes)):
        digit = np.int64((hashes[i] >> np.uint64(shift)) & mask)
        at = places[digit]
        places[digit] = at + 1
        to_hashes[at], to_rows[at] = hashes[i], rows[i]


@jit
def root_of(parents, i):
    """Return the root of the tree that contains row ``i``; halve the length of the path to it."""
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


@jit
def _union(parents, a, b):
    """Join the trees that contain two rows under the smaller root. Return whether they were different trees."""
    a, b = root_of(parents, a), root_of(parents, b)
    if a == b:
        return False
    if a < b:
        parents[b] = a
    else:
        parents[a] = b
    return True


@jit
def join_equal(hashes, rows, parents):
    """Join rows with equal hashes to clusters (``hashes`` are sorted), and keep one row per hash at the front of both
    arrays. Return the number of different hashes, and the number of clusters that were joined to others."""
    kept, joined = 0, 0
    for i in range(len(hashes)):
        if kept and hashes[kept - 1] == hashes[i]:
            joined += _union(parents, np.int64(rows[kept - 1]), np.int64(rows[i]))
        else:
            hashes[kept], rows[kept] = hashes[i], rows[i]
            kept += 1
    return kept, joined


@jit
def join_near(hashes, rows, parents, mask, distance):
    """Join rows to clusters whose hashes are equal in the bits of ``mask``, by which they are sorted, and differ in at
    most ``distance`` bits. Return the number of clusters that were joined to others."""
    n, first, joined = len(hashes), 0, 0
    limit = np.uint64(distance)
    while first < n:
        end = first + 1
        while end < n and (hashes[end] ^ hashes[first]) & mask == 0:
            end += 1
        for i in range(first, end - 1):
            own = hashes[i]
            for begin in range(i + 1, end, _AT_ONCE):
                others = hashes[begin : min(end, begin + _AT_ONCE)]
                near = np.uint64(0)
                for k in range(len(others)):
                    near += np.uint64(ones(others[k] ^ own) <= limit)
                if near == 0:
                    continue
                for k in range(len(others)):
                    if ones(others[k] ^ own) <= limit:
                        joined += _union(parents, np.int64(rows[i]), np.int64(rows[begin + k]))
        first = end
    return joined


@jit
def roots(parents):
    """Replace each row's parent by the root of its tree."""
    for i in range(len(parents)):
        parents[i] = root_of(parents, i)
