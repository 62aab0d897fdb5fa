"""Compiled loop that plans the jobs of torchvision.cu: where each step reads and writes, for all images of a call,
without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

_CONTRAST, _AUTOCONTRAST, _EQUALIZE = 2, 8, 9
_INPUT, _OUTPUT, _TABLE = 0, 3, 256
"""Numbers of the memory that a step reads and of the memory that it writes (1 and 2: buffers between steps); number of
entries in a table of pixel values."""


@numba.njit(nogil=True, cache=True)
def jobs(codes, shapes, offsets, out_offsets, rows, entries, counts):
    """Fill the tables that torchvision.cu reads for each step: ``rows``, one per image and step, and ``entries``, one
    for each table of new pixel values that must be computed: its row within the step, and its channel (-1: all).

    ``counts`` [K, 3] receive the number of rows of a step, of its tables, and the maximum pixels of a row. Return the
    bytes of a buffer between steps, and the maximum size of a step's tables in entries.
    """
    n, steps = codes.shape
    last, source = np.zeros(n, np.int64), np.full(n, _INPUT, np.int64)
    place, between = offsets.copy(), np.zeros(n, np.int64)
    room = most = at = listed = 0
    for i in range(n):
        for k in range(steps):
            if codes[i, k] != 0:
                last[i] = k
        needed = 0
        for k in range(last[i]):
            needed = max(needed, shapes[i, k + 1, 0] * shapes[i, k + 1, 1] * shapes[i, k + 1, 2])
        between[i] = room
        room += needed
    for k in range(steps):
        begin, tables, first = at, 0, listed
        counts[k, 2] = 0
        for i in range(n):
            kind = codes[i, k]
            if kind == 0 and not (k == 0 and last[i] == 0):
                continue
            ends = last[i] == k
            row = rows[at]
            row[0], row[1] = place[i], out_offsets[i] if ends else between[i]
            row[2], row[3] = source[i], _OUTPUT if ends else (2 if source[i] == 1 else 1)
            row[4], row[5] = kind, i * steps + k
            for d in range(3):
                row[6 + d], row[9 + d] = shapes[i, k, d], shapes[i, k + 1, d]
            row[12] = tables * _TABLE
            wanted = shapes[i, k, 0] if kind in (_AUTOCONTRAST, _EQUALIZE) else int(kind == _CONTRAST)
            for c in range(wanted):
                entries[listed, 0], entries[listed, 1] = at - begin, -1 if kind == _CONTRAST else c
                listed += 1
            tables += wanted
            place[i], source[i] = row[1], row[3]
            counts[k, 2] = max(counts[k, 2], row[10] * row[11])
            at += 1
        counts[k, 0], counts[k, 1] = at - begin, listed - first
        most = max(most, tables * _TABLE)
    return room, most
