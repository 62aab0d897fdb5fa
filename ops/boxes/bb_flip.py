"""Operator bb_flip: mirror boxes."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType

_kernels: Any = Kernels(".boxes_cpu", __package__)


class BbFlip(Operator, name="bb_flip"):
    """Mirror boxes as flip mirrors their image.

    Boxes are float32 in fractions of the image, [n, 4] or of any shape whose numbers come in fours; x, y, width and
    height, or with ``ltrb`` left, top, right and bottom.
    """

    example = "{op: bb_flip, in: boxes, ltrb: true, horizontal: $mirror, out: boxes}"

    horizontal: Annotated[int, Arg("1 mirrors left to right", per_sample=True)] = 1
    ltrb: Annotated[bool, Arg("boxes are left, top, right, bottom; else x, y, width, height")] = False
    vertical: Annotated[int, Arg("1 mirrors top to bottom", per_sample=True)] = 0

    def shows(self) -> dict[int, str]:
        return {0: "boxes xyXY" if self.ltrb else "boxes xyWH"}

    def infer(self, *specs: Spec) -> Spec:
        if specs[0].dtype not in (None, DALIDataType.FLOAT):
            raise SpecError(f"takes boxes of float32, got {specs[0]}; cast them first")
        return specs[0]

    def cpu(self, ctx: Context, boxes: Batch) -> Batch:
        if boxes.dtype != np.float32:
            raise SampleError("bad_shape", f"takes boxes of float32, got {boxes.dtype}; cast them first")
        sizes = boxes.sizes
        for i in np.flatnonzero(sizes % 4).tolist():
            ctx.reject(i, "bad_shape", f"boxes need 4 numbers each, got {int(sizes[i])} numbers")
        shapes = np.where((sizes % 4 != 0)[:, None], 0, boxes.shapes).astype(np.int32)
        out = Batch.allocate(ctx.empty, shapes, np.float32, boxes.layout, ctx.samples)
        counts = out.sizes // 4
        horizontal, vertical = ctx.arg("horizontal", np.int32), ctx.arg("vertical", np.int32)
        if ctx.stage == "cpu":
            _kernels.flip(boxes.data, boxes.offsets, counts, horizontal, vertical, self.ltrb, out.data)
        elif len(out.data):
            starts, to, counts_, flips = ctx.device.upload(
                boxes.offsets, out.offsets, counts, np.stack([horizontal, vertical])
            )
            ctx.device.launch(
                "boxes.cu", "flip_boxes", (-(-int(counts.max()) // 128), len(boxes)), 128, boxes.data, starts, counts_,
                flips, np.int32(len(boxes)), np.int32(self.ltrb), out.data, to,
            )  # fmt: skip
        return out

    gpu = cpu
