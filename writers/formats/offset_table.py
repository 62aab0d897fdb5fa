"""Shards that begin with a table of offsets: number of records, where each begins and ends (uint32), then the records.
MosaicML's MDS and litData's chunks are such files; a record is the sizes of its values (uint32), then the values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from ...ops.base import Arg, Spec
from ...ops.batch import I64, Batch, Samples
from ...ops.errors import JobError, SpecError
from ...ops.types import to_numpy
from ..base import FieldConfig, Frames, Records, Refused, Shard, ShardFiles, Writer
from ..bytes.written import Problem, WrittenShard, map_file
from .columns import Column, as_bytes, as_npy, check_encoded, check_field, elements, from_values, join, kind_of

_LARGEST = (1 << 32) - 1
"""Largest size of a shard in bytes, because offsets have 32 bits."""


@dataclass(frozen=True, slots=True)
class Value:
    """Storage of a field in all records of a format with a table of offsets: kind, dtype and encoding."""

    kind: str
    """Kind of the values: ``bytes``, ``text``, ``number`` or ``array``."""
    dtype: str = "uint8"
    """NumPy dtype name of numbers and arrays."""
    ndim: int = 1
    """Number of dimensions of arrays."""
    encode: str = ""
    """The field's option `encode`, such as ``jpeg``."""

    def stored(self) -> list[Any]:
        """Return these attributes as a JSON list, for the job's schema."""
        return [self.kind, self.dtype, self.ndim, self.encode]


def value_of(name: str, config: FieldConfig, batch: Batch, single: bool) -> Value:
    """Return how a field is stored, judged by ``batch``, one of its batches. ``single``: each sample is one number."""
    check_encoded(name, config, batch)
    kind = kind_of(config, batch.dtype, batch.ndim)
    if config.encode == "text":
        return Value("text", encode="text")
    if kind in ("bytes", "npy"):
        return Value("bytes", encode=config.encode)
    if single and config.encode == "auto" and batch.ndim <= 1:
        return Value("number", batch.dtype.name, encode="auto")
    return Value("array", batch.dtype.name, max(batch.ndim, 1), config.encode)


class OffsetTableWriter(Writer, abstract=True):
    """Base of writers of shards with a table of offsets; a format says how values are named and laid out."""

    has_fixed_sizes: ClassVar[bool] = False
    """Whether a record stores no size for values of constant size, such as numbers."""

    key: Annotated[str, Arg("name of the value that holds the samples' keys; empty for none")] = "key"
    lists: Annotated[tuple[str, ...], Arg("fields that are arrays, although some samples have one number")] = ()
    columns: Annotated[dict[str, Any] | None, Arg("encodings of fields of bytes in this format: {image: jpeg}")] = None

    def order(self, names: Sequence[str]) -> list[str]:
        """Return the names of the fields in the order of their values in a record."""
        return list(names)

    def encoding(self, name: str, value: Value) -> str:
        """Return the format's name for the encoding of the field ``name``, such as ``ndarray:uint8``. Raises SpecError
        for values that the format cannot hold."""
        raise NotImplementedError

    def layout(self, value: Value, batch: Batch) -> Column:
        """Return the bytes of each sample's array, with its shape if the format stores shapes."""
        raise NotImplementedError

    def number(self, dtype: str) -> np.dtype[Any]:
        """Return the dtype in which the format stores numbers of ``dtype``."""
        return np.dtype(dtype)

    def fixed_size(self, value: Value) -> int | None:
        """Return the size of a value in bytes, if it is constant and a record does not store it; else None."""
        if not self.has_fixed_sizes or value.kind != "number":
            return None
        return self.number(value.dtype).itemsize

    def after_table(self, values: Mapping[str, Value]) -> bytes:
        """Return the bytes between the table of offsets and the first record."""
        return b""

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        for name, config in fields.items():
            check_field(name, config, specs.get(name, Spec()))
        if self.key in fields:
            raise SpecError(f"option key: {self.key!r} is already the name of a field")
        for option, names in (("lists", self.lists), ("columns", self.columns or ())):
            for name in names:
                if name not in fields:
                    raise SpecError(f"option {option}: there is no field {name!r}; fields: {', '.join(fields)}")

    def schema(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> dict[str, Any] | None:
        """Return the facts that hold for all shards: ``columns``, how each field is stored (`Value.stored`)."""
        found: dict[str, Any] = {}
        for name, config in fields.items():
            spec = specs.get(name, Spec())
            if spec.dtype is None or spec.shape is None:
                return None
            batch = Batch(np.empty(0, to_numpy(spec.dtype)), np.empty(0, np.int64),
                          np.empty((0, len(spec.shape)), np.int32), "", Samples.numbered(0))  # fmt: skip
            if (
                kind_of(config, batch.dtype, batch.ndim) not in ("bytes", "npy")
                and batch.ndim <= 1
                and None in spec.shape
            ):
                return None
            single = math.prod(d or 0 for d in spec.shape) == 1 and name not in self.lists
            value = value_of(name, config, batch, single)
            self.encoding(name, value)
            found[name] = value.stored()
        return {"columns": found}

    def refuse(self, records: Records, carry: dict[str, Any]) -> Sequence[Refused]:
        known = carry.setdefault("columns", {})
        refused: dict[int, Refused] = {}
        for name, batch in records.fields.items():
            if name not in known:
                single = int(batch.sizes[0]) == 1 and name not in self.lists
                known[name] = value_of(name, self._config(name, batch), batch, single).stored()
            if Value(*known[name]).kind == "number":
                for i in np.flatnonzero(batch.sizes != 1).tolist():
                    refused.setdefault(i, Refused(i, "bad_shape", (
                        f"field {name!r} has {int(batch.sizes[i])} values, that of the data set one; "
                        f"use the writer's option lists: [{name}]")))  # fmt: skip
        return [refused[i] for i in sorted(refused)]

    def _config(self, name: str, batch: Batch) -> FieldConfig:
        """Return the configuration of a field whose type is known only from its first records."""
        return FieldConfig(
            "auto" if batch.dtype == np.uint8 and batch.ndim == 1 else "raw" if batch.ndim > 1 else "auto"
        )

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return OffsetTableShard(self, files)

    def values(self, columns: Mapping[str, Any]) -> dict[str, Value]:
        """Return how each field is stored, by name, in the order of a record. ``columns``: from the schema."""
        named = {**({self.key: Value("text", encode="text")} if self.key else {}),
                 **{name: Value(*stored) for name, stored in columns.items()}}  # fmt: skip
        return {name: named[name] for name in self.order(list(named))}

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        name = shard.file(cls.suffix)
        data = map_file(shard.root / name)
        table = _table_of(shard.root / name, data)
        writer = cls.of(shard.options)
        yield from shard.count(name, len(table) - 1)
        if int(table[-1]) != len(data) or (np.diff(table) < 0).any():
            yield Problem(name, "table of offsets", "does not say where the records are")
            return
        columns = shard.schema.get("columns")
        if columns is None:
            return
        fixed = [writer.fixed_size(v) for v in writer.values(columns).values()]
        head = 4 * sum(size is None for size in fixed)
        starts = table[:-1][:, None] + np.arange(head)
        sizes = data[np.minimum(starts, len(data) - 1)].view("<u4").sum(axis=1, dtype=np.int64) if len(starts) else 0
        wrong = np.flatnonzero(sizes + head + sum(filter(None, fixed)) != np.diff(table))
        for i in wrong.tolist():
            yield Problem(name, f"record {i} at byte {int(table[i])}", "its values do not have its size")


def _table_of(path: Path, data: Any) -> I64:
    """Read the table of offsets of a shard, int64[records + 1]. Raises ValueError if the file is too short for it."""
    n = int(data[:4].view("<u4")[0]) if len(data) >= 4 else 0
    if len(data) < 8 + 4 * n:
        raise ValueError(f"{path.name} is too short for a table of {n} records")
    found: I64 = data[4 : 8 + 4 * n].view("<u4").astype(np.int64)
    return found


@dataclass(slots=True)
class OffsetTableFrames(Frames):
    """Records of a batch in the format's bytes, one record after the other."""

    records: Column


class OffsetTableShard(Shard):
    """One open shard file.

    Its table of offsets is written at the end: into space that was left for the expected number of records. If that
    number is unknown, the table comes first, and the records are kept in memory until the end.
    """

    def __init__(self, writer: OffsetTableWriter, files: ShardFiles) -> None:
        self._writer, self._carry = writer, files.carry
        self._file = files.create(writer.suffix)
        self._expected = files.expected
        self._sizes: list[I64] = []
        self._kept: list[Any] = []
        self._after: bytes | None = None
        self._end = 0

    def frame(self, records: Records) -> OffsetTableFrames:
        n, parts, sizes = len(records), [], []
        for name, value in self._writer.values(self._carry["columns"]).items():
            column = self._column(name, value, records)
            parts.append(column)
            if self._writer.fixed_size(value) is None:
                sizes.append(column.sizes)
        heads = np.stack(sizes, axis=1).astype("<u4").reshape(n, -1) if sizes else np.empty((n, 0), "<u4")
        width = 4 * heads.shape[1]
        head = Column(heads.view(np.uint8).reshape(-1), np.arange(n) * width, np.full(n, width))
        framed = join([head, *parts])
        return OffsetTableFrames(framed.sizes, framed)

    def _column(self, name: str, value: Value, records: Records) -> Column:
        if name == self._writer.key and name not in records.fields:
            return from_values([k.encode("utf-8", "replace") for k in records.sample_keys()])
        batch = records.fields[name]
        if value.kind == "number":
            numbers = np.ascontiguousarray(elements(batch)[0].astype(self._writer.number(value.dtype)))
            size = numbers.itemsize
            return Column(numbers.view(np.uint8), np.arange(len(batch)) * size, np.full(len(batch), size))
        if value.kind == "array":
            return self._writer.layout(value, batch)
        return as_npy(batch) if value.encode == "npy" else as_bytes(batch)

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, OffsetTableFrames)
        self._begin()
        sizes = frames.sizes[:n]
        nbytes = int(sizes.sum())
        self._end += nbytes
        if self._end > _LARGEST:
            raise JobError(f"a shard of {self._writer.name} holds at most {_LARGEST:,} bytes: give write: "
                           "{shard: {bytes: 64MB}}")  # fmt: skip
        self._sizes.append(sizes)
        data = frames.records.data[:nbytes]
        if self._expected:
            self._file.write(data)
        else:
            self._kept.append(data)

    def _begin(self) -> None:
        """Begin the file: leave space for the table of offsets, if its size is known."""
        if self._after is None:
            self._after = self._writer.after_table(self._writer.values(self._carry.get("columns", {})))
            self._end = 8 + 4 * self._expected + len(self._after)
            if self._expected:
                self._file.write(bytes(self._end))

    def close(self) -> None:
        self._begin()
        assert self._after is not None
        sizes = np.concatenate(self._sizes) if self._sizes else np.empty(0, np.int64)
        first = 8 + 4 * (self._expected or len(sizes)) + len(self._after)
        table = np.concatenate(([0], np.cumsum(sizes))) + first
        head = np.uint32(len(sizes)).tobytes() + table.astype("<u4").tobytes() + self._after
        if self._expected:
            self._file.rewrite(0, head)
        else:
            self._file.write(head)
            for data in self._kept:
                self._file.write(data)
