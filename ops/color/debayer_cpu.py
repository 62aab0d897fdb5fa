"""The CPU loop of debayer, and OpenCV's other algorithms."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@jit
def bilinear(src, base, sizes, blue, dst, out_base):
    """Pictures of ``sizes`` [M, 2] with blue at ``blue`` [M, 2], see `Debayer.blue_position`."""
    for i in range(len(base)):
        rows, columns = sizes[i]
        s, o = src[base[i] : base[i] + rows * columns], dst[out_base[i] : out_base[i] + rows * columns * 3]
        if rows < 3 or columns < 3:
            o[:] = 0
            continue
        for y in range(rows):
            v = min(max(y, 1), rows - 2)
            blue_row = (v + 1 + blue[i, 0]) & 1 == 0
            for x in range(columns):
                u = min(max(x, 1), columns - 2)
                blue_column = (u + 1 + blue[i, 1]) & 1 == 0
                at = v * columns + u
                own = np.int64(s[at])
                left_right = np.int64(s[at - 1]) + np.int64(s[at + 1])
                up_down = np.int64(s[at - columns]) + np.int64(s[at + columns])
                place = (y * columns + x) * 3
                if blue_row == blue_column:  # red or blue
                    corners = np.int64(s[at - columns - 1]) + np.int64(s[at - columns + 1])
                    corners += np.int64(s[at + columns - 1]) + np.int64(s[at + columns + 1])
                    other = (corners + 2) >> 2
                    o[place] = other if blue_row else own
                    o[place + 1] = (left_right + up_down + 2) >> 2
                    o[place + 2] = own if blue_row else other
                else:
                    beside, above = (left_right + 1) >> 1, (up_down + 1) >> 1
                    o[place] = above if blue_row else beside
                    o[place + 1] = own
                    o[place + 2] = beside if blue_row else above


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
