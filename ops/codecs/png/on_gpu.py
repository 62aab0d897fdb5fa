"""PNGs on a GPU: threads of the CPU look through the files, the GPU inflates (cuda/png_inflate.cu), checks the sum and
undoes the filters (cuda/png.cu).

A warp inflates a stream, at a sixth or so of the speed of a core of the CPU (6 to 10 ms for a photo of 0.2 megapixels,
on an H200), but a thousand take hardly longer than one. So what is large beside the rest of its batch is inflated by
threads, and only its filters are the GPU's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...context import Context
from ...gpu.lane import Lane
from ...kernels import Kernels
from .. import straight
from . import libdeflate

_rows: Any = Kernels(".rows_cpu", __package__)

PICTURE = np.dtype(
    [("rows", np.int64), ("destination", np.int64)]
    + [(n, np.int32) for n in ("width", "height", "stored", "channels", "y", "x", "shown_rows", "shown_columns")]
    + [("bgr", np.int32), ("unused", np.int32)]
)
"""A picture, as the kernels read it."""
STREAM = np.dtype([("source", np.int64), ("rows", np.int64), ("size", np.int32), ("room", np.int32)])
"""A zlib stream, as the kernels read it."""
PIECE = np.dtype([("source", np.int64), ("destination", np.int64), ("size", np.int64)])
"""Bytes of a file that are a part of a stream."""
_PIECE = 4096
"""Bytes of a file for each piece, at least; files in more are the CPU's."""
ALIGNMENT = 16
"""Of streams and of rows on the GPU."""
SHARE = 16
"""A stream that is inflated by the GPU has at most this part of what those of its batch hold."""
LARGEST = 8 << 20
"""Bytes that it holds at most: a warp takes some 0.1 s for them."""
_SOURCE, _INFLATE = "png.cu", "png_inflate.cu"
_IHDR = 33
"""Bytes up to the end of the first chunk."""


def takes(batch: Batch, which: I64, room: I64) -> npt.NDArray[np.bool_]:
    """Those of the PNGs ``which`` that have 8 bits a channel, no palette, and are not interlaced, by their headers, and
    less than 2^31 bytes of filtered rows (``room``)."""
    if len(which) == 0:
        return np.zeros(0, np.bool_)
    long = batch.shapes[which, 0] >= _IHDR
    at = np.where(long, batch.offsets[which], 0)
    bits, kind, interlaced = (batch.data[np.minimum(at + k, len(batch.data) - 1)] for k in (24, 25, 28))
    taken: npt.NDArray[np.bool_] = (
        long & (room < 1 << 31) & (bits == 8) & np.isin(kind, (0, 2, 4, 6)) & (interlaced == 0)
    )
    return taken


def room(heights: I64, widths: I64, channels: I64) -> I64:
    """Bytes of the filtered rows of pictures."""
    return heights * (1 + widths * channels)


def for_warps(room: I64) -> npt.NDArray[np.bool_]:
    """Those of a batch's pictures whose streams the GPU inflates, given the bytes of their filtered rows."""
    small = room <= LARGEST
    taken: npt.NDArray[np.bool_] = small & (room * SHARE <= int(room[small].sum()))
    return taken


def aligned(nbytes: I64) -> I64:
    """``nbytes`` rounded up to where the next stream or rows may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def streams(batch: Batch, which: I64, room: I64) -> tuple[I64, I64]:
    """The zlib streams of the pictures ``which`` of ``batch``, whose filtered rows have ``room`` bytes. The streams'
    sizes, 0 for files that the decoder does not take; and their pieces, [M, 4]: the picture, where bytes begin in its
    file and in its stream, and how many they are."""
    encoded, nbytes = straight.readonly(batch.data), batch.shapes[which, 0].astype(np.int64)
    lengths, counts = np.empty(len(which), np.int64), np.empty(len(which), np.int64)
    pieces = np.empty((int((nbytes // _PIECE + 16).sum()), 3), np.int64)
    _rows.find_streams(libdeflate.functions(), encoded, batch.offsets[which], nbytes, room, pieces, counts, lengths)
    return lengths, np.column_stack([which.repeat(counts), pieces[: counts.sum()]])


def gather_there(lane: Lane, files: Batch, which: I64, lengths: I64, pieces: I64) -> tuple[Any, I64]:
    """Enqueue what puts the ``pieces`` of `streams` together, of ``files`` on the device: the streams there, and where
    those of the pictures ``which`` begin."""
    starts, places = aligned(lengths).cumsum() - aligned(lengths), np.zeros(len(files), np.int64)
    places[which] = starts
    table = np.empty(len(pieces), PIECE)
    table["source"] = files.offsets[pieces[:, 0]] + pieces[:, 1]
    table["destination"] = places[pieces[:, 0]] + pieces[:, 2]
    table["size"] = pieces[:, 3]
    packed = lane.empty(int(aligned(lengths).sum()), np.uint8)
    (there,) = lane.upload(table.view(np.uint8))
    lane.launch(_INFLATE, "gather_pieces", len(pieces), 256, files.data, there, packed)
    lane.keep(files.data, there)
    return packed, starts


def inflate_there(lane: Lane, packed: Any, starts: I64, sizes: I64, room: I64) -> tuple[Any, I64, Any]:
    """Enqueue what inflates streams of ``sizes`` bytes, at ``starts`` of ``packed`` on the device. The rows there,
    where each picture's begin, and, on the device, int32[N], not 0 for a stream that is not in order, or is
    unusual."""
    to = aligned(room).cumsum() - aligned(room)
    table = np.zeros(len(starts), STREAM)
    table["source"], table["rows"], table["size"], table["room"] = starts, to, sizes, room
    rows = lane.empty(int(aligned(room).sum()), np.uint8)
    streams, sums, bad = lane.upload(table.view(np.uint8), np.zeros(len(to), np.uint32), np.zeros(len(to), np.int32))
    lane.launch(_INFLATE, "inflate_streams", len(to), 32, packed, streams, rows, sums, bad)
    lane.launch(_INFLATE, "check_sums", len(to), 256, rows, streams, sums, bad)
    lane.keep(packed, streams)
    return rows, to, bad


def inflate(batch: Batch, which: I64, rows: Any, places: I64, sizes: I64) -> npt.NDArray[np.bool_]:
    """The filtered rows of the pictures ``which`` of ``batch``, of ``sizes`` bytes, at ``places`` of ``rows``. Which of
    them the decoder did not take, bool[len(which)]."""
    encoded, status = straight.readonly(batch.data), np.empty(len(which), np.int32)
    nbytes = batch.shapes[which, 0].astype(np.int64)
    _rows.inflate_images(libdeflate.functions(), encoded, batch.offsets[which], nbytes, rows, places, sizes, status)
    refused: npt.NDArray[np.bool_] = status != 0
    return refused


def restore(
    ctx: Context, lane: Lane, rows: Any, pictures: npt.NDArray[Any], out: Batch, which: I64, decoder: str,
    bad: Any = None,
) -> None:  # fmt: skip
    """Enqueue what makes pixels of filtered ``rows`` on the device, in their places in ``out``: of ``pictures``, which
    are the samples ``which``. Those with a filter that does not exist, and those that are ``bad`` already (of
    `inflate_there`), run again, on the CPU, which says so; ``decoder``, the name in reports that they were counted
    under, did not decode them."""
    if len(which) == 0:
        return
    table, fine = lane.upload(pictures.view(np.uint8), np.zeros(len(which), np.int32))
    bad = fine if bad is None else bad
    lane.launch(_SOURCE, "png_unfilter", len(which), 32, rows, table, bad)
    lane.launch(_SOURCE, "png_pixels", (16, len(which)), 256, rows, table, out.data)
    lane.keep(rows, table, bad)
    marks = lane.copy_out(lane.address(bad), bad.nbytes).view(np.int32)  # nothing is allocated for it

    def wrong() -> I64:
        found = which[np.flatnonzero(marks)]
        ctx.decoded_by(decoder, -len(found))
        return found

    ctx.check_later(wrong)
