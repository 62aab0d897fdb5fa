"""Operator ssd_random_crop: cut out the random window of SSD's training, and keep the boxes and labels in it."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..copies.strided import run, whole, window
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from .rows import check_labels, check_spec, chosen, counts_of, list_of

_kernels: Any = Kernels(".bbox_crop_cpu", __package__)

_MAX_ATTEMPTS = 100_000


class SsdRandomCrop(Operator, name="ssd_random_crop"):
    """Cut a random window out of each image, and keep the boxes whose centre lies in it, with their labels.

    Inputs: images, boxes [n, 4] (left, top, right, bottom in fractions of the image) and labels; the outputs have the
    same form. Works as random_bbox_crop with the thresholds -1, 0.1, 0.3, 0.5, 0.7, 0.9 and none, lengths of 0.3 to 1
    and aspect ratios of 0.5 to 2. DALI calls it deprecated; use random_bbox_crop and slice. Images without boxes are
    not cropped (DALI searches until it draws no threshold, with the same result).
    """

    inputs = (3, 3)
    random = True
    layouts = ("HWC",)
    example = "{op: ssd_random_crop, in: [images, boxes, labels], num_attempts: 5, out: [images, boxes, labels]}"

    num_attempts: Annotated[int, Arg("number of windows drawn per threshold", ge=1, le=100_000)] = 1

    @property
    def num_outputs(self) -> int:
        return 3

    def shows(self) -> dict[int, str]:
        return {1: "boxes xyXY", 2: "labels"}

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        images, boxes, labels = specs
        check_spec(boxes, (4,))
        if images.shape is not None and len(images.shape) != 3:
            raise SpecError(f"takes images of three dimensions (HWC), got {images}")
        return (
            Spec(None if images.shape is None else (None, None, images.shape[2]), images.dtype, images.layout),
            Spec((None, 4), boxes.dtype, boxes.layout),
            Spec(None if labels.shape is None else (None, *labels.shape[1:]), labels.dtype, labels.layout),
        )

    def cpu(self, ctx: Context, images: Batch, boxes: Batch, labels: Batch) -> tuple[Batch, ...]:
        if images.ndim != 3:
            raise SampleError("bad_shape", f"takes images of three dimensions (HWC), got {images.ndim}")
        n = len(images)
        counts = counts_of(ctx, boxes, 4, relative=True)
        check_labels(ctx, labels, counts)
        windows = np.zeros((n, 4), np.int64)
        total = int(counts.sum())
        left, kept = np.empty(total * 4, np.float32), np.empty(total, np.int32)
        out_counts = np.zeros(n, np.int64)
        streams = ctx.streams()
        used = _kernels.ssd_crops(
            streams.handle, streams.sequence, boxes.data, boxes.offsets, counts,
            images.shapes[:, :2].astype(np.int64), self.num_attempts, _MAX_ATTEMPTS, windows, left, kept, out_counts,
        )  # fmt: skip
        channels = np.zeros((n, 1), np.int64)
        cut = window(
            whole(images), np.hstack([windows[:, :2], channels]), np.hstack([windows[:, 2:], images.shapes[:, 2:]])
        )
        return (
            run(ctx, cut, images),
            list_of(ctx, left[: used * 4], out_counts, 4, layout=boxes.layout),
            chosen(ctx, labels, kept[:used], out_counts),
        )
