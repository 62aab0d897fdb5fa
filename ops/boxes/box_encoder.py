"""Operator box_encoder: match boxes with default boxes, as for the training of SSD."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..batch import elements as sizes_of
from ..context import Context
from ..errors import SpecError
from ..kernels import Kernels
from ..types import DALIDataType
from .rows import check_labels, check_spec, counts_of

_kernels: Any = Kernels(".boxes_cpu", __package__)


@lru_cache(1)
def ssd300() -> tuple[float, ...]:
    """Return the 8,732 default boxes of SSD for images of 300 x 300 pixels, in MLPerf's order: six grids (38, 19, 10,
    5, 3 and 1 cells per side, 8, 16, 32, 64, 100 and 300 pixels apart), each with boxes of 21, 45, 99, 153, 207 and 261
    pixels, of the geometric mean with the next size, and of ratios 1/2 and 2, in the second to fourth grid also 1/3 and
    3; clipped at the border."""
    grids = ((38, 8), (19, 16), (10, 32), (5, 64), (3, 100), (1, 300))
    sizes = (21, 45, 99, 153, 207, 261, 315)
    rows = []
    for k, (cells, step) in enumerate(grids):
        small, large = sizes[k] / 300, np.sqrt(sizes[k] * sizes[k + 1]) / 300
        shapes = [(small, small), (large, large)]
        for ratio in (2, 3)[: 2 if 1 <= k <= 3 else 1]:
            wide, low = small * np.sqrt(ratio), small / np.sqrt(ratio)
            shapes += [(wide, low), (low, wide)]
        y, x = np.mgrid[:cells, :cells].reshape(2, -1, 1)
        w, h = np.array(shapes).T
        cx, cy = (x + 0.5) * step / 300, (y + 0.5) * step / 300
        rows.append(np.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], axis=-1).reshape(-1))
    return tuple(np.concatenate(rows).clip(0, 1).astype(np.float32).tolist())


class BoxEncoder(Operator, name="box_encoder"):
    """Match boxes with ``anchors`` (default boxes), as "SSD: Single Shot MultiBox Detector" (arXiv:1512.02325) does.

    Inputs: boxes float32 [n, 4] (left, top, right, bottom) and integer labels [n]. Outputs for each of the A anchors:
    centre x, y, width and height of the matched box, [A, 4], or of the anchor itself if no box matches; and the box's
    label, or 0. Every box is matched with the anchor that it overlaps most. Every other anchor is matched with the box
    that overlaps it most, if their intersection over union is above ``criteria``. With ``offset`` the outputs are
    ((centre - anchor's) / anchor's length - means) / stds and (log(length / anchor's) - means) / stds, and 0 for
    anchors without a box.
    """

    replayable = True
    inputs = (2, 2)
    bound = "2e-6"
    example = "{op: box_encoder, in: [boxes, labels], anchors: [0, 0, 0.5, 0.5, 0.5, 0.5, 1, 1], out: [boxes, labels]}"

    anchors: Annotated[
        Literal["ssd300"] | tuple[float, ...],
        Arg("left, top, right, bottom of each anchor, one anchor after the other; ssd300: SSD's for 300 x 300 pixels"),
    ]
    criteria: Annotated[float, Arg("minimum intersection over union of a match", ge=0, le=1)] = 0.5
    means: Annotated[tuple[float, float, float, float], Arg("means of x, y, width and height; with offset")] = (
        0.0, 0.0, 0.0, 0.0,
    )  # fmt: skip
    offset: Annotated[bool, Arg("output differences from the anchor")] = False
    scale: Annotated[float, Arg("factor for boxes and anchors before the comparison; with offset")] = 1.0
    stds: Annotated[
        tuple[float, float, float, float], Arg("standard deviations of x, y, width and height; with offset")
    ] = (
        1.0, 1.0, 1.0, 1.0,
    )  # fmt: skip

    @property
    def num_outputs(self) -> int:
        return 2

    def check(self) -> None:
        if self.anchors != "ssd300" and (not self.anchors or len(self.anchors) % 4):
            raise SpecError(f"anchors needs 4 numbers for each anchor, got {len(self.anchors)} numbers")
        if 0 in self.stds:
            raise SpecError(f"stds must not be 0, got {list(self.stds)}")

    @cached_property
    def _anchors(self) -> npt.NDArray[np.float32]:
        given = ssd300() if self.anchors == "ssd300" else self.anchors
        return np.array(given, np.float32).reshape(-1, 4)

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        check_spec(specs[0], (4,))
        labels = specs[1].dtype
        if labels is not None and np.dtype(labels.name.lower()).kind not in "iu":
            raise SpecError(f"takes labels of integers, got {specs[1]}")
        count = len(self._anchors)
        return Spec((count, 4), DALIDataType.FLOAT), Spec((count,), labels)

    def cpu(self, ctx: Context, boxes: Batch, labels: Batch) -> tuple[Batch, ...]:
        n, count = len(boxes), len(self._anchors)
        counts = counts_of(ctx, boxes, 4)
        check_labels(ctx, labels, counts)
        for i in np.flatnonzero((counts > 0) & (sizes_of(labels.shapes) != counts)).tolist():
            ctx.reject(i, "bad_shape", f"labels must be one number per box, got the shape {labels.shapes[i].tolist()}")
            counts[i] = 0
        out, found = ctx.empty(n * count * 4, np.float32), ctx.empty(n * count, labels.dtype)
        means, stds = np.array(self.means, np.float32), np.array(self.stds, np.float32)
        scale, criteria = np.float32(self.scale), np.float32(self.criteria)
        if ctx.stage == "cpu":
            _kernels.encode(
                boxes.data, boxes.offsets, counts, labels.data, labels.offsets, self._anchors, criteria, self.offset,
                scale, means, stds, out.reshape(n, count, 4), found.reshape(n, count),
            )  # fmt: skip
        elif n:
            self._launch(ctx, boxes, counts, labels, np.concatenate([means, stds]), out, found)
        return (
            Batch.from_dense(out.reshape(n, count, 4), "", ctx.samples),
            Batch.from_dense(found.reshape(n, count), "", ctx.samples),
        )

    gpu = cpu

    def _launch(
        self, ctx: Context, boxes: Batch, counts: Any, labels: Batch, norms: Any, out: Any, out_labels: Any
    ) -> None:
        from ..copies.strided import CUDA_TYPES

        lane, n, count, total = ctx.device, len(boxes), len(self._anchors), int(counts.sum())
        first = np.cumsum(counts) - counts
        owner = np.repeat(np.arange(n), counts)
        starts = boxes.offsets[owner] + 4 * (np.arange(total) - first[owner])
        anchors, norms, at, first, label_at, each = lane.upload(
            self._anchors.reshape(-1), norms, starts, first, labels.offsets, counts
        )
        best = lane.empty(max(total, 1), np.int32)
        if total:
            lane.launch("boxes.cu", "best_anchors", total, 128, boxes.data, at, anchors, np.int32(count), best)
        lane.launch(
            "boxes.cu", f"encode_boxes<{CUDA_TYPES[labels.dtype]}>", (-(-count // 128), n), 128, boxes.data, at, first,
            each, labels.data, label_at, best, anchors, np.int32(count), np.float32(self.criteria),
            np.int32(self.offset), np.float32(self.scale), norms, out, out_labels,
        )  # fmt: skip
