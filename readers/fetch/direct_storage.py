"""Direct storage: kvikio reads records from files into a GPU's memory, past the host where the system has GPUDirect
Storage. For data sets on fast disks that do not fit into the page cache; what is in it comes faster by other ways.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ops.gpu.current import OnGpu
from ...ops.gpu.readable_by_gpu import FetchedLease
from .extents import I64, U8, Mapped

_ALIGNED = 4096
"""Bytes; what is read begins at multiples of it in the file and in memory, as disks like it."""
_GAP = 64 << 10
"""Bytes between records that are read along with them: one read of many is faster than one for each."""
_SMALL = 4096
"""Mean bytes of records below which they are left to the host: labels, and the like, which it looks at itself."""


def why_not_kvikio() -> str:
    """Why kvikio cannot be used; empty where it can."""
    try:
        import kvikio  # noqa: F401
    except Exception as e:  # a broken installation raises many kinds
        missing = isinstance(e, ModuleNotFoundError) and e.name == "kvikio"
        return "kvikio is not installed" if missing else f"kvikio cannot be loaded: {e}"
    return ""


def _ended(reads: Sequence[Any]) -> list[int]:
    """Wait for every one of kvikio's futures; what they read. Raises what the first of them failed with, at the end."""
    got, failed = [], None
    for read in reads:
        try:
            got.append(read.get())
        except Exception as e:
            failed = failed or e
    if failed is not None:
        raise failed
    return got


class KvikioFiles:
    """Reads extents of files into the memory of the GPUs ``indices``, and lends views of them that are there already.

    ``told(way, nbytes)`` is called with how the bytes of a batch travel and why. May be used by several threads.
    """

    def __init__(self, indices: Sequence[int], told: Callable[[str, int], None]) -> None:
        self._indices = indices
        self._told = told
        self._why_not = why_not_kvikio()
        self._files: dict[tuple[int, int], Any] = {}
        self._mapped: dict[int, Mapped] = {}
        self._lock = threading.Lock()

    @property
    def works(self) -> bool:
        """Anything can be read that way."""
        return not self._why_not

    def of(self, number: int) -> _OfBatch:
        """Lends for batch ``number``, which its GPU will ask for."""
        return _OfBatch(self, self._indices[number % len(self._indices)])

    def lend(self, mapped: Mapped, offsets: I64, sizes: I64, index: int) -> U8 | str:
        """The files of ``mapped`` as an array whose extents are on GPU ``index``, or why they are to be copied."""
        nbytes = int(sizes.sum())
        if nbytes <= _SMALL * len(sizes):
            return "records of few bytes"
        if self._why_not:
            return self._why_not
        try:
            lease = self._fetched(mapped, offsets, sizes, index)
        except Exception as e:  # of kvikio, of the system, of the GPU; copying does without
            return f"kvikio: {e}"
        self._told("kvikio", nbytes)
        return lease.array()

    def _fetched(self, mapped: Mapped, offsets: I64, sizes: I64, index: int) -> FetchedLease:
        import cupy

        lows, lengths = runs_of(mapped, offsets, sizes)
        room = -(-lengths // _ALIGNED) * _ALIGNED
        places = np.cumsum(room) - room
        numbers = mapped.file_of(lows)
        files = [self._file(mapped, k) for k in numbers.tolist()]
        inside = lows - mapped.starts[numbers]
        with OnGpu(index):
            block = cupy.empty(int(room.sum()), np.uint8)
            reads: list[Any] = []
            try:
                for file, place, length, start in zip(
                    files, places.tolist(), lengths.tolist(), inside.tolist(), strict=True
                ):
                    reads.append(file.pread(block[place : place + length], length, start))
            finally:
                got = _ended(reads)  # all of them, before the block may go, also where one fails
        if got != lengths.tolist():
            raise OSError("a file ends early")
        return FetchedLease(mapped.data, block, lows, places)

    def _file(self, mapped: Mapped, i: int) -> Any:
        import kvikio

        with self._lock:
            if id(mapped) not in self._mapped:
                self._mapped[id(mapped)] = mapped
                mapped.expect_jumps()
            found = self._files.get((id(mapped), i))
            if found is None:
                if not mapped.is_same(i):
                    raise OSError("a file was unpacked, or replaced while the job ran")
                found = self._files[id(mapped), i] = kvikio.CuFile(mapped.local[i], "r")
            return found

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()
            self._mapped.clear()
            self._why_not = "the run is over"


@dataclass(frozen=True, slots=True)
class _OfBatch:
    """Lends for one batch."""

    files: KvikioFiles
    index: int

    def holds(self, mapped: Mapped, offsets: I64, sizes: I64) -> bool:
        """The host does not need the extents in its memory."""
        return self.files.works

    def lend(self, mapped: Mapped, offsets: I64, sizes: I64) -> U8 | str:
        """As `KvikioFiles.lend`."""
        return self.files.lend(mapped, offsets, sizes, self.index)


def runs_of(mapped: Mapped, offsets: I64, sizes: I64) -> tuple[I64, I64]:
    """Beginnings, growing, and lengths of what is to be read: extents that lie together in a file are one run."""
    there = np.flatnonzero(sizes > 0)
    there = there[np.argsort(offsets[there], kind="stable")]
    lows, files = offsets[there], mapped.file_of(offsets[there])
    highs = np.maximum.accumulate(lows + sizes[there])
    new = np.ones(len(there), np.bool_)
    new[1:] = (lows[1:] - highs[:-1] > _GAP) | (files[1:] != files[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(there)) - 1
    lows = lows[first] // _ALIGNED * _ALIGNED  # files begin at pages
    return lows, highs[last] - lows
