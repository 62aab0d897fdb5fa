"""The CPU loop of debayer, and OpenCV's other algorithms."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@jit
def _row(wide, y, columns, marks, phase, planes, far, near):
    """Line ``y`` of a picture, from the second column to the last but one, into ``planes`` of red, green and blue.

    ``marks[phase]`` is 1 where the line has the colour that is not green: ``near`` is that colour, ``far`` the one of
    the lines beside. The lines ``wide`` are of a type that four values fit into, and no wider, or there would be fewer
    to a vector. Indices have no sign, or they might count from the end; and views of the arrays would be counted
    references, which took longer than a line.
    """
    U, B = wide.dtype.type, planes.dtype.type
    above, own, below = np.uint64((y - 1) % 3), np.uint64(y % 3), np.uint64((y + 1) % 3)
    phase, far, near, green = np.uint64(phase), np.uint64(far), np.uint64(near), np.uint64(1)
    for k in range(columns - 2):
        a, b, c = np.uint64(k), np.uint64(k + 1), np.uint64(k + 2)
        beside, upright = U(wide[own, a] + wide[own, c]), U(wide[above, b] + wide[below, b])
        corners = U(U(wide[above, a] + wide[above, c]) + U(wide[below, a] + wide[below, c]))
        cross = U(U(beside + upright) + U(2)) >> U(2)
        marked = marks[phase, b] != 0
        here = B(wide[own, b])
        planes[far, a] = B(U(corners + U(2)) >> U(2)) if marked else B(U(upright + U(1)) >> U(1))
        planes[green, a] = B(cross) if marked else here
        planes[near, a] = here if marked else B(U(beside + U(1)) >> U(1))


@jit
def _joined(planes, count, o, at):
    red, green, blue = np.uint64(0), np.uint64(1), np.uint64(2)
    for k in range(count):
        x, to = np.uint64(k), np.uint64(at + 3 * k)
        o[to], o[to + green], o[to + blue] = planes[red, x], planes[green, x], planes[blue, x]


@jit
def _widened(src, at, columns, wide, row):
    for x in range(columns):
        wide[np.uint64(row), np.uint64(x)] = src[np.uint64(at + x)]


@jit
def bilinear(src, base, sizes, blue, dst, out_base, wide):
    """Pictures of ``sizes`` [M, 2] with blue at ``blue`` [M, 2], see `Debayer.blue_position`. ``wide`` [3, columns]:
    scratch for lines, of twice as many bits."""
    for i in range(len(base)):
        rows, columns = sizes[i]
        s, to, width = base[i], out_base[i], 3 * columns
        if rows < 3 or columns < 3:
            dst[to : to + rows * width] = 0
            continue
        marks, planes = np.empty((2, columns), np.uint8), np.empty((3, columns), dst.dtype)
        for x in range(columns):
            marks[0, x] = (x + 1 + blue[i, 1]) & 1 == 0
            marks[1, x] = 1 - marks[0, x]
        for y in range(2):
            _widened(src, s + y * columns, columns, wide, y)
        for y in range(1, rows - 1):
            _widened(src, s + (y + 1) * columns, columns, wide, (y + 1) % 3)
            if (y + 1 + blue[i, 0]) & 1 == 0:
                _row(wide, y, columns, marks, 0, planes, 0, 2)
            else:
                _row(wide, y, columns, marks, 1, planes, 2, 0)
            line = to + y * width
            _joined(planes, columns - 2, dst, line + 3)
            for c in range(3):
                dst[line + c] = dst[line + 3 + c]
                dst[line + width - 3 + c] = dst[line + width - 6 + c]
        for x in range(width):
            dst[to + x] = dst[to + width + x]
            dst[to + (rows - 1) * width + x] = dst[to + (rows - 2) * width + x]


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
