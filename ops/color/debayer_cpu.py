"""The CPU loop of debayer, and OpenCV's other algorithms."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@jit
def _row(above, own, below, here, far, green, near):
    """A line, from the second column to the last but one. ``here`` is 1 where the line has the colour that is not
    green: ``near`` is that colour, ``far`` the one of the lines beside. Lines are of a type that four values fit into,
    and no wider, or there would be fewer to a vector. Indices have no sign, or they might count from the end."""
    U, B = own.dtype.type, near.dtype.type
    for k in range(len(own) - 2):
        x, y, z = np.uint64(k), np.uint64(k + 1), np.uint64(k + 2)
        beside, upright = U(own[x] + own[z]), U(above[y] + below[y])
        corners = U(U(above[x] + above[z]) + U(below[x] + below[z]))
        cross = U(U(beside + upright) + U(2)) >> U(2)
        marked = here[y] != 0
        far[x] = B(U(corners + U(2)) >> U(2)) if marked else B(U(upright + U(1)) >> U(1))
        green[x] = B(cross) if marked else B(own[y])
        near[x] = B(own[y]) if marked else B(U(beside + U(1)) >> U(1))


@jit
def _joined(red, green, blue, o):
    for x in range(len(o) // 3):
        o[3 * x], o[3 * x + 1], o[3 * x + 2] = red[x], green[x], blue[x]


@jit
def bilinear(src, base, sizes, blue, dst, out_base, wide):
    """Pictures of ``sizes`` [M, 2] with blue at ``blue`` [M, 2], see `Debayer.blue_position`. ``wide`` [3, columns]:
    scratch for lines, of twice as many bits."""
    for i in range(len(base)):
        rows, columns = sizes[i]
        s, o = src[base[i] : base[i] + rows * columns], dst[out_base[i] : out_base[i] + rows * columns * 3]
        if rows < 3 or columns < 3:
            o[:] = 0
            continue
        marks, planes = np.empty((2, columns), np.uint8), np.empty((3, columns), dst.dtype)
        for y in range(2):
            for x in range(columns):
                wide[y, x] = s[y * columns + x]
        for x in range(columns):
            marks[0, x] = (x + 1 + blue[i, 1]) & 1 == 0
            marks[1, x] = 1 - marks[0, x]
        for y in range(1, rows - 1):
            above, own, below = wide[(y - 1) % 3, :columns], wide[y % 3, :columns], wide[(y + 1) % 3, :columns]
            for x in range(columns):
                below[x] = s[np.uint64((y + 1) * columns + x)]
            to = o[3 * y * columns : 3 * (y + 1) * columns]
            if (y + 1 + blue[i, 0]) & 1 == 0:
                _row(above, own, below, marks[0], planes[0], planes[1], planes[2])
            else:
                _row(above, own, below, marks[1], planes[2], planes[1], planes[0])
            _joined(planes[0], planes[1], planes[2], to[3 : 3 * columns - 3])
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
