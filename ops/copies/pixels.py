"""Pixels: a kernel of its own for the copies that pictures of three bytes a pixel take most: a window, mirrored,
normalised, with the channels last or first, or in the opposite order, or all three from one plane. It reads and writes
aligned words, where `strided` works out the place of every value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64
from ..context import Context
from ..gpu.repeated import FIXED, changing
from ..kernels import Kernels

_loops: Any = Kernels(".pixels_cpu", __package__)
_THREADS = 256
_PICTURES = 65535
"""That a grid of CUDA's holds."""
_NO_FACTORS = np.zeros((1, 1, 3), np.float32)
Copied = tuple[tuple[I64, I64, I64, I64], I64, I64, I64, npt.NDArray[np.float32] | None]
"""``dims``, ``base``, ``out_base``, ``out_stride`` and ``factors`` of `launched`."""
_TYPES = {np.dtype(np.uint8): "unsigned char", np.dtype(np.float16): "half", np.dtype(np.float32): "float"}


def launched(
    ctx: Context, source: Any, base: I64, dims: tuple[I64, I64, I64, I64], out: Any, out_base: I64, out_stride: I64,
    factors: npt.NDArray[np.float32] | None, channel: int, again: Callable[[Context], Copied | None] | None = None,
) -> bool:  # fmt: skip
    """Launch the copy of ``source`` into ``out``, flat arrays on the device, if it is one of these; False otherwise.
    Samples are pictures, or sequences of them.

    ``dims`` are shape, stride, anchor and extent [N, D], as `strided.CopyPlan` has them; ``factors`` [1 or N, K, 3] run
    along dimension ``channel``. ``again`` gives ``dims``, ``base``, ``out_base``, ``out_stride`` and ``factors`` for
    other arguments.
    """
    n, ndim = dims[0].shape
    if ndim not in (3, 4) or source.dtype != np.uint8 or out.dtype not in _TYPES:
        return False
    width = 1 if factors is None else factors.shape[1]
    if width not in (1, 3):
        return False
    at = channel if width == 3 else _channels(dims[0], dims[1])
    if at not in (ndim - 3, ndim - 1):
        return False
    frames = max(int(dims[0][:, 0].max()), 1) if ndim == 4 else 1
    if n * frames > _PICTURES:
        return False
    itemsize = int(out.dtype.itemsize)
    table = np.empty((n * frames, 8), np.int64)
    most = _loops.table(*map(np.ascontiguousarray, (*dims, base, out_base, out_stride)), at, itemsize, frames, table)
    if most < 0:
        return False
    rows = _NO_FACTORS if factors is None else factors

    def other(ctx: Context) -> tuple[I64, npt.NDArray[np.float32]] | None:
        assert again is not None
        copied = again(ctx)
        if copied is None:
            return None
        dims, base, out_base, out_stride, factors = copied
        if ndim == 4 and dims[0][:, 0].max() > frames:
            return None
        table = np.empty((n * frames, 8), np.int64)
        found = _loops.table(
            *map(np.ascontiguousarray, (*dims, base, out_base, out_stride)), at, itemsize, frames, table
        )
        return (table, _NO_FACTORS if factors is None else factors) if 0 <= found <= most else None

    remade = again if again is None or again is FIXED else other
    there, given = changing(ctx.device, remade, table, rows)
    name = f"pixels<{_TYPES[out.dtype]}, {str(at == ndim - 3).lower()}, {str(factors is not None).lower()}>"
    ctx.device.launch(
        "pixels.cu", name, (-(-int(most) // _THREADS), n * frames), _THREADS, source, out, there, np.int32(frames),
        given, np.int32(width), np.int32(len(rows) > 1),
    )  # fmt: skip
    return True


def _channels(shape: I64, stride: I64) -> int:
    """Which dimension may be the three channels, by the first sample that has any: the last, or that before lines."""
    ndim = int(shape.shape[1])
    for i in np.flatnonzero(shape.all(axis=1))[:1].tolist():
        return ndim - 1 if shape[i, -1] == 3 and abs(stride[i, -2]) in (1, 3) else ndim - 3
    return ndim - 1
