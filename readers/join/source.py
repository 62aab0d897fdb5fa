"""JoinedSource: a reader's data set whose samples have the fields of a table's rows as further outputs."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from typing import Any

import numpy as np

from ...ops.arrays.json_values import read_values
from ...ops.batch import I64, Batch, Origin, Samples
from ...ops.context import Context
from ...ops.errors import JobError
from ...ops.kernels import Kernels
from ...ops.storage.inventory import InventoryEntries
from ..base import Source
from .table import Table

_rows: Any = Kernels(".rows_cpu", __package__)

_ABSENT = 4  # json_cpu.ABSENT
_BLOCK = 1 << 16
"""Keys that are looked up at a time when the data set is opened."""
_PROBED = 1000
"""Records that are looked up first, to find out whether keys match at all."""


class JoinedSource:
    """The data set of a reader, joined with a table; owned by the reader's user, who closes it."""

    def __init__(self, source: Source, table: Table, own_outputs: int) -> None:
        """Raises JobError if no sample has a row."""
        self._source, self._table, self._join = source, table, table.join
        self._own_outputs = own_outputs
        self._numbers: I64 | None = None
        """Numbers of the records that have a row, if others are left out."""
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
        """Raises JobError that shows keys of both sides, and the value of ``match`` that would help."""
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

    def _left(self, records: I64) -> I64:
        """How many records of each group or entry are not left out."""
        assert self._numbers is not None
        ends = np.cumsum(records)
        return np.diff(np.searchsorted(self._numbers, ends), prepend=0).astype(np.int64)

    def _keys(self, index: I64) -> list[bytes]:
        """Keys of records of the data set itself."""
        at = np.zeros(len(index), np.int64)
        return Samples.of_epoch_0(at.astype(np.int32), at, index, self._source).names()

    def _find(self, index: I64) -> I64:
        return self._table.find(self._keys(index))

    def __len__(self) -> int:
        return len(self._source) if self._numbers is None else len(self._numbers)

    def origin(self, index: int) -> Origin:
        return self._source.origin(index if self._numbers is None else int(self._numbers[index]))

    def keys(self, index: I64) -> list[bytes]:
        """The keys of some records, as `origin` gives them, in UTF-8."""
        return self._keys(index if self._numbers is None else self._numbers[index])

    def fingerprint(self) -> str:
        both = self._source.fingerprint() + self._table.fingerprint()
        return hashlib.sha256(both.encode()).hexdigest()

    def inventory(self) -> InventoryEntries:
        """The entries of the data set, and the table's files as entries without records."""
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
        """Reject samples whose row has no value in a field, or cannot be read as JSON."""
        for i, k in np.argwhere((values[:, :, 2] == _ABSENT) & (rows >= 0)[:, None]).tolist():
            name, broken = list(self._join.fields)[k], values[i, k, 0] < 0
            if broken:
                ctx.reject(i, "corrupt_data", f"{self._table.place(int(rows[i]))}: is not JSON")
            elif self._join.missing != "empty":
                ctx.reject(i, "missing_feature", f"{self._table.place(int(rows[i]))}: has no value {name!r}")


def _cut(key: str, match: str) -> str:
    """The part of a key that ``match`` compares."""
    name = key.rpartition("/")[2]
    return name if match == "name" else name[:1] + name[1:].partition(".")[0]
