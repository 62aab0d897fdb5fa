"""PNG decoder for GPUs: CPU threads parse the files; the GPU inflates (`gpu_streams.streams`), verifies the checksum,
undoes the filters and writes pixels (`gpu_streams.planes`)."""

from __future__ import annotations

import time
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...gpu.readable_by_gpu import hidden
from ...kernels import Kernels
from .. import costs, libdeflate
from ..costs import Costs
from ..decoder_table import DecodeJob
from ..format import CHANNELS, HEIGHT, WIDTH
from ..gpu_streams.planes import FILTERED, PLANE, Packed, Where, unpacker, unpacking
from ..gpu_streams.streams import DEFLATE, before
from ..gpu_table import GpuDecoder
from ..headers import readonly
from ..threaded_decode import TaskResult, ThreadedDecode
from .decoder import NativePng

_rows: Any = Kernels(".rows_cpu", __package__)

_PIECE = 4096
"""Minimum mean size in bytes of a PNG's IDAT chunks. The CPU decodes files with smaller chunks."""
_IHDR = 33
"""Length of a PNG file up to the end of its first chunk, IHDR, in bytes."""
_BITS, _KIND, _INTERLACED = 24, 25, 28
"""Byte offsets in a PNG file of the fields of IHDR: bit depth, colour type, interlacing."""
_PALETTE = 3
_SAMPLES = np.array([1, 0, 3, 1, 2, 0, 4] + [0] * 249)
"""Samples per pixel, by colour type (clause 11.2.1); 0 for a type that does not exist."""
_ADAM7 = np.array(
    [(0, 0, 1, 1), (0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
)
"""Passes of a PNG as (first row, first column, row step, column step). The first entry is for an image in one pass, the
others for the seven passes of an interlaced image (clause 8.2)."""
FILES = 128
"""Maximum number of files that one task parses: about a millisecond of work, enough to pay for passing the task to a
thread."""
MOST = 1 << 28
"""Maximum total bytes of an image's filtered rows."""


def planes(batch: Batch, which: I64, heights: I64, widths: I64) -> npt.NDArray[Any]:
    """Return `PLANE` records of the PNGs ``which`` of ``batch``, by their headers: one per image, or one per pass of an
    interlaced image. Field ``stream`` is the image's index in ``which``. An image with an invalid colour type has no
    planes."""
    at = np.where(batch.shapes[which, 0] >= _IHDR, batch.offsets[which], 0)
    data = batch.data if len(batch.data) > _IHDR else np.zeros(_IHDR, np.uint8)
    bits, samples = data[at + _BITS].astype(np.int64), _SAMPLES[data[at + _KIND]]
    passes = np.where(data[at + _INTERLACED] != 0, 7, 1)
    of = np.repeat(np.arange(len(which)), passes)
    number = np.arange(len(of)) - before(passes)[of]
    y, x, down, across = _ADAM7[number + (passes[of] > 1)].T
    height, width = -(-(heights[of] - y) // down), -(-(widths[of] - x) // across)
    row = (width * bits[of] * samples[of] + 7) // 8
    nbytes = np.where((width > 0) & (samples[of] > 0), height * (1 + row), 0)
    place = before(nbytes)
    found = np.zeros(len(of), PLANE)
    found["rows"] = place - place[before(passes)][of] + 1  # after the byte that names the first filter
    found["pitch"], found["stream"] = 1 + row, of
    for name, values in (("height", height), ("width", width), ("y", y), ("x", x), ("down", down), ("across", across)):
        found[name] = values
    found["bits"], found["samples"], found["colours"], found["undo"] = bits[of], samples[of], -1, FILTERED
    return found[nbytes > 0]


def room(planes: npt.NDArray[Any], n: int) -> I64:
    """Return the bytes of the filtered rows of each of ``n`` images. ``planes``: records of all of these images."""
    nbytes = np.zeros(n, np.int64)
    np.add.at(nbytes, planes["stream"], planes["height"] * planes["pitch"])
    return nbytes


class CudaPng(GpuDecoder):
    """CUDA decoder for PNGs that need no conversion after decoding."""

    name = "cuda png"

    def takes(self, job: DecodeJob, indices: I64) -> npt.NDArray[np.bool_]:
        taken = np.zeros(len(indices), np.bool_)
        if job.headers.unusual:
            taken = _native.takes(job, indices)
            some = indices[taken]
            nbytes = room(planes(job.batch, some, job.headers.height[some], job.headers.width[some]), len(some))
            taken[taken] = (nbytes > 0) & (nbytes <= MOST)
        return taken

    def start(self, job: DecodeJob, indices: I64, threads: ThreadedDecode) -> None:
        headers, where = job.headers, Where(job.offsets, job.shapes, job.anchors, job.bgr)
        streams = Streams(job.batch, indices, headers.height[indices], headers.width[indices], job.bgr)

        def look(a: int, wanted: weakref.ref[ThreadedDecode]) -> float:
            began = time.perf_counter()
            if wanted() is not None:
                streams.look(a, min(a + FILES, len(indices)))
            return time.perf_counter() - began

        parts = [threads.submit_call(look, a, weakref.ref(threads)) for a in range(0, len(indices), FILES)]

        def task(host: ThreadedDecode, some: I64) -> TaskResult:
            began = time.perf_counter()
            seconds = sum(part.result() for part in parts)  # the threads started these before this task
            waited = time.perf_counter() - began
            packed, taken = streams.found()
            done = host.by_host(some[~taken])
            done.prepared, done.count = (packed, unpacking(packed, where)), int(np.count_nonzero(taken))
            done.seconds = seconds - waited
            return done

        threads.submit(self.name, indices, task, enqueue=unpacker(job, self.name), size=len(indices), shown=False)

    def seconds(self, job: DecodeJob, indices: I64) -> Costs:
        rows = job.headers.rows[indices]
        return costs.deflated(job.sizes(indices), rows[:, WIDTH] * rows[:, HEIGHT] * rows[:, CHANNELS])


_native = NativePng()
ROWS = (CudaPng(),)


class Streams:
    """Search by CPU threads for the zlib streams with the pixels, in some PNGs of a batch. Created by `CudaPng.start`
    for one batch."""

    def __init__(self, batch: Batch, which: I64, heights: I64, widths: I64, bgr: bool) -> None:
        """``which``: indices of the PNGs in ``batch``; ``heights``, ``widths``: their sizes. ``bgr``: whether palettes
        are stored with blue first."""
        self._batch, self._which, self._bgr, n = batch, which, bgr, len(which)
        self._data = readonly(batch.data)
        self._planes = planes(batch, which, heights, widths)
        self._room = room(self._planes, n)
        self._places, self._colours = _palettes(batch, which, self._planes)
        self._offsets, self._sizes = batch.offsets[which], batch.shapes[which, 0].astype(np.int64)
        self._ends = (self._sizes // _PIECE + 16).cumsum()
        """End of each file's rows in `_pieces`, as an index; rows of the next file begin there."""
        self._pieces = np.empty((int(self._ends[-1]), 3), np.int64)
        self._lengths, self._counts, self._first = (np.empty(n, np.int64) for _ in range(3))

    def look(self, a: int, b: int) -> None:
        """Find the zlib streams of the PNGs ``which[a:b]``."""
        first, counts = int(self._ends[a - 1]) if a else 0, self._counts[a:b]
        sure = hidden(self._batch, self._which[a:b])  # the GPU's reader has checked IDATs of hidden files
        files = libdeflate.functions(), self._data, self._offsets[a:b], self._sizes[a:b], sure
        palettes, pieces = (self._places[a:b], self._bgr, self._colours), self._pieces[first : int(self._ends[b - 1])]
        _rows.find_streams(*files, *palettes, self._room[a:b], pieces, counts, self._lengths[a:b])
        self._first[a:b] = first + before(counts)

    def found(self) -> tuple[Packed, npt.NDArray[np.bool_]]:
        """Return the zlib streams of the images that the GPU supports, and which images these are, bool[M]. Call it
        after `look` has parsed all images."""
        counts, which = self._counts, self._which
        stream = np.arange(len(which)).repeat(counts)
        rows = np.arange(len(stream)) + (self._first - before(counts))[stream]
        pieces = np.column_stack([which[stream], stream, self._pieces[rows]])
        coding, taken = np.full(len(which), DEFLATE), self._lengths > 0
        whole = Packed(self._planes, which, self._room, coding, self._colours, self._lengths, pieces)
        return _only(whole, taken), taken


def _palettes(batch: Batch, which: I64, planes: npt.NDArray[Any]) -> tuple[I64, npt.NDArray[np.uint32]]:
    """Give each image with a palette a row of the palette table, also in ``planes``. Return the row of each image, or
    -1, and the uninitialised palette table."""
    have = np.zeros(len(which), np.bool_)
    have[planes["stream"]] = True
    have[have] = batch.data[batch.offsets[which[have]] + _KIND] == _PALETTE
    places = np.where(have, before(have.astype(np.int64)), -1)
    planes["colours"] = places[planes["stream"]]
    return places, np.empty((np.count_nonzero(have), 256), np.uint32)


def _only(packed: Packed, taken: npt.NDArray[np.bool_]) -> Packed:
    """Return planes and streams of only the images for which ``taken`` is true. Each image has one stream. The palette
    table stays the same."""
    if taken.all():
        return packed
    new = taken.cumsum() - 1
    found, pieces = packed.planes[taken[packed.planes["stream"]]], packed.pieces[taken[packed.pieces[:, 1]]]
    found["stream"], pieces[:, 1] = new[found["stream"]], new[pieces[:, 1]]
    lengths = packed.lengths[taken] if len(packed.lengths) else packed.lengths
    streams = packed.owner[taken], packed.room[taken], packed.coding[taken]
    return Packed(found, *streams, packed.colours, lengths, pieces)
