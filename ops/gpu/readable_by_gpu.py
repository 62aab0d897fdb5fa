"""Leases: host arrays whose bytes a GPU reads itself, from registered memory or from a copy that is on the device
already.

Kernels on the host read such an array like any other, for example a mapped file. If the array has to be uploaded, the
device reads its bytes itself; nothing is copied on the host.
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
"""Alignment in bytes of samples that are copied one after the other into one device array."""
_THREADS, _BLOCKS = 256, 64
_LARGE = 256 << 10
"""Mean record size in bytes from which the GPU's copy engines transfer a batch; a kernel copies smaller records,
because each copy costs the thread that launches kernels one or two microseconds."""
_BYTES_OF_WARP = 2048
"""Number of bytes that one warp of the copying kernel copies at a time."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Description of a copy that packs the samples of a batch, one after the other, into a device array. Created and
    cached by `Lease.plan`."""

    offsets: I64
    """Index of each sample's first element in the batch."""
    dtype: np.dtype[Any]
    """Element type of the batch."""
    places: I64
    """Index of each sample's first element in the device array."""
    nbytes: int
    """Size of the device array in bytes."""
    records: I64
    """Table that the copying kernel reads: source address, byte offset in the device array, and size in bytes of each
    sample. Shape [N, 3]."""


class Lease(ABC):
    """Owner of memory that a GPU can read itself, such as a mapped file. Every array in the memory refers to its lease,
    which keeps the memory in place."""

    on_device = False
    """Whether the bytes of the leased memory are in device memory already."""
    on_host = False
    """Whether the bytes take up host memory; those of a mapped file do not."""

    def __init__(self, data: npt.NDArray[Any]) -> None:
        self._shown = data
        self._planned: Gathering | None = None
        self.__array_interface__ = data.__array_interface__

    def array(self) -> npt.NDArray[Any]:
        """Return an array of all the memory. The array and its views keep the memory in place."""
        return np.asarray(self)

    @abstractmethod
    def sources(self, starts: I64) -> I64:
        """Return the addresses at which the device reads samples. ``starts``: byte offset of each sample in the
        array."""

    def plan(self, batch: Batch) -> Gathering:
        """Return the copy plan for the samples of ``batch``, a view of `array`. The result is cached: a thread that
        reads files calls this first, so that the thread that launches kernels need not compute the plan."""
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
        """Return the index of each sample's first element in the device array that `bring` returns."""
        return self.plan(batch).places

    def bring(self, lane: Lane, batch: Batch) -> Any:
        """Copy the samples of ``batch`` to a flat device array, and return the array; `places` says at which element
        each sample begins. The host does not wait for the copy."""
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
        """Copy to host memory the bytes of samples that are only on the device. ``starts``: byte offset of each sample
        in the array."""

    def hidden(self, starts: I64) -> npt.NDArray[np.bool_]:
        """Return for each sample whether some of its bytes are only on the device, bool[len(starts)]. ``starts`` as in
        `show`."""
        return np.zeros(len(starts), np.bool_)


class RegisteredLease(Lease):
    """Owner of host memory that is registered with CUDA. The device reads a byte at its host address plus ``shift``.
    ``window``: size in bytes of the parts in which the memory was registered; 0 if it was registered as a whole."""

    def __init__(self, data: npt.NDArray[Any], shift: int, window: int = 0) -> None:
        super().__init__(data)
        self._first = data.ctypes.data + shift
        self._window = window

    def sources(self, starts: I64) -> I64:
        return starts + self._first

    def bring(self, lane: Lane, batch: Batch) -> Any:
        """Copy the samples of ``batch`` to a flat device array, like `Lease.bring`. The GPU's copy engines transfer
        large records and leave its cores to other work. No copy may cross from one registered part of the memory to the
        next."""
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
    """Split the copies of records at the borders of registered parts of host memory, which no copy may cross. Parts of
    ``window`` bytes follow each other from address ``first`` on. Return source addresses, byte offsets in the output,
    and sizes, without empty copies."""
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
    """Owner of a host array of which some byte ranges were copied to a device. Range i begins at byte ``lows[i]`` of
    the array (ascending) and at byte ``places[i]`` of the device memory ``block``."""

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
    """Return where samples begin if they are stored one after the other: index of each one's first element, and total
    bytes. Sizes are rounded up to multiples of `GATHERED` bytes."""
    item = batch.dtype.itemsize
    room = -(-batch.sizes * item // GATHERED) * GATHERED
    ends = np.cumsum(room)
    return (ends - room) // item, int(ends[-1]) if len(ends) else 0


def lease_of(array: Any) -> Lease | None:
    """Return the `Lease` that owns the memory of a host array or view; None if no lease does."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, Lease) else None


def show(batch: Batch, which: I64 | slice = slice(None)) -> None:
    """Copy to host memory the bytes of the samples ``which`` that are only on the device. If files were uploaded while
    they were read, host memory has only the first bytes of each (`readers.fetch.header_bytes_cpu`)."""
    lease = lease_of(batch.data)
    if lease is not None:
        lease.show(_starts(lease, batch, which))


def hidden(batch: Batch, which: I64) -> npt.NDArray[np.bool_]:
    """Return for each of the samples ``which`` whether some of its bytes are only on the device, bool[len(which)]."""
    lease = lease_of(batch.data)
    return np.zeros(len(which), np.bool_) if lease is None else lease.hidden(_starts(lease, batch, which))


def _starts(lease: Lease, batch: Batch, which: I64 | slice) -> I64:
    """Return the byte offset of each of the samples ``which`` in the array of ``lease``."""
    first = batch.data.ctypes.data - lease.__array_interface__["data"][0]
    starts: I64 = batch.offsets[which] * batch.dtype.itemsize + first
    return starts


def in_host_memory(array: Any) -> bool:
    """Return whether the bytes of ``array`` take up host memory."""
    lease = lease_of(array)
    return isinstance(array, np.ndarray) if lease is None or lease.on_host else not lease.on_device


def in_device_memory(array: Any) -> bool:
    """Return whether the bytes of ``array`` take up device memory. Some of them may be in host memory too."""
    lease = lease_of(array)
    return not isinstance(array, np.ndarray) if lease is None else lease.on_device
