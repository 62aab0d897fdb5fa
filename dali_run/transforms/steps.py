"""Steps: the operations on one image, with their random numbers already drawn. A step is a tuple: its kind, then its
arguments.

``after`` returns the shape of an image after a step; ``encode`` returns a step in the form that the operator
`torchvision` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..ops.libraries.torchvision import CHANNELS, MODES, WIDTH, Step, affine_matrix, expanded_size

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""
Done = tuple[Any, ...]

CONVERSIONS = ("to_image", "to_pil")
"""Kinds of steps that convert between Pillow images and tensors."""
SEPARATE_KINDS = ("resize", "to_dtype", "divide", "normalize", "erase")
"""Kinds of steps that a separate operator or loop runs on a batch; the operator `torchvision` runs all others."""
_SHORT = {"horizontal_flip": (Step.flip, (1.0,)), "vertical_flip": (Step.flip, (2.0,))}


class Alike(list[list[Done]]):
    """The steps of images of one shape, chosen from a few lists: image i has the steps ``each[which[i]]``."""

    def __init__(self, each: list[list[Done]], which: Any) -> None:
        super().__init__([each[k] for k in which.tolist()])
        self.each, self.which = each, which


class Resizes(Sequence[list[Done]]):
    """The steps of images of one shape that are all resized, each from its own region."""

    def __init__(self, numbers: Any, interpolation: str, antialias: bool) -> None:
        """``numbers`` int64[N, 6] holds top, left, height and width of the region, then height and width of the
        result."""
        self.numbers, self.how = numbers, (interpolation, antialias)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        return [("resize", *self.numbers[k].tolist(), *self.how)]


def after(step: Done, shape: Shape) -> Shape:
    """Return the shape of an image of ``shape`` after ``step``."""
    kind = step[0]
    channels, height, width = shape
    if kind == "resize":
        return channels, step[5], step[6]
    if kind == "crop":
        return channels, step[3], step[4]
    if kind == "pad":
        left, top, right, bottom = step[1:5]
        return channels, height + top + bottom, width + left + right
    if kind == "rgb_to_grayscale":
        return step[1], height, width
    if kind == "rotate":
        quarters = _quarters(step, shape)
        if quarters is not None:
            return (channels, width, height) if quarters % 2 else shape
        if step[3]:
            wide, high = _expanded(step, height, width)
            return channels, high, wide
    return shape


def encode(step: Done, shape: Shape) -> tuple[int, tuple[float, ...]]:
    """Return the code and the numbers of ``step`` for an image of ``shape``. Raises ValueError if the step cannot be
    applied to it."""
    kind = step[0]
    channels, height, width = shape
    if kind in _SHORT:
        return _SHORT[kind]
    if kind == "crop":
        return Step.window, (*step[1:5], 0.0)
    if kind == "pad":
        left, top, right, bottom, fill, mode = step[1:]
        across, down = max(left, right), max(top, bottom)
        if (mode == "reflect" and (across >= width or down >= height)) or (
            mode == "symmetric" and (across > width or down > height)
        ):
            raise ValueError(f"padding with mode {mode} must be smaller than the image, which is {height} x {width}")
        size = height + top + bottom, width + left + right
        # fill values are truncated, as torch.tensor(fill).to(uint8) does
        values = tuple(float(int(v)) for v in fills(fill, channels)[1])
        return Step.window, (-top, -left, *size, MODES.index(mode), *values)
    if kind == "affine":
        _, angle, translate, scale, shear, mode, fill, center = step
        flags = (float(mode == "bilinear"), *fills(fill, channels))
        matrix = affine_matrix(angle, translate, scale, shear, _centred(center, height, width))
        return Step.affine, (*flags[:2], *matrix, 0.0, 0.0, 0.0, 0.0, *flags[2])
    if kind == "rotate":
        return _rotation(step, shape)
    if kind == "perspective":
        _, coefficients, mode, fill = step
        has, values = fills(fill, channels)
        return Step.perspective, (float(mode == "bilinear"), has, *coefficients, 0.0, 0.0, *values)
    if kind == "rgb_to_grayscale" and step[1] == channels == 1:
        return 0, ()
    return Step[kind], tuple(float(v) for v in step[1:])


def fills(fill: Any, channels: int) -> tuple[float, tuple[float, ...]]:
    """Return 1 if there are fill values, otherwise 0, and a fill value for each of the first channels.

    Raises ValueError for a wrong number of values.
    """
    if fill is None:
        return 0.0, (0.0,) * CHANNELS
    values = [float(v) for v in fill] if isinstance(fill, Sequence) else [float(fill)]
    if len(values) not in (1, channels) or (len(values) > 1 and channels > CHANNELS):
        raise ValueError(f"fill takes one number, or one per channel of the image, which has {channels}, got {fill}")
    return 1.0, tuple((values * CHANNELS if len(values) == 1 else [*values, 0.0, 0.0, 0.0])[:CHANNELS])


def _centred(center: Sequence[float] | None, height: int, width: int) -> tuple[float, float]:
    return (0.0, 0.0) if center is None else (center[0] - width * 0.5, center[1] - height * 0.5)


def _quarters(step: Done, shape: Shape) -> int | None:
    """Return the number of quarter turns of a rotation that copies pixels, or None for any other rotation."""
    _, angle, _, expand, center, _ = step
    angle %= 360
    if center is not None or angle % 90:
        return None
    quarters = int(angle // 90)
    return quarters if quarters % 2 == 0 or expand or shape[1] == shape[2] else None


@lru_cache(4096)
def _expanded(step: Done, height: int, width: int) -> tuple[int, int]:
    return expanded_size(_turned(step, height, width), width, height)


def _turned(step: Done, height: int, width: int) -> list[float]:
    return affine_matrix(-(step[1] % 360), (0.0, 0.0), 1.0, (0.0, 0.0), _centred(step[4], height, width))


def _rotation(step: Done, shape: Shape) -> tuple[int, tuple[float, ...]]:
    channels, height, width = shape
    quarters = _quarters(step, shape)
    if quarters is not None:
        return (Step.turn, (float(quarters),)) if quarters else (0, ())
    _, _, mode, expand, _, fill = step
    has, values = fills(fill, channels)
    wide, high = _expanded(step, height, width) if expand else (0, 0)
    return Step.affine, (
        float(mode == "bilinear"), has, *_turned(step, height, width), float(high), float(wide), 0.0, 0.0, *values
    )  # fmt: skip


def table(programs: Sequence[Sequence[tuple[int, tuple[float, ...]]]]) -> tuple[Any, Any]:
    """Return the encoded steps of N images as arrays: codes int32[N, K] and numbers float64[N, K, WIDTH]. Code 0 means
    that no step follows."""
    longest = max(map(len, programs), default=0)
    codes = np.zeros((len(programs), longest), np.int32)
    numbers = np.zeros((len(programs), longest, WIDTH))
    for i, program in enumerate(programs):
        for k, (code, values) in enumerate(program):
            codes[i, k] = code
            if values:
                numbers[i, k, : len(values)] = values
    return codes, numbers
