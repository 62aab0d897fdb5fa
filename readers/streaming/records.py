"""Records of shards that begin with a table of offsets (uint32): what readers of MDS and litData build on.

A record is the sizes of its values (uint32), those of constant size left out in MDS, then the values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.base import nearest
from ...ops.batch import Batch, BatchedOrigins, Origin
from ...ops.context import Context
from ...ops.errors import JobError, SpecError
from ...ops.storage.inventory import InventoryEntries
from ...ops.storage.json_text import parse_json
from ..fetch.extents import MAX_RECORD, Groups, Mapped, expand, one_or_more, payload, short_names
from ..fetch.remote import local_copy

MAX_DIMENSIONS = 32
"""Largest number of dimensions of an array that is read."""
I64 = npt.NDArray[np.int64]
Good = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the records of a data set, and how its values are stored."""

    name: str
    encoding: str
    """Name of the field's encoding in the index, such as ``jpeg``."""
    kind: str
    """How values are returned: ``bytes``, ``number`` or ``array``."""
    dtype: str = "uint8"
    """NumPy dtype name of numbers and arrays; empty if each array stores its own."""
    size: int | None = None
    """Size in bytes of every value, if it is constant and records do not store it; None if each record stores the
    value's size."""
    shape: tuple[int, ...] | None = None
    """Shape of all arrays, if arrays do not store their own; None otherwise."""


@dataclass(frozen=True, slots=True)
class ArrayHeads:
    """Contents of the headers of N stored arrays, as parallel arrays."""

    dtype: npt.NDArray[np.object_]
    """NumPy dtype name of each array; empty if the type is unknown."""
    shapes: I64
    """Shape of each array, -1 for an array of another number of dimensions. Shape [N, ndim]."""
    sizes: I64
    """Size in bytes of each header, after which the elements follow."""


@dataclass(frozen=True, slots=True)
class Index:
    """Content of the index.json of one data set."""

    path: str
    files: tuple[str, ...]
    """Paths of the data set's shards."""
    samples: tuple[int, ...]
    """Number of records of each shard."""
    fields: tuple[Field, ...]


def read_index(path: str) -> tuple[str, Any]:
    """Find and parse an index.json. ``path`` is the file or its folder. Return the path of the file, and its content.
    Raises JobError."""
    place = path if path.endswith(".json") else f"{path.rstrip('/')}/index.json"
    try:
        return place, parse_json(Path(local_copy(place)).read_bytes())
    except OSError as e:
        raise JobError(f"{place} cannot be read: {e.strerror}") from None
    except ValueError as e:
        raise JobError(f"{place}: is not JSON: {e}") from None


def count_of(value: Any, most: int = MAX_RECORD) -> int:
    """Check a count from an index file, and return it. Raises ValueError unless it is a whole number up to ``most``."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is not a count")
    return value


def shape_of(dimensions: Iterable[int]) -> tuple[int, ...]:
    """Check the shape of arrays from an index file, and return it. Raises ValueError for lengths that are not counts,
    and for too many dimensions."""
    shape = tuple(count_of(d) for d in dimensions)
    count_of(len(shape), MAX_DIMENSIONS)
    return shape


def check_ndim(field: Field, ndim: int) -> int:
    """Check the number of dimensions that the first array of a field has, and return it. Raises JobError."""
    if ndim > MAX_DIMENSIONS:
        raise JobError(f"field {field.name!r} has {ndim} dimensions; at most {MAX_DIMENSIONS} are read")
    return ndim


def shard_path(index: str, name: Any) -> str:
    """Return the path of the shard ``name`` of the index file ``index``. Raises JobError if the name leads out of the
    folder of the index."""
    parts = name.split("/") if isinstance(name, str) else [""]
    if "\0" in str(name) or any(part in ("", ".", "..") for part in parts):
        raise JobError(f"{index}: {name!r} is not the name of a file in its folder")
    return f"{index.rpartition('/')[0] or '.'}/{name}"


_MODELS = 64
"""Number of records checked at a time to find a valid array, and maximum number of arrays that are tried."""


class IndexedRecords(BatchedOrigins):
    """Data set of the readers `Mds` and `LitData`, opened: the records of all shards of some indexes, by number."""

    def __init__(self, indexes: Sequence[Index], columns: Sequence[str], key: str | None, heads: Any) -> None:
        """``heads(field, data, at, ndim)`` reads the headers (`ArrayHeads`) of the arrays at offsets ``at``; if
        ``ndim`` is -1, the first array decides the number of dimensions. Raises SpecError for columns that do not
        exist, JobError for damaged tables."""
        first = indexes[0]
        for other in indexes:
            if other.fields != first.fields:
                raise JobError(f"{other.path}: has other columns than {first.path}")
        self._fields, self._heads = first.fields, heads
        names = [f.name for f in first.fields]
        for name in (*columns, *([key] if key else [])):
            if name not in names:
                raise SpecError(f"{first.path}: has no column {name!r}{nearest(name, names)}; its columns: "
                                f"{', '.join(names)}")  # fmt: skip
        self._columns = [names.index(c) for c in columns]
        self._key = names.index(key) if key else -1
        paths = [p for index in indexes for p in index.files]
        self._mapped = Mapped(paths) if paths else None
        counts = [n for index in indexes for n in index.samples]
        self._files = Groups(np.array(counts, np.int64))
        self.groups: I64 | None = self._files.counts
        self._names = short_names(paths) if paths else []
        tables = [self._table(i, n) for i, n in enumerate(counts)]
        self._starts: I64 = np.concatenate([t[:-1] for t in tables]) if tables else np.empty(0, np.int64)
        self._ends: I64 = np.concatenate([t[1:] for t in tables]) if tables else np.empty(0, np.int64)
        self._variable = [k for k, f in enumerate(self._fields) if f.size is None]
        self._models = {k: self._model(k) for k in self._columns if self._fields[k].kind == "array"}

    def _table(self, i: int, n: int) -> I64:
        """Read the table at the beginning of shard ``i``, which has ``n`` records. Return the offsets in the mapped
        bytes of its records, and of the end of the last one."""
        assert self._mapped is not None
        path, at, size = self._mapped.paths[i], int(self._mapped.starts[i]), int(self._mapped.sizes[i])
        head = self._mapped.data[at : at + min(size, 8 + 4 * n)]
        if len(head) < 8 + 4 * n or int(head[:4].view("<u4")[0]) != n:
            raise JobError(f"{path}: does not begin with the table of offsets of {n} records that its index promises")
        table: I64 = head[4:].view("<u4").astype(np.int64)
        if (np.diff(table) < 0).any() or (n and (table[0] < 8 + 4 * n or table[-1] > size)):
            raise JobError(f"{path}: its table of offsets points out of the file")
        return table + at

    def _model(self, k: int) -> tuple[str, int]:
        """Return dtype and number of dimensions of the first valid array of field ``k``; all its arrays must have them.
        Raises JobError if arrays have more dimensions than are read."""
        problem: JobError | None = None
        for tried, (at, size) in enumerate(self._valid_places(k)):
            if tried >= _MODELS:
                break
            try:
                found, shapes = self._array_heads(k, at, size, -1)
            except JobError as e:
                problem = problem or e
            else:
                model = str(found.dtype[0]), found.shapes.shape[1]
                if model[0] and self._are_arrays(model[0], found, shapes, size)[0]:
                    return model
        if problem is not None:
            raise problem
        return self._fields[k].dtype or "uint8", 1

    def _valid_places(self, k: int) -> Iterator[tuple[I64, I64]]:
        """Yield offset and size, int64[1] each, of the value of field ``k`` in each valid record, in order."""
        for low in range(0, len(self), _MODELS):
            at, sizes, good = self._places(np.arange(low, min(low + _MODELS, len(self))))
            for i in np.flatnonzero(good).tolist():
                yield at[i : i + 1, k], sizes[i : i + 1, k]

    def _array_heads(self, k: int, at: I64, sizes: I64, ndim: int) -> tuple[ArrayHeads, I64]:
        """Return the headers of the arrays at offsets ``at``, with values of ``sizes`` bytes, and the arrays' shapes;
        see `__init__` for ``ndim``."""
        assert self._mapped is not None
        field = self._fields[k]
        found = self._heads(field, self._mapped.data, at, ndim)
        if field.shape is None and field.encoding.startswith("no_header"):
            return found, (sizes // np.dtype(found.dtype[0]).itemsize)[:, None] if len(at) else found.shapes
        return found, found.shapes

    @staticmethod
    def _are_arrays(name: str, found: ArrayHeads, shapes: I64, sizes: I64) -> Good:
        """Return which values, of ``sizes`` bytes and with headers ``found``, are arrays of dtype ``name``."""
        right: Good = (found.dtype == name) & ((shapes >= 0) & (shapes <= MAX_RECORD)).all(axis=1)
        elements = np.prod(np.where(right[:, None], shapes, 0).astype(np.float64), axis=1)  # integers would overflow
        right &= found.sizes + elements * np.dtype(name).itemsize == sizes
        return right

    def __len__(self) -> int:
        return len(self._starts)

    def origins_of(self, index: I64) -> list[Origin]:
        assert self._mapped is not None
        places = self._starts[index] - self._mapped.starts[self._files.files(index)]
        return self._files.origins(self._mapped.paths, self.keys(index), index, places)

    def keys(self, index: I64) -> list[bytes]:
        """Keys of the records ``index``, as `origin` returns them, in UTF-8."""
        numbered = self._files.numbered(self._names, index)
        if self._key < 0 or self._mapped is None:
            return numbered
        at, sizes, good = self._places(index)
        data, k = self._mapped.data, self._key
        return [
            data[a : a + s].tobytes().decode("utf-8", "backslashreplace").encode() if yes and s else number
            for number, yes, a, s in zip(numbered, good.tolist(), at[:, k].tolist(), sizes[:, k].tolist(), strict=True)
        ]

    def fingerprint(self) -> str:
        return "" if self._mapped is None else self._mapped.fingerprint(self._names, self._starts, self._ends)

    def inventory(self) -> InventoryEntries:
        if self._mapped is None:
            return InventoryEntries(b"", {}, np.empty(0, np.int64))
        return self._mapped.inventory(self._names, self._files.counts, f"column {self._key}" if self._key >= 0 else "")

    def close(self) -> None:
        """Do nothing: the files stay mapped until the last batch that is a view of them is gone."""

    def _places(self, index: I64) -> tuple[I64, I64, Good]:
        """Return offsets and sizes of the values of the records ``index``, [N, fields] each, and which are valid."""
        assert self._mapped is not None
        data, starts, ends = self._mapped.data, self._starts[index], self._ends[index]
        width = 4 * len(self._variable)
        good = ends - starts >= width
        heads = np.minimum(np.where(good, starts, 0)[:, None] + np.arange(width), max(len(data) - 1, 0))
        sizes = np.empty((len(index), len(self._fields)), np.int64)
        if width:
            sizes[:, self._variable] = np.ascontiguousarray(data[heads]).view("<u4")
        for k, field in enumerate(self._fields):
            if field.size is not None:
                sizes[:, k] = field.size
        at = (starts + width)[:, None] + np.cumsum(sizes, axis=1) - sizes
        good &= at[:, -1] + sizes[:, -1] == ends
        return np.where(good[:, None], at, 0), np.where(good[:, None], sizes, 0), good

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        assert self._mapped is not None
        index = ctx.samples.index
        gone = self._mapped.truncated(self._starts[index])
        at, sizes, good = self._places(index)
        for i in np.flatnonzero(~good | gone).tolist():
            if gone[i]:
                ctx.reject(i, "read_failed", "the shard was cut short while the job ran")
            else:
                ctx.reject(i, "corrupt_record", "the sizes of the record's values do not add up to its size")
        good &= ~gone
        return tuple(self._read(ctx, k, output, at[:, k], sizes[:, k], good) for output, k in enumerate(self._columns))

    def _read(self, ctx: Context, k: int, output: int, at: I64, sizes: I64, good: Good) -> Batch:
        assert self._mapped is not None
        field, data = self._fields[k], self._mapped.data
        if field.kind == "bytes":
            for i in np.flatnonzero(sizes > MAX_RECORD).tolist():
                ctx.reject(
                    i, "too_large", f"{field.name!r} has {int(sizes[i])} bytes; at most {MAX_RECORD} are allowed"
                )
            return payload(ctx, data, at, np.where(sizes > MAX_RECORD, 0, sizes), output)
        if field.kind == "number":
            dtype = np.dtype(field.dtype)
            right = good & (sizes == dtype.itemsize)
            for i in np.flatnonzero(good & ~right).tolist():
                ctx.reject(i, "corrupt_record", f"{field.name!r} has {int(sizes[i])} bytes, not {dtype.itemsize}")
            values = data[np.where(right, at, 0)[:, None] + np.arange(dtype.itemsize)]
            return Batch.from_dense(_as_dtype(np.ascontiguousarray(values), dtype), "", ctx.samples)
        return self._arrays(ctx, k, at, sizes, good)

    def _arrays(self, ctx: Context, k: int, at: I64, sizes: I64, good: Good) -> Batch:
        from ..fetch.extents_cpu import copy_extents

        assert self._mapped is not None
        field, data, (name, ndim) = self._fields[k], self._mapped.data, self._models[k]
        dtype, n = np.dtype(name), len(at)
        found, shapes = self._array_heads(k, at, sizes, ndim)
        right = good & self._are_arrays(name, found, shapes, sizes)
        for i in np.flatnonzero(good & ~right).tolist():
            ctx.reject(i, "bad_shape", f"{field.name!r} is not an array of {name} with {ndim} dimensions, as that of "
                       "the first record")  # fmt: skip
        sizes = np.where(right, sizes - found.sizes, 0)
        room = (sizes + 15) // 16 * 16
        to = np.cumsum(room) - room
        out = np.empty(int(room.sum()), np.uint8)
        copy_extents(data, np.where(right, at + found.sizes, 0), sizes, out, to)
        kept = np.where(right[:, None], shapes, 0).astype(np.int32).reshape(n, ndim)
        return Batch(_as_dtype(out, dtype), to // dtype.itemsize, kept, "", ctx.samples)


def _as_dtype(data: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the bytes ``data`` as elements of ``dtype``. Every byte but 0 is the boolean true."""
    return data != 0 if dtype == np.bool_ else data.view(dtype)


def expanded(path: str | tuple[str, ...]) -> list[str]:
    """Return the folders or index files that ``path`` names, patterns expanded. Raises JobError."""
    return [
        p for one in one_or_more(path) for p in (expand([one]) if any(c in one for c in "*?[") else [os.fspath(one)])
    ]
