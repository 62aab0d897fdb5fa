"""Conversions of decoded pixels on the host: orientation, colour space and element type, by DALI 2.4's rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..conversion import saturate
from ..types import DALIImageType

Pixels = npt.NDArray[Any]
Empty = Callable[[Sequence[int]], Pixels]
"""Function that returns an uninitialised, C-contiguous uint8 array of a given shape. Decoders write into it."""


def fresh(shape: Sequence[int]) -> Pixels:
    """Return a new uninitialised uint8 array; the default `Empty` function."""
    return np.empty(shape, np.uint8)


INVERSE_ORIENTATION = (0, 1, 2, 3, 4, 5, 8, 7, 6)
"""Exif orientation that undoes each Exif orientation, by its number."""


def orient(image: Pixels, orientation: int) -> Pixels:
    """Return ``image`` (H, W, ...) rotated and flipped upright, by its Exif orientation 1 ... 8; a view."""
    if orientation in (5, 6, 7, 8):
        image = image.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return image


def channels_of(output_type: DALIImageType, stored: int) -> int:
    """Return the number of channels to which an image with ``stored`` channels is decoded for ``output_type``."""
    if output_type is DALIImageType.ANY_DATA:
        return stored
    return 1 if output_type is DALIImageType.GRAY else 3


def recolour(image: Pixels, output_type: DALIImageType, dtype: np.dtype[Any]) -> Pixels:
    """Return ``image`` (H, W, C), uint8, uint16 or float32, converted to the colours ``output_type`` and the type
    ``dtype``.

    C: 1 gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha. Alpha is dropped, not blended (ANY_DATA keeps it). GRAY is
    ``.299 R + .587 G + .114 B``. YCbCr is ITU-R BT.601's studio range. Integers represent [0, 1] scaled to their range,
    so types are converted by scaling, rounded half away from zero.
    """
    if output_type is DALIImageType.ANY_DATA:
        return scale(image, dtype)
    colour = image.shape[2] >= 3
    if output_type is DALIImageType.GRAY:
        return matrix(image[..., :3], _GRAY, 0.0, dtype) if colour else scale(image[..., :1], dtype)
    if not colour:
        image = np.broadcast_to(image[..., :1], (*image.shape[:2], 3))
    if output_type is DALIImageType.YCbCr:
        return matrix(image[..., :3], _YCBCR, _YCBCR_OFFSET, dtype)
    image = scale(image[..., :3], dtype)
    return image[..., ::-1] if output_type is DALIImageType.BGR else image


_GRAY = np.array([[0.299], [0.587], [0.114]], np.float32)
_YCBCR = np.array(
    [[65.481, -37.797, 112.0], [128.553, -74.203, -93.786], [24.966, 112.0, -18.214]], np.float32
) / np.float32(255)
"""Coefficients for converting RGB in [0, 1] to YCbCr: one row for each of R, G, B, one column for each of Y, Cb, Cr
(BT.601, 8 bit, as fractions of 255)."""
_YCBCR_OFFSET = np.array([16, 128, 128], np.float32) / np.float32(256)
"""Offsets of Y, Cb and Cr for converting RGB, in units of 1/256 of the full scale: 16 and 128 for 8 bit, 4096 and 32768
for 16 bit."""


def spread(pixels: Pixels, most: int) -> Pixels:
    """Scale values of the range 0 ... ``most`` to the whole range of their type, uint8 or uint16, with rounding."""
    full = int(np.iinfo(pixels.dtype).max)
    if most == full:
        return pixels
    wide = np.minimum(pixels, most).astype(np.uint32) * np.uint32(full)
    return ((wide + most // 2) // most).astype(pixels.dtype)


def full_scale(dtype: np.dtype[Any]) -> float:
    """Return the value of ``dtype`` that represents 1.0: the largest integer, or 1."""
    return 1.0 if dtype.kind == "f" else float(np.iinfo(dtype).max)


def scale(image: Pixels, dtype: np.dtype[Any]) -> Pixels:
    """Convert ``image`` to ``dtype`` so that full brightness stays full brightness (255 becomes 1.0 for floats). If it
    has that type already, return the same array."""
    if image.dtype == dtype:
        return image
    return saturate(image * np.float32(full_scale(dtype) / full_scale(image.dtype)), dtype)


def matrix(image: Pixels, weights: npt.NDArray[np.float32], offset: Any, dtype: np.dtype[Any]) -> Pixels:
    """Multiply the channels of ``image`` (..., 3) by ``weights`` [3, K], and add ``offset``, in 1/256 of the full scale
    (for floats: in units of 1)."""
    top = full_scale(dtype)
    one = 1.0 if dtype.kind == "f" else top + 1
    values = image.astype(np.float32) @ (weights * np.float32(top / full_scale(image.dtype)))
    return saturate(values + np.asarray(offset * one, np.float32), dtype)
