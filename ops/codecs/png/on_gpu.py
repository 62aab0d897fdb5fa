"""PNGs on a GPU: threads of the CPU look through the files, the GPU inflates (`gpu_streams.streams`), checks the sum,
undoes the filters and makes pixels (`gpu_streams.planes`).
"""

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
"""Bytes of a file for each piece, at least; files in more are the CPU's."""
_IHDR = 33
"""Bytes up to the end of the first chunk."""
_BITS, _KIND, _INTERLACED = 24, 25, 28
"""Places of bytes of IHDR in a file."""
_PALETTE = 3
_SAMPLES = np.array([1, 0, 3, 1, 2, 0, 4] + [0] * 249)
"""Of a pixel, by the kind of picture (clause 11.2.1)."""
_ADAM7 = np.array(
    [(0, 0, 1, 1), (0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
)
"""A picture in one pass, and seven passes: first row, first column, steps down, steps to the right (clause 8.2)."""
FILES = 128
"""Images of a task that only looks through files, at most: a millisecond or some, so that it costs more than passing it
to a thread."""
MOST = 1 << 28
"""Bytes of filtered rows of a picture, at most."""


def planes(batch: Batch, which: I64, heights: I64, widths: I64) -> npt.NDArray[Any]:
    """The planes of the PNGs ``which``, of these sizes, by their headers: the passes of interlaced ones. ``stream``
    becomes the place in ``which``. A kind that does not exist has none."""
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
    found["rows"] = place - place[before(passes)][of] + 1  # after the number of the first filter
    found["pitch"], found["stream"] = 1 + row, of
    for name, values in (("height", height), ("width", width), ("y", y), ("x", x), ("down", down), ("across", across)):
        found[name] = values
    found["bits"], found["samples"], found["colours"], found["undo"] = bits[of], samples[of], -1, FILTERED
    return found[nbytes > 0]


def room(planes: npt.NDArray[Any], n: int) -> I64:
    """Bytes of the filtered rows of each of ``n`` pictures."""
    nbytes = np.zeros(n, np.int64)
    np.add.at(nbytes, planes["stream"], planes["height"] * planes["pitch"])
    return nbytes


class CudaPng(GpuDecoder):
    """PNGs that are shown as they are stored."""

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
            seconds = sum(part.result() for part in parts)  # they were started before this one
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
    """The zlib streams of some PNGs of a batch."""

    def __init__(self, batch: Batch, which: I64, heights: I64, widths: I64, bgr: bool) -> None:
        """Of the PNGs ``which`` of ``batch``, of these sizes. The first channel of palettes is blue where they are
        ``bgr``."""
        self._batch, self._which, self._bgr, n = batch, which, bgr, len(which)
        self._data = readonly(batch.data)
        self._planes = planes(batch, which, heights, widths)
        self._room = room(self._planes, n)
        self._places, self._colours = _palettes(batch, which, self._planes)
        self._offsets, self._sizes = batch.offsets[which], batch.shapes[which, 0].astype(np.int64)
        self._ends = (self._sizes // _PIECE + 16).cumsum()
        """Rows of `_pieces` that files up to each one may take."""
        self._pieces = np.empty((int(self._ends[-1]), 3), np.int64)
        self._lengths, self._counts, self._first = (np.empty(n, np.int64) for _ in range(3))

    def look(self, a: int, b: int) -> None:
        """Look through the PNGs a ... b - 1."""
        first, counts = int(self._ends[a - 1]) if a else 0, self._counts[a:b]
        sure = hidden(self._batch, self._which[a:b])  # what has read them has checked IDATs
        files = libdeflate.functions(), self._data, self._offsets[a:b], self._sizes[a:b], sure
        palettes, pieces = (self._places[a:b], self._bgr, self._colours), self._pieces[first : int(self._ends[b - 1])]
        _rows.find_streams(*files, *palettes, self._room[a:b], pieces, counts, self._lengths[a:b])
        self._first[a:b] = first + before(counts)

    def found(self) -> tuple[Packed, npt.NDArray[np.bool_]]:
        """After all were looked through: those that the decoder takes, and which of them these are, bool[M]."""
        counts, which = self._counts, self._which
        stream = np.arange(len(which)).repeat(counts)
        rows = np.arange(len(stream)) + (self._first - before(counts))[stream]
        pieces = np.column_stack([which[stream], stream, self._pieces[rows]])
        coding, taken = np.full(len(which), DEFLATE), self._lengths > 0
        whole = Packed(self._planes, which, self._room, coding, self._colours, self._lengths, pieces)
        return _only(whole, taken), taken


def _palettes(batch: Batch, which: I64, planes: npt.NDArray[Any]) -> tuple[I64, npt.NDArray[np.uint32]]:
    """Of each picture, the place of its palette, or -1, which its ``planes`` are told; and room for the palettes."""
    have = np.zeros(len(which), np.bool_)
    have[planes["stream"]] = True
    have[have] = batch.data[batch.offsets[which[have]] + _KIND] == _PALETTE
    places = np.where(have, before(have.astype(np.int64)), -1)
    planes["colours"] = places[planes["stream"]]
    return places, np.empty((np.count_nonzero(have), 256), np.uint32)


def _only(packed: Packed, taken: npt.NDArray[np.bool_]) -> Packed:
    """The pictures that were ``taken``, of one stream each; palettes stay."""
    if taken.all():
        return packed
    new = taken.cumsum() - 1
    found, pieces = packed.planes[taken[packed.planes["stream"]]], packed.pieces[taken[packed.pieces[:, 1]]]
    found["stream"], pieces[:, 1] = new[found["stream"]], new[pieces[:, 1]]
    lengths = packed.lengths[taken] if len(packed.lengths) else packed.lengths
    streams = packed.owner[taken], packed.room[taken], packed.coding[taken]
    return Packed(found, *streams, packed.colours, lengths, pieces)
