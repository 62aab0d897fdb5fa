"""MixedSource: the open data sets of a mixture, whose records are numbered one data set after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...ops.batch import I64, Batch, BatchedOrigins, Origin, Samples, concat, origins_of
from ...ops.context import Context
from ...ops.storage.inventory import InventoryEntries
from ..base import Source
from .data_sets import DataSet


class MixedSource(BatchedOrigins):
    """The open data sets of a mixture as one data set, with records numbered one data set after the other. It owns the
    data sets and closes them."""

    groups: I64 | None = None

    def __init__(self, members: Sequence[DataSet], sources: Sequence[Source]) -> None:
        self.members, self.sources = tuple(members), tuple(sources)
        self.ends: I64 = np.cumsum([len(s) for s in sources])
        """For each data set, the index of the record after its last one, counted over all data sets."""

    @property
    def offsets(self) -> I64:
        """Index of each data set's first record, counted over all data sets."""
        return np.concatenate(([0], self.ends[:-1]))

    def __len__(self) -> int:
        return int(self.ends[-1])

    def _member(self, index: I64) -> I64:
        """Index of the data set that holds each of the records ``index``."""
        return np.searchsorted(self.ends, index, "right")

    def counts(self, index: I64) -> dict[str, int]:
        """Return how many of the records ``index`` each data set has, by its name."""
        found = np.bincount(self._member(index), minlength=len(self.members)).tolist()
        return {member.name: n for member, n in zip(self.members, found, strict=True)}

    def origins_of(self, index: I64) -> list[Origin]:
        found: list[Origin | None] = [None] * len(index)
        member = self._member(index)
        for k in np.unique(member).tolist():
            where, name = np.flatnonzero(member == k), self.members[k].name
            inner = origins_of(self.sources[k], index[where] - self.offsets[k])
            for i, origin in zip(where.tolist(), inner, strict=True):
                found[i] = replace(origin, key=f"{name}/{origin.key}")
        return [o for o in found if o is not None]

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the records ``index`` in UTF-8: the data set's name, ``/``, and the key in the data set."""
        found: list[bytes] = [b""] * len(index)
        member = self._member(index)
        for k in np.unique(member).tolist():
            where = np.flatnonzero(member == k)
            zeros, prefix = np.zeros(len(where), np.int64), f"{self.members[k].name}/".encode()
            inner = Samples(zeros.astype(np.int32), zeros, zeros, index[where] - self.offsets[k], self.sources[k])
            for i, name in zip(where.tolist(), inner.names(), strict=True):
                found[i] = prefix + name
        return found

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        s = ctx.samples
        member = self._member(s.index)
        pieces: list[tuple[Batch, ...]] = []
        where: list[I64] = []
        numbers = np.unique(member).tolist()
        for k in numbers:
            mine = np.flatnonzero(member == k)
            inner = Samples(
                s.slot[mine], s.position[mine], s.epoch[mine], s.index[mine] - self.offsets[k], self.sources[k]
            )
            staging = ctx.services.allocate_staging if len(numbers) == 1 else None
            reader = self.members[k].reader
            part = replace(ctx, op=reader, samples=inner, source=self.sources[k], uploads={},
                           services=replace(ctx.services, lender=None, allocate_staging=staging))  # fmt: skip
            pieces.append(self.sources[k].fetch(part))
            where.append(mine)
        if len(pieces) == 1:
            return tuple(b.replace(samples=s) for b in pieces[0])
        order = np.argsort(np.concatenate(where))
        joined = s.take(np.concatenate(where))

        def empty(n: int, dtype: Any) -> Any:
            size = np.dtype(dtype).itemsize
            return ctx.staging(n * size).view(dtype) if size == 1 else np.empty(n, dtype)

        whole = (concat(batches, joined, empty) for batches in zip(*pieces, strict=True))
        return tuple(b.take(order, s) for b in whole)

    def fingerprint(self) -> str:
        """Hash that identifies all data sets of the mixture together."""
        whole = hashlib.sha256()
        for member, source in zip(self.members, self.sources, strict=True):
            whole.update(f"{member.name}={source.fingerprint()}\n".encode())
        return whole.hexdigest()

    def inventory(self) -> InventoryEntries:
        """Inventory of the mixture: the entries of all data sets, one data set after the other."""
        every = [s.inventory() for s in self.sources]
        names = [f"{m.name}/".encode() + n for m, one in zip(self.members, every, strict=True) for n in one.names]
        state = {
            k: np.concatenate([one.state.get(k, np.zeros(len(one), np.int64)) for one in every])
            for k in sorted({k for one in every for k in one.state})
        }
        keys = " ".join(one.keys for one in every).strip()
        return InventoryEntries(b"\0".join(names), state, np.concatenate([one.records for one in every]), keys)

    def close(self) -> None:
        """Close all data sets."""
        for source in self.sources:
            source.close()
