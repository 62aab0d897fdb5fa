"""Steps on float tensors, and conversions between types, computed by NumPy one image at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ops.batch import I32
from .steps import Done

F32 = npt.NDArray[np.float32]


def apply_separate(step: Done, image: Any) -> Any:
    """Return ``image`` after the step to_dtype, divide, normalize or erase."""
    return _SEPARATE[step[0]](image, *step[1:])


def statistics(step: Done, shapes: I32) -> tuple[F32, F32]:
    """Return the mean and the standard deviation of each channel, or one for all. Raises ValueError if their number is
    wrong."""
    mean, std = (np.asarray(v, np.float32).reshape(-1) for v in step[1:])
    for values in (mean, std):
        if len(values) != 1 and (shapes[:, 0] != len(values)).any():
            raise ValueError(f"mean and std take one number, or one per channel of the image, which has {shapes[0, 0]}")
    return mean, std


def _to_dtype(image: Any, dtype: Any, scale: bool) -> Any:
    source = image.dtype
    if source == dtype or not scale:
        return image.astype(dtype)
    top = _top(source)
    if source.kind == "f":
        if dtype.kind == "f":
            return image.astype(dtype)
        if source == np.float32 and dtype.itemsize >= 4:
            raise ValueError(f"{source} cannot hold all values of {dtype}: convert to int16 or smaller, or to float32")
        return (image * source.type(_top(dtype) + 1 - 1e-3)).astype(dtype)
    if dtype.kind == "f":
        return image.astype(dtype) * dtype.type(1.0 / top)
    bits, target_bits = (int(v).bit_length() for v in (top, _top(dtype)))
    return (
        (image >> (bits - target_bits)).astype(dtype)
        if bits > target_bits
        else image.astype(dtype) << (target_bits - bits)
    )


def _top(dtype: Any) -> float:
    return 1.0 if dtype.kind == "f" else int(np.iinfo(dtype).max)


def _divide(image: Any) -> Any:
    return image.astype(np.float32) / np.float32(255) if image.dtype == np.uint8 else image


def _normalize(image: Any, mean: Sequence[float], std: Sequence[float]) -> Any:
    if image.dtype.kind != "f":
        raise TypeError(f"normalize takes floats, got {image.dtype}; put ToDtype(torch.float32, scale=True) before it")
    m, s = (np.asarray(v, image.dtype).reshape(-1, 1, 1) for v in (mean, std))
    if any(len(v) not in (1, len(image)) for v in (m, s)):
        raise ValueError(f"mean and std take one number, or one per channel of the image, which has {len(image)}")
    return (image - m) / s


def _erase(image: Any, top: int, left: int, height: int, width: int, value: Any) -> Any:
    if height == 0:
        return image
    erased = image.copy()
    erased[:, top : top + height, left : left + width] = filling(("erase", top, left, height, width, value))
    return erased


def filling(step: Done) -> F32:
    """Return the values that fill an erased window, in a shape that broadcasts to (channels, height, width)."""
    filled: F32 = np.asarray(step[5], np.float32)
    return filled.reshape(-1, 1, 1) if filled.ndim == 1 else np.ascontiguousarray(filled)


_SEPARATE: dict[str, Callable[..., Any]] = {
    "to_dtype": _to_dtype, "divide": _divide, "normalize": _normalize, "erase": _erase
}  # fmt: skip


def steps(run: Sequence[Done], image: Any) -> Any:
    """Return ``image`` after the steps. Float images support flips, crops, pads, grayscale, brightness and
    inversion."""
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
