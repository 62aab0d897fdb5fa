"""Compiled loop that finds which regions of a canvas overlap: one call per batch, without the GIL."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_GIVEN = "int64[:, ::1]"


@numba.njit(f"void(int64[::1], {_GIVEN}, {_GIVEN}, {_GIVEN}, int64[::1], boolean[::1])", nogil=True, cache=True)
def layers(owner: Any, to: Any, size: Any, canvas: Any, layer: Any, covered: Any) -> None:
    """For regions [P, D] that begin at ``to`` on the ``canvas`` [N, D] of sample ``owner`` (ascending), compute the
    order of pasting, ``layer``: 0 for regions that overlap no earlier one, else one more than the highest layer that
    they overlap; and ``covered``: whether the regions of a sample do not overlap and leave nothing of the canvas
    uncovered."""
    ndim = to.shape[1]
    free = np.empty(len(canvas), np.int64)
    for i in range(len(canvas)):
        free[i] = 1
        for d in range(ndim):
            free[i] *= canvas[i, d]
    first = 0
    for b in range(len(owner)):
        if b and owner[b] != owner[b - 1]:
            first = b
        layer[b] = 0
        volume = np.int64(1)
        for d in range(ndim):
            volume *= size[b, d]
        if volume == 0:
            continue
        free[owner[b]] -= volume
        for a in range(first, b):
            meets = True
            for d in range(ndim):
                meets = meets and max(to[a, d], to[b, d]) < min(to[a, d] + size[a, d], to[b, d] + size[b, d])
            if meets:
                layer[b] = max(layer[b], layer[a] + 1)
    for i in range(len(canvas)):
        covered[i] = free[i] == 0
    for b in range(len(owner)):
        if layer[b]:
            covered[owner[b]] = False
