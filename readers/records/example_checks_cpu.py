"""Compiled checks of the features found in a batch of records: whether they are as requested, and their extents.

These loops take some microseconds and keep the GIL. The NumPy equivalents would be dozens of operations, each of which
releases the GIL (from 500 elements on): next to other threads, taking it back would cost more than all of the loops.
"""

from __future__ import annotations

from typing import Any

import numba

from .example_cpu import COUNT, KIND, OK, START, STOP

WANTED, SIZE, RULES = 0, 1, 2
"""Columns of ``wanted``, which describes each requested feature: its kind, number of values, and rules."""
NEEDED, FIXED = 1, 2
"""Rules for a feature, as bits. NEEDED: a value must exist. FIXED: the feature must have exactly SIZE (> 0) values,
instead of any multiple of SIZE."""


@numba.njit("int64(int64[:, :, ::1], int32[::1], int64[:, ::1], int64, boolean[::1])", cache=True)
def sift(found: Any, status: Any, wanted: Any, most: Any, good: Any) -> Any:
    """Fill ``good`` [N]: whether each record was parsed, has all features that ``wanted`` [F, 3] requests, and has at
    most ``most`` bytes and values. Return the number of records that are not good."""
    bad = 0
    for i in range(len(found)):
        good[i] = status[i] == OK
        for f in range(len(wanted)):
            count, size = found[i, f, COUNT], wanted[f, SIZE]
            if found[i, f, KIND] == 0 or count == 0:
                right = wanted[f, RULES] & NEEDED == 0
            elif found[i, f, KIND] != wanted[f, WANTED] or max(found[i, f, STOP] - found[i, f, START], count) > most:
                right = False
            elif wanted[f, RULES] & FIXED:
                right = count == size
            else:
                right = count % size == 0
            good[i] = good[i] and right
        bad += not good[i]
    return bad


@numba.njit("int64(int64[:, :, ::1], int64, int64[::1], int64[::1])", cache=True)
def texts(found: Any, f: Any, offsets: Any, sizes: Any) -> Any:
    """Fill in offset and size of the string in feature ``f`` of each record; 0 and 0 if it is missing or empty. Return
    the number of missing strings."""
    missing = 0
    for i in range(len(found)):
        there = found[i, f, COUNT] > 0
        missing += not there
        sizes[i] = found[i, f, STOP] - found[i, f, START] if there else 0
        offsets[i] = found[i, f, START] if sizes[i] else 0
    return missing


@numba.njit("int64(int64[:, :, ::1], int64, boolean[::1], int64, int64[:, ::1], int64[::1], int64[::1])", cache=True)
def numbers(found: Any, f: Any, good: Any, default: Any, rows: Any, counts: Any, at: Any) -> Any:
    """Fill ``rows`` with the rows of ``found`` for feature ``f``, ``counts`` with the number of values that each record
    will have (``default`` for a good record without any), and ``at`` with the index of its first value in the output.
    Return the total number of values."""
    total = 0
    for i in range(len(found)):
        rows[i] = found[i, f]
        counts[i] = default if good[i] and rows[i, COUNT] == 0 else rows[i, COUNT]
        at[i] = total
        total += counts[i]
    return total
