"""Pieces: bytes that lie in several places, written one after the other without being copied together first."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.batch import I64

U8 = npt.NDArray[np.uint8]

LOOSE = 2048
"""Bytes that the values of a field have on average from which they stay where they are: copying fewer costs less than
pointing at them."""
_ROWS = os.sysconf("SC_IOV_MAX")
"""Pieces that the system takes at a time."""


@dataclass(frozen=True, slots=True)
class IoVector:
    """Bytes in their order, by address."""

    table: I64
    """[M, 2]: address and size (not 0) of each piece; on 64-bit systems, struct iovec."""
    ends: I64
    """[M]: bytes up to the end of each piece."""
    held: tuple[object, ...]
    """The owners of the memory, which must not change until it is written."""

    def __len__(self) -> int:
        """Bytes of all pieces."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def part(self, at: int, limit: int) -> I64:
        """Rows of the table for the bytes from ``at`` (< len) on: at most ``limit`` (> 0) bytes, at most as many rows
        as the system takes."""
        first = int(np.searchsorted(self.ends, at, side="right"))
        ends = self.ends[first : first + _ROWS]
        rows = self.table[first : first + int(np.searchsorted(ends, at + limit)) + 1][:_ROWS].copy()
        skipped = at - int(ends[0] - rows[0, 1])
        rows[0] += (skipped, -skipped)
        rows[-1, 1] -= max(0, int(ends[len(rows) - 1]) - at - limit)
        return rows

    def packed(self) -> U8:
        """A copy of all bytes."""
        from . import frames_cpu

        out = np.empty(len(self), np.uint8)
        sizes = np.ascontiguousarray(self.table[:, 1])
        frames_cpu.copy_ranges(out, self.ends - sizes, np.int64(0), np.ascontiguousarray(self.table[:, 0]), sizes)
        return out


@dataclass(frozen=True, slots=True)
class ScatteredRecords:
    """Records of small bytes, which lie in ``own``, and of K large values each, which lie where they are. Record ``i``
    is ``own[starts[i] : ends[i]]``, and before ``own[cuts[k, i]]`` stands value k."""

    own: U8
    starts: I64
    ends: I64
    cuts: I64
    """[K, N]; growing in k, between the record's start and end."""
    addresses: I64
    """[K, N]"""
    sizes: I64
    """[K, N]: bytes of the values."""
    held: tuple[object, ...]
    """The owner of the values."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def totals(self) -> I64:
        """int64[N]: bytes of each record."""
        totals: I64 = self.ends - self.starts + self.sizes.sum(axis=0)
        return totals

    def take(self, where: Any) -> ScatteredRecords:
        """The records at ``where`` (indices, a mask, or a slice); nothing is copied."""
        arrays = (self.cuts[:, where], self.addresses[:, where], self.sizes[:, where])
        return ScatteredRecords(self.own, self.starts[where], self.ends[where], *arrays, self.held)

    def io_vector(self, n: int) -> IoVector:
        """The first ``n`` records, one after the other."""
        from . import frames_cpu

        table = np.empty(((2 * len(self.cuts) + 1) * n + 1, 2), np.int64)
        arrays = (self.starts, self.ends, self.cuts, self.addresses, self.sizes)
        starts, ends, cuts, addresses, sizes = (np.ascontiguousarray(a) for a in arrays)
        own = np.int64(self.own.ctypes.data)
        used = frames_cpu.fill_io_vector(table, own, starts, ends, cuts, addresses, sizes, n)
        return IoVector(table[:used], np.cumsum(table[:used, 1]), (self.own, *self.held))
