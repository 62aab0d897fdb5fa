"""readers.litdata: fields of litData's chunks, by the index.json beside them."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ...ops.base import Arg, Spec
from ...ops.errors import JobError, SpecError
from ...ops.storage.json_text import parse_json
from ..join.reader import JoiningReader
from .records import ArrayHeads, Field, Index, IndexedRecords, check_ndim, count_of, expanded, read_index, shard_path

_BYTES = ("bytes", "str", "text", "jpeg", "image", "file", "audio", "video", "json")
_NUMBERS = {"int": "int64", "float": "float64", "bool": "bool"}
_NUMPY = {
    **dict(enumerate(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                      "float64"))), 13: "bool",
}  # fmt: skip
"""Names of dtypes by the numbers that litData stores for NumPy arrays. Complex ones are not read."""
_TORCH = {0: "float32", 1: "float32", 2: "float64", 3: "float64", 8: "float16", 9: "float16", 11: "uint8", 12: "int8",
          13: "int16", 14: "int16", 15: "int32", 16: "int32", 17: "int64", 18: "int64", 19: "bool",
          20: "uint16"}  # fmt: skip
"""Names of dtypes by the numbers that litData stores for tensors."""


def _field(place: str, name: str, encoding: str) -> Field:
    """Return how to read one value of every sample, given its name and its format in the index. Raises SpecError for
    unknown formats, and for formats that are Python's pickles."""
    kind, _, rest = encoding.partition(":")
    if kind in _BYTES:
        return Field(name, encoding, "bytes")
    if kind in _NUMBERS:
        return Field(name, encoding, "number", _NUMBERS[kind])
    if kind in ("numpy", "tensor"):
        return Field(name, encoding, "array", "")
    types = _NUMPY if kind == "no_header_numpy" else _TORCH if kind == "no_header_tensor" else {}
    if rest.isdigit() and int(rest) in types:
        return Field(name, encoding, "array", types[int(rest)])
    raise SpecError(f"{place}: field {name!r} has the format {encoding!r}; those read here: {', '.join(_BYTES)}, int, "
                    "float, bool, numpy, tensor")  # fmt: skip


def _names(place: str, spec: str, count: int) -> list[str]:
    """Return the names of a sample's ``count`` values, from ``spec``, litData's description of samples: keys of a
    dictionary, numbers in a tuple or list, ``value`` for a single one."""
    told = parse_json(spec)[1]
    children = told["children_spec"]
    if not children:
        names = ["value"]
    elif any(c["children_spec"] for c in children):
        raise SpecError(f"{place}: its samples are nested; dictionaries, tuples and lists of plain values are read")
    else:
        names = (
            parse_json(told["context"]) if told["type"] == "builtins.dict" else [str(i) for i in range(len(children))]
        )
    if len(names) != count or not all(isinstance(n, str) for n in names):
        raise SpecError(f"{place}: its samples have {count} values, for which {names} are no names")
    return names


def index_of(path: str, columns: tuple[str, ...] = ()) -> Index:
    """Read litData's index at ``path``. Fields other than ``columns`` may have any format. Raises JobError,
    SpecError."""
    place, told = read_index(path)
    try:
        config, chunks = told["config"], told["chunks"]
        if config.get("compression") or config.get("encryption") or config.get("ipc_compression"):
            raise JobError(f"{place}: its chunks are compressed or encrypted, which is not read; write them plainly")
        if config.get("item_loader", "PyTreeLoader") != "PyTreeLoader":
            raise JobError(f"{place}: its chunks are of the {config['item_loader']}; PyTreeLoader's are read")
        formats = config["data_format"]
        names = _names(place, config["data_spec"], len(formats))
        fields = tuple(
            _field(place, name, f) if not columns or name in columns else Field(name, f, "bytes")
            for name, f in zip(names, formats, strict=True)
        )
        files = tuple(shard_path(place, c["filename"]) for c in chunks)
        return Index(place, files, tuple(count_of(c["chunk_size"]) for c in chunks), fields)
    except (LookupError, TypeError, AttributeError, ValueError) as e:
        raise JobError(f"{place}: is not an index of litData ({type(e).__name__}: {e})") from None


def array_heads(field: Field, data: Any, at: Any, ndim: int) -> ArrayHeads:
    """Read the headers of the arrays at offsets ``at``, as `IndexedRecords` requests. A header holds type, number of
    dimensions and dimensions, in words that are little-endian for arrays and big-endian for tensors."""
    n = len(at)
    if field.dtype:
        dtype = np.full(n, field.dtype, object)
        return ArrayHeads(dtype, np.zeros((n, 1), np.int64), np.zeros(n, np.int64))
    word = ">u4" if field.encoding == "tensor" else "<u4"
    types = _TORCH if field.encoding == "tensor" else _NUMPY

    def words(first: int, count: int) -> Any:
        where = np.minimum(at[:, None] + 4 * first + np.arange(4 * count), len(data) - 1)
        return np.ascontiguousarray(data[where]).view(word).astype(np.int64)

    codes = words(0, 2)
    ndim = check_ndim(field, int(codes[0, 1])) if ndim < 0 and n else max(ndim, 0)
    shapes = np.where(codes[:, 1:] == ndim, words(2, ndim), -1)
    dtype = np.array([types.get(c, "") for c in codes[:, 0].tolist()], object)
    return ArrayHeads(dtype, shapes.reshape(n, ndim), np.full(n, 8 + 4 * ndim, np.int64))


class LitData(JoiningReader, name="readers.litdata"):
    """Read fields of litData's chunks, by their index.json. Chunks must be neither compressed nor encrypted.

    Outputs: one for each column: bytes, texts, images and JSON as bytes (uint8, 1-D), numbers (int64, float64 or bool,
    shape (1,)), arrays and tensors with their shape; all of a column have the type and number of dimensions of the
    first record. Columns are keys of the samples' dictionaries, numbers in tuples, or ``value``.
    """

    maps_files = True
    example = "{op: readers.litdata, path: train, columns: [image, label], key: key, out: [jpegs, labels]}"

    path: Annotated[str | tuple[str, ...], Arg("folders with an index.json, such files, or patterns of them")]
    columns: Annotated[tuple[str, ...], Arg("names of fields")]
    key: Annotated[str | None, Arg("field that names the samples; chunk and number by default")] = None

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
