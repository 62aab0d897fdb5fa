"""Convert fields to columns of bytes: the value of each sample in the container, for a whole batch at once."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...ops.base import Spec
from ...ops.batch import I32, I64, Batch, Samples
from ...ops.errors import JobError, SpecError
from ...ops.types import to_numpy
from ..base import ENCODED, ENCODINGS, FieldConfig, Records, Refused
from ..bytes.scatter_gather import LOOSE, U8, ScatteredRecords

Kind = Literal["bytes", "int", "float", "raw", "npy"]


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a batch as bytes: the value of record i is ``data[starts[i] : starts[i] + sizes[i]]``."""

    data: U8
    starts: I64
    sizes: I64

    def __len__(self) -> int:
        return len(self.starts)

    def value(self, i: int) -> bytes:
        """Return value ``i`` as bytes; too slow for loops over all values."""
        return self.data[int(self.starts[i]) : int(self.starts[i] + self.sizes[i])].tobytes()

    @property
    def is_large(self) -> bool:
        """Whether the values are so large on average that they are better written without a copy."""
        return int(self.sizes.sum()) >= LOOSE * max(1, len(self))


def kind_of(config: FieldConfig, dtype: np.dtype[Any], ndim: int) -> Kind:
    """Return how a field is stored: ``bytes``, ``int``, ``float``, ``npy`` or ``raw``. Numbers for which
    tf.train.Example has no lossless type (float64, uint64) are ``raw``."""
    if config.encode in ENCODED:
        return "bytes"
    if config.encode == "raw":
        return "raw"
    if config.encode == "npy":
        return "npy"
    if ndim == 1 and dtype == np.uint8:
        return "bytes"
    if ndim <= 1 and dtype.kind in "iub" and dtype != np.uint64:
        return "int"
    if ndim <= 1 and dtype in (np.float16, np.float32):
        return "float"
    return "raw"


def is_extension(text: str) -> bool:
    """Whether ``text`` can be a file name extension, such as ``jpg`` or ``seg.png``."""
    return re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.]{0,14}[A-Za-z0-9])?", text) is not None


def check_field(name: str, config: FieldConfig, spec: Spec) -> None:
    """Check that the field ``name`` can be stored with this configuration. Raises SpecError."""
    if config.encode not in ENCODINGS:
        raise SpecError(f"field {name!r}: encode must be one of {', '.join(ENCODINGS)}, got {config.encode!r}")
    if config.extension and not is_extension(config.extension):
        raise SpecError(
            f"field {name!r}: extension {config.extension!r} must be letters, digits and dots (jpg, seg.png)"
        )
    known = spec.dtype is not None and spec.ndim is not None
    if config.encode in ENCODED and known and not is_encoded(spec):
        raise SpecError(
            f"field {name!r}: encode {config.encode} needs encoded bytes (1-D uint8), got {spec}; use raw or npy, or "
            + ("name the output of a reader" if config.encode in ("keep", "text") else "let it follow an encoder")
        )


def is_encoded(spec: Spec) -> bool:
    """Whether the field is known to be 1-D uint8, the form of encoded bytes."""
    return spec.dtype is not None and to_numpy(spec.dtype) == np.uint8 and spec.ndim == 1


def not_text(records: Records, configs: Mapping[str, FieldConfig]) -> list[Refused]:
    """Return the records in which a field of ``encode: text`` is not UTF-8, one entry per record."""
    from ...ops.arrays import json_cpu

    refused: dict[int, Refused] = {}
    for name, config in configs.items():
        batch = records.fields.get(name)
        if config.encode != "text" or batch is None or batch.dtype != np.uint8:
            continue
        column, good = as_bytes(batch), np.empty(len(batch), np.bool_)
        json_cpu.are_utf8(column.data, column.starts, np.ascontiguousarray(column.sizes, np.int64), good)
        for i in np.flatnonzero(~good).tolist():
            message = f"field {name!r} is not text in UTF-8; encode: auto keeps the bytes as they are"
            refused.setdefault(i, Refused(i, "encode_failed", message))
    return list(refused.values())


def check_encoded(name: str, config: FieldConfig, batch: Batch) -> None:
    """Check that a batch fits its field's encoding, for types that are unknown before the run. Raises JobError."""
    if config.encode in ENCODED and (batch.dtype != np.uint8 or batch.ndim != 1):
        raise JobError(
            f"field {name!r}: encode {config.encode} needs encoded bytes (1-D uint8), got {batch.dtype}, "
            f"{batch.ndim}-D; use raw or npy"
        )


def as_bytes(batch: Batch) -> Column:
    """Return the bytes of each sample's elements as they are in memory (little-endian, C order)."""
    itemsize = batch.dtype.itemsize
    data = np.ascontiguousarray(batch.data).view(np.uint8)
    if itemsize == 1:
        return Column(data, np.ascontiguousarray(batch.offsets), batch.sizes)
    return Column(data, np.ascontiguousarray(batch.offsets * itemsize), batch.sizes * itemsize)


def elements(batch: Batch) -> tuple[npt.NDArray[Any], I64]:
    """Return the elements of all samples in one array, and the number of elements of each sample."""
    packed = batch.packed()
    sizes = packed.sizes
    first = int(packed.offsets[0]) if len(packed) else 0
    return np.asarray(packed.data[first : first + int(sizes.sum())]), sizes


def starts_of(sizes: npt.NDArray[Any]) -> I64:
    """Return the offsets at which byte strings of these sizes begin if they follow each other."""
    ends = np.cumsum(sizes, dtype=np.int64)
    starts: I64 = ends - sizes
    return starts


def as_varints(batch: Batch) -> Column:
    """Return each sample's integers as packed varints (64-bit two's complement, like protobuf's int64)."""
    from ..bytes import frames_cpu

    values, counts = elements(batch)
    values = np.ascontiguousarray(values, np.int64)
    widths = frames_cpu.varint_sizes(values)
    out = np.empty(int(widths.sum()), np.uint8)
    frames_cpu.put_varints(out, values)
    ends = np.concatenate(([0], np.cumsum(widths)))
    last = np.cumsum(counts)
    sizes = ends[last] - ends[last - counts]
    return Column(out, starts_of(sizes), np.ascontiguousarray(sizes))


def as_floats(batch: Batch) -> Column:
    """Return each sample's floats as packed float32."""
    values, counts = elements(batch)
    data = np.ascontiguousarray(values, np.float32).view(np.uint8)
    return Column(data, starts_of(counts) * 4, counts * 4)


def constant(value: bytes, n: int) -> Column:
    """Return a column that has the same bytes for all ``n`` records."""
    return Column(np.frombuffer(bytearray(value), np.uint8), np.zeros(n, np.int64), np.full(n, len(value), np.int64))


def from_values(values: Sequence[bytes]) -> Column:
    """Return a column that holds these byte strings, one per record."""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    return Column(np.frombuffer(bytearray(b"".join(values)), np.uint8), starts_of(sizes), sizes)


def keys_of(samples: Samples) -> Column:
    """Return the samples' keys in their data set as a column, in UTF-8."""
    return from_values(samples.names())


def numbers_of(samples: Samples) -> I64:
    """Return a number for each sample, int64[N], in the order of the samples: its position. Parts of split samples have
    a million numbers for each position."""
    return samples.position if samples.part is None else samples.position * 1_000_000 + samples.part


def position_names(samples: Samples) -> Column:
    """Return the samples' positions as names of ten digits, and six more for parts of split samples: sorting the names
    sorts the samples."""
    return as_decimal(numbers_of(samples), 10 if samples.part is None else 16)


def as_decimal(values: npt.NDArray[Any], width: int = 0) -> Column:
    """Return integers as decimal text. With ``width``, they must not be negative, and are padded with zeros."""
    if width:
        powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
        digits = (values[:, None] // powers % 10 + ord("0")).astype(np.uint8)
        return Column(digits.reshape(-1), np.arange(len(values)) * width, np.full(len(values), width, np.int64))
    text = np.asarray(values).astype("S21")
    return Column(text.view(np.uint8), np.arange(len(values)) * 21, np.strings.str_len(text).astype(np.int64))


def pairs(first: I64, second: I64, separator: str) -> U8:
    """Return lines of text with two numbers each (none below 0), with ``separator`` between them."""
    from ..bytes import frames_cpu

    out = np.empty(40 * len(first), np.uint8)
    return out[: frames_cpu.put_pairs(out, first, second, np.uint8(ord(separator)))]


def as_npy(batch: Batch) -> Column:
    """Return each sample's array in the form of an .npy file."""
    shapes, which = np.unique(batch.shapes, axis=0, return_inverse=True)
    heads = from_values([npy_header(batch.dtype, tuple(map(int, s))) for s in shapes])
    which = which.reshape(-1)
    head = Column(heads.data, heads.starts[which], heads.sizes[which])
    return join([head, as_bytes(batch)])


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...], size: int = 0) -> bytes:
    """Return the header of an .npy file (version 1.0, NumPy's documentation of the format), padded with spaces to
    ``size``."""
    out = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, description)
    head = out.getvalue()
    if len(head) >= size:
        return head
    return head[:8] + (size - 10).to_bytes(2, "little") + head[10:-1].rstrip(b" ") + (
        b" " * (size - len(head[:-1].rstrip(b" ")) - 1) + b"\n"
    )  # fmt: skip


def join(columns: Sequence[Column]) -> Column:
    """Return one column in which each record's value is the concatenation of its values in ``columns``."""
    sizes = total_of([c.sizes for c in columns])
    out = np.empty(int(sizes.sum()), np.uint8)
    starts = starts_of(sizes)
    at = starts
    for c in columns:
        copy(out, at, c)
        at = at + c.sizes
    return Column(out, starts, sizes)


def total_of(sizes: Sequence[I64]) -> I64:
    """Return the sum of each record's sizes in several columns."""
    total: I64 = np.sum(np.stack(sizes), axis=0, dtype=np.int64)
    return total


def copy(out: U8, to: I64, column: Column) -> None:
    """Copy value ``i`` of the column to ``out[to[i]:]`` for all i."""
    from ..bytes import frames_cpu

    frames_cpu.copy_ranges(out, np.ascontiguousarray(to), *address(column))


def address(column: Column) -> tuple[np.int64, I64, I64]:
    """Return the column in the form that compiled loops take: address of its data, starts and sizes of its values.
    Raises ValueError if a value is not within the data."""
    from ..bytes import frames_cpu

    starts, sizes = np.ascontiguousarray(column.starts, np.int64), np.ascontiguousarray(column.sizes, np.int64)
    if not frames_cpu.lie_within(starts, sizes, column.data.size):
        raise ValueError("a batch's offsets and shapes reach outside of its data")
    return np.int64(column.data.ctypes.data), starts, sizes


class LargeValues:
    """Columns of ``n`` values each whose values are large. Large values are written without a copy; the other columns
    are copied."""

    def __init__(self, columns: Sequence[Column], n: int) -> None:
        large = [c.is_large for c in columns]
        there = [c for c, its in zip(columns, large, strict=True) if its]
        shape = len(there), n
        self.cuts, self.addresses, self.sizes = (np.empty(shape, np.int64) for _ in range(3))
        """Arrays of `ScatteredRecords` for the K large columns, [K, n] each; the caller sets ``cuts``."""
        for k, column in enumerate(there):
            base, starts, self.sizes[k] = address(column)
            np.add(starts, base, out=self.addresses[k])
        rows = iter(self.cuts)
        self.cuts_of = [next(rows) if its else _NOWHERE for its in large]
        """For each of the given columns, its row of ``cuts``; empty for columns that are copied."""
        self._held = tuple(c.data for c in there)

    def records(self, own: U8, starts: I64, ends: I64) -> ScatteredRecords:
        """Return records that consist of the copied bytes ``own[starts[i] : ends[i]]``, with these large values
        inserted at ``cuts``."""
        return ScatteredRecords(own, starts, ends, self.cuts, self.addresses, self.sizes, self._held)


def as_they_are(column: Column) -> ScatteredRecords:
    """Return records that consist of one value of the column each, without a copy."""
    base, starts, sizes = address(column)
    nothing = np.zeros((1, len(column)), np.int64)
    own = np.empty(0, np.uint8)
    return ScatteredRecords(own, nothing[0], nothing[0], nothing, (starts + base)[None], sizes[None], (column.data,))


_NOWHERE = np.zeros(0, np.int64)


def pack(records: ScatteredRecords) -> Column:
    """Return a column that holds a contiguous copy of each record."""
    sizes = records.totals
    return Column(records.io_vector(len(records)).packed(), starts_of(sizes), sizes)


# -- Example ----------------------------------------------------------------------------------------------------------

_BYTES, _FLOAT, _INT64 = 10, 18, 26
"""Protobuf tags of the three kinds of lists in a Feature (tensorflow/core/example/feature.proto)."""


def features(fields: Mapping[str, Batch], configs: Mapping[str, FieldConfig]) -> list[tuple[bytes, int, Column]]:
    """Return the features of a batch of tf.train.Examples, each as (name, tag of its list, packed values). A raw field
    becomes three features: its bytes, ``<name>/shape`` (int64) and ``<name>/dtype`` (NumPy's name), so that readers can
    restore it."""
    out: list[tuple[bytes, int, Column]] = []
    for name, batch in fields.items():
        config = configs.get(name, FieldConfig())
        check_encoded(name, config, batch)
        kind = kind_of(config, batch.dtype, batch.ndim)
        utf8 = name.encode()
        if kind == "int":
            out.append((utf8, _INT64, as_varints(batch)))
        elif kind == "float":
            out.append((utf8, _FLOAT, as_floats(batch)))
        elif kind == "npy":
            out.append((utf8, _BYTES, as_npy(batch)))
        else:
            out.append((utf8, _BYTES, as_bytes(batch)))
        if kind == "raw":
            shapes: I32 = batch.shapes
            out.append((utf8 + b"/shape", _INT64, as_varints(Batch.from_dense(shapes, "", batch.samples))))
            out.append((utf8 + b"/dtype", _BYTES, constant(batch.dtype.name.encode(), len(batch))))
    return out


def examples(parts: Sequence[tuple[bytes, int, Column]], n: int, around: tuple[int, int] = (0, 0)) -> ScatteredRecords:
    """Serialise ``n`` tf.train.Examples from the features ``parts``. ``around`` bytes before and after each Example are
    left free, for the frames of TFRecord."""
    from ..bytes import frames_cpu

    total = np.zeros(n, np.int64)
    for name, _, column in parts:
        frames_cpu.add_entries(total, len(name), np.ascontiguousarray(column.sizes, np.int64))
    large = LargeValues([column for _, _, column in parts], n)
    starts, cursor, ends = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    out = np.empty(frames_cpu.lay_out(total, large.sizes, *around, starts, cursor, ends), np.uint8)
    frames_cpu.put_lengths(out, cursor, np.uint8(10), total)
    for (name, tag, column), cuts in zip(parts, large.cuts_of, strict=True):
        text = np.frombuffer(bytearray(name), np.uint8)
        frames_cpu.put_feature(out, cursor, text, np.uint8(tag), *address(column), cuts)
    return large.records(out, starts, ends)
