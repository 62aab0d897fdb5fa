"""Decompress the streams of a batch's files on a GPU: join the byte ranges of each stream, and decompress it to rows of
samples (cuda/png_inflate.cu, cuda/lzw.cu). Used by the GPU decoders of PNG and TIFF.

A warp decompresses a stream much more slowly than a core of the CPU, but a thousand streams take hardly longer than one
(`costs`).
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
"""Record that describes one compressed stream to the kernels."""
STORED, DEFLATE, LZW, PACK_BITS = range(4)
"""Compression of a stream: none, zlib's deflate, and TIFF's LZW and PackBits."""
PIECE = np.dtype([("source", np.int64), ("destination", np.int64), ("size", np.int64)])
"""Record that describes to the kernels one byte range of a file, which is copied into a compressed stream."""
ALIGNMENT = 16
"""Alignment in bytes of compressed streams, and of decompressed rows, on the GPU."""
_SMALL = 1 << 16
"""Number of decompressed bytes up to which positions in a stream fit into 16 bits."""
_INFLATE, _LZW = "png_inflate.cu", "lzw.cu"


def aligned(nbytes: I64) -> I64:
    """Return ``nbytes`` rounded up to `ALIGNMENT`, where the next stream or its rows begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def before(sizes: I64) -> I64:
    """Return the offset of each block, if blocks of these ``sizes`` are stored one after the other."""
    return sizes.cumsum() - sizes


@dataclass(slots=True)
class Unpacking:
    """Plan for decompressing the N streams of a batch on a GPU. Created by `plan` on the host, used by the thread that
    launches kernels."""

    coding: I64
    """Compression of each stream, [N]: STORED, DEFLATE, LZW or PACK_BITS."""
    starts: I64
    """Byte offset at which each stream's decompressed rows begin, [N]."""
    packed: int
    """Total bytes of the compressed streams."""
    room: int
    """Total bytes of the decompressed rows of all streams."""
    streams: npt.NDArray[Any]
    """One `STREAM` record per stream, grouped by compression, [N]."""
    pieces: npt.NDArray[Any]
    """One `PIECE` record per byte range of a file, [M], with ranges of compressed streams first. `unpack` fills in
    ``source``."""
    gathered: int
    """Number of records in ``pieces`` that belong to compressed streams. The other ranges are copied directly to the
    rows."""
    files: I64
    """Index in the batch of the file from which each record of ``pieces`` copies, [M]."""
    within: I64
    """Byte offset in the file at which each record of ``pieces`` begins, [M]."""
    large: bool
    """Whether any stream has more than 65,536 bytes after decompression."""


def plan(coding: I64, lengths: I64, room: I64, pieces: I64) -> Unpacking:
    """Plan the decompression of streams on a GPU. ``coding``, ``lengths`` and ``room`` are the compression, compressed
    bytes and decompressed bytes of each stream. ``pieces`` [M, 5]: byte ranges of files that make up the streams, as
    (index of the file, index of the stream, byte offset in the file, byte offset in the stream, bytes)."""
    stored, to = coding == STORED, before(aligned(room))
    sizes = aligned(np.where(stored, 0, lengths))
    source = before(sizes)
    table = np.zeros(len(coding), STREAM)
    table["source"], table["rows"], table["size"], table["room"] = source, to, lengths, room
    table["number"] = np.arange(len(coding))
    direct = stored[pieces[:, 1]]
    if direct.any():
        pieces = np.concatenate([pieces[~direct], pieces[direct]])
    there = np.empty(len(pieces), PIECE)
    there["destination"] = np.where(stored, to, source)[pieces[:, 1]] + pieces[:, 3]
    there["size"] = pieces[:, 4]
    gathered = len(pieces) - int(np.count_nonzero(direct))
    by_way = table[np.argsort(coding, kind="stable")] if (coding != coding[:1]).any() else table
    return Unpacking(coding, to, int(sizes.sum()), int(aligned(room).sum()), by_way, there, gathered,
                     np.ascontiguousarray(pieces[:, 0]), np.ascontiguousarray(pieces[:, 2]),
                     bool((room > _SMALL).any()))  # fmt: skip


def unpack(lane: Lane, files: Batch, planned: Unpacking) -> tuple[Any, Any]:
    """Enqueue the decompression of streams in ``files``, which are on the device. Return two device arrays: the
    decompressed rows; and int32[N], not 0 for streams that are invalid or unsupported."""
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
