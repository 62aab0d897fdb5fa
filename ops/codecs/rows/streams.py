"""Packed streams of a batch's files on a GPU: put together out of the files' pieces, and unpacked to rows of samples
(cuda/png_inflate.cu, cuda/lzw.cu).

A warp unpacks a stream, at a sixth or so of the speed of a core of the CPU (6 to 10 ms for the deflated photo of 0.2
megapixels, on an H200), but a thousand take hardly longer than one. So what is large beside the rest of its batch is
for threads.
"""

from __future__ import annotations

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
SHARE = 16
"""A stream that is unpacked by the GPU has at most this part of what those of its batch hold."""
LARGEST = 8 << 20
"""Bytes that it holds at most: a warp takes some 0.1 s for them."""
_INFLATE, _LZW = "png_inflate.cu", "lzw.cu"


def for_warps(room: I64, whole: I64 | None = None) -> npt.NDArray[np.bool_]:
    """Those of a batch's pictures whose streams the GPU unpacks, given the bytes of the rows of each one's largest
    stream, and of all its rows, where that is more."""
    small = room <= LARGEST
    taken: npt.NDArray[np.bool_] = small & (room * SHARE <= int((room if whole is None else whole)[small].sum()))
    return taken


def aligned(nbytes: I64) -> I64:
    """``nbytes`` rounded up to where the next stream or rows may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def before(sizes: I64) -> I64:
    """Where each of several things begins that follow one another."""
    return sizes.cumsum() - sizes


def unpack_there(lane: Lane, files: Batch, coding: I64, lengths: I64, room: I64, pieces: I64) -> tuple[Any, I64, Any]:
    """Enqueue what unpacks streams of ``lengths`` bytes, each packed by its ``coding``, out of ``files`` on the device,
    to ``room`` bytes each. ``pieces`` [M, 5]: the file, the stream, where bytes begin in the file and in the stream,
    and how many they are. The rows there, where each stream's begin, and, on the device, int32[N], not 0 for a stream
    that is not in order, or is unusual."""
    stored, to = coding == STORED, before(aligned(room))
    sizes = aligned(np.where(stored, 0, lengths))
    table = np.zeros(len(coding), STREAM)
    table["source"], table["rows"], table["size"], table["room"] = before(sizes), to, lengths, room
    table["number"] = np.arange(len(coding))
    packed, rows = lane.empty(int(sizes.sum()), np.uint8), lane.empty(int(aligned(room).sum()), np.uint8)
    straight = stored[pieces[:, 1]]
    _gather(lane, files, pieces[~straight], table["source"], packed)
    _gather(lane, files, pieces[straight], table["rows"], rows)
    (bad,) = lane.upload(np.zeros(len(coding), np.int32))
    for way in (DEFLATE, LZW, PACK_BITS):
        some = table[coding == way]
        if len(some) == 0:
            continue
        (streams,) = lane.upload(some.view(np.uint8))
        if way == DEFLATE:
            sums = lane.empty(len(coding), np.uint32)
            lane.launch(_INFLATE, "inflate_streams", len(some), 32, packed, streams, rows, sums, bad)
            lane.launch(_INFLATE, "check_sums", len(some), 256, rows, streams, sums, bad)
            lane.keep(sums)
        else:
            lane.launch(_LZW, "unpack_lzw" if way == LZW else "unpack_bits", len(some), 32, packed, streams, rows, bad)
        lane.keep(streams)
    lane.keep(packed)
    return rows, to, bad


def _gather(lane: Lane, files: Batch, pieces: I64, places: Any, to: Any) -> None:
    """Enqueue copies of ``pieces`` of ``files`` to the ``places`` of their streams in ``to``."""
    if len(pieces) == 0:
        return
    table = np.empty(len(pieces), PIECE)
    table["source"] = files.offsets[pieces[:, 0]] + pieces[:, 2]
    table["destination"] = places[pieces[:, 1]] + pieces[:, 3]
    table["size"] = pieces[:, 4]
    (there,) = lane.upload(table.view(np.uint8))
    lane.launch(_INFLATE, "gather_pieces", len(pieces), 256, files.data, there, to)
    lane.keep(files.data, there)
