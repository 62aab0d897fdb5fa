"""Operators random_resized_crop, and random_crop_generator, which draws the window only."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies.windows import image_layout
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType
from .random_window import WINDOW_SALT, check_window_ranges, random_windows
from .resampling.resample import LAYOUTS, ResamplePlan
from .resize import Resampling

_plans: Any = Kernels(".resampling.plan_cpu", __package__)


class RandomWindow(Operator, abstract=True):
    """Base class of operators that draw random windows. It defines the arguments for their aspect ratio and area."""

    random = True

    random_area: Annotated[tuple[float, ...], Arg("minimum and maximum share of the image that the window covers")] = (
        0.08,
        1.0,
    )
    random_aspect_ratio: Annotated[tuple[float, ...], Arg("minimum and maximum width / height of the window")] = (
        3 / 4,
        4 / 3,
    )
    num_attempts: Annotated[
        int, Arg("draws before the operator uses the largest window of an allowed ratio", le=100_000)
    ] = 10

    def check(self) -> None:
        check_window_ranges(*self._ranges)

    def windows(self, ctx: Context, heights: I64, widths: I64) -> tuple[I64, I64]:
        """Draw a window in each image. Return starts (y, x) and shapes (h, w) of the windows, [N, 2] each."""
        aspect, area = self._ranges
        return random_windows(ctx.streams(WINDOW_SALT), heights, widths, aspect, area, self.num_attempts)

    @cached_property
    def _ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Ranges of aspect ratio and area, each as (smallest, largest); both are equal if the argument is a single
        number."""
        pairs = []
        for name in ("random_aspect_ratio", "random_area"):
            values = getattr(self, name)
            if len(values) not in (1, 2):
                raise SpecError(f"{name} needs two numbers, got {len(values)}")
            pairs.append((values[0], values[-1]))
        return pairs[0], pairs[1]


class RandomResizedCrop(Resampling, RandomWindow, name="random_resized_crop"):
    """Cut a random window out and resize it.

    The filter also reads pixels beyond the window if the image continues there.
    """

    layouts: ClassVar[tuple[str, ...]] = ("HWC", "CHW", "FHWC", "FCHW", "CFHW")
    example: ClassVar[str] = "{op: random_resized_crop, in: images, size: [224, 224], out: images}"

    size: Annotated[tuple[int, ...], Arg("height and width of the output, or one number for both", ge=0)]

    def check(self) -> None:
        Resampling.check(self)
        RandomWindow.check(self)
        if len(self.size) not in (1, 2):
            raise SpecError(f"size needs one number or (height, width), got {len(self.size)} numbers")

    def infer(self, *specs: Spec) -> Spec:
        if "D" in image_layout(specs[0].layout, specs[0].ndim, LAYOUTS):
            raise SpecError(f"takes {', '.join(self.layouts)}, not volumes; got {specs[0]}")
        return self.resampled(specs[0], (self.size[0], self.size[-1]))

    def plan(self, ctx: Context, shapes: I64, axes: tuple[int, int]) -> ResamplePlan:
        first, count = axes
        if count != 2:
            raise SampleError("bad_shape", f"takes layouts {', '.join(self.layouts)}, not volumes")
        extents = shapes[:, first : first + 2]
        anchor, shape = self.windows(ctx, extents[:, 0], extents[:, 1])
        lo, hi = np.empty(extents.shape, np.float32), np.empty(extents.shape, np.float32)
        size = np.empty(extents.shape, np.int64)
        _plans.windows_to(int(self.size[0]), int(self.size[-1]), anchor, shape, lo, hi, size)
        return self.planned(ctx, lo, hi, size, extents)


class RandomCropGenerator(RandomWindow, name="random_crop_generator"):
    """Draw a window for an image of the given shape, (height, width) or (height, width, channels).

    Two outputs: the window's anchor (y, x) and shape (h, w), int32.
    """

    example: ClassVar[str] = "{op: random_crop_generator, in: shapes, out: [anchor, shape]}"

    @property
    def num_outputs(self) -> int:
        return 2

    def infer(self, *specs: Spec) -> tuple[Spec, Spec]:
        shape = specs[0].shape
        if shape is not None and (len(shape) != 1 or shape[0] not in (None, 2, 3)):
            raise SpecError(f"takes shapes, 2 or 3 integers each (peek_image_shape gives them), got {specs[0]}")
        window = Spec((2,), DALIDataType.INT32)
        return window, window

    def cpu(self, ctx: Context, shapes: Batch) -> tuple[Batch, Batch]:
        if shapes.ndim == 1 and shapes.is_uniform and shapes.shapes[0, 0] in (2, 3):
            extents = shapes.dense()[:, :2].astype(np.int64)
        else:
            extents = np.ones((len(shapes), 2), np.int64)
            for i, size in enumerate(shapes.sizes.tolist()):
                if size in (2, 3):
                    extents[i] = shapes.sample(i).reshape(-1)[:2]
                else:
                    ctx.reject(i, "bad_shape", f"an image shape has 2 or 3 numbers, got {size}")
        anchor, shape = self.windows(ctx, extents[:, 0], extents[:, 1])
        return (
            Batch.from_dense(anchor.astype(np.int32), "", shapes.samples),
            Batch.from_dense(shape.astype(np.int32), "", shapes.samples),
        )
