"""Scatter-gather writes: bytes at several addresses are written one after the other without being copied together
first."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.batch import I64

U8 = npt.NDArray[np.uint8]

LOOSE = 2048
"""Average size in bytes from which the values of a field are written without a copy. Copying smaller values costs less
than a memory segment for each."""
_ROWS = os.sysconf("SC_IOV_MAX")
"""Largest number of memory segments that the system accepts in one write call."""


@dataclass(frozen=True, slots=True)
class IoVector:
    """Bytes to be written in order, which are scattered over memory: a list of segments."""

    table: I64
    """Address and size (not 0) of each segment, [M, 2]. On 64-bit systems a row is a struct iovec."""
    ends: I64
    """Number of bytes up to the end of each segment, [M]."""
    held: tuple[object, ...]
    """Objects that own the memory of the segments. It must not change until it is written."""

    def __len__(self) -> int:
        """Number of bytes of all segments."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def part(self, at: int, limit: int) -> I64:
        """Return rows for one write call, like those of ``table``: the bytes from ``at`` (< len) on, at most ``limit``
        (> 0) bytes, and at most as many segments as the system accepts."""
        first = int(np.searchsorted(self.ends, at, side="right"))
        ends = self.ends[first : first + _ROWS]
        rows = self.table[first : first + int(np.searchsorted(ends, at + limit)) + 1][:_ROWS].copy()
        skipped = at - int(ends[0] - rows[0, 1])
        rows[0] += (skipped, -skipped)
        rows[-1, 1] -= max(0, int(ends[len(rows) - 1]) - at - limit)
        return rows

    def packed(self) -> U8:
        """Return a contiguous copy of the bytes of all segments."""
        from . import frames_cpu

        out = np.empty(len(self), np.uint8)
        sizes = np.ascontiguousarray(self.table[:, 1])
        frames_cpu.copy_ranges(out, self.ends - sizes, np.int64(0), np.ascontiguousarray(self.table[:, 0]), sizes)
        return out


@dataclass(frozen=True, slots=True)
class ScatteredRecords:
    """Framed records whose large values are not copied.

    The small bytes of all records are in ``own``; each record also has K large values, which stay where they are in
    memory. Record ``i`` is ``own[starts[i] : ends[i]]``, with value k inserted before ``own[cuts[k, i]]``.
    """

    own: U8
    starts: I64
    ends: I64
    cuts: I64
    """Offset in ``own`` before which value k of record i is inserted, [K, N]. Offsets ascend in k, and are between the
    record's start and end."""
    addresses: I64
    """Address in memory of each large value, [K, N]."""
    sizes: I64
    """Size in bytes of each large value, [K, N]."""
    held: tuple[object, ...]
    """Objects that own the memory of the large values."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def totals(self) -> I64:
        """Number of bytes of each record, with its large values, int64[N]."""
        totals: I64 = self.ends - self.starts + self.sizes.sum(axis=0)
        return totals

    def take(self, where: Any) -> ScatteredRecords:
        """Return the records at ``where`` (indices, a mask, or a slice); nothing is copied."""
        arrays = (self.cuts[:, where], self.addresses[:, where], self.sizes[:, where])
        return ScatteredRecords(self.own, self.starts[where], self.ends[where], *arrays, self.held)

    def io_vector(self, n: int) -> IoVector:
        """Return the bytes of the first ``n`` records, one after the other, as memory segments."""
        from . import frames_cpu

        table = np.empty(((2 * len(self.cuts) + 1) * n + 1, 2), np.int64)
        arrays = (self.starts, self.ends, self.cuts, self.addresses, self.sizes)
        starts, ends, cuts, addresses, sizes = (np.ascontiguousarray(a) for a in arrays)
        own = np.int64(self.own.ctypes.data)
        used = frames_cpu.fill_io_vector(table, own, starts, ends, cuts, addresses, sizes, n)
        return IoVector(table[:used], np.cumsum(table[:used, 1]), (self.own, *self.held))
