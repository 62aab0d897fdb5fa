"""Steps of `presets` as in albumentations 2.0: tables whose entries are truncated, and OpenCV's functions.

Only OpenCV is needed, not the package albumentations. The formulas are those of its ColorJitter,
RandomBrightnessContrast, GaussianBlur and Rotate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import cv2
import numpy as np
import numpy.typing as npt

from .by_opencv import FILTERS, array
from .by_opencv import STEPS as OPENCV

U8 = npt.NDArray[np.uint8]
_VALUES = np.arange(256, dtype=np.float32)


def _looked_up(pixels: U8, values: npt.NDArray[np.floating]) -> U8:
    return np.take(np.clip(values, 0, 255).astype(np.uint8), pixels)


def _brightness(pixels: U8, factor: float) -> U8:
    return _looked_up(pixels, _VALUES * np.float32(factor))


def _brightness_contrast(pixels: U8, factor: float, added: float) -> U8:
    return _looked_up(pixels, _VALUES * np.float32(factor) + np.float32(added))


def _contrast(pixels: U8, factor: float) -> U8:
    mean = float((cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY) if pixels.shape[2] == 3 else pixels).mean())
    if factor == 0:
        return np.full_like(pixels, int(mean + 0.5))
    return pixels if factor == 1 else _looked_up(pixels, _VALUES * np.float32(factor) + np.float32(mean * (1 - factor)))


def _saturation(pixels: U8, factor: float) -> U8:
    if factor == 1 or pixels.shape[2] != 3:
        return pixels
    gray = cv2.cvtColor(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return array(gray if factor == 0 else cv2.addWeighted(pixels, factor, gray, 1 - factor, 0))


def _hue(pixels: U8, turns: float) -> U8:
    """Return ``pixels`` with their hue shifted by ``turns`` of the colour circle, in OpenCV's HSV, where a full turn
    has 180 steps; a fraction of a step is truncated."""
    if turns == 0 or pixels.shape[2] != 3:
        return pixels
    hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)
    turned = np.mod(np.arange(256, dtype=np.int16) + 180 * turns, 180).astype(np.uint8)
    hsv[:, :, 0] = np.take(turned, np.asarray(hsv[:, :, 0], np.uint8))
    return array(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB))


def _blur(pixels: U8, columns: float, _rows: float, sigma: float, _y: float) -> U8:
    """Return ``pixels`` blurred with a Gaussian window of ``columns`` pixels per side; if 0, of the size that
    albumentations computes by Pillow's rule."""
    size = int(columns) or int(sigma * 3.5) * 2 + 1
    x = np.arange(size) - size // 2
    window = np.exp(-0.5 * (x / sigma) ** 2)
    window /= window.sum()
    return array(cv2.sepFilter2D(pixels, -1, window, window))


def _rotate(pixels: U8, filter_code: float, angle: float, _grows: float, filled: float, *fills: float) -> U8:
    rows, columns = pixels.shape[:2]
    x, y = columns / 2 - 0.5, rows / 2 - 0.5
    a, b = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    matrix = np.array([[a, b, x - a * x - b * y], [-b, a, y + b * x - a * y]])
    border = cv2.BORDER_CONSTANT if filled else cv2.BORDER_REPLICATE
    return array(cv2.warpAffine(pixels, matrix, (columns, rows), flags=FILTERS[int(filter_code)], borderMode=border,
                                 borderValue=fills[:4]))  # fmt: skip


STEPS: Mapping[str, Callable[..., U8]] = {
    **OPENCV, "brightness": _brightness, "brightness_contrast": _brightness_contrast, "contrast": _contrast,
    "saturation": _saturation, "hue": _hue, "gaussian_blur": _blur, "rotate": _rotate,
}  # fmt: skip
