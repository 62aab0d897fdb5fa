"""readers.mds: columns of MosaicML's MDS shards, by the index.json beside them."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ...ops.base import Arg, Spec
from ...ops.errors import JobError, SpecError
from ..join.reader import JoiningReader
from .records import (
    ArrayHeads,
    Field,
    Index,
    IndexedRecords,
    check_ndim,
    count_of,
    expanded,
    read_index,
    shape_of,
    shard_path,
)  # fmt: skip

_BYTES = ("bytes", "str", "jpeg", "png", "json", "str_int", "str_float", "str_decimal")
_NUMBERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_CODES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
          64: "uint64", 65: "int64", 66: "float64"}  # fmt: skip
"""Names of dtypes by the numbers that MosaicML's streaming stores for arrays."""


def _field(place: str, name: str, encoding: str, size: int | None) -> Field:
    """Return how to read a column, given its entries in the index. Raises SpecError for encodings that can be read only
    with Python's pickles."""
    kind, _, rest = encoding.partition(":")
    size = count_of(size or 0)
    if kind in _BYTES:
        return Field(name, encoding, "bytes", size=size or None)
    if kind == "int" or kind in _NUMBERS:
        dtype = "int64" if kind == "int" else kind
        if size and size != np.dtype(dtype).itemsize:
            raise ValueError(f"{size} is not the size of {encoding}")
        return Field(name, encoding, "number", dtype, size or None)
    if kind == "ndarray" and (not rest or rest.partition(":")[0] in _NUMBERS):
        dtype, _, shape = rest.partition(":")
        given = shape_of(int(d) for d in shape.split(",")) if shape else None
        return Field(name, encoding, "array", dtype, size or None, given)
    raise SpecError(f"{place}: column {name!r} has the encoding {encoding!r}; those read here: {', '.join(_BYTES)}, "
                    f"int, {', '.join(_NUMBERS)}, ndarray")  # fmt: skip


def index_of(path: str, columns: tuple[str, ...] = ()) -> Index:
    """Read the MDS index at ``path``. Columns other than ``columns`` may have any encoding. Raises JobError,
    SpecError."""
    place, told = read_index(path)
    try:
        shards = told["shards"]
        for shard in shards:
            if (shard["format"], shard["version"]) != ("mds", 2):
                raise JobError(f"{place}: lists shards of {shard['format']!r}, version {shard['version']}; MDS is 2")
            if shard.get("zip_data"):
                raise JobError(f"{place}: its shards are compressed ({shard['compression']}), which is not read; write "
                               "them without compression")  # fmt: skip
        heads = {str((s["column_names"], s["column_encodings"], s["column_sizes"])): s for s in shards}
        if len(heads) > 1:
            raise JobError(f"{place}: its shards differ in their columns")
        told_columns = next(iter(heads.values()), dict.fromkeys(_COLUMNS, ()))
        fields = tuple(
            _field(place, name, encoding, size) if not columns or name in columns else
            Field(name, encoding, "bytes", size=count_of(size or 0) or None)
            for name, encoding, size in zip(*(told_columns[k] for k in _COLUMNS), strict=True)
        )  # fmt: skip
        files = tuple(shard_path(place, s["raw_data"]["basename"]) for s in shards)
        return Index(place, files, tuple(count_of(s["samples"]) for s in shards), fields)
    except (LookupError, TypeError, AttributeError, ValueError) as e:
        raise JobError(f"{place}: is not an index of MDS ({type(e).__name__}: {e})") from None


_COLUMNS = ("column_names", "column_encodings", "column_sizes")


def array_heads(field: Field, data: Any, at: Any, ndim: int) -> ArrayHeads:
    """Read the headers of the arrays at offsets ``at``, as `IndexedRecords` requests. A header holds the type (unless
    the column has one), the number of dimensions and their width, and the dimensions."""
    n, before = len(at), np.zeros(len(at), np.int64)
    dtype = np.full(n, field.dtype, object)
    if not field.dtype:
        dtype = np.array([_CODES.get(c, "") for c in data[np.minimum(at, len(data) - 1)].tolist()], object)
        before += 1
    if field.shape is not None:
        return ArrayHeads(dtype, np.tile(np.array(field.shape, np.int64), (n, 1)), before)
    codes = data[np.minimum(at + before, len(data) - 1)].astype(np.int64)
    own, width = codes >> 2, 1 << (codes & 3)
    ndim = check_ndim(field, int(own[0])) if ndim < 0 and n else max(ndim, 0)
    shapes = np.full((n, ndim), -1, np.int64)
    for w in np.unique(width).tolist():
        rows = np.flatnonzero((width == w) & (own == ndim))
        bytes_at = (at + before + 1)[rows][:, None] + np.arange(ndim * w)
        shapes[rows] = np.ascontiguousarray(data[np.minimum(bytes_at, len(data) - 1)]).view(f"<u{w}").astype(np.int64)
    return ArrayHeads(dtype, shapes, before + 1 + ndim * width)


class Mds(JoiningReader, name="readers.mds"):
    """Read columns of MDS data sets (MosaicML's streaming), by their index.json. Shards must not be compressed.

    Outputs: one for each column: bytes, texts, images and JSON as bytes (uint8, 1-D), numbers in their type (shape
    (1,)), arrays with their shape; all arrays of a column have the type and number of dimensions of the first record.
    """

    maps_files = True
    example = "{op: readers.mds, path: train, columns: [image, label], key: key, out: [jpegs, labels]}"

    path: Annotated[str | tuple[str, ...], Arg("folders with an index.json, such files, or patterns of them")]
    columns: Annotated[tuple[str, ...], Arg("names of columns")]
    key: Annotated[str | None, Arg("column that names the samples; shard and number by default")] = None

    @property
    def own_outputs(self) -> int:
        return len(self.columns)

    def check(self) -> None:
        super().check()
        if not self.columns or not all(self.columns):
            raise SpecError("columns names none")

    def own_specs(self) -> tuple[Spec, ...]:
        return (Spec(),) * len(self.columns)

    def open_records(self) -> IndexedRecords:
        wanted = (*self.columns, *([self.key] if self.key else []))
        return IndexedRecords([index_of(p, wanted) for p in expanded(self.path)], self.columns, self.key, array_heads)
