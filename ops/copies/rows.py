"""GPU kernel for copies whose lines are runs of bytes in source and output, with one fill value outside of them, or one
per channel. It computes positions once per line and moves aligned words, whereas the general kernel of `strided` does
so for every value. Called by `strided`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64
from ..context import Context
from ..gpu.launch_recording import FIXED, changing

_THREADS = 256
_LONG_LINE, _PIECE = 16384, 2048
"""Length in bytes above which a line (adjacent elements of a sample) is split, and length of the pieces. Neighbouring
GPU threads then write to adjacent memory."""
_MIN_LINE = 16
"""Minimum length of a line in bytes for which this kernel is faster than the general one of `strided`."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A copy plan (`strided.CopyPlan`) as a list of lines: runs of adjacent bytes, which the GPU kernel copies."""

    dims: I64
    """Nested loops that copy each sample, [N, D, 5], with the columns of `strided.Loops`. Elements of the last loop are
    adjacent in memory."""
    base: I64
    out_base: I64
    fills: npt.NDArray[np.uint8]
    """Fill values for elements outside the source, as bytes to be repeated, [1 or N, 1 or K, bytes]; see `pattern`."""
    period: int
    channel: int
    """Index of the loop over K channels that have different fill values; -1 if there is a single fill value."""
    max_lines: int
    """Maximum number of lines per sample."""
    max_elements: int
    """Maximum number of elements per line."""


def supports(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether the kernel can copy between these element types: equal types, or bytes that become floats."""
    return source == target or (source == np.uint8 and target == np.float32)


def fits(max_elements: int, itemsize: int) -> bool:
    """Return whether this kernel is faster than the general one, if lines have up to ``max_elements`` elements of
    ``itemsize`` bytes."""
    return max_elements * itemsize >= _MIN_LINE


def pattern(fill: npt.NDArray[Any], along: bool) -> tuple[npt.NDArray[np.uint8], int]:
    """Convert the fill values ``fill`` [R, K] to bytes [R, 1 or K, width], repeated to the width that a GPU thread
    reads. Also return the period in bytes: the size of K values if the values of a line belong to different channels
    (``along``), else the size of one."""
    if len(fill) == 1:
        return _constant(fill.tobytes(), fill.dtype, along)
    return _pattern(fill, along)


@lru_cache(256)
def _constant(values: bytes, dtype: Any, along: bool) -> tuple[npt.NDArray[np.uint8], int]:
    return _pattern(np.frombuffer(values, dtype).reshape(1, -1), along)


def _pattern(fill: npt.NDArray[Any], along: bool) -> tuple[npt.NDArray[np.uint8], int]:
    count, channels = fill.shape
    once = np.ascontiguousarray(fill).view(np.uint8).reshape(count, 1 if along else channels, -1)
    period = once.shape[2]
    width = -(-(period + 32) // 16) * 16  # a word may begin at any byte of the first period
    return np.ascontiguousarray(once[:, :, np.arange(width) % period]), period


def launch(
    ctx: Context, source: Any, target: Any, lines: Lines, recompute: Callable[[Context], Lines | None] | None
) -> None:
    """Copy ``source`` to ``target``, flat arrays on the device whose types `supports` accepts. ``recompute`` returns
    the lines for a later batch of the same shapes, or None if that batch needs another kernel."""
    n, ndim = lines.dims.shape[:2]
    size = int(target.dtype.itemsize)
    kernel = "rows" if source.dtype == target.dtype else "rows_of_floats"
    if lines.max_lines == 0:
        return
    nbytes = lines.max_elements * size
    lanes = 32 if nbytes > 1024 else 16
    piece = _PIECE if nbytes > _LONG_LINE else _LONG_LINE
    pieces = (
        -(-(nbytes + 15) // piece) if nbytes > _LONG_LINE else 1
    )  # pieces begin at the beginnings of the output's words
    tiles = -(-lines.max_lines * pieces // (_THREADS // lanes))

    def other(ctx: Context) -> tuple[npt.NDArray[Any], ...] | None:
        assert recompute is not None
        found = recompute(ctx)
        if found is None or (found.period, found.channel) != (lines.period, lines.channel):
            return None
        enough = (
            found.max_lines * pieces <= tiles * (_THREADS // lanes) and found.max_elements * size <= pieces * piece - 15
        )
        return (found.dims, found.base, found.out_base, found.fills) if enough else None

    remade = recompute if recompute is None or recompute is FIXED else other
    dims, base, out_base, fills = changing(ctx.device, remade, lines.dims, lines.base, lines.out_base, lines.fills)
    rows, variants, width = lines.fills.shape
    ctx.device.launch(
        "rows.cu", kernel, (tiles, n), _THREADS, source.view(np.uint8), target.view(np.uint8), dims, np.int32(ndim),
        base, out_base, np.int32(size), np.int32(lanes), np.int32(piece), np.int32(pieces), fills, np.int32(width),
        np.uint32(lines.period), np.int32(variants), np.int32(rows > 1), np.int32(lines.channel),
    )  # fmt: skip
