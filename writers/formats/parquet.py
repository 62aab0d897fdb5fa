"""The Parquet writer: one row per sample, for pyarrow, pandas, polars, Hugging Face datasets. Needs pyarrow (extra
``parquet``)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from ...ops.base import Arg, Spec
from ...ops.batch import Batch, Samples
from ...ops.errors import SpecError
from ...ops.types import to_numpy
from ..base import FieldConfig, Frames, Records, Refused, Shard, ShardFile, ShardFiles, Writer
from ..bytes.written import Problem, UnreadError, WrittenShard
from . import hugging_face
from .columns import Column, as_bytes, as_npy, check_encoded, check_field, elements, join, kind_of

_LONGEST = (1 << 31) - (1 << 20)
"""Largest size of a value in bytes: it has to fit into a page, whose size has 32 bits."""
_PIECE = 1 << 30
"""Largest size of an Arrow array in bytes, because its offsets have 32 bits."""


class Parquet(Writer, name="parquet", suffix=".parquet"):
    """Parquet files, one column per field: bytes as binary, numbers in their own type, lists of numbers as lists.

    Arrays become three columns: ``<field>`` (binary), ``<field>/shape`` and ``<field>/dtype``. Whether a field of
    numbers is one number or a list follows from the spec, or else from the data set's first sample, unless it is named
    in ``lists``. Pages carry checksums.
    """

    libraries = ("pyarrow",)

    key: Annotated[str, Arg("name of the column with the samples' keys; empty for none")] = "key"
    lists: Annotated[tuple[str, ...], Arg("fields that are lists, although some samples have one number")] = ()
    row_group: Annotated[int, Arg("largest number of rows per row group", ge=1)] = 256
    row_group_bytes: Annotated[int, Arg("bytes from which a row group is complete", ge=1)] = 1 << 26
    compression: Annotated[
        Literal["none", "snappy", "zstd"], Arg("compression of columns; encoded images do not shrink")
    ] = "none"
    features: Annotated[
        dict[str, Any] | None,
        Arg("features of Hugging Face's datasets: {image: image, sound: audio, label: [cat, dog]}; writes README.md"),
    ] = None

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        if importlib.util.find_spec("pyarrow") is None:
            raise SpecError("the parquet writer needs pyarrow: pip install 'dali-run[parquet]'")
        for name, config in fields.items():
            check_field(name, config, specs.get(name, Spec()))
        if self.key in fields:
            raise SpecError(f"option key: {self.key!r} is already the name of a field")
        for name in self.lists:
            if name not in fields:
                raise SpecError(f"option lists: there is no field {name!r}; fields: {', '.join(fields)}")
        hugging_face.check(self.features, fields, specs)

    @property
    def collection(self) -> tuple[str, ...]:
        return (hugging_face.CARD,) if self.features is not None else ()

    @classmethod
    def collect(cls, manifest: Mapping[str, Any], carry: Mapping[str, Any]) -> dict[str, bytes]:
        if manifest["write"]["options"].get("features") is None or "schema" not in carry:
            return {}
        import pyarrow as pa

        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(carry["schema"])))
        return {hugging_face.CARD: hugging_face.card(manifest, schema)}

    def schema(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> dict[str, Any] | None:
        """Whether each field of numbers is ``one`` number, and the Arrow ``schema`` of every shard."""
        import pyarrow as pa

        one: dict[str, bool] = {}
        columns: dict[str, Any] = {self.key: pa.array([], pa.string())} if self.key else {}
        for name, config in fields.items():
            spec = specs.get(name, Spec())
            if spec.dtype is None or spec.shape is None:
                return None
            empty = Batch(np.empty(0, to_numpy(spec.dtype)), np.empty(0, np.int64),
                          np.empty((0, len(spec.shape)), np.int32), "", Samples.numbered(0))  # fmt: skip
            if _kind(config, empty) == "number" and name not in self.lists:
                if None in spec.shape:
                    return None
                one[name] = math.prod(d or 0 for d in spec.shape) == 1
            columns.update(_columns(name, config, empty, one))
        table = hugging_face.described(pa.table(columns), self.features, fields)
        return {"one": one, "schema": _hex(table.schema)}

    def refuse(self, records: Records, carry: dict[str, Any]) -> Sequence[Refused]:
        refused: dict[int, Refused] = {}
        for name, batch in records.fields.items():
            size = batch.sizes * batch.dtype.itemsize
            for i in np.flatnonzero(size > _LONGEST).tolist():
                refused.setdefault(i, Refused(i, "too_large", f"field {name!r} has {int(size[i])} bytes; a value in "
                                              f"Parquet holds at most {_LONGEST}"))  # fmt: skip
            if name in self.lists or _kind(FieldConfig(), batch) != "number":
                continue
            known = carry.setdefault("one", {})
            one = known.get(name) if "schema" in carry else known.setdefault(name, int(batch.sizes[0]) == 1)
            for i in np.flatnonzero(batch.sizes != 1).tolist() if one else []:
                refused.setdefault(i, Refused(i, "bad_shape", (
                    f"field {name!r} has {int(batch.sizes[i])} values, that of the data set one; a column holds "
                    f"numbers or lists: use the writer's option lists: [{name}]"
                )))  # fmt: skip
        return [refused[i] for i in sorted(refused)]

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return ParquetShard(self, files, fields)

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        if importlib.util.find_spec("pyarrow") is None:
            raise UnreadError("pyarrow is missing: pip install 'dali-run[parquet]'")
        if not shard.sound:  # pyarrow ends the process for some damaged files
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        name = shard.file(".parquet")
        rows = 0
        try:
            file = pq.ParquetFile(shard.root / name, page_checksum_verification=True)
            told = shard.schema.get("schema")
            if told is not None and not file.schema_arrow.equals(pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(told)))):
                yield Problem(name, "", "has other columns than the data set's schema says")
            for g in range(file.num_row_groups):
                rows += file.read_row_group(g, use_threads=False).num_rows
        except pa.ArrowException as e:
            raise ValueError(" ".join(str(e).split())) from e
        yield from shard.count(name, rows)


def _columns(name: str, config: FieldConfig, batch: Batch, one: Mapping[str, bool]) -> dict[str, Any]:
    """The columns of a field, by name; ``one`` tells which fields of numbers are one number."""
    import pyarrow as pa

    check_encoded(name, config, batch)
    kind = _kind(config, batch)
    if kind == "number":
        values, counts = elements(batch)
        array = pa.array(values.copy())  # batches may be freed before the row group is written
        if one.get(name):
            return {name: array}
        return {name: pa.ListArray.from_arrays(_offsets(counts), array)}
    if kind == "npy":
        return {name: _binary(as_npy(batch))}
    columns = {name: _binary(as_bytes(batch), config.encode == "text")}
    if kind == "raw":
        shape = pa.array(batch.shapes.reshape(-1).astype(np.int64))
        columns[f"{name}/shape"] = pa.ListArray.from_arrays(_offsets(np.full(len(batch), batch.ndim)), shape)
        columns[f"{name}/dtype"] = pa.array([batch.dtype.name] * len(batch), pa.string())
    return columns


def _kind(config: FieldConfig, batch: Batch) -> str:
    """``bytes``, ``number``, ``npy`` or ``raw``; Parquet has a type for every number."""
    kind = kind_of(config, batch.dtype, batch.ndim)
    if kind in ("int", "float") or (kind == "raw" and config.encode == "auto" and batch.ndim <= 1):
        return "number"
    return kind


@dataclass(slots=True)
class ParquetFrames(Frames):
    """The records as a table."""

    table: Any


class ParquetShard(Shard):
    """One .parquet file."""

    def __init__(self, writer: Parquet, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._options = writer
        self._fields = fields
        self._carry = files.carry
        self._sink = _Sink(files.create(".parquet"))
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._rows = self._bytes = 0
        """Rows and bytes of the open row group."""

    def frame(self, records: Records) -> ParquetFrames:
        import pyarrow as pa

        columns: dict[str, Any] = {}
        sizes = np.zeros(len(records), np.int64)
        if self._options.key:
            columns[self._options.key] = pa.array(
                [k.encode("utf-8", "replace").decode() for k in records.sample_keys()], pa.string()
            )
        for name, batch in records.fields.items():
            sizes += batch.sizes * batch.dtype.itemsize
            config = self._fields.get(name, FieldConfig())
            columns.update(_columns(name, config, batch, self._carry.get("one", {})))
        table = hugging_face.described(pa.table(columns), self._options.features, self._fields)
        self._carry.setdefault("schema", _hex(table.schema))
        return ParquetFrames(sizes, table)

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, ParquetFrames)
        options, at = self._options, 0
        while at < n:
            reached = self._bytes + np.cumsum(frames.sizes[at : min(n, at + options.row_group - self._rows)])
            fits = min(len(reached), int(np.searchsorted(reached, options.row_group_bytes)) + 1)
            self._waiting.append(frames.table.slice(at, fits))
            at, self._rows, self._bytes = at + fits, self._rows + fits, int(reached[fits - 1])
            if self._rows == options.row_group or self._bytes >= options.row_group_bytes:
                self._put()

    def _put(self) -> None:
        import pyarrow as pa

        table = pa.concat_tables(self._waiting).combine_chunks()
        self._open(table.schema).write_table(table, row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def _open(self, schema: Any) -> Any:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._sink, schema, compression=self._options.compression,
                                            use_dictionary=False, write_statistics=False,
                                            write_page_checksum=True)  # fmt: skip
        return self._writer

    def close(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._put()
        schema = pa.schema({self._options.key: pa.string()} if self._options.key else {})
        if "schema" in self._carry:  # a shard without samples has the columns of the others
            schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(self._carry["schema"])))
        self._open(schema).close()


class _Sink:
    """The file object that pyarrow writes to."""

    closed = False

    def __init__(self, file: ShardFile) -> None:
        self._file = file
        self._failed = False

    def write(self, data: Any) -> int:
        """Write all of ``data``. After the shard was given up, further bytes of pyarrow are dropped."""
        if self._failed or self._file.closed:
            return len(data)
        self._failed = True
        self._file.write(bytes(data))
        self._failed = False
        return len(data)

    def tell(self) -> int:
        """Number of bytes so far."""
        return self._file.size

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        """Do nothing: the shard closes its file."""


def _hex(schema: Any) -> str:
    """An Arrow schema as text."""
    return str(schema.serialize().to_pybytes().hex())


def _offsets(counts: Any) -> Any:
    import pyarrow as pa

    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))


def _binary(column: Column, text: bool = False) -> Any:
    """A column of bytes as Arrow arrays that own their memory."""
    import pyarrow as pa

    kind = pa.string() if text else pa.binary()
    packed = join([column])
    ends = np.cumsum(packed.sizes)
    crosses = packed.starts // _PIECE != ends // _PIECE
    cuts = np.flatnonzero(crosses[1:] | crosses[:-1]) + 1
    pieces = []
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(packed)], strict=True):
        start, stop = (int(packed.starts[low]), int(ends[high - 1])) if high > low else (0, 0)
        offsets = np.concatenate((packed.starts[low:high], [stop])) - start
        content = pa.py_buffer(packed.data[start:stop])
        pieces.append(pa.Array.from_buffers(kind, high - low, [None, pa.py_buffer(offsets.astype(np.int32)), content]))
    return pa.chunked_array(pieces, kind)
