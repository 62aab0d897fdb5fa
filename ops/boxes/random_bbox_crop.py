"""Operator random_bbox_crop: draw a random window, and keep the boxes in it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType
from .rows import check_labels, check_spec, chosen, counts_of, list_of

_kernels: Any = Kernels(".bbox_crop_cpu", __package__)

_MAX_ATTEMPTS = 100_000
"""Maximum number of attempts if the arguments set no limit; the search then ends with the best crop so far. 100,000
attempts take milliseconds."""
_LAYOUTS = {"xyXY": 2, "xyWH": 2, "xyzXYZ": 3, "xyzWHD": 3}


class RandomBboxCrop(Operator, name="random_bbox_crop"):
    """Draw a random window that overlaps boxes as requested. Output the window, and the boxes that remain in it.

    The first outputs are anchor and shape of the window, as slice accepts them (float32 [2] or [3]; x, y and z, in
    fractions of the image, or in pixels with ``crop_shape``). Then follow the remaining boxes, [n, 4] or [n, 6], in
    fractions of the window, their labels if these are an input, and their indices with ``output_bbox_indices``. The
    operator draws one of ``thresholds`` (or no crop, with allow_no_crop), then up to num_attempts windows, and repeats
    this until a window meets the threshold and keeps a box. The search takes the best window after total_num_attempts,
    or after 100,000 windows if there is no such limit (DALI never stops). A box remains if its centre lies inside (the
    border counts), or as bbox_prune_threshold defines. Samples with boxes outside of 0 to 1 are rejected.
    """

    inputs = (1, 2)
    random = True
    example = (
        "{op: random_bbox_crop, in: [boxes, labels], thresholds: [0, 0.1, 0.3, 0.5, 0.7, 0.9], "
        "aspect_ratio: [0.5, 2.0], scaling: [0.3, 1.0], num_attempts: 50, out: [anchor, shape, boxes, labels]}"
    )

    all_boxes_above_threshold: Annotated[bool, Arg("every box must meet the threshold; if false, one box must")] = True
    allow_no_crop: Annotated[
        bool | None, Arg("no crop is one of the thresholds; true by default unless crop_shape is set")
    ] = None
    aspect_ratio: Annotated[
        tuple[float, ...], Arg("minimum and maximum x/y of the window; in 3-D also x/z and y/z", ge=0)
    ] = (1.0, 1.0)
    bbox_layout: Annotated[
        str | None, Arg("order of the numbers of a box: the letters of xyXY, xyWH, xyzXYZ or xyzWHD")
    ] = None
    bbox_prune_threshold: Annotated[
        float | None,
        Arg("a box remains if this fraction of it lies in the window; by default, if its centre does", ge=0, le=1),
    ] = None
    crop_shape: Annotated[tuple[int, ...] | None, Arg("shape of the window in pixels", ge=1, per_sample=True)] = None
    input_shape: Annotated[
        tuple[int, ...] | None,
        Arg("shape of the image in pixels; aspect_ratio then refers to pixels", ge=1, per_sample=True),
    ] = None
    ltrb: Annotated[bool, Arg("boxes are xyXY, else xyWH; use this or bbox_layout")] = True
    num_attempts: Annotated[int, Arg("number of windows drawn per threshold", ge=1, le=100_000)] = 1
    output_bbox_indices: Annotated[bool, Arg("add an output: indices of the remaining boxes")] = False
    quiet: Annotated[bool, Arg("suppress warnings", ignored="the report counts searches that gave up")] = False
    scaling: Annotated[tuple[float, float], Arg("range of the window's lengths, in fractions of the image", ge=0)] = (
        1.0,
        1.0,
    )
    shape_layout: Annotated[str | None, Arg("order of crop_shape and input_shape: WH, HW, WHD, ...")] = None
    threshold_type: Annotated[
        Literal["iou", "overlap"],
        Arg("measure: intersection over union of box and window, or fraction of the box inside"),
    ] = "iou"
    thresholds: Annotated[tuple[float, ...], Arg("minimum overlaps; one of them is drawn per attempt", ge=0, le=1)] = (
        0.0,
    )
    total_num_attempts: Annotated[int, Arg("maximum number of windows drawn; -1: no limit", le=10_000_000)] = -1

    def check(self) -> None:
        if self.is_set("ltrb") and self.bbox_layout is not None:
            raise SpecError("ltrb and bbox_layout exclude each other")
        if self.bbox_layout is not None:
            self._columns(self.bbox_layout)
        if self.is_set("crop_shape"):
            if not self.is_set("input_shape"):
                raise SpecError("crop_shape needs input_shape: boxes are in fractions of the image")
            wrong = [n for n in ("aspect_ratio", "scaling") if self.is_set(n)] + ["allow_no_crop"] * bool(
                self.allow_no_crop
            )
            if wrong:
                raise SpecError(f"{wrong[0]} excludes crop_shape, which defines the window")
        self._check_ranges()
        if not self.thresholds:
            raise SpecError("thresholds needs at least one number")
        if self.shape_layout is not None and sorted(self.shape_layout) not in (list("HW"), list("DHW")):
            raise SpecError(f"shape_layout must be W and H, in 3-D also D, in any order, got {self.shape_layout!r}")

    def _check_ranges(self) -> None:
        if not self.scaling[0] <= self.scaling[1]:
            raise SpecError(f"scaling needs the smaller number first, got {list(self.scaling)}")
        if len(self.aspect_ratio) not in (2, 6):
            raise SpecError(f"aspect_ratio needs 2 numbers, or 6 in 3-D, got {list(self.aspect_ratio)}")
        if any(a > b for a, b in zip(self.aspect_ratio[::2], self.aspect_ratio[1::2], strict=True)):
            raise SpecError(f"aspect_ratio needs the smaller number of a pair first, got {list(self.aspect_ratio)}")

    def _columns(self, layout: str) -> tuple[I64, I64, bool]:
        """Return which columns of a box are its start along each axis, which are its end or length, and whether the
        latter are lengths."""
        for known, ndim in _LAYOUTS.items():
            if sorted(layout) == sorted(known):
                at = np.array([layout.index(c) for c in known], np.int64)
                return at[:ndim], at[ndim:], known[ndim] == "W"
        raise SpecError(f"bbox_layout must have the letters of {', '.join(_LAYOUTS)}; got {layout!r}")

    def _ndim(self, width: int | None) -> int | None:
        """Return the number of axes of the image, by bbox_layout or by the ``width`` numbers of a box; None if it is
        unknown."""
        if self.bbox_layout is not None:
            return len(self.bbox_layout) // 2
        return 2 if width is None else width // 2

    @property
    def num_outputs(self) -> int:
        return 3 + (self.num_inputs == 2) + self.output_bbox_indices

    def shows(self) -> dict[int, str]:
        boxes = "boxes " + (self.bbox_layout or ("xyXY" if self.ltrb else "xyWH"))
        return {2: boxes, 3: "labels"} if self.num_inputs == 2 else {2: boxes}

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        check_spec(specs[0], (4, 6) if self.bbox_layout is None else (len(self.bbox_layout),))
        width = None if specs[0].shape is None else specs[0].shape[1]
        ndim = self._ndim(width)
        known = None if width is None else 2 * ndim if ndim else None
        window = Spec((ndim,), DALIDataType.FLOAT)
        out = [window, window, Spec((None, known), DALIDataType.FLOAT, specs[0].layout)]
        if len(specs) == 2:
            labels = specs[1].shape
            out.append(Spec(None if labels is None else (None, *labels[1:]), specs[1].dtype, specs[1].layout))
        if self.output_bbox_indices:
            out.append(Spec((None,), DALIDataType.INT32))
        return tuple(out)

    def _extents(self, ctx: Context, name: str, ndim: int) -> I64:
        """Return the argument ``name`` (``crop_shape`` or ``input_shape``) as width, height and depth, [N, ndim]; no
        rows, [0, ndim], if it is not set."""
        if not self.is_set(name):
            return np.zeros((0, ndim), np.int64)
        order = self.shape_layout or "WHD"[:ndim]
        values = ctx.arg(name, np.int64)
        if len(order) != ndim or values.shape[1] < ndim:
            raise SampleError("bad_argument", f"{name} needs {ndim} numbers ({order}), got {values.shape[1]}")
        extents = np.ascontiguousarray(values[:, [order.index(c) for c in "WHD"[:ndim]]])
        for i in np.flatnonzero((extents < 1).any(axis=1)).tolist():
            ctx.reject(i, "bad_argument", f"{name} must be positive, got {values[i].tolist()}")
            extents[i] = 1
        return extents

    def cpu(self, ctx: Context, boxes: Batch, *labels: Batch) -> tuple[Batch, ...]:
        n = len(boxes)
        width = int(boxes.shapes[0, 1]) if n and boxes.ndim == 2 else 4
        ndim = self._ndim(width if width in (4, 6) else 4) or 2
        layout = self.bbox_layout or ("xyXY" if ndim == 2 else "xyzXYZ")
        if not self.ltrb:
            layout = "xyWH" if ndim == 2 else "xyzWHD"
        low_at, high_at, sized = self._columns(layout)
        counts = counts_of(ctx, boxes, 2 * ndim, relative=True)
        if labels:
            check_labels(ctx, labels[0], counts)
        crop, image = self._extents(ctx, "crop_shape", ndim), self._extents(ctx, "input_shape", ndim)
        no_crop = not len(crop) if self.allow_no_crop is None else self.allow_no_crop
        anchors, shapes = np.zeros((2, n, ndim), np.float32)
        total = int(counts.sum())
        left, kept = np.empty(total * 2 * ndim, np.float32), np.empty(total, np.int32)
        out_counts, exhausted = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        streams = ctx.streams()
        used = _kernels.crops(
            streams.handle, streams.sequence, boxes.data, boxes.offsets, counts, low_at, high_at, sized,
            np.array(self.thresholds, np.float32), no_crop, np.array(self.aspect_ratio, np.float32).reshape(-1, 2),
            np.array(self.scaling, np.float32), self.num_attempts, self.total_num_attempts, _MAX_ATTEMPTS,
            self.threshold_type == "overlap", self.all_boxes_above_threshold,
            np.float32(-1 if self.bbox_prune_threshold is None else self.bbox_prune_threshold), crop, image,
            anchors, shapes, left, kept, out_counts, exhausted,
        )  # fmt: skip
        if exhausted.any():
            ctx.fell_back("no window met its threshold: the best one was taken", int(exhausted.sum()))
        out = [
            Batch.from_dense(anchors, "", ctx.samples),
            Batch.from_dense(shapes, "", ctx.samples),
            list_of(ctx, left[: used * 2 * ndim], out_counts, 2 * ndim, layout=boxes.layout),
        ]
        if labels:
            out.append(chosen(ctx, labels[0], kept[:used], out_counts))
        if self.output_bbox_indices:
            out.append(list_of(ctx, kept[:used], out_counts))
        return tuple(out)
