"""Records as Arrow tables: what the writers of Parquet and Lance share."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from ...ops.base import Arg, Spec
from ...ops.batch import Batch, Samples
from ...ops.errors import SpecError
from ...ops.types import to_numpy
from ..base import FieldConfig, Frames, Records, Refused, Writer
from .columns import Column, as_bytes, as_npy, check_encoded, check_field, elements, join, kind_of

_LONGEST = (1 << 31) - (1 << 20)
"""Largest size in bytes of one field of a sample: it has to fit into a Parquet page, whose size has 32 bits."""
_PIECE = 1 << 30
"""Largest size of an Arrow array in bytes; larger columns are split, because offsets have 32 bits."""


class ArrowWriter(Writer, abstract=True):
    """Base of the writers of Arrow tables (Parquet, Lance), with one column per field. Bytes are stored as binary,
    numbers in their own type, and lists as lists."""

    module: ClassVar[str] = "pyarrow"
    """Name of the Python package that writes the format, also that of the extra of dali-run."""
    extra: ClassVar[str] = "parquet"

    key: Annotated[str, Arg("name of the column with the samples' keys; empty for none")] = "key"
    lists: Annotated[tuple[str, ...], Arg("fields that are lists, although some samples have one number")] = ()

    @property
    def written_at_once(self) -> int:
        """Minimum size in bytes of values that are written, not copied, before `Shard.append` returns."""
        return _LONGEST + 1

    def described(self, table: Any, fields: Mapping[str, FieldConfig]) -> Any:
        """Return the Arrow table in the form that the format stores, by default unchanged."""
        return table

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        if importlib.util.find_spec(self.module) is None:
            raise SpecError(f"the {self.name} writer needs {self.module}: pip install 'dali-run[{self.extra}]'")
        for name, config in fields.items():
            check_field(name, config, specs.get(name, Spec()))
        if self.key in fields:
            raise SpecError(f"option key: {self.key!r} is already the name of a field")
        for name in self.lists:
            if name not in fields:
                raise SpecError(f"option lists: there is no field {name!r}; fields: {', '.join(fields)}")

    def schema(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> dict[str, Any] | None:
        """Return facts that hold for all shards, as a mapping. ``one``: for each field of numbers, whether a sample is
        one number or a list. ``schema``: the Arrow schema of every shard."""
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
        table = self.described(pa.table(columns), fields)
        return {"one": one, "schema": _hex(table.schema)}

    def refuse(self, records: Records, carry: dict[str, Any]) -> Sequence[Refused]:
        refused: dict[int, Refused] = {}
        for name, batch in records.fields.items():
            size = batch.sizes * batch.dtype.itemsize
            for i in np.flatnonzero(size > _LONGEST).tolist():
                refused.setdefault(i, Refused(i, "too_large", f"field {name!r} has {int(size[i])} bytes; a value in "
                                              f"{self.name} holds at most {_LONGEST}"))  # fmt: skip
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

    def table_of(self, records: Records, fields: Mapping[str, FieldConfig], carry: dict[str, Any]) -> ArrowFrames:
        """Return the records as an Arrow table. The first records define the schema, which is stored in ``carry``."""
        import pyarrow as pa

        columns: dict[str, Any] = {}
        shared_from = self.written_at_once
        sizes = np.zeros(len(records), np.int64)
        if self.key:
            columns[self.key] = pa.array(
                [k.encode("utf-8", "replace").decode() for k in records.sample_keys()], pa.string()
            )
        for name, batch in records.fields.items():
            sizes += batch.sizes * batch.dtype.itemsize
            columns.update(_columns(name, fields.get(name, FieldConfig()), batch, carry.get("one", {}), shared_from))
        table = self.described(pa.table(columns), fields)
        carry.setdefault("schema", _hex(table.schema))
        return ArrowFrames(sizes, table)

    def shard_schema(self, carry: Mapping[str, Any]) -> Any:
        """Return the Arrow schema of every shard, including shards without samples."""
        import pyarrow as pa

        return schema_in(carry) if "schema" in carry else pa.schema({self.key: pa.string()} if self.key else {})


@dataclass(slots=True)
class ArrowFrames(Frames):
    """Records of a batch as an Arrow table."""

    table: Any


def schema_in(carry: Mapping[str, Any]) -> Any:
    """Return the Arrow schema that is stored in ``carry``, the writer's state or the job's schema."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(carry["schema"])))


def _columns(
    name: str, config: FieldConfig, batch: Batch, one: Mapping[str, bool], shared_from: int = _LONGEST + 1
) -> dict[str, Any]:
    """Return the Arrow columns of a field by name: three for arrays of any shape, else one. ``one``: for each field of
    numbers, whether a sample is one number or a list."""
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
    columns = {name: _binary(as_bytes(batch), config.encode == "text", shared_from)}
    if kind == "raw":
        shape = pa.array(batch.shapes.reshape(-1).astype(np.int64))
        columns[f"{name}/shape"] = pa.ListArray.from_arrays(_offsets(np.full(len(batch), batch.ndim)), shape)
        columns[f"{name}/dtype"] = pa.array([batch.dtype.name] * len(batch), pa.string())
    return columns


def _kind(config: FieldConfig, batch: Batch) -> str:
    """Return how a field is stored: ``bytes``, ``number``, ``npy`` or ``raw``. Unlike `kind_of`, every type of number
    is a ``number``, because Arrow has a type for each."""
    kind = kind_of(config, batch.dtype, batch.ndim)
    if kind in ("int", "float") or (kind == "raw" and config.encode == "auto" and batch.ndim <= 1):
        return "number"
    return kind


def _hex(schema: Any) -> str:
    """Return an Arrow schema in hexadecimal digits, to be stored in JSON."""
    return str(schema.serialize().to_pybytes().hex())


def _offsets(counts: Any) -> Any:
    import pyarrow as pa

    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))


def _binary(column: Column, text: bool = False, shared_from: int = _LONGEST + 1) -> Any:
    """Return a column of bytes (or texts in UTF-8, with ``text``) as Arrow arrays that own their memory. If all values
    have ``shared_from`` bytes or more, each is an array of its own, which shares the memory of the batch."""
    import pyarrow as pa

    kind = pa.string() if text else pa.binary()
    shares = len(column) > 0 and bool((column.sizes >= shared_from).all())
    packed = column if shares else join([column])
    ends = packed.starts + packed.sizes
    crosses = packed.starts // _PIECE != ends // _PIECE
    cuts = np.arange(1, len(column)) if shares else np.flatnonzero(crosses[1:] | crosses[:-1]) + 1
    pieces = []
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(packed)], strict=True):
        start, stop = (int(packed.starts[low]), int(ends[high - 1])) if high > low else (0, 0)
        offsets = np.concatenate((packed.starts[low:high], [stop])) - start
        content = pa.py_buffer(packed.data[start:stop])
        pieces.append(pa.Array.from_buffers(kind, high - low, [None, pa.py_buffer(offsets.astype(np.int32)), content]))
    return pa.chunked_array(pieces, kind)
