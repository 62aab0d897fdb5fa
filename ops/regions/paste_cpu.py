"""Compiled loop of bbox_paste."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def move_boxes(data, offsets, sizes, left_out, ratio, x, y, ltrb, out, to):
    """Convert boxes of four numbers, ``sizes`` [N] of them, to fractions of a canvas ``ratio`` [N] times as large, on
    which the image lies at ``x`` and ``y`` [N]. The second pair of numbers is a corner (``ltrb``) or a size. Samples in
    ``left_out`` become zeros."""
    one = np.float32(1)
    for i in range(len(offsets)):
        if left_out[i]:
            out[to[i] : to[i] + sizes[i]] = 0
            continue
        factor = one / ratio[i]
        right, down = x[i] * (ratio[i] - one) * factor, y[i] * (ratio[i] - one) * factor
        for k in range(0, sizes[i], 4):
            begin, at = offsets[i] + k, to[i] + k
            out[at], out[at + 1] = data[begin] * factor + right, data[begin + 1] * factor + down
            if ltrb:
                out[at + 2], out[at + 3] = data[begin + 2] * factor + right, data[begin + 3] * factor + down
            else:
                out[at + 2], out[at + 3] = data[begin + 2] * factor, data[begin + 3] * factor
