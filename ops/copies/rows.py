"""Rows: a kernel of its own for copies whose lines are runs of bytes on both sides, with one fill value outside of
them, or one a channel. It works out places once a line and moves aligned words, where `strided` does so for every
value."""

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
_LONG, _PIECE = 16384, 2048
"""Bytes: longer lines are written in pieces, so that what is under way lies side by side."""
_SHORTEST = 16
"""Bytes of a line that are worth a group of lanes."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A plan as the kernel takes it."""

    dims: I64
    """[N, D, 5] as `strided.Loops` has them; in the last one, elements lie side by side."""
    base: I64
    out_base: I64
    fills: npt.NDArray[np.uint8]
    """[1 or N, 1 or K, bytes]: what stands outside, over and over; see `pattern`."""
    period: int
    channel: int
    """The dimension of the K, -1 where there is one."""
    most: int
    """Lines of a sample."""
    longest: int
    """Elements of a line."""


def together(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether the kernel makes values of ``target`` of those of ``source``: the same, or bytes that become floats."""
    return source == target or (source == np.uint8 and target == np.float32)


def fits(longest: int, itemsize: int) -> bool:
    """Whether lines of up to ``longest`` elements are worth this kernel."""
    return longest * itemsize >= _SHORTEST


def pattern(fill: npt.NDArray[Any], along: bool) -> tuple[npt.NDArray[np.uint8], int]:
    """``fill`` [R, K] as bytes [R, 1 or K, width], and how many there are before they begin anew: those of K values one
    after the other where lines go ``along`` the channels, else those of one."""
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


def launched(
    ctx: Context, source: Any, target: Any, lines: Lines, again: Callable[[Context], Lines | None] | None
) -> None:
    """Launch the copy of ``source`` into ``target``, flat arrays on the device whose types go ``together``. ``again``
    gives the lines for other arguments, None where they are of another kind."""
    n, ndim = lines.dims.shape[:2]
    size = int(target.dtype.itemsize)
    kernel = "rows" if source.dtype == target.dtype else "rows_of_floats"
    if lines.most == 0:
        return
    nbytes = lines.longest * size
    lanes = 32 if nbytes > 1024 else 16
    piece = _PIECE if nbytes > _LONG else _LONG
    pieces = -(-(nbytes + 15) // piece) if nbytes > _LONG else 1  # they begin where words of the output do
    tiles = -(-lines.most * pieces // (_THREADS // lanes))

    def other(ctx: Context) -> tuple[npt.NDArray[Any], ...] | None:
        assert again is not None
        found = again(ctx)
        if found is None or (found.period, found.channel) != (lines.period, lines.channel):
            return None
        enough = found.most * pieces <= tiles * (_THREADS // lanes) and found.longest * size <= pieces * piece - 15
        return (found.dims, found.base, found.out_base, found.fills) if enough else None

    remade = again if again is None or again is FIXED else other
    dims, base, out_base, fills = changing(ctx.device, remade, lines.dims, lines.base, lines.out_base, lines.fills)
    rows, variants, width = lines.fills.shape
    ctx.device.launch(
        "rows.cu", kernel, (tiles, n), _THREADS, source.view(np.uint8), target.view(np.uint8), dims, np.int32(ndim),
        base, out_base, np.int32(size), np.int32(lanes), np.int32(piece), np.int32(pieces), fills, np.int32(width),
        np.uint32(lines.period), np.int32(variants), np.int32(rows > 1), np.int32(lines.channel),
    )  # fmt: skip
