"""Take pixels from other positions of their image, given by a formula or by maps. Used by warp_perspective, remap,
water, sphere and warp_affine.

Coordinates in this module refer to pixel centres: (0, 0) is the centre of the first pixel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES, Border, Target, affordable, row_major, run_into, whole
from ..copies.windows import refused
from ..interfaces import DeviceArray
from ..kernels import Kernels
from ..types import DALIInterpType

F64 = npt.NDArray[np.float64]
_loops: Any = Kernels(".sampling_cpu", __package__)
_plans: Any = Kernels(".plan_cpu", __package__)
_THREADS, _PIXELS = 256, 4  # threads per block, and pixels per thread (cuda/sampling.cu)


class Kind(IntEnum):
    """Kind of a map from output pixels to positions in the input. Values are those of the kernels."""

    PERSPECTIVE = 0
    """Perspective map. `PixelSources.params` are the nine numbers of a matrix, row by row, for (x, y, 1) of the
    output."""
    AFFINE = 1
    """Affine map. `PixelSources.params` are as for PERSPECTIVE; the last three are 0, 0, 1."""
    WATER = 2
    """Waves, as in the operator water. `PixelSources.params` are amplitudes, frequencies and phases, each for x and for
    y, in float32."""
    SPHERE = 3
    MAPS = 4
    """Map stored for each output pixel: ``map_x`` and ``map_y`` hold its position in the input. The first of
    `PixelSources.params` is subtracted from both."""


class Filter(IntEnum):
    """Filter that computes an output pixel from pixels of the input. Values are those of the kernels."""

    NEAREST = 0
    """The input pixel nearest to the position; ties are rounded up."""
    NEAREST_EVEN = 1
    LINEAR = 2
    CUBIC = 3


FILTERS = {
    DALIInterpType.INTERP_NN: Filter.NEAREST, DALIInterpType.INTERP_LINEAR: Filter.LINEAR,
    DALIInterpType.INTERP_CUBIC: Filter.CUBIC,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PixelSources:
    """Positions in the input of all output pixels of N samples: parameters of a formula, or one stored position per
    pixel."""

    kind: Kind
    params: F64
    """Parameters of each sample's map, [N, 9], by its `Kind`; unused ones are 0."""
    map_x: npt.NDArray[np.float32] | DeviceArray | None = None
    map_y: npt.NDArray[np.float32] | DeviceArray | None = None
    """For MAPS, the y coordinates of all samples, in the memory in which the kernel runs; else None."""
    map_base: I64 | None = None
    """Index of each sample's first coordinate in ``map_x`` and in ``map_y``, [N, 2]."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Memory layout of a sample: PLANES images of ROWS x COLUMNS pixels, one image after the other, with CHANNELS
    elements per pixel."""

    first: int
    """Index of the dimension of rows (H) in the layout of samples."""
    channels_last: bool

    @staticmethod
    def of(layout: str) -> Grid:
        """Return the grid for samples with ``layout``, which contains HW, with or without C after it."""
        return Grid(layout.index("H"), layout.endswith("C"))

    def geometry(self, shapes: I64, sizes: I64) -> I64:
        """Return planes, rows, columns, channels, and the output's height and width of each sample, [N, 6], as kernels
        take them. ``sizes`` [N, 2]: height and width of outputs."""
        planes = shapes[:, : self.first].prod(axis=1)
        channels = shapes[:, -1] if self.channels_last else np.ones_like(planes)
        return np.column_stack([planes, shapes[:, self.first : self.first + 2], channels, sizes])


def sampled(
    ctx: Context, images: Batch, sizes: I64, sources: PixelSources, filter_: Filter, border: Border, fill: F64,
    skip: npt.NDArray[np.bool_] | None = None, copied: npt.NDArray[np.bool_] | None = None,
) -> Batch:  # fmt: skip
    """Return outputs of ``sizes`` [N, 2] (height, width), whose pixels are taken from ``images`` at the positions
    ``sources``. The layout contains HW. Pixels outside of the image are ``fill`` [N or 1, K or 1]. Samples in the mask
    ``skip`` [N], and samples without pixels, get empty outputs. Samples in the mask ``copied`` [N] are copied
    unchanged."""
    grid = Grid.of(images.layout)
    shape = images.shapes.astype(np.int64)
    shape[:, grid.first : grid.first + 2] = sizes
    empty = images.sizes == 0
    shape = affordable(ctx, refused(shape, empty if skip is None else empty | skip))
    geometry = grid.geometry(images.shapes.astype(np.int64), shape[:, grid.first : grid.first + 2])
    geometry[shape.prod(axis=1) == 0, 0] = 0
    # The fill value is converted to the input's type.
    fills = saturate(saturate(fill, images.dtype), np.float32)
    if copied is not None:
        geometry[copied, 0] = 0
    run = _cpu if ctx.stage == "cpu" else _gpu
    out = run(ctx, images, shape.astype(np.int32), images.dtype, geometry, sources, filter_, border, fills)
    if copied is not None and copied.any():
        plan = whole(images)
        plan = replace(plan, shape=np.where(copied[:, None], plan.shape, 0))
        run_into(ctx, plan, images, Target(out, out.offsets, row_major(shape)))
    return out


def _cpu(
    ctx: Context, images: Batch, shape: Any, dtype: np.dtype[Any], geometry: I64, sources: PixelSources,
    filter_: Filter, border: Border, fills: npt.NDArray[Any],
) -> Batch:  # fmt: skip
    source, base = images.data, images.offsets
    if source.dtype not in (np.uint8, np.float32):
        lo, hi = (int(base.min()), int((base + images.sizes).max())) if len(images) else (0, 0)
        source, base = saturate(source[lo:hi], np.float32), base - lo
    own = dtype if dtype in (np.uint8, np.float32) else np.dtype(np.float32)
    out = Batch.allocate(ctx.empty, shape, own, images.layout, images.samples)
    none = np.zeros(1, np.float32)
    map_x, map_y = (none if m is None else m for m in (sources.map_x, sources.map_y))
    map_base = np.zeros((len(images), 2), np.int64) if sources.map_base is None else sources.map_base
    _loops.sample(source, np.ascontiguousarray(base), geometry, int(sources.kind), sources.params, map_x, map_y,
                  map_base, int(filter_), int(border), fills, out.data, out.offsets)  # fmt: skip
    return out if own == dtype else out.replace(data=saturate(out.data, dtype))


def _gpu(
    ctx: Context, images: Batch, shape: Any, dtype: np.dtype[Any], geometry: I64, sources: PixelSources,
    filter_: Filter, border: Border, fills: npt.NDArray[Any],
) -> Batch:  # fmt: skip
    out = Batch.allocate(ctx.empty, shape, dtype, images.layout, images.samples)
    if out.data.size == 0:
        return out
    map_base = np.zeros((len(images), 2), np.int64) if sources.map_base is None else sources.map_base
    base, sizes, params, begins, values, to = ctx.device.upload(
        images.offsets, geometry, sources.params, map_base, fills, out.offsets
    )
    if takes_pixels(images, dtype, geometry, filter_) and sources.kind is not Kind.MAPS:
        pixels_on_gpu(
            ctx, images, geometry, sources.kind, base, sizes, params, filter_, border, fills.shape, values, out, to
        )
        return out
    pixels = int((geometry[:, 0] * geometry[:, 4] * geometry[:, 5]).max())
    map_x = params if sources.map_x is None else sources.map_x
    map_y = params if sources.map_y is None else sources.map_y
    ctx.device.launch(
        "sampling.cu", f"sample<{CUDA_TYPES[images.dtype]}, {CUDA_TYPES[dtype]}>",
        (-(-pixels // (_THREADS * _PIXELS)), len(images)), _THREADS,
        images.data, base, sizes, np.int32(sources.kind), params, map_x, map_y, begins, np.int32(filter_),
        np.int32(border), values, np.int32(fills.shape[1]), np.int32(len(fills) > 1), out.data, to,
    )  # fmt: skip
    return out


# columns and lines of a tile, and maximum number of pixels before a line's first one
_TILE, _TALL, _BEFORE = 32, 128, 3
_FARTHEST = 400_000  # farthest pixel that cuda/sampling_pixels.cu can address


def takes_pixels(images: Batch, dtype: np.dtype[Any], geometry: I64, filter_: Filter) -> bool:
    """Return whether `pixels_on_gpu` supports ``images``: inputs and outputs must have three bytes per pixel."""
    return images.dtype == np.uint8 and dtype == np.uint8 and filter_ is not Filter.CUBIC and _within(geometry)


def _within(geometry: I64) -> bool:
    three, longest, _ = _plans.extent(geometry, _TALL, _TILE, _BEFORE)
    return bool(three) and int(longest) < _FARTHEST


def pixels_on_gpu(
    ctx: Context, images: Batch, geometry: I64, kind: Kind, base: Any, sizes: Any, params: Any, filter_: Filter,
    border: Border, fill_shape: tuple[int, ...], fills: Any, out: Batch, to: Any,
) -> None:  # fmt: skip
    """Launch the kernel for three-byte pixels, which samples ``images`` into ``out``. ``base``, ``sizes`` (from
    `Grid.geometry`), ``params``, ``fills`` and ``to`` are device arrays."""
    *_, tiles = _plans.extent(geometry, _TALL, _TILE, _BEFORE)
    ctx.device.launch(
        "sampling_pixels.cu", f"sample_pixels<{int(kind)}, {int(filter_)}>",
        (int(tiles), len(images)), _THREADS, images.data, base, sizes, params, np.int32(border), fills,
        np.int32(fill_shape[1]), np.int32(fill_shape[0] > 1), out.data, to,
    )  # fmt: skip
