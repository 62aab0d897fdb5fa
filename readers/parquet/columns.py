"""Columns of Parquet files: find out which can be read, and convert Arrow's arrays to flat arrays of bytes or
numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...ops.base import nearest
from ...ops.errors import SampleError, SpecError

I64 = npt.NDArray[np.int64]
Kind = Literal["bytes", "text", "number", "list"]
KINDS = "bytes, texts, numbers, lists of numbers, and images as Hugging Face's datasets store them are read"


@dataclass(frozen=True, slots=True)
class ReadableColumn:
    """A column that the reader can return, with the form of its values. Created by `resolve`."""

    name: str
    """Name by which the user requested the column."""
    kind: Kind
    dtype: np.dtype[Any]
    """Dtype of the reader's output; uint8 for bytes and texts."""
    path: tuple[str, ...]
    """Path to the values in the Arrow table: the column's name, then names of fields of nested structs."""

    @property
    def leaf(self) -> str:
        """Name of the column's leaf (column of plain values) in Parquet's schema; for a list, the leaf is one level
        deeper."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """Values of a column in some rows. Row i has the values ``data[starts[i] : starts[i] + counts[i]]``, 1-D."""

    data: npt.NDArray[Any]
    starts: I64
    counts: I64
    missing: npt.NDArray[np.bool_]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that these values take."""
        return int(self.data.nbytes + 17 * len(self.starts))


def resolve(schema: Any, name: str) -> ReadableColumn:
    """Find column ``name`` of an Arrow schema; ``a.b`` is field b of struct a. Raises SpecError with all columns."""
    found = schema.get_all_field_indices(name)
    if len(found) > 1:
        raise SpecError(f"there are {len(found)} columns {name!r}")
    path: tuple[str, ...] = (name,)
    if found:
        kind = schema.field(found[0]).type
    else:
        top, _, rest = name.partition(".")
        path, kind = (top,), None
        if rest and len(schema.get_all_field_indices(top)) == 1:
            path, kind = _inside(schema.field(top).type, rest, path)
        if kind is None:
            raise SpecError(f"there is no column {name!r}{nearest(name, schema.names)}; columns: "
                            + ", ".join(schema.names))  # fmt: skip
    if _is_struct(kind) and _kind_and_dtype(_field(kind, "bytes")) == ("bytes", np.dtype(np.uint8)):
        path, kind = (*path, "bytes"), _field(kind, "bytes")
    how = _kind_and_dtype(kind)
    if how is None:
        raise SpecError(f"column {name!r} is of type {kind}; {KINDS}")
    return ReadableColumn(name, *how, path)


def _inside(kind: Any, rest: str, path: tuple[str, ...]) -> tuple[tuple[str, ...], Any]:
    """Find the field ``rest`` in the struct type ``kind`` or in structs inside of it. Return the field's path, which
    continues ``path``, and its type."""
    step, _, more = rest.partition(".")
    inner = _field(kind, rest)
    if inner is not None:
        return (*path, rest), inner
    inner = _field(kind, step)
    return (path, None) if inner is None or not more else _inside(inner, more, (*path, step))


def _is_struct(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind))


def _field(kind: Any, name: str) -> Any:
    if not _is_struct(kind) or kind.get_field_index(name) < 0:
        return None
    return kind.field(kind.get_field_index(name)).type


def _kind_and_dtype(kind: Any) -> tuple[Kind, np.dtype[Any]] | None:
    """Kind (such as bytes or number) and dtype with which a column of the Arrow type ``kind`` is read; None if the type
    is not supported."""
    import pyarrow as pa

    types = pa.types
    if kind is None:
        return None
    if isinstance(kind, pa.BaseExtensionType):
        return _kind_and_dtype(kind.storage_type)
    if types.is_dictionary(kind):
        inner = _kind_and_dtype(kind.value_type)
        return inner if inner is not None and inner[0] != "list" else None
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes", np.dtype(np.uint8)
    if types.is_binary_view(kind):
        return "bytes", np.dtype(np.uint8)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text", np.dtype(np.uint8)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        number = _number(kind.value_type)
        return None if number is None else ("list", number)
    number = _number(kind)
    # 1-D uint8 means bytes everywhere in this project
    return None if number is None else ("number", np.dtype(np.int32) if number == np.uint8 else number)


def _number(kind: Any) -> np.dtype[Any] | None:
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return np.dtype(np.bool_)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        name = str(kind)  # `to_pandas_dtype` of PyArrow before 25 needs pandas
        return np.dtype({"halffloat": "float16", "float": "float32", "double": "float64"}.get(name, name))
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return np.dtype(np.int32 if kind.bit_width == 32 else np.int64)
    return None


# -- arrays -----------------------------------------------------------------------------------------------------------


def values_of(column: Any, where: ReadableColumn) -> ColumnValues:
    """Extract the values of ``where`` from the Arrow column ``column`` that is named ``where.path[0]``. Raises
    SampleError for inconsistent arrays."""
    parts = []
    for array in column.chunks:
        for step in where.path[1:]:
            array = array.flatten()[array.type.get_field_index(step)]
        parts.append(_values(array, where))
    if not parts:
        none = np.zeros(0, np.int64)
        return ColumnValues(np.zeros(0, where.dtype), none, none, np.zeros(0, np.bool_))
    return parts[0] if len(parts) == 1 else _join(parts)


def _join(parts: Sequence[ColumnValues]) -> ColumnValues:
    at = np.cumsum([0, *(len(p.data) for p in parts[:-1])])
    return ColumnValues(
        np.concatenate([p.data for p in parts]),
        np.concatenate([p.starts + a for p, a in zip(parts, at.tolist(), strict=True)]),
        np.concatenate([p.counts for p in parts]),
        np.concatenate([p.missing for p in parts]),
    )


def _values(array: Any, where: ReadableColumn) -> ColumnValues:
    import pyarrow as pa

    if isinstance(array.type, pa.BaseExtensionType):
        return _values(array.storage, where)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_dictionary(array.type):
        return _from_dictionary(array, where, missing)
    n = len(array)
    if where.kind == "number":
        return ColumnValues(
            _numbers(array).astype(where.dtype, copy=False), np.arange(n), np.ones(n, np.int64), missing
        )
    if where.kind == "list":
        return _lists(array, missing)
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        starts = (np.arange(n) + array.offset) * width
        return _checked(_view(array.buffers()[1], np.uint8), starts, np.full(n, width, np.int64), missing)
    if pa.types.is_binary_view(array.type) or pa.types.is_string_view(array.type):
        array = array.cast(pa.large_binary())
    starts, counts = _extents(array, 1)
    return _checked(_view(array.buffers()[2], np.uint8), starts, counts, missing)


def _from_dictionary(array: Any, where: ReadableColumn, missing: npt.NDArray[np.bool_]) -> ColumnValues:
    words = _values(array.dictionary, where)
    index = np.where(missing, 0, _numbers(array.indices)).astype(np.int64)
    if not len(words.starts):
        if not missing.all():
            raise SampleError("corrupt_record", f"column {where.name!r}: its dictionary is empty")
        zeros = np.zeros(len(array), np.int64)
        return ColumnValues(words.data, zeros, zeros, missing)
    if len(index) and (int(index.min()) < 0 or int(index.max()) >= len(words.starts)):
        raise SampleError("corrupt_record", f"column {where.name!r}: a value is not in its dictionary")
    return ColumnValues(words.data, words.starts[index], words.counts[index], missing | words.missing[index])


def _lists(array: Any, missing: npt.NDArray[np.bool_]) -> ColumnValues:
    import pyarrow as pa

    n = len(array)
    inner = array.values
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        starts, counts = (np.arange(n) + array.offset) * width, np.full(n, width, np.int64)
    else:
        starts, counts = _extents(array, 1)
    data = _numbers(inner)
    if inner.null_count:
        holes = np.concatenate(([0], np.cumsum(inner.is_null().to_numpy(zero_copy_only=False))))
        kept = np.clip(starts, 0, len(data)), np.clip(starts + counts, 0, len(data))
        missing = missing | (holes[kept[1]] > holes[kept[0]])
    return _checked(data, starts, counts, missing)


def _checked(data: npt.NDArray[Any], starts: I64, counts: I64, missing: npt.NDArray[np.bool_]) -> ColumnValues:
    starts, counts = np.where(missing, 0, starts), np.where(missing, 0, counts)
    if len(starts) and (int(starts.min()) < 0 or int(counts.min()) < 0 or int((starts + counts).max()) > len(data)):
        raise SampleError("corrupt_record", "values reach outside of their column")
    return ColumnValues(data, starts, counts, missing)


def _extents(array: Any, buffer: int) -> tuple[I64, I64]:
    """Starts and lengths of the values of an Arrow array, from its offsets of 32 or 64 bits in ``buffer``."""
    import pyarrow as pa

    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    wide = wide or pa.types.is_large_list(array.type)
    offsets = _view(array.buffers()[buffer], np.int64 if wide else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    if len(offsets) != len(array) + 1:
        if len(array):
            raise SampleError("corrupt_record", "values reach outside of their column")
        offsets = np.zeros(1, np.int64)
    return offsets[:-1], np.diff(offsets)


def _numbers(array: Any) -> npt.NDArray[Any]:
    """View the fixed-width values of an Arrow array in memory; missing values have any value."""
    import pyarrow as pa

    if pa.types.is_boolean(array.type):
        flags: npt.NDArray[Any] = array.fill_null(False).to_numpy(zero_copy_only=False)
        return flags
    dtype = _number(array.type)
    assert dtype is not None
    values = _view(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]
    if len(values) != len(array):
        raise SampleError("corrupt_record", "values reach outside of their column")
    return values


class _Memory:
    """Shows an Arrow buffer to NumPy as a writable array, because compiled code exists for writable arrays only."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            "data": (buffer.address, False), "shape": (buffer.size,), "typestr": "|u1", "version": 3,
        }  # fmt: skip


def _view(buffer: Any, dtype: Any) -> npt.NDArray[Any]:
    size = np.dtype(dtype).itemsize
    if buffer is None or buffer.size < size:
        return np.zeros(0, dtype)
    data = np.asarray(_Memory(buffer))
    return data[: len(data) // size * size].view(dtype)
