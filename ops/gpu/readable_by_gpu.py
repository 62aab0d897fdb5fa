"""Leases: host arrays whose bytes a GPU reads itself, from registered memory or from a copy that is on the device
already.

To kernels on the host such an array is what it shows, for example a mapped file. If it is to be uploaded, the device
gathers its bytes instead; nothing is copied on the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..interfaces import Lane

GATHERED = 16
"""Bytes; gathered samples begin at multiples of it."""
_THREADS, _BLOCKS = 256, 64
_LARGE = 256 << 10
"""Mean size of a batch's records, in bytes, from which copy engines transfer them: each copy costs the launching thread
one or two microseconds."""
_BYTES_OF_WARP = 2048
"""Bytes that a warp of the gather kernel loads at a time."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Plan for gathering one batch on a device. Created and cached by `Lease.plan`."""

    offsets: I64
    """Offsets of the batch that the plan is for, in elements."""
    dtype: np.dtype[Any]
    """Element type of the batch."""
    places: I64
    """Element at which each sample begins in the gathered array."""
    nbytes: int
    """Bytes of the gathered array."""
    records: I64
    """[N, 3] source address, byte offset in the gathered array and size in bytes of each sample, as the kernel reads
    them."""


class Lease(ABC):
    """Owner of memory that a device reads itself. Every array that it provides refers to it, which keeps the memory in
    place."""

    on_device = False
    """Whether the bytes are in device memory already."""
    on_host = False
    """Whether the bytes also take up host memory, unlike those of a mapped file."""

    def __init__(self, data: npt.NDArray[Any]) -> None:
        self._shown = data
        self._planned: Gathering | None = None
        self.__array_interface__ = data.__array_interface__

    def array(self) -> npt.NDArray[Any]:
        """Return the array; all views of it refer to the lease."""
        return np.asarray(self)

    @abstractmethod
    def sources(self, starts: I64) -> I64:
        """Return the addresses at which a device reads the bytes that begin ``starts`` bytes into the array."""

    def plan(self, batch: Batch) -> Gathering:
        """Return the plan for gathering ``batch``, a view of the array. The reading thread calls this first, and the
        result is cached, to spare the launching thread the work."""
        known = self._planned
        if known is not None and known.offsets is batch.offsets and known.dtype == batch.dtype:
            return known
        item = batch.dtype.itemsize
        sizes = batch.sizes * item
        at, nbytes = gathered(batch)
        first = batch.data.ctypes.data - self.__array_interface__["data"][0]
        records = np.empty((len(batch), 3), np.int64)
        records[:, 0] = self.sources(batch.offsets * item + first)
        np.multiply(at, item, out=records[:, 1])
        records[:, 2] = sizes
        self._planned = Gathering(batch.offsets, batch.dtype, at, nbytes, records)
        return self._planned

    def places(self, batch: Batch) -> I64:
        """Return the element at which each sample of ``batch`` begins in the array that `bring` returns."""
        return self.plan(batch).places

    def bring(self, lane: Lane, batch: Batch) -> Any:
        """Return a flat device array with the samples of ``batch``, at `places`. The host does not wait for the
        device."""
        plan = self.plan(batch)
        out = lane.empty(plan.nbytes // batch.dtype.itemsize, batch.dtype)
        if plan.nbytes:
            (table,) = lane.upload(plan.records)
            blocks = min(_BLOCKS, -(-plan.nbytes // (_BYTES_OF_WARP * _THREADS // 32)))
            n, total = np.int32(len(batch)), np.int64(plan.nbytes)
            lane.launch("gather.cu", "gather", blocks, _THREADS, table, n, total, out)
            lane.keep(batch.data)
        return out

    def show(self, starts: I64) -> None:  # noqa: B027 (most leases always show all bytes)
        """Make all bytes of the samples that begin ``starts`` bytes into the array visible in it."""

    def hidden(self, starts: I64) -> npt.NDArray[np.bool_]:
        """Return which of the samples that begin at ``starts`` the array does not show completely,
        bool[len(starts)]."""
        return np.zeros(len(starts), np.bool_)


class RegisteredLease(Lease):
    """Lease of memory that is registered with CUDA, ``shift`` bytes from the array, in windows of ``window`` bytes; 0
    if it is registered as a whole."""

    def __init__(self, data: npt.NDArray[Any], shift: int, window: int = 0) -> None:
        super().__init__(data)
        self._first = data.ctypes.data + shift
        self._window = window

    def sources(self, starts: I64) -> I64:
        return starts + self._first

    def bring(self, lane: Lane, batch: Batch) -> Any:
        """Return a flat device array with the samples, like `Lease.bring`; large records are transferred by the
        device's copy engines, which leave its cores to other work. A copy must not cross the border of a window."""
        plan = self.plan(batch)
        source, place, size = plan.records.T
        if not plan.nbytes or int(size.sum()) < _LARGE * len(batch):
            return super().bring(lane, batch)
        out = lane.empty(plan.nbytes // batch.dtype.itemsize, batch.dtype)
        source, place, size = cut_at(source, place, size, self._first, self._window)
        lane.copies_in(place + lane.address(out), source, size)
        lane.keep(batch.data)
        return out


def cut_at(source: I64, place: I64, size: I64, first: int, window: int) -> tuple[I64, I64, I64]:
    """Split the records that are not empty at the borders of windows, the first of which begins at the address
    ``first``. Return source addresses, byte offsets in the output, and sizes."""
    there = size > 0
    source, place, size = source[there], place[there], size[there]
    if not window:
        return source, place, size
    begin = (source - first) // window
    pieces = (source + size - 1 - first) // window - begin + 1
    owner = np.repeat(np.arange(len(source)), pieces)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    edge = first + (begin[owner] + number) * window
    low = np.maximum(source[owner], edge)
    high = np.minimum(source[owner] + size[owner], edge + window)
    return low, place[owner] + low - source[owner], high - low


class FetchedLease(Lease):
    """Lease of ranges of the array's bytes that were copied to a device: the bytes from ``lows[i]`` on (ascending) are
    at ``places[i]`` of ``block``."""

    on_device = True

    def __init__(self, data: npt.NDArray[Any], block: Any, lows: I64, places: I64) -> None:
        super().__init__(data)
        self._block = block
        self._lows = lows
        self._shifts = places - lows + int(block.data.ptr)

    def sources(self, starts: I64) -> I64:
        run = np.searchsorted(self._lows, starts, side="right") - 1
        return starts + self._shifts[np.maximum(run, 0)]


def gathered(batch: Batch) -> tuple[I64, int]:
    """Return the element at which each sample begins when gathered in order, and the bytes of all samples. Sizes are
    rounded up to multiples of `GATHERED`."""
    item = batch.dtype.itemsize
    room = -(-batch.sizes * item // GATHERED) * GATHERED
    ends = np.cumsum(room)
    return (ends - room) // item, int(ends[-1]) if len(ends) else 0


def lease_of(array: Any) -> Lease | None:
    """Return the lease of a host array, or of the array that it is a view of; None if it has none."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, Lease) else None


def show(batch: Batch, which: I64 | slice = slice(None)) -> None:
    """Make all bytes of the samples ``which`` visible to the host. Of batches that were uploaded while they were read,
    the host otherwise sees only the bytes that it always inspects (`readers.fetch.header_bytes_cpu`)."""
    lease = lease_of(batch.data)
    if lease is not None:
        lease.show(_starts(lease, batch, which))


def hidden(batch: Batch, which: I64) -> npt.NDArray[np.bool_]:
    """Return which of the samples ``which`` the host does not see completely, bool[len(which)]."""
    lease = lease_of(batch.data)
    return np.zeros(len(which), np.bool_) if lease is None else lease.hidden(_starts(lease, batch, which))


def _starts(lease: Lease, batch: Batch, which: I64 | slice) -> I64:
    """Return the byte offset of each sample in the lease's array."""
    first = batch.data.ctypes.data - lease.__array_interface__["data"][0]
    starts: I64 = batch.offsets[which] * batch.dtype.itemsize + first
    return starts


def in_host_memory(array: Any) -> bool:
    """Return whether the bytes of ``array`` take up host memory."""
    lease = lease_of(array)
    return isinstance(array, np.ndarray) if lease is None or lease.on_host else not lease.on_device


def in_device_memory(array: Any) -> bool:
    """Return whether the bytes of ``array`` take up device memory, whatever the host sees of them."""
    lease = lease_of(array)
    return not isinstance(array, np.ndarray) if lease is None else lease.on_device
