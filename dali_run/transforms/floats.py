"""Steps of tensors of floats, and conversions between types: NumPy's loops, an image at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ops.batch import I32
from .steps import Done

F32 = npt.NDArray[np.float32]


def apart(step: Done, image: Any) -> Any:
    """``image`` after to_dtype, divide, normalize or erase."""
    return _APART[step[0]](image, *step[1:])


def statistics(step: Done, shapes: I32) -> tuple[F32, F32]:
    """Mean and standard deviation of each channel, or one for all. Raises ValueError where their number is another."""
    mean, std = (np.asarray(v, np.float32).reshape(-1) for v in step[1:])
    for values in (mean, std):
        if len(values) != 1 and (shapes[:, 0] != len(values)).any():
            raise ValueError(f"mean and std need one number, or one for each of {shapes[0, 0]} channels")
    return mean, std


def _to_dtype(image: Any, dtype: Any, scale: bool) -> Any:
    given = image.dtype
    if given == dtype or not scale:
        return image.astype(dtype)
    top = _top(given)
    if given.kind == "f":
        if dtype.kind == "f":
            return image.astype(dtype)
        if given == np.float32 and dtype.itemsize >= 4:
            raise ValueError(f"{given} does not hold all values of {dtype}: convert to int16 or less, or to float32")
        return (image * given.type(_top(dtype) + 1 - 1e-3)).astype(dtype)
    if dtype.kind == "f":
        return image.astype(dtype) * dtype.type(1.0 / top)
    bits, wanted = (int(v).bit_length() for v in (top, _top(dtype)))
    return (image >> (bits - wanted)).astype(dtype) if bits > wanted else image.astype(dtype) << (wanted - bits)


def _top(dtype: Any) -> float:
    return 1.0 if dtype.kind == "f" else int(np.iinfo(dtype).max)


def _divide(image: Any) -> Any:
    return image.astype(np.float32) / np.float32(255) if image.dtype == np.uint8 else image


def _normalize(image: Any, mean: Sequence[float], std: Sequence[float]) -> Any:
    if image.dtype.kind != "f":
        raise TypeError(f"normalize takes floats, got {image.dtype}; put ToDtype(torch.float32, scale=True) before it")
    m, s = (np.asarray(v, image.dtype).reshape(-1, 1, 1) for v in (mean, std))
    if any(len(v) not in (1, len(image)) for v in (m, s)):
        raise ValueError(f"mean and std need one number, or one for each of {len(image)} channels")
    return (image - m) / s


def _erase(image: Any, top: int, left: int, height: int, width: int, value: Any) -> Any:
    if height == 0:
        return image
    made = image.copy()
    made[:, top : top + height, left : left + width] = filling(("erase", top, left, height, width, value))
    return made


def filling(step: Done) -> F32:
    """The values of an erased window, to be broadcast to it (channels, height, width)."""
    filled: F32 = np.asarray(step[5], np.float32)
    return filled.reshape(-1, 1, 1) if filled.ndim == 1 else np.ascontiguousarray(filled)


_APART: dict[str, Callable[..., Any]] = {
    "to_dtype": _to_dtype, "divide": _divide, "normalize": _normalize, "erase": _erase
}  # fmt: skip


def steps(run: Sequence[Done], image: Any) -> Any:
    """``image`` after steps, as far as floats can have them: flips, crops, pads, grayscale, brightness, inversion."""
    for step in run:
        if step[0] not in _STEPS:
            raise TypeError(
                f"{step[0]} takes uint8 images, got {image.dtype}; put it before ToDtype, as torchvision advises"
            )
        image = _STEPS[step[0]](image, *step[1:])
    return image


def _pad(image: Any, left: int, top: int, right: int, bottom: int, fill: Any, mode: str) -> Any:
    rows, columns = image.shape[1:]
    image = image[:, max(-top, 0) : rows + min(bottom, 0), max(-left, 0) : columns + min(right, 0)]
    widths = [(0, 0), (max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0))]
    if mode != "constant":
        kind: Any = mode
        return np.pad(image, widths, mode=kind)
    values = np.asarray(0 if fill is None else fill, image.dtype).reshape(-1, 1, 1)
    shape = (len(image), *(image.shape[k] + sum(widths[k]) for k in (1, 2)))
    out = np.empty(shape, image.dtype)
    out[:] = values
    out[:, widths[1][0] : shape[1] - widths[1][1], widths[2][0] : shape[2] - widths[2][1]] = image
    return out


def _crop(image: Any, top: int, left: int, height: int, width: int) -> Any:
    rows, columns = image.shape[1:]
    return _pad(image, -left, -top, left + width - columns, top + height - rows, 0, "constant")


def _gray(image: Any, channels: int) -> Any:
    if len(image) == 1:
        return np.repeat(image, channels, axis=0)
    _r, g, b = image.astype(np.float64)
    red = (image[0] * np.float32(0.2989)).astype(np.float64)
    gray = (g * np.float64(np.float32(0.587)) + red).astype(np.float32).astype(np.float64)
    gray = (b * np.float64(np.float32(0.114)) + gray).astype(np.float32)
    return np.repeat(gray[None], channels, axis=0)


_STEPS: dict[str, Callable[..., Any]] = {
    "horizontal_flip": lambda image: image[:, :, ::-1],
    "vertical_flip": lambda image: image[:, ::-1],
    "crop": _crop,
    "pad": _pad,
    "rgb_to_grayscale": _gray,
    "invert": lambda image: np.float32(1) - image,
    "adjust_brightness": lambda image, factor: np.clip(image * np.float32(factor), 0, 1).astype(image.dtype),
}
