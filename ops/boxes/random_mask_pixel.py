"""Operator segmentation.random_mask_pixel: draw a random pixel of a mask."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import SpecError
from ..kernels import Kernels
from ..types import DALIDataType

_kernels: Any = Kernels(".masks_cpu", __package__)


class RandomMaskPixel(Operator, name="segmentation.random_mask_pixel"):
    """Draw a pixel of each mask; with ``foreground``, a pixel above ``threshold`` or equal to ``value``, if there is
    one.

    The output, int64 [D], is the pixel's index along each of the mask's D axes. Empty masks are rejected.
    """

    random = True
    example = "{op: segmentation.random_mask_pixel, in: masks, foreground: 1, out: place}"

    foreground: Annotated[int, Arg("1: draw among the foreground; 0: draw among all pixels", per_sample=True)] = 0
    threshold: Annotated[float, Arg("pixels above it are foreground", per_sample=True)] = 0.0
    value: Annotated[int | None, Arg("pixels equal to it are foreground; instead of threshold", per_sample=True)] = None

    def check(self) -> None:
        if self.is_set("value") and self.is_set("threshold"):
            raise SpecError("value and threshold exclude each other")

    def infer(self, *specs: Spec) -> Spec:
        mask = specs[0]
        if mask.dtype is not None and mask.dtype in (DALIDataType.FLOAT16, DALIDataType.FLOAT64):
            raise SpecError(f"takes masks of integers, bool or float32, got {mask}; cast them first")
        return Spec((mask.ndim,), DALIDataType.INT64)

    def cpu(self, ctx: Context, masks: Batch) -> Batch:
        n, ndim = len(masks), masks.ndim
        for i in np.flatnonzero(masks.sizes == 0).tolist():
            ctx.reject(i, "bad_shape", f"the mask has no pixels: {masks.shapes[i].tolist()}")
        out = np.zeros((n, ndim), np.int64)
        exact = self.is_set("value")
        values = ctx.arg("value", np.int64) if exact else np.zeros(n, np.int64)
        streams = ctx.streams()
        data = masks.data.view(np.uint8) if masks.dtype == np.bool_ else masks.data
        _kernels.pixels(
            streams.handle, streams.sequence, data, masks.offsets, masks.shapes.astype(np.int64),
            ctx.arg("foreground", np.int32), exact, values, ctx.arg("threshold", np.float32), out,
        )  # fmt: skip
        return Batch.from_dense(out, "", ctx.samples)
