"""Operator segmentation.random_object_bbox: draw the box of a random object of a mask."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType
from .rows import lists

_kernels: Any = Kernels(".masks_cpu", __package__)

_WHOLE = tuple(
    DALIDataType[n] for n in ("BOOL", "UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64")
)


class RandomObjectBbox(Operator, name="segmentation.random_object_bbox"):
    """Draw a class of each mask, then one of its objects, and output the box around it.

    An object is a connected region (along the axes, not diagonally) of pixels of one class. A mask has any number D of
    axes. The box is output as start and shape, or start and end, int32 [D] each, or in one output [2 D], as ``format``
    says. With output_class, the class (int32) is output too. With probability 1 - foreground_prob, or if no object is
    large enough, the box is the whole mask, and the class is the background.
    """

    random = True
    example = (
        "{op: segmentation.random_object_bbox, in: masks, classes: [1, 2], output_class: true, "
        "out: [start, shape, label]}"
    )

    background: Annotated[
        int, Arg("class of the background; by default 0, or one that is not in classes", per_sample=True)
    ] = 0
    cache_objects: Annotated[bool, Arg("cache the boxes of masks", ignored="objects are searched each time")] = False
    class_weights: Annotated[
        tuple[float, ...] | None,
        Arg("weight of each class in the draw; for the classes 1, 2, ... by default", per_sample=True),
    ] = None
    classes: Annotated[tuple[int, ...] | None, Arg("classes to draw from; all by default", per_sample=True)] = None
    foreground_prob: Annotated[
        float, Arg("probability of an object; otherwise the whole mask is output", per_sample=True)
    ] = 1.0
    format: Annotated[Literal["anchor_shape", "start_end", "box"], Arg("form of the outputs")] = "anchor_shape"
    ignore_class: Annotated[bool, Arg("objects of all classes are equally likely")] = False
    k_largest: Annotated[int | None, Arg("draw only among this many of the largest boxes", ge=1)] = None
    output_class: Annotated[bool, Arg("add an output: the class")] = False
    threshold: Annotated[
        tuple[int, ...] | None, Arg("minimum lengths of a box, one number or one per axis", per_sample=True)
    ] = None

    def check(self) -> None:
        if self.ignore_class:
            wrong = [n for n in ("classes", "class_weights", "output_class") if self.is_set(n)]
            if wrong:
                raise SpecError(f"ignore_class excludes {wrong[0]}")
        if not {"classes", "class_weights"} & self.per_sample and None not in (self.classes, self.class_weights):
            counts = len(self.classes or ()), len(self.class_weights or ())
            if counts[0] != counts[1]:
                raise SpecError(f"there are {counts[0]} classes, but {counts[1]} class_weights")
        if self.class_weights is not None and min(self.class_weights, default=0) < 0:
            raise SpecError(f"class_weights must not be negative, got {list(self.class_weights)}")
        if (
            self.is_set("background")
            and "background" not in self.per_sample
            and self.background in (self.classes or ())
        ):
            raise SpecError(f"background {self.background} is one of the classes")

    @property
    def num_outputs(self) -> int:
        return (1 if self.format == "box" else 2) + self.output_class

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        mask = specs[0]
        if mask.dtype is not None and mask.dtype not in _WHOLE:
            raise SpecError(f"takes masks of integers or bool, got {mask}; cast them first")
        ndim = mask.ndim
        if self.format == "box":
            out = [Spec((None if ndim is None else 2 * ndim,), DALIDataType.INT32)]
        else:
            out = [Spec((ndim,), DALIDataType.INT32)] * 2
        return (*out, *[Spec((), DALIDataType.INT32)] * self.output_class)

    def cpu(self, ctx: Context, masks: Batch) -> tuple[Batch, ...]:
        n, ndim = len(masks), masks.ndim
        if masks.dtype.kind not in "iub":
            raise SampleError("bad_shape", f"takes masks of integers or bool, got {masks.dtype}; cast them first")
        classes, class_at, class_counts = lists(ctx, "classes", np.int64)
        weights, weight_at, weight_counts = lists(ctx, "class_weights", np.float32)
        backgrounds = ctx.arg("background", np.int64)
        skip = np.zeros(n, np.bool_)
        listed, weighted = self.is_set("classes"), self.is_set("class_weights")
        if listed:
            backgrounds = self._beside(ctx, classes, class_at, class_counts, backgrounds)
        if listed and weighted:
            for i in np.flatnonzero(class_counts != weight_counts).tolist():
                ctx.reject(
                    i, "bad_argument",
                    f"there are {int(class_counts[i])} classes, but {int(weight_counts[i])} class_weights",
                )  # fmt: skip
                skip[i] = True
        if weighted and not listed:
            # the weights belong to the classes 1, 2, ..., without the background
            most = int(weight_counts.max(initial=0)) + 1
            classes = np.array([[c + (c >= b) for c in range(most)] for b in backgrounds.tolist()], np.int64).reshape(
                -1
            )
            class_at, class_counts = np.arange(n) * most, weight_counts
        least = np.zeros((n, ndim), np.int64)
        if self.is_set("threshold"):
            given = ctx.arg("threshold", np.int64)
            if given.shape[1] not in (1, ndim):
                raise SampleError("bad_argument", f"threshold has {given.shape[1]} numbers, the masks {ndim} axes")
            least[...] = given
        boxes, labels = np.zeros((n, 2, ndim), np.int64), np.zeros(n, np.int64)
        streams = ctx.streams()
        data = masks.data.view(np.uint8) if masks.dtype == np.bool_ else masks.data
        _kernels.objects(
            streams.handle, streams.sequence, data, masks.offsets, masks.shapes.astype(np.int64),
            ctx.arg("foreground_prob", np.float32), backgrounds, classes, class_at, class_counts, weights, weight_at,
            weight_counts, self.k_largest or 0, least, self.ignore_class, skip, boxes, labels,
        )  # fmt: skip
        if self.format == "anchor_shape":
            boxes[:, 1] -= boxes[:, 0]
        numbers = boxes.astype(np.int32)
        parts: list[npt.NDArray[np.int32]] = (
            [numbers.reshape(n, 2 * ndim)] if self.format == "box" else [numbers[:, 0], numbers[:, 1]]
        )
        if self.output_class:
            parts.append(labels.astype(np.int32))
        return tuple(Batch.from_dense(np.ascontiguousarray(p), "", ctx.samples) for p in parts)

    def _beside(self, ctx: Context, classes: Any, at: Any, counts: Any, backgrounds: npt.NDArray[Any]) -> Any:
        """Return for each sample a class number for the background that is not one of the sample's ``classes``: the
        number in ``backgrounds``, or a smaller one."""
        chosen = backgrounds.copy()
        for i, (start, count) in enumerate(zip(at.tolist(), counts.tolist(), strict=True)):
            mine = classes[start : start + count]
            if count and backgrounds[i] in mine:
                if self.is_set("background"):
                    ctx.reject(i, "bad_argument", f"background {int(backgrounds[i])} is one of the classes")
                chosen[i] = int(mine.min()) - 1
        return chosen
