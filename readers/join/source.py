"""JoinedSource: a reader's data set whose samples have the fields of a table's rows as further outputs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...ops.arrays.json_values import read_values
from ...ops.batch import I64, Batch, BatchedOrigins, Origin, Samples, origins_of
from ...ops.context import Context
from ...ops.errors import JobError
from ...ops.kernels import Kernels
from ...ops.storage.inventory import InventoryEntries
from ..base import Source
from ..fetch.extents import one_or_more
from .table import Table

_rows: Any = Kernels(".rows_cpu", __package__)

_ABSENT = 4  # json_cpu.ABSENT
_BLOCK = 1 << 16
"""Number of keys per block, when the keys of a data set are looked up in the table."""
_PROBED = 1000
"""Number of records whose keys are looked up first, to find out early if the table has no key of the data set."""


class JoinedSource(BatchedOrigins):
    """An open data set of a reader, joined with a table. The caller of the reader's `open` owns and closes it."""

    def __init__(self, source: Source, table: Table, own_outputs: int) -> None:
        """Join ``source`` with ``table``. Raises JobError if no sample has a row in the table."""
        self._source, self._table, self._join = source, table, table.join
        self._own_outputs = own_outputs
        self._numbers: I64 | None = None
        """Indices of the records that have a row in the table, counted over all records of the data set. None if every
        record has one."""
        self.groups = source.groups
        n = len(source)
        probed = np.arange(min(n, _PROBED))
        if self._join.missing == "leave_out":
            here = [at + np.flatnonzero(self._find(np.arange(at, min(at + _BLOCK, n))) >= 0)
                    for at in range(0, n, _BLOCK)]  # fmt: skip
            self._numbers = np.concatenate(here) if here else np.empty(0, np.int64)
            none = not len(self._numbers)
            self.groups = None if source.groups is None else self._left(source.groups)
        else:
            none = self._join.missing == "reject" and not (self._find(probed) >= 0).any()
        if none and n:
            self._refuse(probed)

    def _refuse(self, probed: I64) -> None:
        """Raise the JobError that no key matches. The message shows keys of samples and of the table, and the value of
        ``match`` that would help."""
        mine = [k.decode("utf-8", "backslashreplace") for k in self._keys(probed[:3])]
        hint = ""
        for match in ("name", "stem"):
            if self._join.match != match and not hint:
                theirs = {_cut(k, match) for k in self._table.some_keys(_PROBED)}
                if any(_cut(k.decode("utf-8", "replace"), match) in theirs for k in self._keys(probed)):
                    hint = f"; join: match: {match} compares them without folders{' and suffixes' * (match == 'stem')}"
        raise JobError(
            f"{self._table.paths[0]}: has rows for none of the first {len(probed)} samples, whose keys are "
            f"{', '.join(map(repr, mine))}, ...; those of the table are "
            f"{', '.join(map(repr, self._table.some_keys(3)))}, ...{hint}"
        )

    def left_out(self) -> Iterator[tuple[list[Origin], str]]:
        """Yield the records that the join left out, because they have no row in the table, in blocks: their origins,
        and the condition that does not hold for them."""
        if self._numbers is None:
            return
        is_left = np.ones(len(self._source), np.bool_)
        is_left[self._numbers] = False
        records, condition = np.flatnonzero(is_left), f"has a row in {', '.join(one_or_more(self._join.file))}"
        for at in range(0, len(records), _BLOCK):
            yield origins_of(self._source, records[at : at + _BLOCK]), condition

    def _left(self, records: I64) -> I64:
        """Return how many records of each file (or inventory entry) the join keeps. ``records``: the numbers of records
        before the join."""
        assert self._numbers is not None
        ends = np.cumsum(records)
        return np.diff(np.searchsorted(self._numbers, ends), prepend=0).astype(np.int64)

    def _keys(self, index: I64) -> list[bytes]:
        """Keys of the records ``index``, counted before the join left records out."""
        at = np.zeros(len(index), np.int64)
        return Samples.of_epoch_0(at.astype(np.int32), at, index, self._source).names()

    def _find(self, index: I64) -> I64:
        return self._table.find(self._keys(index))

    def __len__(self) -> int:
        return len(self._source) if self._numbers is None else len(self._numbers)

    def origins_of(self, index: I64) -> list[Origin]:
        return origins_of(self._source, index if self._numbers is None else self._numbers[index])

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the records ``index``, as `origin` returns them, in UTF-8."""
        return self._keys(index if self._numbers is None else self._numbers[index])

    def fingerprint(self) -> str:
        both = self._source.fingerprint() + self._table.fingerprint()
        return hashlib.sha256(both.encode()).hexdigest()

    def inventory(self) -> InventoryEntries:
        """Inventory of the data set, followed by the table's files as entries without records."""
        own = self._source.inventory()
        records = own.records if self._numbers is None else self._left(own.records)
        state = {name: np.zeros(len(self._table.paths), np.int64) for name in own.state}
        state |= {name: values for name, values in self._table.state().items() if name in own.state}
        names = [b"join:" + os.fsencode(os.path.basename(p)) for p in self._table.paths]
        return InventoryEntries(
            b"\0".join([*([own.blob] if len(own) else []), *names]),
            {name: np.concatenate((values, state[name])) for name, values in own.state.items()},
            np.concatenate((records, np.zeros(len(names), np.int64))),
            own.keys,
        )

    def close(self) -> None:
        self._source.close()

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        s = ctx.samples
        index = s.index if self._numbers is None else self._numbers[s.index]
        inner = Samples(s.slot, s.position, s.epoch, index, self._source)
        own = tuple(b.replace(samples=s) for b in self._source.fetch(replace(ctx, samples=inner)))
        keys = self._keys(index)
        rows = self._table.find(keys)
        if self._join.missing != "empty":
            for i in np.flatnonzero(rows < 0).tolist():
                ctx.reject(i, "missing_feature", self._table.lacks(keys[i]))
        data, values = self._table.fields(rows)
        self._reject_absent(ctx, rows, values)
        joined = [
            read_values(ctx, data, values[:, k], kind, f"{name!r} of the joined table", s)
            for k, (name, kind) in enumerate(self._join.fields.items())
        ]
        return (*own, *joined)

    def _reject_absent(self, ctx: Context, rows: I64, values: I64) -> None:
        """Reject samples whose table row lacks the value of a field, or cannot be read as JSON."""
        for i, k in np.argwhere((values[:, :, 2] == _ABSENT) & (rows >= 0)[:, None]).tolist():
            name, broken = list(self._join.fields)[k], values[i, k, 0] < 0
            if broken:
                ctx.reject(i, "corrupt_data", f"{self._table.place(int(rows[i]))}: is not JSON")
            elif self._join.missing != "empty":
                ctx.reject(i, "missing_feature", f"{self._table.place(int(rows[i]))}: has no value {name!r}")


def _cut(key: str, match: str) -> str:
    """Return the part of a key that ``match`` compares: the name after the last slash, or its stem."""
    name = key.rpartition("/")[2]
    return name if match == "name" else name[:1] + name[1:].partition(".")[0]
