"""GPU kernel for the most frequent copies of images with three bytes per pixel: a window, mirrored, normalised, with
channels last or first, or in reverse order, or all three from one plane. It reads and writes aligned words, whereas the
general kernel of `strided` computes the position of every value. Called by `strided`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64
from ..context import Context
from ..gpu.launch_recording import FIXED, changing
from ..kernels import Kernels

_loops: Any = Kernels(".pixels_cpu", __package__)
_THREADS = 256
_SPREAD = 4
"""Number of output words that each GPU thread of the kernel `spread` writes (cuda/pixels.cu)."""
_PICTURES = 65535
"""Maximum number of images that this kernel copies: the limit of a CUDA grid's second dimension."""
_NO_FACTORS = np.zeros((1, 1, 3), np.float32)
Copied = tuple[tuple[I64, I64, I64, I64], I64, I64, I64, npt.NDArray[np.float32] | None, npt.NDArray[Any]]
"""Parameters of a copy that may change when the recorded kernel launch is repeated for a later batch: ``dims``,
``base``, ``out_base``, ``out_stride``, ``factors`` and ``fill`` of `launch`."""
_TYPES = {np.dtype(np.uint8): "unsigned char", np.dtype(np.float16): "half", np.dtype(np.float32): "float"}


def launch(
    ctx: Context, source: Any, out: Any, copied: Copied, channel: int,
    recompute: Callable[[Context], Copied | None] | None = None,
) -> bool:  # fmt: skip
    """Copy images, or sequences of images, with this kernel, and return True; return False if the kernel does not
    support the copy. ``source`` and ``out`` are flat arrays on the device.

    ``dims`` are shape, stride, anchor and extent [N, D], as in `strided.CopyPlan`. ``factors`` [1 or N, K, 3] vary
    along dimension ``channel``; so does ``fill`` [1 or N, K], which supplies a fourth channel. ``recompute`` returns
    these parameters (`Copied`) for a later batch of the same shapes."""
    dims, _, _, _, factors, fill = copied
    n, ndim = dims[0].shape
    if ndim not in (3, 4) or source.dtype != np.uint8 or out.dtype not in _TYPES:
        return False
    width = 1 if factors is None else factors.shape[1]
    if width not in (1, 3):
        return False
    at, channels = _channels(dims[0], dims[1])
    at = channel if width == 3 else at
    if at not in (ndim - 3, ndim - 1) or (channels == 4 and (at != ndim - 1 or len(fill) > 1)):
        return False
    frames = max(int(dims[0][:, 0].max()), 1) if ndim == 4 else 1
    if n * frames > _PICTURES:
        return False
    itemsize = int(out.dtype.itemsize)

    def made(copied: Copied) -> tuple[I64, int]:
        table = np.empty((n * frames, 8), np.int64)
        arrays = map(np.ascontiguousarray, (*copied[0], *copied[1:4]))
        return table, int(_loops.table(*arrays, at, channels, itemsize, frames, table))

    table, most = made(copied)
    if most < 0:
        return False
    rows = _NO_FACTORS if factors is None else factors
    spread = at == ndim - 1 and (channels == 4 or itemsize == 4)

    def other(ctx: Context) -> tuple[npt.NDArray[Any], ...] | None:
        assert recompute is not None
        copied = recompute(ctx)
        if copied is None or (ndim == 4 and copied[0][0][:, 0].max() > frames):
            return None
        table, found = made(copied)
        own = (_NO_FACTORS if copied[4] is None else copied[4],)
        return (table, *own, *((copied[5],) if spread else ())) if 0 <= found <= most else None

    remade = recompute if recompute is None or recompute is FIXED else other
    there, given, *fills = changing(ctx.device, remade, table, rows, *((fill,) if spread else ()))
    affine = str(factors is not None).lower()
    more = np.int32(frames), given, np.int32(width), np.int32(len(rows) > 1)
    if spread:
        shape = dims[0]
        values = int((shape[:, -3] * shape[:, -2]).max()) * channels  # values per image
        in_word = 16 // itemsize  # the first word may begin before the image
        tiles = -(-(values + in_word - 1) // (_THREADS * _SPREAD * in_word))
        name = f"spread<{_TYPES[out.dtype]}, {channels}, {affine}>"
        last = np.int32(3 if fill.shape[1] > 3 else 0)
        ctx.device.launch("pixels.cu", name, (tiles, n * frames), _THREADS, source, out, there, *more, *fills, last)
        return True
    name = f"pixels<{_TYPES[out.dtype]}, {str(at == ndim - 3).lower()}, {affine}>"
    tiles = -(-most // _THREADS)
    ctx.device.launch("pixels.cu", name, (tiles, n * frames), _THREADS, source, out, there, *more)
    return True


def _channels(shape: I64, stride: I64) -> tuple[int, int]:
    """Guess which dimension holds the channels: the last one (HWC), or the one before the rows (CHW). Judged by the
    first sample that is not empty. Return the dimension's index and length."""
    ndim = int(shape.shape[1])
    for i in np.flatnonzero(shape.all(axis=1))[:1].tolist():
        if shape[i, -1] in (3, 4) and abs(stride[i, -2]) in (1, 3):
            return ndim - 1, int(shape[i, -1])
        return ndim - 3, 3
    return ndim - 1, 3
