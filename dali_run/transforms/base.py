"""Transform: what the classes of this package share."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from .draws import Draws
from .images import is_image, taken
from .on_gpu import flipped, plain_batch
from .run import run
from .steps import Alike, Done, Shape, after

Device = Literal["cpu", "gpu"]


class InterpolationMode(enum.Enum):
    """Filters by torchvision's names."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


_PILLOWS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""By Pillow's numbers."""


def mode_of(interpolation: Any) -> str:
    """The name of a filter that is given by its name, number or enumeration member (also torchvision's). Raises
    ValueError with the allowed names."""
    value = getattr(interpolation, "value", interpolation)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(_PILLOWS):
        return _PILLOWS[value]
    names = [m.value for m in InterpolationMode]
    if value not in names:
        raise ArgumentError(f"interpolation {interpolation!r} is not one of {', '.join(names)}")
    return str(value)


class ArgumentError(ValueError, TypeError):
    """An argument that a transform does not take: torchvision and DALI raise ValueError in some cases, TypeError in
    others."""


class Transform:
    """Base of all transforms: called with an image or many, it does to each what `steps` says.

    Random numbers are drawn for each image of a batch, in the order in which torchvision draws them when it is called
    with one image after the other. With ``per_sample = False``, set on a transform or given to Compose, a batch of
    tensors shares one draw, as torchvision's batches do.
    """

    device: Device = "cpu"
    per_sample: bool = True
    num_threads: int | None = None

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        """The steps for an image of ``shape``. Raises ValueError where it cannot be done."""
        raise NotImplementedError(f"{type(self).__name__} must define steps")

    def __call__(self, *inputs: Any) -> Any:
        """The transformed image or images. Of several inputs, or a tuple, the first image is transformed, and what is
        no image goes through unchanged. Raises TypeError for inputs without an image, ValueError for images that the
        transform cannot take."""
        if len(inputs) == 1 and not isinstance(inputs[0], tuple):
            return self._transformed(inputs[0])
        values = list(inputs if len(inputs) > 1 else inputs[0])
        for k, value in enumerate(values):
            if is_image(value) or (isinstance(value, list) and value and is_image(value[0])):
                values[k] = self._transformed(value)
                return tuple(values)
        raise TypeError("there is no image among the inputs")

    def _transformed(self, value: Any) -> Any:
        images = taken(value, device=self.device)
        if not images.shapes:
            return value
        with Draws() as draws:
            if self.per_sample or images.pictures is not None:
                programs: Sequence[list[Done]] = self._programs(draws, images.shapes)
            else:
                programs = [self.steps(draws, images.shapes[0])] * len(images.shapes)
        return run(images, programs, self.num_threads, drawn=draws.used)

    def _programs(self, draws: Draws, shapes: list[Shape]) -> Sequence[list[Done]]:
        """The steps of each image: one list for images of one shape, as long as nothing is drawn."""
        known: dict[Shape, list[Done]] = {}
        found: list[list[Done]] = []
        for shape in shapes:
            program = known.get(shape)
            if program is None:
                program = self.steps(draws, shape)
                if not draws.used:
                    known[shape] = program
            found.append(program)
        return found

    forward = __call__

    def __repr__(self) -> str:
        shown = [f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_") and k not in Transform.__dict__]
        return f"{type(self).__name__}({', '.join(shown)})"


class RandomTransform(Transform):
    """Base of transforms that are done with probability ``p``."""

    same: ClassVar[bool] = False
    """`chosen` gives the same for all images of a shape, and draws nothing."""
    turns: ClassVar[bool | None] = None
    """It mirrors images (False) or turns them upside down (True), and does nothing else."""

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
            which = (draws.rands(math.prod(value.shape[:-3])) < self.p).view(np.int8)
        return flipped(value, which, self.turns)

    def _programs(self, draws: Draws, shapes: list[Shape]) -> Sequence[list[Done]]:
        if not self.same or shapes.count(shapes[0]) < len(shapes):
            return super()._programs(draws, shapes)
        nothing, steps = list[Done](), self.chosen(draws, shapes[0])
        return Alike([nothing, steps], (draws.rands(len(shapes)) < self.p).view(np.int8))

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        """The steps that follow then."""
        raise NotImplementedError


def follow(parts: Sequence[Any], draws: Draws, shape: Shape) -> list[Done]:
    """The steps of transforms one after the other."""
    found: list[Done] = []
    for part in parts:
        for step in part.steps(draws, shape):
            found.append(step)
            shape = after(step, shape)
    return found


def two(value: Any, name: str) -> tuple[int, int]:
    """(height, width) of an integer or of one or two integers. Raises ArgumentError."""
    values = [value] if isinstance(value, int) else value
    if (
        not isinstance(values, (list, tuple))
        or len(values) not in (1, 2)
        or not all(isinstance(v, int) and v > 0 for v in values)
    ):
        raise ArgumentError(f"{name} takes a positive integer, or (height, width), got {value!r}")
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def numbers(value: Any, name: str) -> tuple[float, float]:
    """(value, value) of a number, or (least, largest). Raises ArgumentError."""
    values = [value, value] if isinstance(value, (int, float)) else value
    if (
        not isinstance(values, (list, tuple))
        or len(values) not in (1, 2)
        or not all(isinstance(v, (int, float)) for v in values)
    ):
        raise ArgumentError(f"{name} takes a number, or (least, largest), got {value!r}")
    return float(values[0]), float(values[-1])


def fill_of(fill: Any) -> Any:
    """A fill value as steps hold it: None, a number, or a tuple of them. Raises ArgumentError."""
    values = fill if isinstance(fill, (list, tuple)) else [fill]
    if fill is not None and (len(values) == 0 or not all(isinstance(v, (int, float, np.number)) for v in values)):
        raise ArgumentError(
            f"fill takes a number, or one per channel (there are only images here, no masks to fill), got {fill!r}"
        )
    return tuple(fill) if isinstance(fill, (list, tuple)) else fill
