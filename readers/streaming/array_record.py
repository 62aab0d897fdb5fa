"""readers.array_record: records of ArrayRecord files, through the package array_record (extra ``array-record``)."""

from __future__ import annotations

import importlib.util
import os
from hashlib import sha256
from threading import Lock
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ...ops.base import Arg, Spec
from ...ops.batch import Batch, BatchedOrigins, Origin
from ...ops.context import Context
from ...ops.errors import JobError, SpecError
from ...ops.storage.inventory import InventoryEntries
from ...ops.types import DALIDataType
from ..fetch.extents import MAX_RECORD, Groups, expand, one_or_more, payload, short_names
from ..fetch.remote import local_copy
from ..join.reader import JoiningReader
from ..records.example import RecordParser, declared

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_MAX_KEYS = 1 << 16
"""Largest number of keys of fetched records that are remembered. Without them `keys` reads the records again."""


class _File:
    """One open ArrayRecord file. Several threads may call it; a lock lets one read at a time."""

    def __init__(self, path: str) -> None:
        from array_record.python.array_record_module import ArrayRecordReader

        self._reader = ArrayRecordReader(local_copy(path))
        if not self._reader.ok():
            raise JobError(f"{path} cannot be opened as an ArrayRecord file")
        self.records = int(self._reader.num_records())
        self._lock = Lock()

    def read(self, which: list[int]) -> list[bytes | str]:
        """Return the records ``which``, or the reasons why they cannot be read."""
        with self._lock:
            try:
                return list(self._reader.read(which))
            except (RuntimeError, IndexError) as e:
                if len(which) == 1:
                    return [str(e).partition(";")[0]]
        return [found for i in which for found in self.read([i])]


class _ArrayRecords(BatchedOrigins):
    """Data set of the reader `ArrayRecord`, opened: the records of all its files, by number."""

    def __init__(self, reader: ArrayRecord) -> None:
        self._paths = expand(one_or_more(reader.path))
        self._files = [_File(p) for p in self._paths]
        self._numbers = Groups(np.array([f.records for f in self._files], np.int64))
        self.groups: I64 | None = self._numbers.counts
        self._names = short_names(self._paths)
        self._parser = RecordParser.of(declared(reader.features)) if reader.features is not None else None
        self._fetched: dict[int, bytes] = {}
        """Keys of records that were fetched, by record number. `fetch` and `keys` may run in different threads."""
        self._key = RecordParser.of(declared({reader.key: "string"})) if reader.key else None
        stats = [os.stat(local_copy(p)) for p in self._paths]
        self._state = {
            "size": np.array([s.st_size for s in stats]),
            "modified": np.array([s.st_mtime_ns for s in stats]),
        }

    def __len__(self) -> int:
        return int(self._numbers.counts.sum())

    def _read(self, index: I64) -> tuple[U8, I64, I64, dict[int, str]]:
        """Read the records ``index``. Return an array with the bytes of all, offsets and sizes in it, and, by position
        in ``index``, the reasons for which records cannot be read."""
        files = self._numbers.files(index)
        records = index - self._numbers.firsts[files]
        found: list[bytes] = [b""] * len(index)
        problems: dict[int, str] = {}
        for file in np.unique(files).tolist():
            at = np.flatnonzero(files == file).tolist()
            for i, record in zip(at, self._files[file].read(records[at].tolist()), strict=True):
                if isinstance(record, str):
                    problems[i] = record
                elif len(record) > MAX_RECORD:
                    problems[i] = f"the record has {len(record)} bytes; at most {MAX_RECORD} are allowed"
                else:
                    found[i] = record
        sizes = np.fromiter(map(len, found), np.int64, len(found))
        data = np.frombuffer(bytearray(b"".join(found) + b"\0"), np.uint8)
        return data, np.cumsum(sizes) - sizes, sizes, problems

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the records ``index``, as `origin` returns them, in UTF-8."""
        if self._key is None:
            return self._numbers.numbered(self._names, index)
        found = {i: self._fetched.get(i) for i in index.tolist()}
        lacking = np.array([i for i, key in found.items() if key is None], np.int64)
        if len(lacking):
            found.update(zip(lacking.tolist(), self._own_keys(lacking, *self._read(lacking)), strict=True))
        return [found[i] or b"" for i in index.tolist()]

    def _own_keys(self, index: I64, data: U8, offsets: I64, sizes: I64, problems: dict[int, str]) -> list[bytes]:
        """Return the keys of the records ``index``, from results of `_read`; their numbers if they have none."""
        assert self._key is not None
        good = np.array([i not in problems for i in range(len(index))], np.bool_)
        return self._key.first_strings(data, offsets, sizes, good, self._numbers.numbered(self._names, index))

    def origins_of(self, index: I64) -> list[Origin]:
        return self._numbers.origins(self._paths, self.keys(index), index)

    def fingerprint(self) -> str:
        told = (self._names, *(v.tolist() for v in self._state.values()), self._numbers.counts.tolist())
        return sha256(repr(told).encode()).hexdigest()

    def inventory(self) -> InventoryEntries:
        return InventoryEntries("\0".join(self._names).encode(), self._state, self._numbers.counts)

    def close(self) -> None:
        """Do nothing: files are closed when nothing uses them any longer."""

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        n = len(ctx.samples)
        data, offsets, sizes, problems = self._read(ctx.samples.index)
        for i, why in problems.items():
            ctx.reject(i, "corrupt_record", why)
        if self._key is not None:
            if len(self._fetched) > _MAX_KEYS:
                self._fetched.clear()
            keys = self._own_keys(ctx.samples.index, data, offsets, sizes, problems)
            self._fetched.update(zip(ctx.samples.index.tolist(), keys, strict=True))
        if self._parser is None:
            return (payload(ctx, data, offsets, sizes),)
        good = np.array([i not in problems for i in range(n)], np.bool_)
        return self._parser.parse(ctx, data, offsets, sizes, good)


class ArrayRecord(JoiningReader, name="readers.array_record"):
    """Read records of ArrayRecord files (extra ``array-record``).

    Outputs: with ``features`` (of tf.train.Example) one each, in their order: strings as bytes (uint8, 1-D), numbers
    as float32 or int64 of the feature's shape. Without, the record's bytes.
    """

    example = (
        "{op: readers.array_record, path: train-*.array_record, features: {image: string, label: int64}, "
        "out: [jpegs, labels]}"
    )

    path: Annotated[str | tuple[str, ...], Arg("files, or patterns of files")]
    features: Annotated[
        dict[str, Any] | None,
        Arg("name: type, or name: {dtype: string|float|int64, shape: [..], default: .., var_len: true}"),
    ] = None
    key: Annotated[str | None, Arg("bytes feature with the samples' keys, as the writer's option key names it")] = None

    @property
    def own_outputs(self) -> int:
        return 1 if self.features is None else len(self.features)

    @property
    def own_names(self) -> tuple[str, ...] | None:
        return None if self.features is None else tuple(self.features)

    def check(self) -> None:
        super().check()
        if importlib.util.find_spec("array_record") is None:
            raise SpecError("readers.array_record needs array_record: pip install 'dali-run[array-record]'")
        if self.features is not None and not declared(self.features):
            raise SpecError("features is empty; name some, or leave it out for whole records")
        if not one_or_more(self.path) or any(not p or "\0" in p for p in one_or_more(self.path)):
            raise SpecError("path names no file")

    def own_specs(self) -> tuple[Spec, ...]:
        if self.features is None:
            return (Spec((None,), DALIDataType.UINT8),)
        return tuple(f.spec for f in declared(self.features).values())

    def open_records(self) -> _ArrayRecords:
        return _ArrayRecords(self)
