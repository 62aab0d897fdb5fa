"""Dimensions of a sample to which filters apply, and the arrays that describe them to kernels. Used by all filters."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch, elements
from ..context import Context
from ..conversion import saturate
from ..errors import SpecError

F32 = npt.NDArray[np.float32]
FLOATS = np.dtype(np.float32)

BORDERS = {"reflect_101": 0, "reflect_1001": 1, "reflect": 1, "wrap": 2, "clamp": 3, "replicate": 3, "constant": 4}
"""Numbers of the border modes in kernels (cuda/border.cuh), by the operators' names for them."""


def spatial(layout: str, ndim: int) -> tuple[int, int]:
    """Return the first dimension to filter, and the number of dimensions to filter: all except frames and channels,
    which may be first or last. Raises SpecError unless there are one to three."""
    first = 0
    while first < len(layout) and layout[first] in "FC":
        first += 1
    last = ndim - (1 if layout and layout.endswith("C") and first < ndim else 0)
    inside = layout[first:last]
    if "F" in inside or "C" in inside:
        raise SpecError(f"takes frames first, and channels before or after the dimensions of the picture, got {layout}")
    if not 1 <= last - first <= 3:
        what = f"layout {layout}" if layout else f"{ndim} dimensions without a layout"
        raise SpecError(f"filters one to three dimensions, got {last - first} ({what})")
    return first, last - first


def geometry(shapes: I64, layout: str) -> I64:
    """Return number of images, depth, height, width and channels of samples of ``shapes``, [M, 5]; 1 for dimensions
    that ``layout`` lacks."""
    first, axes = spatial(layout, shapes.shape[1])
    out = np.ones((len(shapes), 5), np.int64)
    if first:
        out[:, 0] = elements(shapes[:, :first])
    out[:, 4 - axes : 4] = shapes[:, first : first + axes]
    if first + axes < shapes.shape[1]:
        out[:, 4] = elements(shapes[:, first + axes :])
    out[elements(out) == 0, 0] = 0
    return out


def whole_numbers(values: npt.NDArray[Any]) -> I64:
    """Convert ``values`` to integers of at most 62 bits; larger numbers become the largest such integers, NaN becomes
    0."""
    limit = 2.0**62
    held: I64 = np.clip(np.nan_to_num(values, nan=0.0, posinf=limit, neginf=-limit), -limit, limit).astype(np.int64)
    return held


THREADS = 256
_ROWS = 4
"""Number of vertically adjacent values that a GPU thread computes (cuda/window.cuh)."""


def tiles_of(sizes: I64) -> int:
    """Return the number of blocks of `THREADS` threads for the largest of the images ``sizes`` [M, 5]."""
    pictures, depth, rows, columns, channels = sizes.T
    return int(-(-(pictures * depth * -(-rows // _ROWS) * columns * channels).max(initial=0) // THREADS))


def strips_of(sizes: I64, width: int, height: int) -> int:
    """Return the number of blocks for the largest of the images, like `tiles_of`, if each thread computes ``width``
    values in each of ``height`` rows (cuda/strips.cuh)."""
    pictures, depth, rows, columns, channels = sizes.T
    most = (pictures * depth * -(-rows // height) * -(-(columns * channels) // width)).max(initial=0)
    return int(-(-most // THREADS))


def fits(sizes: I64) -> bool:
    """Return whether the strip kernels support images of ``sizes`` [M, 5]: rows and windows must be countable in 32
    bits."""
    return int((sizes[:, 3] * sizes[:, 4]).max(initial=0)) < 1 << 28


def by_axis(values: npt.NDArray[Any], axes: int, name: str) -> npt.NDArray[Any]:
    """Return argument ``name`` for each axis, [M, axes]. ``values`` has one value for all axes, or one per axis. Raises
    SpecError for other numbers of values."""
    values = values.reshape(len(values), -1)
    if values.shape[1] == 1:
        return np.repeat(values, axes, axis=1)
    if values.shape[1] != axes:
        raise SpecError(f"{name} takes one value, or one for each of {axes} dimensions, got {values.shape[1]}")
    return values


def on_host(images: Batch, base: I64) -> tuple[Any, I64]:
    """Return the data of ``images`` as uint8 or float32, the types for which loops are compiled, and each image's
    offset in it. ``base``: offset of each image in the batch."""
    source = images.data
    if source.dtype in (np.uint8, np.float32) or len(images) == 0:
        return source if len(images) else np.zeros(0, np.float32), np.ascontiguousarray(base)
    low, high = int(images.offsets.min()), int((images.offsets + images.sizes).max())
    return saturate(source[low:high], np.float32), np.ascontiguousarray(base - low)


def host_output(ctx: Context, images: Batch, shapes: Any, dtype: np.dtype[Any]) -> tuple[Batch, bool]:
    """Return an output batch of ``shapes``, in a type for which loops are compiled, and whether it must be converted to
    ``dtype`` afterwards."""
    own = dtype if dtype in (np.uint8, np.float32) else FLOATS
    empty = ctx.empty if own == dtype else np.empty
    return Batch.allocate(empty, shapes, own, images.layout, images.samples), own != dtype
