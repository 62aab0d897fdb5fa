"""Parquet: a row a sample, for pyarrow, pandas, polars, Hugging Face datasets. Needs pyarrow (extra ``parquet``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from ..ops.base import Arg, Spec
from ..ops.batch import Batch
from ..ops.errors import JobError, SpecError
from .base import FieldConfig, Frames, Records, Refused, Shard, ShardFile, ShardFiles, Writer
from .columns import as_bytes, as_npy, check_encoded, check_field, elements, join, kind_of, starts_of


class Parquet(Writer, name="parquet", suffix=".parquet"):
    """Parquet files, one column a field: bytes as binary, numbers as int64 or float, lists of them as lists.

    Arrays become three columns: ``<field>`` (binary), ``<field>/shape`` and ``<field>/dtype``. Whether a field of
    numbers is one number or a list is decided by the job's first sample, unless it is named in ``lists``.
    """

    key: Annotated[str, Arg("column of the samples' keys; empty for none")] = "key"
    lists: Annotated[tuple[str, ...], Arg("fields that are lists, though some samples have one number")] = ()
    row_group: Annotated[int, Arg("rows that are stored together", ge=1)] = 256
    compression: Annotated[Literal["none", "snappy", "zstd"], Arg("of all columns; encoded images do not shrink")] = (
        "none"
    )

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

    def refuse(self, records: Records, carry: dict[str, Any]) -> Sequence[Refused]:
        refused: dict[int, Refused] = {}
        for name, batch in records.fields.items():
            if kind_of(FieldConfig(), batch.dtype, batch.ndim) not in ("int", "float"):
                continue
            one = carry.setdefault("one", {}).setdefault(name, name not in self.lists and int(batch.sizes[0]) == 1)
            for i in np.flatnonzero(batch.sizes != 1).tolist() if one else []:
                refused.setdefault(i, Refused(i, "bad_shape", (
                    f"field {name!r} has {int(batch.sizes[i])} values, the job's first sample has one; a column holds "
                    f"numbers or lists: use the writer's option lists: [{name}]"
                )))  # fmt: skip
        return [refused[i] for i in sorted(refused)]

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return ParquetShard(self, files, fields)


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
        self._rows = 0

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
            columns.update(self._columns(name, batch))
        table = pa.table(columns)
        self._carry.setdefault("schema", table.schema.serialize().to_pybytes().hex())
        return ParquetFrames(sizes, table)

    def _columns(self, name: str, batch: Batch) -> dict[str, Any]:
        config = self._fields.get(name, FieldConfig())
        check_encoded(name, config, batch)
        kind = kind_of(config, batch.dtype, batch.ndim)
        if kind in ("int", "float"):
            import pyarrow as pa

            values, counts = elements(batch)
            array = pa.array(values.astype(np.int64 if kind == "int" else np.float32))  # a copy
            if self._carry["one"][name]:
                return {name: array}
            return {name: pa.ListArray.from_arrays(_offsets(counts), array)}
        if kind == "npy":
            return {name: _binary(as_npy(batch))}
        columns = {name: _binary(as_bytes(batch))}
        if kind == "raw":
            import pyarrow as pa

            shape = pa.array(batch.shapes.reshape(-1).astype(np.int64))
            columns[f"{name}/shape"] = pa.ListArray.from_arrays(_offsets(np.full(len(batch), batch.ndim)), shape)
            columns[f"{name}/dtype"] = pa.array([batch.dtype.name] * len(batch), pa.string())
        return columns

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, ParquetFrames)
        self._waiting.append(frames.table.slice(0, n))
        self._rows += n
        while self._rows >= self._options.row_group:
            self._put(self._options.row_group)

    def _put(self, rows: int) -> None:
        import pyarrow as pa

        table = pa.concat_tables(self._waiting)
        self._open(table.schema).write_table(table.slice(0, rows).combine_chunks(), row_group_size=rows)
        self._waiting = [table.slice(rows)]
        self._rows -= rows

    def _open(self, schema: Any) -> Any:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._sink, schema, compression=self._options.compression,
                                            use_dictionary=False, write_statistics=False)  # fmt: skip
        return self._writer

    def close(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._put(self._rows)
        schema = pa.schema({self._options.key: pa.string()} if self._options.key else {})
        if "schema" in self._carry:  # a shard without samples has the columns of the others
            schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(self._carry["schema"])))
        self._open(schema).close()


class _Sink:
    """What pyarrow writes to."""

    closed = False

    def __init__(self, file: ShardFile) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        """Take all of ``data``."""
        self._file.write(bytes(data))
        return len(data)

    def tell(self) -> int:
        """Bytes so far."""
        return self._file.size

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """The shard closes its file itself."""


def _offsets(counts: Any) -> Any:
    import pyarrow as pa

    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))


def _binary(column: Any) -> Any:
    """A column of bytes as an arrow array that owns them."""
    import pyarrow as pa

    packed = join([column])
    if packed.data.size >= 1 << 31:
        raise JobError("a batch of one column is over 2 GiB, which Parquet cannot hold; lower pipeline.batch_size")
    ends = np.concatenate((starts_of(packed.sizes), [packed.data.size]))
    offsets = pa.py_buffer(ends.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(packed), [None, offsets, pa.py_buffer(packed.data)])
