"""Compiled loops for lists of boxes, labels and vertices: check and gather a whole batch at once."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def relative(data, offsets, sizes):
    """Whether all coordinates, ``sizes`` [N] numbers from ``offsets`` [N] on, are between 0 and 1."""
    for i in range(len(offsets)):
        outside = np.int64(0)
        for k in range(offsets[i], offsets[i] + sizes[i]):
            v = data[np.uint64(k)]  # unsigned: a signed index might count from the end
            outside += np.int64(not (np.float32(0) <= v <= np.float32(1)))
        if outside:
            return False
    return True


@njit(nogil=True, cache=True)
def gather(data, offsets, widths, which, counts, out):
    """Copy selected rows of N lists to ``out``, one after the other. List i begins at ``offsets[i]``, and its rows have
    ``widths[i]`` elements; the next ``counts[i]`` numbers of ``which`` are the indices of its rows to copy."""
    at = row = 0
    for i in range(len(offsets)):
        width = widths[i]
        for _ in range(counts[i]):
            begin = offsets[i] + which[row] * width
            for k in range(width):
                out[at + k] = data[begin + k]
            row += 1
            at += width


@njit(nogil=True, cache=True)
def stretches(first, counts, out):
    """Write ranges of integers to ``out``, one after the other: range i is ``counts[i]`` integers from ``first[i]``."""
    at = 0
    for i in range(len(first)):
        for k in range(counts[i]):
            out[at + k] = first[i] + k
        at += counts[i]
