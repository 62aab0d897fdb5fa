"""Leases: arrays of the host whose bytes a GPU fetches by itself - out of registered memory, or from the file.

To kernels of the host such an array is what it shows, a mapped file. What is uploaded of it is gathered by the device
instead; nothing is copied on the host.
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
"""Bytes; samples begin at multiples of it where they were gathered."""
_THREADS, _BLOCKS = 256, 64
_LARGE = 256 << 10
"""Bytes of a record, in the mean, from which copy engines bring them: each copy costs the launching thread one or two
microseconds."""
_BYTES_OF_WARP = 2048
"""Bytes that a warp of the gather kernel asks for at a time."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """The table for gathering one batch, whose offsets these are."""

    offsets: I64
    dtype: np.dtype[Any]
    places: I64
    nbytes: int
    records: I64
    """[N, 3] address, place and size in bytes, as the kernel takes them."""


class Lease(ABC):
    """Every array handed out holds a reference to its lease, which keeps the memory in place."""

    on_device = False
    """The bytes are in the device's memory already."""
    on_host = False
    """They take memory of the host, too, which no file has."""

    def __init__(self, data: npt.NDArray[Any]) -> None:
        self._shown = data
        self._planned: Gathering | None = None
        self.__array_interface__ = data.__array_interface__

    def array(self) -> npt.NDArray[Any]:
        """The array; all views of it hold the lease."""
        return np.asarray(self)

    @abstractmethod
    def sources(self, starts: I64) -> I64:
        """Addresses at which a device finds the bytes that begin ``starts`` bytes into the array."""

    def plan(self, batch: Batch) -> Gathering:
        """The table for gathering ``batch`` (of the array), computed once: by the reading thread, to spare the
        launching one."""
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
        """Elements at which the samples of ``batch`` begin in what `bring` gives."""
        return self.plan(batch).places

    def bring(self, lane: Lane, batch: Batch) -> Any:
        """The samples of ``batch`` on the lane's device, at `places`: a flat array. Nothing is waited for that runs on
        the device."""
        plan = self.plan(batch)
        out = lane.empty(plan.nbytes // batch.dtype.itemsize, batch.dtype)
        if plan.nbytes:
            (table,) = lane.upload(plan.records)
            blocks = min(_BLOCKS, -(-plan.nbytes // (_BYTES_OF_WARP * _THREADS // 32)))
            n, total = np.int32(len(batch)), np.int64(plan.nbytes)
            lane.launch("gather.cu", "gather", blocks, _THREADS, table, n, total, out)
            lane.keep(batch.data)
        return out

    def show(self, starts: I64) -> None:  # noqa: B027 (most show all of them anyhow)
        """Have the array show all bytes of the samples that begin ``starts`` bytes into it."""

    def hidden(self, starts: I64) -> npt.NDArray[np.bool_]:
        """Those of these samples that it does not show as a whole, bool[len(starts)]."""
        return np.zeros(len(starts), np.bool_)


class RegisteredLease(Lease):
    """Of memory that is registered with CUDA, ``shift`` bytes from the array, in windows of ``window`` bytes; 0: as a
    whole."""

    def __init__(self, data: npt.NDArray[Any], shift: int, window: int = 0) -> None:
        super().__init__(data)
        self._first = data.ctypes.data + shift
        self._window = window

    def sources(self, starts: I64) -> I64:
        return starts + self._first

    def bring(self, lane: Lane, batch: Batch) -> Any:
        """As of any lease; large records by the device's copy engines, which leave its cores to others. A copy must not
        reach from one window into another."""
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
    """Records that are not empty, as pieces that lie in one window each; these begin at the address ``first``."""
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
    """Of runs of the array's bytes: what begins at ``lows[i]`` (they grow) lies at ``places[i]`` of ``block``, in a
    device's memory."""

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
    """Elements at which the samples begin once they are gathered, in their order, and the bytes of all. Sizes are
    rounded up as those of records that are copied into one buffer."""
    item = batch.dtype.itemsize
    room = -(-batch.sizes * item // GATHERED) * GATHERED
    ends = np.cumsum(room)
    return (ends - room) // item, int(ends[-1]) if len(ends) else 0


def lease_of(array: Any) -> Lease | None:
    """The lease that a host array, or an array that it is a view of, was given with."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, Lease) else None


def show(batch: Batch, which: I64 | slice = slice(None)) -> None:
    """Have the host see all bytes of the samples ``which``. Of batches that went to a device while they were read, it
    sees what it always looks at (`readers.fetch.header_bytes_cpu`)."""
    lease = lease_of(batch.data)
    if lease is not None:
        lease.show(_starts(lease, batch, which))


def hidden(batch: Batch, which: I64) -> npt.NDArray[np.bool_]:
    """Those of the samples ``which`` that the host does not see as a whole, bool[len(which)]."""
    lease = lease_of(batch.data)
    return np.zeros(len(which), np.bool_) if lease is None else lease.hidden(_starts(lease, batch, which))


def _starts(lease: Lease, batch: Batch, which: I64 | slice) -> I64:
    """Bytes of the lease's array before each of the samples."""
    first = batch.data.ctypes.data - lease.__array_interface__["data"][0]
    starts: I64 = batch.offsets[which] * batch.dtype.itemsize + first
    return starts


def in_host_memory(array: Any) -> bool:
    """The bytes of ``array`` take the host's memory."""
    lease = lease_of(array)
    return isinstance(array, np.ndarray) if lease is None or lease.on_host else not lease.on_device


def in_device_memory(array: Any) -> bool:
    """The bytes of ``array`` take a device's memory, whatever the host sees of them."""
    lease = lease_of(array)
    return not isinstance(array, np.ndarray) if lease is None else lease.on_device
