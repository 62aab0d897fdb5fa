"""Transforms between images and tensors and between types; normalisation and erasing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import ArgumentError, Device, RandomTransform, Transform
from .draws import Draws, logarithms
from .steps import Done, Shape


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """NumPy's type of one of torch's or NumPy's. Raises TypeError."""
    name = str(dtype)
    try:
        return np.dtype(name.removeprefix("torch.") if name.startswith("torch.") else dtype)
    except TypeError:
        raise TypeError(f"{dtype!r} is no type of NumPy's or torch's that images may have") from None


class ToImage(Transform):
    """Pillow's images become tensors (C, H, W) of uint8; tensors stay."""

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("to_image",)]


class PILToTensor(ToImage):
    """Pillow's images become tensors (C, H, W) of uint8; tensors stay."""

    def __init__(self, device: Device = "cpu") -> None:
        self.device = device


class ToPureTensor(PILToTensor):
    """Pillow's images become tensors (C, H, W) of uint8; tensors stay."""


class ToTensor(Transform):
    """Pillow's images become tensors (C, H, W) of float32, bytes divided by 255."""

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("to_image",), ("divide",)]


class ToPILImage(Transform):
    """Tensors become Pillow's images, of ``mode`` where it is given."""

    def __init__(self, mode: str | None = None, device: Device = "cpu") -> None:
        self.mode, self.device = mode, device

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("to_pil", self.mode)]


class ToDtype(Transform):
    """Convert to ``dtype``; with ``scale``, integers' whole range becomes 0 ... 1 and the other way."""

    def __init__(self, dtype: Any, scale: bool = False) -> None:
        if isinstance(dtype, dict):
            raise ArgumentError("dtype takes one type: there are only images here")
        self.dtype, self.scale = dtype_of(dtype), scale

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("to_dtype", self.dtype, self.scale)]


class ConvertImageDtype(ToDtype):
    """`ToDtype` with ``scale``."""

    def __init__(self, dtype: Any = "float32") -> None:
        super().__init__(dtype, scale=True)


class Normalize(Transform):
    """(value - mean) / std of each channel of floats."""

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
    """Fill a rectangle of random area and aspect ratio with ``value``: a number, one for each channel, or "random"."""

    def __init__(
        self, p: float = 0.5, scale: Sequence[float] = (0.02, 0.33), ratio: Sequence[float] = (0.3, 3.3),
        value: Any = 0.0, inplace: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(p)
        del inplace
        if not scale[0] >= 0 or not scale[1] <= 1:
            raise ArgumentError(f"scale takes parts of the image between 0 and 1, got {scale}")
        if isinstance(value, str) and value != "random":
            raise ArgumentError(f'value takes a number, one for each channel, or "random", got {value!r}')
        self.scale, self.ratio, self.value = tuple(scale), tuple(ratio), value
        self._logarithms = logarithms(self.ratio)

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        channels, rows, columns = shape
        fixed = None if self.value == "random" else tuple(float(v) for v in np.ravel(self.value))
        if fixed is not None and len(fixed) not in (1, channels):
            raise ArgumentError(f"value needs one number, or one for each of the image's {channels} channels")
        for _ in range(10):
            area = rows * columns * draws.uniform(self.scale[0], self.scale[1])
            ratio = float(np.float32(math.exp(draws.uniform(self._logarithms[0], self._logarithms[1]))))
            height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if height < rows and width < columns:
                value = draws.normal((channels, height, width)) if fixed is None else fixed
                top, left = draws.integer(0, rows - height + 1), draws.integer(0, columns - width + 1)
                return [("erase", top, left, height, width, value)]
        return []
