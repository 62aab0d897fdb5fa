"""Compiled loop of debayer, and calls of OpenCV's other algorithms."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .debayer_simd_cpu import PIXELS, coloured

jit = numba.njit(nogil=True, cache=True)


@jit
def _widened(src, at, columns, wide, row):
    for x in range(columns):
        wide[np.uint64(row), np.uint64(x)] = src[np.uint64(at + x)]


@jit
def bilinear(src, base, sizes, blue, dst, out_base, wide):
    """Convert Bayer images of ``sizes`` [M, 2] to RGB; ``blue`` [M, 2]: see `Debayer.blue_position`. ``wide`` [3,
    columns]: working memory for lines, of twice as many bits per value, for PIXELS + 2 columns at least.
    """
    few = np.empty(3 * PIXELS, dst.dtype)
    for i in range(len(base)):
        rows, columns = sizes[i]
        s, to, width = base[i], out_base[i], 3 * columns
        if rows < 3 or columns < 3:
            dst[to : to + rows * width] = 0
            continue
        inner = columns - 2
        for y in range(2):
            _widened(src, s + y * columns, columns, wide, y)
        for y in range(1, rows - 1):
            _widened(src, s + (y + 1) * columns, columns, wide, (y + 1) % 3)
            line, turned = to + y * width, (y + 1 + blue[i, 0]) & 1 != 0
            for begin in range(0, inner, PIXELS):
                # the last columns overlap earlier ones, which are computed again
                k = max(min(begin, inner - PIXELS), 0)
                even = ((k + blue[i, 1]) & 1 == 0) != turned
                if inner < PIXELS:
                    coloured(wide, (y - 1) % 3, y % 3, (y + 1) % 3, k, even, turned, few, 0)
                    for x in range(3 * inner):
                        dst[line + 3 + x] = few[x]
                else:
                    coloured(wide, (y - 1) % 3, y % 3, (y + 1) % 3, k, even, turned, dst, line + 3 + 3 * k)
            for c in range(3):
                dst[line + c] = dst[line + 3 + c]
                dst[line + width - 3 + c] = dst[line + width - 6 + c]
        for x in range(width):
            dst[to + x] = dst[to + width + x]
            dst[to + (rows - 1) * width + x] = dst[to + (rows - 2) * width + x]


_PATTERNS = {(0, 0): "BG", (0, 1): "GB", (1, 0): "GR", (1, 1): "RG"}
_ENDS = {"edgeaware_ocv": "2RGB_EA", "vng_ocv": "2RGB_VNG", "gray_ocv": "2GRAY"}


def opencv(src: Any, base: Any, sizes: Any, blue: Any, algorithm: str, dst: Any, out_base: Any) -> None:
    """Convert Bayer images to RGB with one of OpenCV's algorithms; OpenCV is called once per image."""
    import cv2

    for begin, to, (rows, columns), position in zip(
        base.tolist(), out_base.tolist(), sizes.tolist(), blue.tolist(), strict=True
    ):
        if rows and columns:
            code = getattr(cv2, f"COLOR_Bayer{_PATTERNS[tuple(position)]}{_ENDS[algorithm]}")
            made = cv2.cvtColor(src[begin : begin + rows * columns].reshape(rows, columns), code)
            dst[to : to + made.size] = made.reshape(-1)
