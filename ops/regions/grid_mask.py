"""Operator grid_mask: cover images with a grid of black squares."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..errors import SpecError
from ..kernels import Kernels

_loops: Any = Kernels(".grid_mask_cpu", __package__)


class GridMask(Operator, name="grid_mask"):
    """Set pixels to zero where a grid of squares covers them (Chen et al., "GridMask Data Augmentation", 2020).

    A pixel (x, y) is kept if the fractional part of (x cos - y sin - shift_x) / tile, or that of (x sin + y cos -
    shift_y) / tile, is at least ``ratio``; in float32. The layout determines the axes of height and width; a tensor
    without a layout begins with them (DALI always uses the first two dimensions).
    """

    replayable = True
    bound = "exact, except pixels at the border of a square if cos or sin differ in the last bit"
    example = "{op: grid_mask, in: images, tile: 56, ratio: 0.5, angle: $angle, out: images}"

    tile: Annotated[int, Arg("distance between squares in pixels", ge=1, per_sample=True)] = 100
    ratio: Annotated[float, Arg("side of the squares as a fraction of tile", per_sample=True)] = 0.5
    angle: Annotated[float, Arg("rotation of the grid around the origin, radians", per_sample=True)] = 0.0
    shift_x: Annotated[float, Arg("shift of the rotated grid to the right, pixels", per_sample=True)] = 0.0
    shift_y: Annotated[float, Arg("shift of the rotated grid down, pixels", per_sample=True)] = 0.0

    def infer(self, *specs: Spec) -> Spec:
        if specs[0].shape is not None:
            _plane(specs[0].layout, len(specs[0].shape))
        return specs[0]

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        at = _plane(images.layout, images.ndim)
        shapes = images.shapes.astype(np.int64)
        planes, pixels = shapes[:, :at].prod(axis=1), shapes[:, at + 2 :].prod(axis=1)
        geometry = np.column_stack([planes, shapes[:, at : at + 2], pixels])
        grid = self._grid(ctx)
        out = Batch.allocate(ctx.empty, images.shapes, images.dtype, images.layout, images.samples)
        bits = np.dtype(f"u{images.dtype.itemsize}")
        source, target = images.data.view(bits), out.data.view(bits)
        if ctx.stage == "cpu":
            _loops.mask(source, images.offsets, geometry, grid, target, out.offsets)
        elif out.data.size:
            self._gpu(ctx, source, images.offsets, geometry, grid, target, out.offsets)
        return out

    gpu = cpu

    def _gpu(
        self, ctx: Context, source: Any, base: I64, geometry: I64, grid: npt.NDArray[np.float32], target: Any, to: I64
    ) -> None:
        starts, sizes, grids, targets = ctx.device.upload(base, geometry, grid, to)
        largest, element = int(geometry.prod(axis=1).max()), source.dtype.itemsize
        if element == 1 and (geometry[:, 3] == 3).all():
            blocks = -(-(largest // 3 + _LEAD) // (256 * 16))
            ctx.device.launch(
                "grid_mask.cu",
                "grid_mask_colours",
                (blocks, len(base)),
                256,
                source,
                starts,
                sizes,
                grids,
                target,
                targets,
            )
            return
        per_thread = 16 // element
        name = f"grid_mask<{_TYPES[element]}>"
        blocks = -(-largest // (256 * per_thread))
        ctx.device.launch("grid_mask.cu", name, (blocks, len(base)), 256, source, starts, sizes, grids, target, targets)

    def _grid(self, ctx: Context) -> npt.NDArray[np.float32]:
        """Return the parameters of each sample's grid as kernels take them, [N, 5]: cos / tile, sin / tile, shift_x /
        tile, shift_y / tile, ratio."""
        tile = ctx.arg("tile", np.int64)
        for i in np.flatnonzero(tile <= 0).tolist():
            ctx.reject(i, "bad_argument", f"tile must be at least 1, got {tile[i]}")
        side = np.maximum(tile, 1).astype(np.float32)
        angle = ctx.arg("angle")
        columns = [np.cos(angle) / side, np.sin(angle) / side, ctx.arg("shift_x") / side, ctx.arg("shift_y") / side]
        return np.stack([*columns, ctx.arg("ratio")], axis=1).astype(np.float32)


_LEAD = 15
"""Maximum number of pixels before the start of a sample that the sample's first GPU thread also covers."""
_TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def _plane(layout: str, ndim: int) -> int:
    """Return the index of the dimension of rows (H) in ``layout``; the dimension of columns follows it."""
    if not layout and ndim >= 2:
        return 0
    at = layout.find("HW")
    if at < 0:
        raise SpecError(f"takes images (a layout with HW), got the layout {layout or '(none)'!r}")
    return at
