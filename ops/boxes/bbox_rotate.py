"""Operator bbox_rotate: rotate the boxes of an image that rotate turns."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType
from .rows import check_labels, check_spec, chosen, counts_of, list_of

_kernels: Any = Kernels(".boxes_cpu", __package__)

_MODES = ("fixed", "halfway", "expand")


class BboxRotate(Operator, name="bbox_rotate"):
    """Rotate boxes as the operator rotate, with the same angle and size, rotates their image.

    A box becomes the smallest upright box around its rotated corners (mode expand), or that box shrunk to the old width
    and height (fixed) or halfway. The new box is clipped at the border of the image. If less than remove_threshold of a
    box remains, the box is removed, and its label (the optional second input) too. ``input_shape`` is the shape of the
    image before the rotation.
    """

    inputs = (1, 2)
    bound = "1e-6"
    example = "{op: bbox_rotate, in: [boxes, labels], angle: $angle, input_shape: $shape, out: [boxes, labels]}"

    angle: Annotated[float, Arg("angle of rotation in degrees, counter-clockwise", per_sample=True, required=True)] = (
        0.0
    )
    input_shape: Annotated[
        tuple[int, ...],
        Arg("height and width of the image, in the order of shape_layout", per_sample=True, required=True),
    ] = ()
    bbox_layout: Annotated[str, Arg("order of the numbers of a box: the letters of xyXY or xyWH")] = "xyXY"
    bbox_normalized: Annotated[bool, Arg("boxes are in fractions of the image; else in pixels")] = True
    keep_size: Annotated[bool, Arg("the image keeps its size")] = False
    mode: Annotated[
        Literal["expand", "fixed", "halfway"],
        Arg("size of a rotated box: around its corners, the old one, or the mean"),
    ] = "expand"
    remove_threshold: Annotated[float, Arg("minimum fraction of a box that must remain in the image", ge=0, le=1)] = 0.1
    shape_layout: Annotated[str, Arg("order of input_shape: H and W; other letters are ignored")] = "HW"
    size: Annotated[tuple[float, ...], Arg("height and width that rotate was called with", per_sample=True)] = ()

    def check(self) -> None:
        if sorted(self.bbox_layout) not in (sorted("xyXY"), sorted("xyWH")):
            raise SpecError(f"bbox_layout must have the letters of xyXY or xyWH, got {self.bbox_layout!r}")
        if not {"H", "W"} <= set(self.shape_layout) or len(set(self.shape_layout)) != len(self.shape_layout):
            raise SpecError(f"shape_layout needs H and W once, got {self.shape_layout!r}")
        if self.keep_size and self.is_set("size"):
            raise SpecError("keep_size and size exclude each other")
        if "size" not in self.per_sample and len(self.size) not in (0, 2):
            raise SpecError(f"size needs height and width, got {list(self.size)}")
        if "input_shape" not in self.per_sample:
            self._extents(np.array([self.input_shape]))

    @property
    def num_outputs(self) -> int:
        return max(1, self.num_inputs)

    def shows(self) -> dict[int, str]:
        boxes = "boxes " + self.bbox_layout
        return {0: boxes, 1: "labels"} if self.num_inputs == 2 else {0: boxes}

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        check_spec(specs[0], (4,))
        out = [Spec((None, 4), DALIDataType.FLOAT, specs[0].layout)]
        for labels in specs[1:]:
            shape = None if labels.shape is None else (None, *labels.shape[1:])
            out.append(Spec(shape, labels.dtype, labels.layout))
        return tuple(out)

    def _extents(self, shapes: Any) -> Any:
        """Return height and width of images, [N, 2], from ``shapes``, values of the argument ``input_shape``."""
        at = [self.shape_layout.index("H"), self.shape_layout.index("W")]
        if shapes.shape[1] <= max(at):
            raise SpecError(f"input_shape needs {self.shape_layout}, got {shapes.shape[1]} numbers")
        return shapes[:, at]

    def cpu(self, ctx: Context, boxes: Batch, *labels: Batch) -> tuple[Batch, ...]:
        n = len(boxes)
        counts = counts_of(ctx, boxes, 4)
        if labels:
            check_labels(ctx, labels[0], counts)
        images = self._extents(ctx.arg("input_shape", np.float32))
        canvases = np.zeros((n, 2), np.float32)
        if self.is_set("size"):
            sizes = ctx.arg("size", np.float32)
            if sizes.shape[1] != 2:
                raise SampleError("bad_argument", f"size needs height and width, got {sizes.shape[1]} numbers")
            canvases = np.floor(np.maximum(sizes, 1) + np.float32(0.5))
        positive = images >= 1
        if not positive.all():
            for i in np.flatnonzero(~positive.all(axis=1)).tolist():
                ctx.reject(i, "bad_argument", f"input_shape must be positive, got {images[i].tolist()}")
                counts[i] = 0
        columns = "xyWH" if "W" in self.bbox_layout else "xyXY"
        at = np.array([self.bbox_layout.index(c) for c in columns], np.int64)
        total = int(counts.sum())
        left, kept, out_counts = np.empty(4 * total, np.float32), np.empty(total, np.int32), np.zeros(n, np.int64)
        used = _kernels.rotate(
            boxes.data, boxes.offsets, counts, at[:2], at[2:], columns == "xyWH", self.bbox_normalized,
            ctx.arg("angle", np.float32), np.ascontiguousarray(images), canvases, self.keep_size,
            _MODES.index(self.mode), np.float32(self.remove_threshold), left, kept, out_counts,
        )  # fmt: skip
        out = [list_of(ctx, left[: 4 * used], out_counts, 4, layout=boxes.layout)]
        if labels:
            out.append(chosen(ctx, labels[0], kept[:used], out_counts))
        return tuple(out)
