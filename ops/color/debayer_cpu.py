"""The CPU loop of debayer, and OpenCV's other algorithms."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@jit
def _blue_row(above, own, below, here, o):
    """A line of blue and green; ``here`` is 1 where blue is. From the second column on, to the last but one: indices
    that are plainly not negative let it be vectorised."""
    for x in range(len(own) - 2):
        blue = here[x + 1]
        beside = own[x] + own[x + 2]
        upright = above[x + 1] + below[x + 1]
        corners = above[x] + above[x + 2] + below[x] + below[x + 2]
        o[3 * x] = (corners + 2) >> 2 if blue else (upright + 1) >> 1
        o[3 * x + 1] = (beside + upright + 2) >> 2 if blue else own[x + 1]
        o[3 * x + 2] = own[x + 1] if blue else (beside + 1) >> 1


@jit
def _red_row(above, own, below, here, o):
    """A line of green and red; ``here`` is 1 where red is. From the second column on, to the last but one: indices
    that are plainly not negative let it be vectorised."""
    for x in range(len(own) - 2):
        red = here[x + 1]
        beside = own[x] + own[x + 2]
        upright = above[x + 1] + below[x + 1]
        corners = above[x] + above[x + 2] + below[x] + below[x + 2]
        o[3 * x] = own[x + 1] if red else (beside + 1) >> 1
        o[3 * x + 1] = (beside + upright + 2) >> 2 if red else own[x + 1]
        o[3 * x + 2] = (corners + 2) >> 2 if red else (upright + 1) >> 1


@jit
def bilinear(src, base, sizes, blue, dst, out_base):
    """Pictures of ``sizes`` [M, 2] with blue at ``blue`` [M, 2], see `Debayer.blue_position`."""
    for i in range(len(base)):
        rows, columns = sizes[i]
        s, o = src[base[i] : base[i] + rows * columns], dst[out_base[i] : out_base[i] + rows * columns * 3]
        if rows < 3 or columns < 3:
            o[:] = 0
            continue
        marks = np.empty((2, columns), np.uint8)
        for x in range(columns):
            marks[0, x] = (x + 1 + blue[i, 1]) & 1 == 0
            marks[1, x] = 1 - marks[0, x]
        for y in range(1, rows - 1):
            above, own = s[(y - 1) * columns : y * columns], s[y * columns : (y + 1) * columns]
            below, to = s[(y + 1) * columns : (y + 2) * columns], o[3 * y * columns : 3 * (y + 1) * columns]
            if (y + 1 + blue[i, 0]) & 1 == 0:
                _blue_row(above, own, below, marks[0], to[3:])
            else:
                _red_row(above, own, below, marks[1], to[3:])
            to[:3] = to[3:6]
            to[3 * columns - 3 :] = to[3 * columns - 6 : 3 * columns - 3]
        width = 3 * columns
        o[:width] = o[width : 2 * width]
        o[(rows - 1) * width :] = o[(rows - 2) * width : (rows - 1) * width]


_PATTERNS = {(0, 0): "BG", (0, 1): "GB", (1, 0): "GR", (1, 1): "RG"}
_ENDS = {"edgeaware_ocv": "2RGB_EA", "vng_ocv": "2RGB_VNG", "gray_ocv": "2GRAY"}


def opencv(src: Any, base: Any, sizes: Any, blue: Any, algorithm: str, dst: Any, out_base: Any) -> None:
    """Pictures by one of OpenCV's algorithms, which take a millisecond each."""
    import cv2

    for begin, to, (rows, columns), position in zip(
        base.tolist(), out_base.tolist(), sizes.tolist(), blue.tolist(), strict=True
    ):
        if rows and columns:
            code = getattr(cv2, f"COLOR_Bayer{_PATTERNS[tuple(position)]}{_ENDS[algorithm]}")
            made = cv2.cvtColor(src[begin : begin + rows * columns].reshape(rows, columns), code)
            dst[to : to + made.size] = made.reshape(-1)
