"""Steps of `presets` that call OpenCV, in which pixel centres have integer coordinates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
FILTERS = (cv2.INTER_NEAREST, cv2.INTER_LINEAR, cv2.INTER_CUBIC)
_HALF = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])
"""Matrix that converts coordinates whose origin is a pixel's corner to coordinates whose origin is its centre."""


def _blur(pixels: U8, columns: float, rows: float, x: float, y: float) -> U8:
    return array(cv2.GaussianBlur(pixels, (int(columns), int(rows)), x, sigmaY=y))


def array(pixels: Any) -> U8:
    """Return an image of OpenCV with a channel axis, which OpenCV omits for one channel."""
    found: U8 = pixels if pixels.ndim == 3 else pixels[:, :, None]
    return found


def _affine(pixels: U8, filter_code: float, height: float, width: float, filled: float, *more: float) -> U8:
    matrix = (_HALF @ np.array([*more[4:10], 0, 0, 1]).reshape(3, 3) @ np.linalg.inv(_HALF))[:2]
    flags = FILTERS[int(filter_code)] | cv2.WARP_INVERSE_MAP
    border = cv2.BORDER_CONSTANT if filled else cv2.BORDER_REPLICATE
    size = int(width), int(height)
    return array(cv2.warpAffine(pixels, matrix, size, flags=flags, borderMode=border, borderValue=more[:4]))


def _perspective(pixels: U8, filter_code: float, height: float, width: float, filled: float, *more: float) -> U8:
    matrix = _HALF @ np.array(more[4:13]).reshape(3, 3) @ np.linalg.inv(_HALF)
    flags = FILTERS[int(filter_code)] | cv2.WARP_INVERSE_MAP
    border = cv2.BORDER_CONSTANT if filled else cv2.BORDER_REPLICATE
    size = int(width), int(height)
    return array(cv2.warpPerspective(pixels, matrix, size, flags=flags, borderMode=border, borderValue=more[:4]))


def _equalized(pixels: U8) -> U8:
    return np.stack([cv2.equalizeHist(np.ascontiguousarray(p)) for p in np.moveaxis(pixels, 2, 0)], axis=2)


STEPS: Mapping[str, Callable[..., U8]] = {
    "gaussian_blur": _blur, "affine": _affine, "perspective": _perspective, "equalize": _equalized,
}  # fmt: skip
