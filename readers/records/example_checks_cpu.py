"""Features that were found in the records of a batch: whether they are those asked for, and where they lie.

These loops take some microseconds and keep the GIL. As NumPy's operations they would be dozens, each of which lets go
of it (from 500 elements on): beside other threads, getting it back takes longer than all of them.
"""

from __future__ import annotations

from typing import Any

import numba

from .example_cpu import COUNT, KIND, OK, START, STOP

WANTED, SIZE, RULES = 0, 1, 2
"""Columns of what is wanted of features: their kind, how many values, and rules."""
NEEDED, FIXED = 1, 2
"""Rules: there must be a value; there must be as many as SIZE (> 0) says, else any multiple."""


@numba.njit("int64(int64[:, :, ::1], int32[::1], int64[:, ::1], int64, boolean[::1])", cache=True)
def sift(found: Any, status: Any, wanted: Any, most: Any, good: Any) -> Any:
    """Which records are OK, and have what is ``wanted`` [F, 3] of each feature, in at most ``most`` bytes and values;
    returns how many are not ``good``."""
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
    """Where the strings of feature ``f`` lie, (0, 0) for those that are missing or empty; how many are missing."""
    missing = 0
    for i in range(len(found)):
        there = found[i, f, COUNT] > 0
        missing += not there
        sizes[i] = found[i, f, STOP] - found[i, f, START] if there else 0
        offsets[i] = found[i, f, START] if sizes[i] else 0
    return missing


@numba.njit("int64(int64[:, :, ::1], int64, boolean[::1], int64, int64[:, ::1], int64[::1], int64[::1])", cache=True)
def numbers(found: Any, f: Any, good: Any, default: Any, rows: Any, counts: Any, at: Any) -> Any:
    """The ``rows`` of what was found of feature ``f``; how many values each record will have, ``default`` where a good
    one has none, and where they begin. Returns how many there are in all."""
    total = 0
    for i in range(len(found)):
        rows[i] = found[i, f]
        counts[i] = default if good[i] and rows[i, COUNT] == 0 else rows[i, COUNT]
        at[i] = total
        total += counts[i]
    return total
