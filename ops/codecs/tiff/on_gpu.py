"""Decoder for TIFFs on a GPU: CPU threads read the directories; the GPU unpacks strips and tiles
(`gpu_streams.streams`), undoes the predictor and writes pixels (`gpu_streams.planes`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...kernels import Kernels
from .. import costs
from ..costs import Costs
from ..decoder_table import DecodeJob
from ..gpu_streams import streams
from ..gpu_streams.planes import PLANE, PREDICTED, Packed, Where, unpacker, unpacking
from ..gpu_table import GpuDecoder
from ..headers import readonly
from ..threaded_decode import TaskResult, ThreadedDecode
from .decoder import NativeTiff

_strips: Any = Kernels(".strips_cpu", __package__)
_directory: Any = Kernels(".directory_cpu", __package__)

MOST = 1 << 28
"""Maximum bytes of the unpacked rows of an image."""
_FEW, _LEAST = 64, 512
"""Number of strips or tiles that an image may have in any case; and minimum mean bytes of their unpacked rows if it has
more."""

_BESIDES, _TILE = 2, 1 << 20
"""Limit on the unpacked bytes of an image's tiles: this factor times the image's bytes, plus this number of bytes.
Tiles may extend beyond the image, but memory is estimated from the image's size."""


class CudaTiff(GpuDecoder):
    """CUDA decoder for TIFFs of common kinds that need no conversion after decoding. One task on the host reads all
    directories of a batch."""

    name = "cuda tiff"

    def takes(self, job: DecodeJob, indices: I64) -> npt.NDArray[np.bool_]:
        taken = np.zeros(len(indices), np.bool_)
        if job.headers.unusual:
            taken = _native.takes(job, indices)
            if taken.any():
                taken[taken] = takes(job.batch, indices[taken])
        return taken

    def start(self, job: DecodeJob, indices: I64, threads: ThreadedDecode) -> None:
        where = Where(job.offsets, job.shapes, job.anchors, job.bgr)

        def task(host: ThreadedDecode, some: I64) -> TaskResult:
            packed, taken = strips(host.job.batch, some)
            done = host.by_host(some[~taken])
            done.prepared, done.count = (packed, unpacking(packed, where)), int(np.count_nonzero(taken))
            return done

        threads.submit(self.name, indices, task, enqueue=unpacker(job, self.name), size=len(indices), shown=False)

    def seconds(self, job: DecodeJob, indices: I64) -> Costs:
        return costs.packed(*measured(job.batch, indices)[:2])


_native = NativeTiff()
ROWS = (CudaTiff(),)


def takes(batch: Batch, which: I64) -> npt.NDArray[np.bool_]:
    """Return for each of the TIFFs ``which`` whether the GPU can unpack its strips, by the TIFF directory."""
    _, whole, shown, counts = measured(batch, which)
    taken = (counts > 0) & (whole <= MOST) & ((counts <= _FEW) | (counts * _LEAST <= whole))
    taken &= whole <= _BESIDES * shown + _TILE
    return taken


def measured(batch: Batch, which: I64) -> tuple[I64, I64, I64, I64]:
    """Return four arrays with one number per TIFF: unpacked bytes of the largest strip or tile; unpacked bytes of all
    strips; bytes of the image; number of strips."""
    largest, whole, shown, counts = (np.empty(len(which), np.int64) for _ in range(4))
    _strips.measure(*_files(batch, which), largest, whole, shown, counts)
    return largest, whole, shown, counts


def strips(batch: Batch, which: I64) -> tuple[Packed, npt.NDArray[np.bool_]]:
    """Find the strips and tiles of the TIFFs ``which`` of ``batch``. Return those of the images that the GPU supports,
    and which images these are, bool[len(which)]."""
    files, n = _files(batch, which), len(which)
    counts = np.empty(n, np.int64)
    _strips.measure(*files, *(np.empty(n, np.int64) for _ in range(3)), counts)
    d, s = _directory, _strips
    facts, table = np.empty((n, d.FACTS), np.int64), np.empty((int(counts.sum()), 6), np.int64)
    s.find_strips(*files, facts, table, counts)
    table = table[: counts.sum()]
    of, places = facts[table[:, s.FILE]], np.arange(len(table))
    planes = np.zeros(len(table), PLANE)
    planes["height"] = np.minimum(of[:, d.HIGH], of[:, d.HEIGHT] - table[:, s.TOP])
    planes["width"] = np.minimum(of[:, d.WIDE], of[:, d.WIDTH] - table[:, s.LEFT])
    planes["y"], planes["x"], planes["down"], planes["across"] = table[:, s.TOP], table[:, s.LEFT], 1, 1
    planes["bits"], planes["samples"] = of[:, d.BITS], of[:, d.SAMPLES]
    planes["pitch"] = of[:, d.WIDE] * of[:, d.SAMPLES] * (of[:, d.BITS] >> 3)
    planes["little"], planes["inverted"] = of[:, d.BIG] == 0, of[:, d.INVERTED]
    planes["undo"] = np.where(of[:, d.PREDICTOR] == 2, PREDICTED, 0)
    planes["colours"], planes["stream"] = -1, places
    owner, zero = which[table[:, s.FILE]], np.zeros(len(table), np.int64)
    pieces = np.column_stack([owner, places, table[:, s.AT], zero, table[:, s.SIZE]])
    ways = {d.NONE: streams.STORED, d.LZW: streams.LZW, d.PACK_BITS: streams.PACK_BITS}
    coding = np.full(len(table), streams.DEFLATE)
    for name, way in ways.items():
        coding[of[:, d.CODING] == name] = way
    return Packed(planes, owner, table[:, s.ROOM], coding, lengths=table[:, s.SIZE], pieces=pieces), counts > 0


def _files(batch: Batch, which: I64) -> tuple[Any, I64, I64]:
    return readonly(batch.data), batch.offsets[which], batch.shapes[which, 0].astype(np.int64)
