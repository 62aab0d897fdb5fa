"""Operators paste (images on a larger canvas) and bbox_paste (the boxes of such images)."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies.strided import Affine, Border, convert, pad, run, whole, window
from ..copies.windows import fill_along, integers, known_layout, refused
from ..errors import SampleError, SpecError
from ..kernels import Kernels

F32 = npt.NDArray[np.float32]

_kernels: Any = Kernels(".paste_cpu", __package__)


def placed(ctx: Context) -> tuple[F32, F32, F32]:
    """Return the arguments ratio, paste_x and paste_y of each sample, [N] each. Samples with values that are not
    allowed are rejected, and get ratio 1 and position 0."""
    ratio = ctx.arg("ratio")
    right = (ratio >= 1) & (ratio < np.inf)
    if not right.all():
        for i in np.flatnonzero(~right).tolist():
            ctx.reject(i, "bad_argument", f"ratio must be at least 1, got {ratio[i]:g}")
        ratio = np.where(right, ratio, np.float32(1))
    places = []
    for name in ("paste_x", "paste_y"):
        values = ctx.arg(name)
        inside = (values >= 0) & (values <= 1)
        if not inside.all():
            for i in np.flatnonzero(~inside).tolist():
                ctx.reject(i, "bad_argument", f"{name} must be between 0 and 1, got {values[i]:g}")
            values = np.where(inside, values, np.float32(0))
        places.append(values)
    return ratio, places[0], places[1]


class Paste(Operator, name="paste"):
    """Paste images on a larger canvas, whose size is the image's times ``ratio`` (truncated to an integer).

    Images of any type are supported (DALI: only uint8). Fill values saturate (DALI wraps them around).
    """

    replayable = True
    layouts = ("HWC", "FHWC")
    example = (
        "{op: paste, in: images, ratio: $ratio, paste_x: 0.5, paste_y: 0.5, fill_value: [123, 117, 104], out: images}"
    )

    ratio: Annotated[
        float, Arg("size of the canvas as a multiple of the image's size", ge=1, per_sample=True, required=True)
    ] = 1.0
    fill_value: Annotated[tuple[float, ...], Arg("colour of the canvas: one value, or one per channel")]
    n_channels: Annotated[int, Arg("number of channels of the images if fill_value has several values", ge=1)] = 3
    paste_x: Annotated[
        float, Arg("horizontal position of the image, 0 (left) to 1 (right)", ge=0, le=1, per_sample=True)
    ] = 0.5
    paste_y: Annotated[
        float, Arg("vertical position of the image, 0 (top) to 1 (bottom)", ge=0, le=1, per_sample=True)
    ] = 0.5
    min_canvas_size: Annotated[float, Arg("minimum height and width of the canvas, pixels", ge=0, per_sample=True)] = (
        0.0
    )

    def check(self) -> None:
        if len(self.fill_value) not in (1, self.n_channels):
            raise SpecError(f"fill_value needs 1 or n_channels ({self.n_channels}) values, got {len(self.fill_value)}")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.shape is None:
            return data
        layout = data.layout or ("HWC" if len(data.shape) == 3 else "")
        if layout not in self.layouts:
            raise SpecError(f"takes layouts {', '.join(self.layouts)}, got {data}")
        channels = data.shape[-1]
        if len(self.fill_value) > 1 and channels not in (None, len(self.fill_value)):
            raise SpecError(f"fill_value needs 1 or {channels} values, got {len(self.fill_value)}")
        size: list[int | None] = [None, None]
        if self.per_sample.isdisjoint(("ratio", "min_canvas_size")):
            size = [
                None
                if d is None
                else int(self._canvas(np.float32(self.ratio), np.float32(self.min_canvas_size), np.array(d)))
                for d in data.shape[-3:-1]
            ]
        return Spec((*data.shape[:-3], *size, channels), data.dtype, layout)

    @staticmethod
    def _canvas(ratio: Any, min_size: Any, extent: Any) -> I64:
        return integers(np.maximum(np.trunc(ratio * np.asarray(extent, np.float32)), min_size))

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        layout = known_layout(images, self.layouts)
        images = images.replace(layout=layout)
        ratio, *place = placed(ctx)
        least = ctx.arg("min_canvas_size")
        for i in np.flatnonzero(~(np.isfinite(least))).tolist():
            ctx.reject(i, "bad_argument", f"min_canvas_size must be a number, got {least[i]:g}")
        anchor, shape = np.zeros(images.shapes.shape, np.int64), images.shapes.astype(np.int64)
        for axis, position in zip((-2, -3), place, strict=True):
            canvas = np.maximum(
                self._canvas(ratio, np.where(np.isfinite(least), least, 0), shape[:, axis]), shape[:, axis]
            )
            anchor[:, axis] = -integers(position * (canvas - shape[:, axis]).astype(np.float32))
            shape[:, axis] = canvas
        empty = images.sizes == 0
        plan = window(whole(images), anchor, refused(shape, empty))
        return run(ctx, pad(plan, Border.FILL, *fill_along(ctx, self.fill_value, images, images.ndim - 1)), images)

    gpu = cpu


class BBoxPaste(Operator, name="bbox_paste"):
    """Convert boxes of images that `paste` puts on a larger canvas: the results, in fractions of the canvas, frame the
    same pixels."""

    example = "{op: bbox_paste, in: boxes, ratio: $ratio, paste_x: $x, paste_y: $y, ltrb: true, out: boxes}"
    bound = "1e-6"

    ratio: Annotated[float, Arg("argument of the same name of paste", ge=1, per_sample=True, required=True)] = 1.0
    paste_x: Annotated[float, Arg("argument of the same name of paste", ge=0, le=1, per_sample=True)] = 0.5
    paste_y: Annotated[float, Arg("argument of the same name of paste", ge=0, le=1, per_sample=True)] = 0.5
    ltrb: Annotated[bool, Arg("boxes are (left, top, right, bottom), else (x, y, width, height)")] = False

    def infer(self, *specs: Spec) -> Spec:
        boxes = specs[0]
        if boxes.dtype is not None and boxes.dtype.name != "FLOAT":
            raise SpecError(f"takes boxes of FLOAT, got {boxes}; cast them first")
        if boxes.shape is not None and (not boxes.shape or boxes.shape[-1] not in (None, 4)):
            raise SpecError(f"takes boxes of 4 numbers, got {boxes}")
        return boxes

    def cpu(self, ctx: Context, boxes: Batch) -> Batch:
        odd = self._odd(ctx, boxes)
        ratio, x, y = placed(ctx)
        out = Batch.allocate(ctx.empty, boxes.shapes, np.float32, boxes.layout, ctx.samples)
        _kernels.move_boxes(boxes.data, boxes.offsets, boxes.sizes, odd, ratio, x, y, self.ltrb, out.data, out.offsets)
        return out

    def gpu(self, ctx: Context, boxes: Batch) -> Batch:
        self._odd(ctx, boxes)
        ratio, x, y = placed(ctx)
        factor = np.float32(1) / ratio
        shift = np.stack([x * (ratio - 1) * factor, y * (ratio - 1) * factor], axis=1)
        add = np.concatenate([shift, shift if self.ltrb else np.zeros_like(shift)], axis=1, dtype=np.float32)
        plan = whole(boxes)
        mul = np.repeat(factor[:, None], 4, axis=1)
        return run(ctx, convert(plan, np.float32, Affine.of(np.zeros_like(mul), mul, add), boxes.ndim - 1), boxes)

    @staticmethod
    def _odd(ctx: Context, boxes: Batch) -> npt.NDArray[np.bool_]:
        """Reject the samples of ``boxes`` that are not lists of boxes. Return a mask of these samples, [N]."""
        if boxes.dtype != np.float32 or boxes.ndim == 0:
            raise SampleError("bad_shape", f"takes boxes of float32, 4 numbers each, got {boxes.dtype}, {boxes.ndim}-D")
        odd: npt.NDArray[np.bool_] = (boxes.shapes[:, -1] != 4) & (boxes.sizes > 0)
        if odd.any():
            for i in np.flatnonzero(odd).tolist():
                ctx.reject(i, "bad_shape", f"boxes have 4 numbers, got a tensor of {boxes.shapes[i].tolist()}")
        return odd
