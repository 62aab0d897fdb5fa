"""Operators experimental.dilate, experimental.erode and experimental.median_blur: maximum, minimum and median of each
value's neighbourhood.

DALI has these only on a GPU; results equal OpenCV's.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES
from ..copies.windows import image_layout, known_layout
from ..errors import SpecError
from ..images.frames import ImageParts, image_parts
from ..kernels import Kernels
from ..types import to_numpy
from .axes import BORDERS, THREADS, by_axis, fits, geometry, strips_of, tiles_of

_kernels: Any = Kernels(".morphology_cpu", __package__)
_ROWS = 8
"""Number of rows that each GPU thread computes for uint8 images, as in cuda/morphology.cu."""
_MAX_SELECTED = 49
"""Maximum number of values in a window for which the median is found by removing the smallest and largest values again
and again."""


def _of_bytes(kernel: str, windows: I64) -> tuple[str, int]:
    """Return the name of the kernel for uint8 images with ``windows`` [M, 2] (height and width), and its rows per
    thread. 0 rows for the kernel that is also used for other types."""
    if kernel == "extreme":
        return "extreme_bytes<{}>", _ROWS
    height, width = windows[0].tolist()
    if (windows != windows[0]).any() or not 1 < height * width <= _MAX_SELECTED:
        return f"{kernel}<{{}}>", 0
    return ("median_of_nine<{}>", _ROWS) if height == width == 3 else (f"median_of<{{}}, {height}, {width}>", 1)


class Neighbourhood(Operator, abstract=True):
    """Base class of dilate, erode and median_blur, which compute each value from a window around it."""

    replayable = True
    layouts = ("HW", "HWC", "FHWC", "CHW", "FCHW")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype is not None and (to_numpy(data.dtype).kind == "b" or to_numpy(data.dtype).itemsize > 4):
            raise SpecError(f"takes integers and floats of up to 32 bits, got {data}; cast them first")
        layout = image_layout(data.layout, data.ndim, self.layouts)
        if data.ndim is not None and layout not in self.layouts:
            raise SpecError(f"takes layouts {', '.join(self.layouts)}, got {data}")
        return Spec(data.shape, data.dtype, layout)

    def run(
        self,
        ctx: Context,
        images: Batch,
        items: ImageParts,
        masks: I64,
        invalid: Any,
        kernel: str,
        *arguments: np.int32,
    ) -> Batch:
        """Apply ``kernel`` to every value of the images. ``masks`` [M, 4]: height and width of each image's window,
        then row and column in the window of the computed value. Images in ``invalid`` get empty outputs."""
        layout = images.layout if items.sample is None else images.layout[1:]
        where = geometry(items.shapes, layout)
        where[invalid, 0] = 0
        if ctx.stage == "cpu":
            own = images.dtype if images.dtype in (np.uint8, np.float32) else np.dtype(np.float64)
            low, high = 0, 0
            if len(images):
                low, high = int(images.offsets.min()), int((images.offsets + images.sizes).max())
            source = images.data[low:high].astype(own, copy=False)
            empty = ctx.empty if own == images.dtype else np.empty
            out = Batch.allocate(empty, images.shapes, own, images.layout, images.samples)
            base = np.ascontiguousarray(items.offsets - low)
            getattr(_kernels, kernel)(source, base, where, masks, *arguments, out.data, items.places(out))
            return out if own == images.dtype else out.replace(data=saturate(out.data, images.dtype))
        out = Batch.allocate(ctx.empty, images.shapes, images.dtype, images.layout, images.samples)
        tiles, kernel_of = tiles_of(where), f"{kernel}<{{}}>"
        if tiles:
            if images.dtype.itemsize == 1 and fits(where):
                kernel_of, down = _of_bytes(kernel, masks[where[:, 0] > 0, :2])
                tiles = strips_of(where, 4, down) if down else tiles
            base, sizes, windows, to = ctx.device.upload(items.offsets, where, masks, items.places(out))
            ctx.device.launch(
                "morphology.cu", kernel_of.format(CUDA_TYPES[images.dtype]), tiles * len(items), THREADS, images.data,
                base, sizes, np.int32(tiles), windows, *arguments, out.data, to,
            )  # fmt: skip
        return out


def _reject(ctx: Context, items: ImageParts, invalid: Any, name: str, values: Any) -> None:
    for m in np.flatnonzero(invalid).tolist():
        ctx.reject(
            m if items.sample is None else int(items.sample[m]), "bad_argument", f"{name}, got {values[m].tolist()}"
        )


class Morphology(Neighbourhood, abstract=True):
    """Base class of dilate and erode."""

    largest: ClassVar[bool]

    mask_size: Annotated[
        tuple[int, ...], Arg("size of the rectangle around a value: (width, height), or one number for both", ge=1,
                             per_sample=True)
    ] = (3, 3)  # fmt: skip
    anchor: Annotated[
        tuple[int, ...], Arg("(x, y) of the rectangle's element that lies on the value; -1: the middle", ge=-1,
                             per_sample=True)
    ] = (-1, -1)  # fmt: skip
    iterations: Annotated[int, Arg("number of times that the operation is applied", ge=1)] = 1
    border_mode: Annotated[
        Literal["constant", "replicate", "clamp", "reflect", "reflect_1001", "reflect_101", "wrap"],
        Arg("values outside of the image; constant: values that do not change the result"),
    ] = "constant"

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        images = images.replace(layout=known_layout(images, self.layouts))
        parts = image_parts(ctx, images, ["mask_size", "anchor"], np.int64)
        size = by_axis(parts.arguments["mask_size"], 2, "mask_size")
        anchor = by_axis(parts.arguments["anchor"], 2, "anchor")
        bad = np.any(size < 1, axis=1)
        _reject(ctx, parts, bad, "mask_size must be positive", size)
        anchor = np.where(anchor < 0, size // 2, anchor)
        outside = ~bad & np.any(anchor >= size, axis=1)
        _reject(ctx, parts, outside, "anchor must lie in the mask", anchor)
        bad |= outside
        # A rectangle that extends two image sizes contains the whole image, for every border mode: more would only take
        # longer.
        far = 2 * geometry(parts.shapes, images.layout if parts.sample is None else images.layout[1:])[:, 3:1:-1] + 1
        before, after = np.minimum(anchor, far), np.minimum(size - 1 - anchor, far)
        # a repeated rectangle is a larger rectangle
        times = np.minimum(self.iterations, far)
        before, after = np.minimum(before * times, far), np.minimum(after * times, far)
        masks = np.concatenate([(before + after + 1)[:, ::-1], before[:, ::-1]], axis=1)
        masks[bad] = (1, 1, 0, 0)
        border = np.int32(BORDERS[self.border_mode])
        return self.run(ctx, images, parts, masks, bad, "extreme", border, np.int32(self.largest))

    gpu = cpu


class Dilate(Morphology, name="experimental.dilate"):
    """Replace each value by the maximum in a rectangle around it."""

    aliases: ClassVar[tuple[str, ...]] = ("dilate",)
    largest = True
    example = "{op: experimental.dilate, in: masks, mask_size: [5, 5], out: masks}"


class Erode(Morphology, name="experimental.erode"):
    """Replace each value by the minimum in a rectangle around it."""

    aliases: ClassVar[tuple[str, ...]] = ("erode",)
    largest = False
    example = "{op: experimental.erode, in: masks, mask_size: [5, 5], out: masks}"


class MedianBlur(Neighbourhood, name="experimental.median_blur"):
    """Replace each value by the median of a window around it; outside of the image, its border is repeated."""

    aliases: ClassVar[tuple[str, ...]] = ("median_blur",)
    example = "{op: experimental.median_blur, in: images, window_size: [3, 3], out: images}"

    window_size: Annotated[
        tuple[int, ...], Arg("size of the window, odd: (width, height), or one number for both", ge=1, per_sample=True)
    ] = (3, 3)

    def check(self) -> None:
        if "window_size" not in self.per_sample and any(w % 2 == 0 for w in self.window_size):
            raise SpecError(f"window_size must be odd, got {list(self.window_size)}")

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        images = images.replace(layout=known_layout(images, self.layouts))
        parts = image_parts(ctx, images, ["window_size"], np.int64)
        size = by_axis(parts.arguments["window_size"], 2, "window_size")
        bad = np.any((size < 1) | (size % 2 == 0) | (size > 255), axis=1)
        _reject(ctx, parts, bad, "window_size must be odd, up to 255", size)
        masks = np.concatenate([size[:, ::-1], size[:, ::-1] // 2], axis=1)
        masks[bad] = (1, 1, 0, 0)
        return self.run(ctx, images, parts, np.ascontiguousarray(masks), bad, "median")

    gpu = cpu
