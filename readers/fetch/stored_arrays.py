"""Read the parts of files that arrays need into GPU memory (`ops.gpu.direct_storage`), and arrange them there.

`readers.npy` calls this for ``device: gpu``. The copy to the order that operators expect, for example of a region,
runs on the lane that uses the arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...ops.base import Operator
from ...ops.batch import I64, Batch
from ...ops.context import Context
from ...ops.copies.strided import CopyPlan, Target, row_major, run_into
from ...ops.gpu.direct_storage import DirectFile
from ...ops.gpu.readable_by_gpu import GATHERED, gathered
from ...ops.gpu.uploads import Upload, UploadedLease
from ...ops.interfaces import Lane, Uploader
from ...ops.interfaces import Upload as StartedUpload
from .parallel import spread

ALIGNMENT = 4096
"""Bytes; GPUDirect Storage reads fastest if positions in files and in memory are multiples of this."""
_CHUNK = 16 << 20
"""Largest number of bytes per read, so that several threads can read one large array. kvikio and cuFile also cut
larger reads."""


@dataclass(frozen=True, slots=True)
class StoredRanges:
    """The bytes to read for N arrays: for each array, a range of its file, and where this range goes in a block of
    device memory. All fields are int64[N]; offsets and sizes are in bytes."""

    starts: I64
    """Offset of each range in its file."""
    sizes: I64
    places: I64
    """Offset of each range in the block, a multiple of `ALIGNMENT`."""
    bases: I64
    """For each array, the index in the block of the element whose indices are all 0, counted in elements."""

    @staticmethod
    def of(plan: CopyPlan, offsets: I64, itemsize: int) -> StoredRanges:
        """Return the ranges that ``plan`` reads. ``offsets``: offset of each array's first element in its file. The
        plan's ``base`` is ignored; its strides are positive."""
        low = np.clip(plan.anchor, 0, plan.extent)
        high = np.clip(plan.anchor + plan.shape, 0, plan.extent)
        is_read = (high > low).all(axis=1)
        first = (low * plan.stride).sum(axis=1)
        starts = offsets + first * itemsize
        ends = offsets + (((high - 1) * plan.stride).sum(axis=1) + 1) * itemsize
        # an element must be at a multiple of its size in memory: ranges of files with odd headers begin with the array
        starts = np.where(offsets % itemsize == 0, starts // ALIGNMENT * ALIGNMENT, starts)
        sizes = np.where(is_read, ends - starts, 0)
        room = -(-sizes // ALIGNMENT) * ALIGNMENT
        places = np.cumsum(room) - room
        return StoredRanges(starts, sizes, places, (places + offsets - starts) // itemsize)

    @property
    def nbytes(self) -> int:
        """Size of the block in bytes."""
        return int((-(-self.sizes // ALIGNMENT) * ALIGNMENT).sum())


def read_ranges(
    ctx: Context, uploader: Uploader, upload: StartedUpload, ranges: StoredRanges, path: Callable[[int], str],
    has_changed: Callable[[int], bool],
) -> set[int]:  # fmt: skip
    """Read ``ranges`` into the memory of ``upload``, in this thread and idle threads of the pool. ``path(k)`` returns
    the path of file ``k``; ``has_changed(k)`` tells whether it was removed or changed size. Return the indices of files
    that could not be read for that reason. Raises kvikio's exception for any other failure."""
    block = upload.writable_block()
    tasks = [(k, at) for k, size in enumerate(ranges.sizes.tolist()) for at in range(0, size, _CHUNK)]
    lost: set[int] = set()

    def read(first: int, last: int) -> None:
        file: DirectFile | None = None
        opened = -1
        with uploader.gpu:
            try:
                for k, at in tasks[first:last]:
                    begin = int(ranges.places[k]) + at
                    size = min(_CHUNK, int(ranges.sizes[k]) - at)
                    try:
                        if k != opened:
                            if file is not None:
                                file.close()
                            file, opened = None, k
                            file = DirectFile(path(k), uploader.index)
                        if file is None or file.read(int(ranges.starts[k]) + at, block[begin : begin + size]) < size:
                            raise OSError("the file ends early")
                    except Exception:
                        if not has_changed(k):
                            raise
                        lost.add(k)
            finally:
                if file is not None:
                    file.close()

    spread(ctx, len(tasks), ranges.nbytes, read)
    return lost


class StoredArrays(UploadedLease):
    """Owner of the device memory that holds arrays as stored in their files. ``plan`` copies each array, or a region of
    it, to C order. Created by `lease_arrays`, owned by the arrays of the batch; any thread may use it."""

    def __init__(self, upload: Upload, event: Any, block: Any, arrays: Batch, op: Operator, plan: CopyPlan) -> None:
        """``arrays``: the batch as the host sees it; `show` fills its memory. The other arguments are those of
        `UploadedLease`, and the reader."""
        super().__init__(upload, event, block, arrays.data.view(np.uint8))
        self._arrays, self._op, self._plan = arrays, op, plan
        self._hidden = True
        self._showing = threading.Lock()
        ends = plan.anchor + plan.shape
        outside = ((plan.anchor < 0) | (ends > plan.extent)).any(axis=1)
        scattered = ((plan.stride != row_major(plan.shape)) & (plan.shape > 1)).any(axis=1)
        self._is_copied = bool(((outside | scattered) & (plan.shape > 0).all(axis=1)).any())
        """Whether the device copies the arrays, because some of them are not stored as operators expect."""

    def _rows(self, starts: I64) -> I64:
        """Return the indices of the arrays that begin at the bytes ``starts`` of the host's memory."""
        rows: I64 = np.searchsorted(self._arrays.offsets * self._arrays.dtype.itemsize, starts)
        return rows

    def _rows_of(self, batch: Batch) -> I64:
        first = batch.data.ctypes.data - self.__array_interface__["data"][0]
        return self._rows(batch.offsets * batch.dtype.itemsize + first)

    def sources(self, starts: I64) -> I64:
        rows, plan = self._rows(starts), self._plan
        elements: I64 = plan.base[rows] + (plan.anchor[rows] * plan.stride[rows]).sum(axis=1)
        return self._upload.address + elements * self._arrays.dtype.itemsize

    def places(self, batch: Batch) -> I64:
        return gathered(batch)[0] if self._is_copied else super().places(batch)

    def bring(self, lane: Lane, batch: Batch) -> Any:
        """Return a flat device array that holds the samples of ``batch``, at the elements that `places` returns: the
        block as it was read, or a copy in C order. The host does not wait for the device."""
        block = super().bring(lane, batch)
        if not self._is_copied:
            return block
        at, nbytes = gathered(batch)
        out = lane.empty(nbytes // batch.dtype.itemsize, batch.dtype)
        ctx = Context(op=self._op, stage="gpu", samples=batch.samples, device=lane)
        self._copy(ctx, self._rows_of(batch), block, batch.replace(data=out, offsets=at))
        lane.keep(block)
        return out

    def _copy(self, ctx: Context, rows: I64, block: Any, out: Batch) -> None:
        """Copy the arrays ``rows`` from ``block`` to ``out``, a batch of these arrays."""
        plan = self._plan
        part = replace(plan, shape=plan.shape[rows], base=plan.base[rows], stride=plan.stride[rows],
                       anchor=plan.anchor[rows], extent=plan.extent[rows])  # fmt: skip
        target = Target(out, out.offsets, row_major(part.shape))
        run_into(ctx, part, out.replace(data=block, offsets=part.base), target)

    def show(self, starts: I64) -> None:
        # all arrays at once: only a fallback needs them on the host
        with self._showing:
            if not self._hidden:
                return
            uploads = self._upload.uploads
            uploads.wait(self._event.synchronize)
            with uploads.gpu:
                stored = self._block.get()
            ctx = Context(op=self._op, stage="cpu", samples=self._arrays.samples)
            self._copy(ctx, np.arange(len(self._plan)), stored.view(self._arrays.dtype), self._arrays)
            self._hidden = False

    def hidden(self, starts: I64) -> Any:
        return np.full(len(starts), self._hidden)


def lease_arrays(ctx: Context, upload: StartedUpload, plan: CopyPlan) -> Batch:
    """Return the arrays that ``plan`` takes from the memory of ``upload`` as a batch whose bytes are on the device. The
    files were read into this memory before."""
    shapes = plan.shape.astype(np.int32)
    item = plan.dtype.itemsize
    sizes = np.maximum(shapes.prod(axis=1, dtype=np.int64), 1) * item  # arrays are told apart by where they begin
    room = -(-sizes // GATHERED) * GATHERED
    at = (np.cumsum(room) - room) // item
    arrays = Batch(np.empty(int(room.sum()) // item, plan.dtype), at, shapes, plan.layout, ctx.samples)

    def owner(upload: Upload, event: Any, block: Any) -> StoredArrays:
        return StoredArrays(upload, event, block, arrays, ctx.op, plan)

    return arrays.replace(data=upload.finish_arrays(owner).view(plan.dtype))
