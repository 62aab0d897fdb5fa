"""Transform: the base class of the transforms of this package, and functions that check their arguments."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from .draws import Draws
from .images import as_images, is_image
from .on_gpu import flipped, plain_batch
from .run import run
from .steps import Alike, Done, Shape, after

Device = Literal["cpu", "gpu"]


class InterpolationMode(enum.Enum):
    """Filters for resizing, under torchvision's names."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


_PILLOWS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Names of the filters; the position is Pillow's number for the filter."""


def mode_of(interpolation: Any) -> str:
    """Return the name of a filter, which may be given by its name, its number or an enumeration member (also
    torchvision's).

    Raises ValueError with the allowed names.
    """
    value = getattr(interpolation, "value", interpolation)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(_PILLOWS):
        return _PILLOWS[value]
    names = [m.value for m in InterpolationMode]
    if value not in names:
        raise ArgumentError(f"interpolation {interpolation!r} is not one of {', '.join(names)}")
    return str(value)


class ArgumentError(ValueError, TypeError):
    """An argument that a transform does not accept. It is a ValueError and a TypeError, because torchvision and DALI
    raise one or the other."""


class Transform:
    """Base class of all transforms. A call takes one image or many and applies to each the steps that `steps` returns.

    Random numbers are drawn for each image of a batch, in the order in which torchvision draws them when it is called
    with one image after the other. With ``per_sample = False``, set on a transform or given to Compose, all images of a
    batch of tensors share the same random numbers, as in torchvision.
    """

    device: Device = "cpu"
    per_sample: bool = True
    num_threads: int | None = None

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        """Return the steps for an image of ``shape``. Raises ValueError if the transform cannot be applied to it."""
        raise NotImplementedError(f"{type(self).__name__} must define steps")

    def __call__(self, *inputs: Any) -> Any:
        """Return the transformed image or images.

        If the input is a tuple, or there are several inputs, the first image among them is transformed, and the other
        inputs are returned unchanged. Raises TypeError for inputs without an image, ValueError for images that the
        transform does not accept.
        """
        if len(inputs) == 1 and not isinstance(inputs[0], tuple):
            return self._transformed(inputs[0])
        values = list(inputs if len(inputs) > 1 else inputs[0])
        for k, value in enumerate(values):
            if is_image(value) or (isinstance(value, list) and value and is_image(value[0])):
                values[k] = self._transformed(value)
                return tuple(values)
        raise TypeError("none of the inputs is an image")

    def _transformed(self, value: Any) -> Any:
        images = as_images(value, device=self.device)
        if not images.shapes:
            return value
        with Draws() as draws:
            if self.per_sample or images.pillow_images is not None:
                programs: Sequence[list[Done]] = self._programs(draws, images.shapes)
            else:
                programs = [self.steps(draws, images.shapes[0])] * len(images.shapes)
        return run(images, programs, self.num_threads, drawn=draws.used)

    def _programs(self, draws: Draws, shapes: list[Shape]) -> Sequence[list[Done]]:
        """Return the steps of each image. Images of one shape share a list as long as no random numbers are drawn."""
        known: dict[Shape, list[Done]] = {}
        programs: list[list[Done]] = []
        for shape in shapes:
            program = known.get(shape)
            if program is None:
                program = self.steps(draws, shape)
                if not draws.used:
                    known[shape] = program
            programs.append(program)
        return programs

    forward = __call__

    def __repr__(self) -> str:
        shown = [f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_") and k not in Transform.__dict__]
        return f"{type(self).__name__}({', '.join(shown)})"


class RandomTransform(Transform):
    """Base class of transforms that are applied with probability ``p``."""

    same: ClassVar[bool] = False
    """Whether `chosen` draws no random numbers and returns the same steps for all images of a shape."""
    turns: ClassVar[bool | None] = None
    """False if the transform only mirrors images, True if it only turns them upside down, None for any other
    transform."""

    def __init__(self, p: float = 0.5) -> None:
        if not isinstance(p, (int, float, np.number)) or not 0 <= p <= 1:
            raise ArgumentError(f"p must be between 0 and 1, got {p}")
        self.p = p

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [] if draws.rand() >= self.p else self.chosen(draws, shape)

    def _transformed(self, value: Any) -> Any:
        if self.turns is None or not self.per_sample or not plain_batch(value):
            return super()._transformed(value)
        with Draws() as draws:
            flips = (draws.rands(math.prod(value.shape[:-3])) < self.p).view(np.int8)
        return flipped(value, flips, self.turns)

    def _programs(self, draws: Draws, shapes: list[Shape]) -> Sequence[list[Done]]:
        if not self.same or shapes.count(shapes[0]) < len(shapes):
            return super()._programs(draws, shapes)
        nothing, steps = list[Done](), self.chosen(draws, shapes[0])
        return Alike([nothing, steps], (draws.rands(len(shapes)) < self.p).view(np.int8))

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        """Return the steps that are applied with probability ``p``."""
        raise NotImplementedError


def follow(parts: Sequence[Any], draws: Draws, shape: Shape) -> list[Done]:
    """Return the steps of transforms that are applied one after the other."""
    steps: list[Done] = []
    for part in parts:
        for step in part.steps(draws, shape):
            steps.append(step)
            shape = after(step, shape)
    return steps


def two(value: Any, name: str) -> tuple[int, int]:
    """Return (height, width) for one or two positive integers. Raises ArgumentError."""
    values = [value] if isinstance(value, int) else value
    if (
        not isinstance(values, (list, tuple))
        or len(values) not in (1, 2)
        or not all(isinstance(v, int) and v > 0 for v in values)
    ):
        raise ArgumentError(f"{name} takes a positive integer, or (height, width), got {value!r}")
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def numbers(value: Any, name: str) -> tuple[float, float]:
    """Return (value, value) for a number, or (minimum, maximum) for two. Raises ArgumentError."""
    values = [value, value] if isinstance(value, (int, float)) else value
    if (
        not isinstance(values, (list, tuple))
        or len(values) not in (1, 2)
        or not all(isinstance(v, (int, float)) for v in values)
    ):
        raise ArgumentError(f"{name} takes a number, or (minimum, maximum), got {value!r}")
    return float(values[0]), float(values[-1])


def fill_of(fill: Any) -> Any:
    """Return a fill value in the form that steps hold: None, a number, or a tuple of numbers. Raises ArgumentError."""
    values = fill if isinstance(fill, (list, tuple)) else [fill]
    if fill is not None and (len(values) == 0 or not all(isinstance(v, (int, float, np.number)) for v in values)):
        raise ArgumentError(
            "fill takes a number, or one per channel (a dict of fill values is not accepted: there are only images "
            f"here), got {fill!r}"
        )
    return tuple(fill) if isinstance(fill, (list, tuple)) else fill
