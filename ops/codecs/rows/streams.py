"""Packed streams of a batch's files on a GPU: put together out of the files' pieces, and unpacked to rows of samples
(cuda/png_inflate.cu).

A warp unpacks a stream, at a sixth or so of the speed of a core of the CPU (6 to 10 ms for the deflated 8-bit photo of
0.2 megapixels, on an H200), but a thousand take hardly longer than one. So what is large beside the rest of its batch
is for threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...gpu.lane import Lane

STREAM = np.dtype([("source", np.int64), ("rows", np.int64), ("size", np.int32), ("room", np.int32)])
"""A stream, as the kernels read it."""
PIECE = np.dtype([("source", np.int64), ("destination", np.int64), ("size", np.int64)])
"""Bytes of a file that are a part of a stream."""
ALIGNMENT = 16
"""Of streams and of rows on the GPU."""
SHARE = 16
"""A stream that is unpacked by the GPU has at most this part of what those of its batch hold."""
LARGEST = 8 << 20
"""Bytes that it holds at most: a warp takes some 0.1 s for them."""
_INFLATE = "png_inflate.cu"


def for_warps(room: I64) -> npt.NDArray[np.bool_]:
    """Those of a batch's pictures whose streams the GPU unpacks, given the bytes of their rows."""
    small = room <= LARGEST
    taken: npt.NDArray[np.bool_] = small & (room * SHARE <= int(room[small].sum()))
    return taken


def aligned(nbytes: I64) -> I64:
    """``nbytes`` rounded up to where the next stream or rows may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def before(sizes: I64) -> I64:
    """Where each of several things begins that follow one another."""
    return sizes.cumsum() - sizes


def gather_there(lane: Lane, files: Batch, lengths: I64, pieces: I64) -> tuple[Any, I64]:
    """Enqueue what puts streams of ``lengths`` bytes together out of ``files``, on the device: the streams there, and
    where each begins. ``pieces`` [M, 5]: the file, the stream, where bytes begin in the file and in the stream, and how
    many they are."""
    starts = before(aligned(lengths))
    table = np.empty(len(pieces), PIECE)
    table["source"] = files.offsets[pieces[:, 0]] + pieces[:, 2]
    table["destination"] = starts[pieces[:, 1]] + pieces[:, 3]
    table["size"] = pieces[:, 4]
    packed = lane.empty(int(aligned(lengths).sum()), np.uint8)
    (there,) = lane.upload(table.view(np.uint8))
    lane.launch(_INFLATE, "gather_pieces", len(pieces), 256, files.data, there, packed)
    lane.keep(files.data, there)
    return packed, starts


def inflate_there(lane: Lane, packed: Any, starts: I64, sizes: I64, room: I64) -> tuple[Any, I64, Any]:
    """Enqueue what inflates streams of ``sizes`` bytes, at ``starts`` of ``packed`` on the device. The rows there,
    where each picture's begin, and, on the device, int32[N], not 0 for a stream that is not in order, or is
    unusual."""
    to = before(aligned(room))
    table = np.zeros(len(starts), STREAM)
    table["source"], table["rows"], table["size"], table["room"] = starts, to, sizes, room
    rows = lane.empty(int(aligned(room).sum()), np.uint8)
    streams, sums, bad = lane.upload(table.view(np.uint8), np.zeros(len(to), np.uint32), np.zeros(len(to), np.int32))
    lane.launch(_INFLATE, "inflate_streams", len(to), 32, packed, streams, rows, sums, bad)
    lane.launch(_INFLATE, "check_sums", len(to), 256, rows, streams, sums, bad)
    lane.keep(packed, streams)
    return rows, to, bad
