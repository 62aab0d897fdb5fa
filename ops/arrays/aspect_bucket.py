"""aspect_bucket: the size among a few that fits the aspect ratio of an image best."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import SpecError
from ..types import DALIDataType


class AspectBucket(Operator, name="aspect_bucket"):
    """Choose for each image the size, of those that are listed, whose aspect ratio is nearest to the image's.

    The input is the shape of an image (height, width, ...), as peek_image_shape or shapes gives it. Outputs: the size
    (height, width; int32, shape (2,)), for `size` of resize with ``mode: not_smaller`` and for `crop`, and its number
    in the list (int32, shape (1,)). Ratios are compared by their logarithms; of equally near sizes the first is taken.
    With ``batching: shapes`` iterators then give batches of one size each.
    """

    example = "{op: aspect_bucket, in: shape, sizes: [[512, 512], [448, 576], [576, 448]], out: [size, bucket]}"

    sizes: Annotated[tuple[tuple[int, ...], ...], Arg("sizes as (height, width) in pixels")]

    @property
    def num_outputs(self) -> int:
        return 2

    def check(self) -> None:
        if not self.sizes or any(len(s) != 2 or min(s) < 1 for s in self.sizes):
            raise SpecError(f"sizes must be pairs of height and width from 1 on, got {list(map(list, self.sizes))}")

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        shape = specs[0].shape
        if shape is not None and (len(shape) != 1 or shape[0] in (0, 1)):
            raise SpecError(f"takes the shape of an image, a list of height and width, got {specs[0]}")
        return Spec((2,), DALIDataType.INT32, ""), Spec((1,), DALIDataType.INT32, "")

    def cpu(self, ctx: Context, shape: Batch) -> tuple[Batch, ...]:
        sound = np.flatnonzero((shape.sizes >= 2) if shape.ndim == 1 else np.zeros(len(shape), np.bool_))
        ratio = np.zeros(len(shape))
        height, width = shape.data[shape.offsets[sound]], shape.data[shape.offsets[sound] + 1]
        positive = (height > 0) & (width > 0)
        sound = sound[positive]
        ratio[sound] = np.log(height[positive].astype(np.float64)) - np.log(width[positive].astype(np.float64))
        for i in np.setdiff1d(np.arange(len(shape)), sound).tolist():
            ctx.reject(i, "bad_shape", f"is not the height and width of an image: {shape.sample(i).tolist()!r:.60}")
        sizes = np.array(self.sizes, np.int32)
        listed = np.log(sizes[:, 0].astype(np.float64)) - np.log(sizes[:, 1].astype(np.float64))
        number = np.abs(ratio[:, None] - listed).argmin(axis=1).astype(np.int32)
        return (
            Batch.from_dense(sizes[number], "", ctx.samples),
            Batch.from_dense(number.reshape(-1, 1), "", ctx.samples),
        )
