"""Transforms that convert between images and tensors and between types; normalisation and erasing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import ArgumentError, Device, RandomTransform, Transform
from .draws import Draws, logarithms
from .steps import Done, Shape


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy type for a type of torch or NumPy. Raises TypeError."""
    name = str(dtype)
    try:
        return np.dtype(name.removeprefix("torch.") if name.startswith("torch.") else dtype)
    except TypeError:
        raise TypeError(f"{dtype!r} is not a type of NumPy or torch that images can have") from None


class ToImage(Transform):
    """Convert Pillow images to tensors (C, H, W) of uint8; leave tensors unchanged."""

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("to_image",)]


class PILToTensor(ToImage):
    """Convert Pillow images to tensors (C, H, W) of uint8; leave tensors unchanged."""

    def __init__(self, device: Device = "cpu") -> None:
        self.device = device


class ToPureTensor(PILToTensor):
    """Convert Pillow images to tensors (C, H, W) of uint8; leave tensors unchanged."""


class ToTensor(Transform):
    """Convert Pillow images to tensors (C, H, W) of float32, with bytes divided by 255."""

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("to_image",), ("divide",)]


class ToPILImage(Transform):
    """Convert tensors to Pillow images, of ``mode`` if it is given."""

    def __init__(self, mode: str | None = None, device: Device = "cpu") -> None:
        self.mode, self.device = mode, device

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("to_pil", self.mode)]


class ToDtype(Transform):
    """Convert to ``dtype``. With ``scale``, the whole range of an integer type is scaled to 0 ... 1 of a float type,
    and the other way round."""

    def __init__(self, dtype: Any, scale: bool = False) -> None:
        if isinstance(dtype, dict):
            raise ArgumentError("dtype takes one type, not a dict: there are only images here")
        self.dtype, self.scale = dtype_of(dtype), scale

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("to_dtype", self.dtype, self.scale)]


class ConvertImageDtype(ToDtype):
    """`ToDtype` with ``scale=True``."""

    def __init__(self, dtype: Any = "float32") -> None:
        super().__init__(dtype, scale=True)


class Normalize(Transform):
    """Replace each value of a float image by (value - mean) / std of its channel."""

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], inplace: bool = False, device: Device = "cpu"
    ) -> None:
        del inplace  # the input is never changed
        self.mean, self.std = tuple(map(float, np.ravel(mean))), tuple(map(float, np.ravel(std)))
        if not all(self.std):
            raise ArgumentError("std must not be 0")
        self.device = device

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("normalize", self.mean, self.std)]


class RandomErasing(RandomTransform):
    """Fill a rectangle of random area and aspect ratio with ``value``: a number, one number per channel, or
    "random"."""

    def __init__(
        self, p: float = 0.5, scale: Sequence[float] = (0.02, 0.33), ratio: Sequence[float] = (0.3, 3.3),
        value: Any = 0.0, inplace: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(p)
        del inplace
        if not scale[0] >= 0 or not scale[1] <= 1:
            raise ArgumentError(f"scale takes fractions of the image between 0 and 1, got {scale}")
        if isinstance(value, str) and value != "random":
            raise ArgumentError(f'value takes a number, one number per channel, or "random", got {value!r}')
        self.scale, self.ratio, self.value = tuple(scale), tuple(ratio), value
        self._logarithms = logarithms(self.ratio)

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        channels, rows, columns = shape
        fixed = None if self.value == "random" else tuple(float(v) for v in np.ravel(self.value))
        if fixed is not None and len(fixed) not in (1, channels):
            raise ArgumentError(f"value takes one number, or one per channel of the image, which has {channels}")
        for _ in range(10):
            area = rows * columns * draws.uniform(self.scale[0], self.scale[1])
            ratio = float(np.float32(math.exp(draws.uniform(self._logarithms[0], self._logarithms[1]))))
            height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if height < rows and width < columns:
                value = draws.normal((channels, height, width)) if fixed is None else fixed
                top, left = draws.integer(0, rows - height + 1), draws.integer(0, columns - width + 1)
                return [("erase", top, left, height, width, value)]
        return []
