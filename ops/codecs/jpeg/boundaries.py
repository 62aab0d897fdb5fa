"""Facts that a run remembers of JPEGs that it has decoded: where the codes of each piece of a scan begin.

The GPU decodes the pieces of a scan, 512 bytes each, at the same time, and has to find out in which state the decoder
is at the start of each: the search takes a quarter of the kernels' time. The states are a property of the file. They
are kept from the first time that a picture is decoded, four bytes a piece, and given to the kernels when it comes
again, in the next epoch.

Nothing rests on their being right: the kernels see whether each piece ends where the next one begins, and a picture for
which that is not so (its file was changed since) is decoded again, without them.
"""

from __future__ import annotations

import mmap
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...kernels import Kernels
from . import cuda

_loops: Any = Kernels(".boundaries_cpu", __package__)

I64 = npt.NDArray[np.int64]
MOST = 1 << 32
"""Bytes that are kept at most: of 500 GB of JPEGs."""


MOST_WRONG = 1000
"""Each costs a decode on the CPU: a data set of which so many were wrong is not what it was, or never the same."""
_SMALL = 1 << 10


def _reserve(nbytes: int) -> npt.NDArray[np.uint8]:
    """Zeros that take memory as they are first written."""
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


@dataclass
class Boundaries:
    """The states of the pictures of one data set, by their record numbers. Threads may share it."""

    budget: int = 1 << 28
    """Bytes of host memory that states may take."""
    used: int = 0
    """States that are kept."""
    wrong: int = 0
    """Pictures whose states were not those of the file that came under their number."""
    _states: npt.NDArray[np.uint32] | None = None
    _first: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    _count: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    _bytes: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def full(self) -> bool:
        """There is no use in `learn`: no room is left, or too much of what was learned turned out wrong."""
        return self.used * 4 + _SMALL > self.budget or self.wrong > MOST_WRONG

    @property
    def records(self) -> int:
        """Pictures whose states are kept."""
        return int(np.count_nonzero(self._count))

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that states and their tables take."""
        return 4 * self.used + self._first.nbytes + self._count.nbytes + self._bytes.nbytes

    def counts(self, index: I64, sizes: I64) -> I64:
        """How many states are known of the pictures ``index``, files of so many bytes: int64[N]."""
        with self._lock:
            if self.wrong > MOST_WRONG or not len(self._count):
                return np.zeros(len(index), np.int64)
            place = np.minimum(index, len(self._count) - 1)
            same = (place == index) & (self._bytes[place] == sizes)
            return np.where(same, self._count[place], 0).astype(np.int64)

    def fill(self, index: I64, counts: I64, states: npt.NDArray[np.uint64]) -> None:
        """The states of these pictures, one after the other, as `jpeg_gpu.plan_decode` wants them."""
        with self._lock:
            kept, first = self._states, self._first
        if kept is not None:
            _loops.unpack(kept, first, index, counts, states)

    def learn(self, index: I64, which: npt.NDArray[np.bool_], plan: cuda.DecodePlan, found: list[Any]) -> None:
        """Keep what `jpeg_gpu.Decoder.decode` ``found`` of the pictures ``which``; ``index``: the numbers of all."""
        starts, stream = found[0].view(np.uint64), found[1].view(np.uint32)
        images = plan.images
        which = which & (images["block_count"] > 0) & (images["known_count"] == 0)
        counts = np.where(which, stream[: 2 * len(images) : 2].astype(np.int64) * 8 // cuda.SUBSEQUENCE_BITS + 1, 0)
        with self._lock:
            if self._states is None:
                self._states = _reserve(min(self.budget, MOST) // 4 * 4).view(np.uint32)
            most = int(index.max(initial=-1)) + 1
            if most > len(self._count):
                size = max(most, 2 * len(self._count), 1024)
                self._first, self._count = _grown(self._first, size), _grown(self._count, size)
                self._bytes = _grown(self._bytes, size)
            places = images["entries"] // cuda.ENTRIES_EACH
            sizes = images["raw_size"].astype(np.int64)
            tables = self._states, self._first, self._count, self._bytes
            self.used = int(_loops.pack(starts, places, counts, index, sizes, *tables, self.used))

    def forget(self, index: I64) -> None:
        """Drop the states of these pictures, which were wrong. Their numbers are learned anew."""
        with self._lock:
            self.wrong += len(index)
            self._count[index[index < len(self._count)]] = 0


def _grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    grown = np.zeros(size, array.dtype)
    grown[: len(array)] = array
    return grown
