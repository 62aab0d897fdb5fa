"""Cache of a run for JPEGs that a GPU has decoded: where the codes of each piece of a scan begin.

The GPU decodes the pieces of a scan, 512 bytes each, concurrently, and has to find the decoder's state at the start of
each: the search takes a quarter of the kernels' time. The states are a property of the file. They are stored when an
image is decoded for the first time, four bytes per piece, and passed to the kernels in the next epochs.

Correct pixels do not depend on them: the kernels check whether each piece ends where the next one begins, and an image
for which this fails (its file was changed since) is decoded again, without them.
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
MAX_BYTES = 1 << 32
"""Maximum bytes of decoder states that are stored: enough for 500 GB of JPEGs."""


MAX_WRONG = 1000
"""Number of images with wrong decoder states after which none are used any longer: the data set has probably changed,
and each wrong state costs a decode on the CPU."""
_SMALL = 1 << 10


def _reserve(nbytes: int) -> npt.NDArray[np.uint8]:
    """Allocate an array of zeros. Its pages take up physical memory only when they are first written."""
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


@dataclass
class Boundaries:
    """Cached decoder states of the JPEGs of one data set, by record number: where codes begin, at every 512 bytes of a
    scan. From these points a GPU can decode in parallel. Created by `Context.facts` for a job; threads may share it."""

    budget: int = 1 << 28
    """Maximum bytes of host memory for decoder states."""
    used: int = 0
    """Number of decoder states that are stored."""
    wrong: int = 0
    """Number of images whose decoder states were wrong, because their files have changed."""
    _states: npt.NDArray[np.uint32] | None = None
    _first: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    _count: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    _bytes: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def full(self) -> bool:
        """Whether no more decoder states can be stored: no space is left, or too many states were wrong."""
        return self.used * 4 + _SMALL > self.budget or self.wrong > MAX_WRONG

    @property
    def records(self) -> int:
        """Number of images whose decoder states are stored."""
        return int(np.count_nonzero(self._count))

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that decoder states and their tables occupy."""
        return 4 * self.used + self._first.nbytes + self._count.nbytes + self._bytes.nbytes

    def counts(self, index: I64, sizes: I64) -> I64:
        """Return the number of stored decoder states of each of the images ``index``, int64[N]; 0 if the size of the
        file has changed. ``sizes``: current sizes of the files."""
        with self._lock:
            if self.wrong > MAX_WRONG or not len(self._count):
                return np.zeros(len(index), np.int64)
            place = np.minimum(index, len(self._count) - 1)
            same = (place == index) & (self._bytes[place] == sizes)
            return np.where(same, self._count[place], 0).astype(np.int64)

    def fill(self, index: I64, counts: I64, states: npt.NDArray[np.uint64]) -> None:
        """Copy the stored decoder states of the images ``index`` to ``states`` (`cuda.DecodePlan.known`), one image
        after the other. ``counts``: number of states of each image."""
        with self._lock:
            kept, first = self._states, self._first
        if kept is not None:
            _loops.unpack(kept, first, index, counts, states)

    def learn(self, index: I64, which: npt.NDArray[np.bool_], plan: cuda.DecodePlan, found: list[Any]) -> None:
        """Store the decoder states that `cuda.Decoder.decode` has added to ``found``, for the images of a batch for
        which ``which`` is true. ``index``: record numbers of all images of the batch."""
        starts, stream = found[0].view(np.uint64), found[1].view(np.uint32)
        images = plan.images
        which = which & (images["block_count"] > 0) & (images["known_count"] == 0)
        counts = np.where(which, stream[: 2 * len(images) : 2].astype(np.int64) * 8 // cuda.SUBSEQUENCE_BITS + 1, 0)
        with self._lock:
            if self._states is None:
                self._states = _reserve(min(self.budget, MAX_BYTES) // 4 * 4).view(np.uint32)
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
        """Drop the wrong decoder states of the images ``index``. New ones are stored when the images are decoded
        again."""
        with self._lock:
            self.wrong += len(index)
            self._count[index[index < len(self._count)]] = 0


def _grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    grown = np.zeros(size, array.dtype)
    grown[: len(array)] = array
    return grown
