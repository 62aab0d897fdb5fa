"""Packed streams of a batch's files on a GPU: put together out of the files' pieces, and unpacked to rows of samples
(cuda/png_inflate.cu, cuda/lzw.cu).

A warp unpacks a stream much more slowly than a core of the CPU, but a thousand take hardly longer than one (`costs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...gpu.lane import Lane

STREAM = np.dtype(
    [("source", np.int64), ("rows", np.int64)] + [(n, np.int32) for n in ("size", "room", "number", "unused")]
)
"""A stream, as the kernels read it."""
STORED, DEFLATE, LZW, PACK_BITS = range(4)
"""How streams are packed: not at all, as zlib does it, and as TIFF has it."""
PIECE = np.dtype([("source", np.int64), ("destination", np.int64), ("size", np.int64)])
"""Bytes of a file that are a part of a stream."""
ALIGNMENT = 16
"""Of streams and of rows on the GPU."""
_SMALL = 1 << 16
"""Bytes whose places fit into 16 bits."""
_INFLATE, _LZW = "png_inflate.cu", "lzw.cu"


def aligned(nbytes: I64) -> I64:
    """``nbytes`` rounded up to where the next stream or rows may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def before(sizes: I64) -> I64:
    """Where each of several things begins that follow one another."""
    return sizes.cumsum() - sizes


@dataclass(slots=True)
class Unpacking:
    """A plan for unpacking the streams of a batch, made before a device is asked."""

    coding: I64
    """[N]"""
    starts: I64
    """[N] Where the rows of each stream begin."""
    packed: int
    """Bytes of all streams that are packed."""
    room: int
    """Bytes of all rows."""
    streams: npt.NDArray[Any]
    """[N] `STREAM`, those of a coding together."""
    pieces: npt.NDArray[Any]
    """[M] `PIECE`, those of packed streams first; ``source`` is to be filled in."""
    gathered: int
    """How many of the pieces are of packed streams."""
    files: I64
    """[M] The file of each piece,"""
    within: I64
    """[M] and where it begins there."""
    large: bool
    """Some streams hold more than 65,536 bytes."""


def plan(coding: I64, lengths: I64, room: I64, pieces: I64) -> Unpacking:
    """Plan how streams of ``lengths`` bytes, each packed by its ``coding``, are unpacked to ``room`` bytes each.
    ``pieces`` [M, 5]: the file, the stream, where bytes begin in the file and in the stream, and how many they are."""
    stored, to = coding == STORED, before(aligned(room))
    sizes = aligned(np.where(stored, 0, lengths))
    source = before(sizes)
    table = np.zeros(len(coding), STREAM)
    table["source"], table["rows"], table["size"], table["room"] = source, to, lengths, room
    table["number"] = np.arange(len(coding))
    straight = stored[pieces[:, 1]]
    if straight.any():
        pieces = np.concatenate([pieces[~straight], pieces[straight]])
    there = np.empty(len(pieces), PIECE)
    there["destination"] = np.where(stored, to, source)[pieces[:, 1]] + pieces[:, 3]
    there["size"] = pieces[:, 4]
    gathered = len(pieces) - int(np.count_nonzero(straight))
    by_way = table[np.argsort(coding, kind="stable")] if (coding != coding[:1]).any() else table
    return Unpacking(coding, to, int(sizes.sum()), int(aligned(room).sum()), by_way, there, gathered,
                     np.ascontiguousarray(pieces[:, 0]), np.ascontiguousarray(pieces[:, 2]),
                     bool((room > _SMALL).any()))  # fmt: skip


def unpack(lane: Lane, files: Batch, planned: Unpacking) -> tuple[Any, Any]:
    """Enqueue what was planned, out of ``files`` on the device: the rows there, and, on the device, int32[N], not 0 for
    a stream that is not in order, or is unusual."""
    planned.pieces["source"] = planned.within + files.offsets[planned.files]
    count = len(planned.coding)
    pieces, streams, bad = lane.upload(
        planned.pieces.view(np.uint8), planned.streams.view(np.uint8), np.zeros(count, np.int32)
    )
    packed, rows = lane.empty(planned.packed, np.uint8), lane.empty(planned.room, np.uint8)
    split = planned.gathered * PIECE.itemsize
    for to, some in ((packed, pieces[:split]), (rows, pieces[split:])):
        lane.launch(_INFLATE, "gather_pieces", len(some) // PIECE.itemsize, 256, files.data, some, to)
    at = int(np.count_nonzero(planned.coding == STORED))
    for way in (DEFLATE, LZW, PACK_BITS):
        n = int(np.count_nonzero(planned.coding == way))
        some, at = streams[at * STREAM.itemsize : (at + n) * STREAM.itemsize], at + n
        if way == DEFLATE and n:
            sums = lane.empty(count, np.uint32)
            lane.launch(_INFLATE, "inflate_streams", n, 32, packed, some, rows, sums, bad)
            lane.launch(_INFLATE, "check_sums", n, 256, rows, some, sums, bad)
            lane.keep(sums)
        elif n:
            kernel = "unpack_bits" if way == PACK_BITS else "unpack_large_lzw" if planned.large else "unpack_lzw"
            lane.launch(_LZW, kernel, n, 32, packed, some, rows, bad)
    lane.keep(files.data, packed, pieces, streams)
    return rows, bad
