"""Operator clahe: contrast-limited adaptive histogram equalisation, by tiles."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..copies.windows import known_layout
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType

_kernels: Any = Kernels(".clahe_cpu", __package__)

_MAX_TILES = 1 << 16


class Clahe(Operator, name="clahe"):
    """Equalise the histogram of each tile of uint8 images, with clipped peaks, as OpenCV's CLAHE does; between the
    centres of tiles, values are interpolated.

    For RGB images only the lightness is equalised (L of Lab, as in OpenCV), or with ``luma_only: false`` each channel.
    """

    layouts = ("HWC",)
    bound = "exact; 2 levels for RGB images with luma_only"
    replayable = True
    example = "{op: clahe, in: images, tiles_x: 8, tiles_y: 8, clip_limit: 2.0, out: images}"

    tiles_x: Annotated[int, Arg("number of tiles across the image", ge=1)]
    tiles_y: Annotated[int, Arg("number of tiles down the image", ge=1)]
    clip_limit: Annotated[
        float, Arg("limit on a histogram bin of a tile, as a multiple of the mean bin; 0: no limit", ge=0)
    ]
    bins: Annotated[int, Arg("256: values of uint8", ignored="histograms have 256 bins, as in DALI")] = 256
    luma_only: Annotated[bool, Arg("for RGB images, equalise only the lightness")] = True

    def check(self) -> None:
        if self.tiles_x * self.tiles_y > _MAX_TILES:
            raise SpecError(f"{self.tiles_x} x {self.tiles_y} tiles are more than {_MAX_TILES:,}, each with a table")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype not in (None, DALIDataType.UINT8):
            raise SpecError(f"takes uint8 images, got {data}; cast them first")
        if data.shape is not None and data.shape[-1] not in (None, 1, 3):
            raise SpecError(f"takes images of 1 or 3 channels, got {data}")
        return Spec(data.shape, DALIDataType.UINT8, data.layout or "HWC")

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        if images.dtype != np.uint8:
            raise SampleError("bad_shape", f"takes uint8 images, got {images.dtype}; cast them first")
        images = images.replace(layout=known_layout(images, self.layouts))
        wrong = (images.shapes[:, 2] != 1) & (images.shapes[:, 2] != 3)
        if wrong.any():
            for i in np.flatnonzero(wrong).tolist():
                ctx.reject(i, "bad_shape", f"takes 1 or 3 channels, got {images.shapes[i, 2]}")
            images = images.replace(shapes=np.where(wrong[:, None], 0, images.shapes).astype(np.int32))
        sizes = images.shapes.astype(np.int64)
        grid = np.int32(self.tiles_y), np.int32(self.tiles_x)
        clip = np.float64(self.clip_limit)
        out = Batch.allocate(ctx.empty, images.shapes, np.uint8, images.layout, images.samples)
        if ctx.stage == "cpu":
            base = np.ascontiguousarray(images.offsets)
            _kernels.clahe(images.data, base, sizes, *grid, clip, self.luma_only, out.data, out.offsets)
            return out
        pixels = int(sizes[:, :2].prod(axis=1).max(initial=0))
        if pixels == 0 or out.data.size == 0:
            return out
        lane, tiles, count = ctx.device, self.tiles_x * self.tiles_y, len(images)
        gamma, root = _kernels.tables()
        tables = lane.empty(count * tiles * 3 * 256, np.uint8)
        base, to, extent, curve, roots = lane.upload(images.offsets, out.offsets, sizes, gamma, root)
        luma = np.int32(self.luma_only)
        lane.launch(
            "clahe.cu", "tile_tables", count * tiles * 3, 256, images.data, base, extent, *grid, clip, luma,
            curve, roots, tables,
        )  # fmt: skip
        blocks = -(-pixels // 256)
        lane.launch(
            "clahe.cu", "blend", count * blocks, 256, images.data, base, extent, np.int32(blocks), *grid, luma, curve,
            roots, tables, out.data, to,
        )  # fmt: skip
        return out

    gpu = cpu
