"""litData: chunks of Lightning's litdata, with their index.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ops.batch import Batch
from ...ops.errors import SpecError
from .columns import Column, as_bytes, join
from .offset_table import OffsetTableWriter, Value

_BYTES = ("bytes", "jpeg", "str")
"""Names of litData's formats that a field of bytes may have."""
DTYPES = {"int8": 0, "int16": 1, "int32": 2, "int64": 3, "uint8": 4, "uint16": 5, "uint32": 6, "uint64": 7,
          "float16": 8, "float32": 9, "float64": 10, "bool": 13}  # fmt: skip
"""Numbers that litData stores for the dtypes of NumPy arrays, by name."""


class LitData(OffsetTableWriter, name="litdata", suffix=".bin"):
    """Chunks of litData, and the index.json that `StreamingDataset` reads; samples are dictionaries of the fields.

    Bytes are stored as `bytes`, images of ``encode: jpeg`` as `jpeg`, texts as `str`, one number as `int`, `float` or
    `bool` of Python, lists and arrays as NumPy arrays. Give ``shard: {bytes: 64MB}``: offsets have 32 bits, and a shard
    of unknown length is kept in memory until it is complete.
    """

    def encoding(self, name: str, value: Value) -> str:
        if value.kind == "text":
            return "str"
        if value.kind == "bytes":
            chosen = str((self.columns or {}).get(name, "jpeg" if value.encode == "jpeg" else "bytes"))
            if chosen not in _BYTES:
                raise SpecError(f"option columns: {name!r} must be {', '.join(_BYTES)}, got {chosen!r}")
            return chosen
        if value.dtype not in DTYPES:
            raise SpecError(f"field {name!r}: litdata has no type {value.dtype}")
        if value.kind == "number":
            return {"b": "bool", "f": "float"}.get(np.dtype(value.dtype).kind, "int")
        return f"no_header_numpy:{DTYPES[value.dtype]}" if value.ndim == 1 else "numpy"

    def number(self, dtype: str) -> np.dtype[Any]:
        kind = np.dtype(dtype).kind
        return np.dtype({"b": "bool", "f": "float64"}.get(kind, "int64"))

    def layout(self, value: Value, batch: Batch) -> Column:
        if value.ndim == 1:
            return as_bytes(batch)
        n, ndim = batch.shapes.shape
        heads = np.empty((n, 2 + ndim), "<u4")
        heads[:, 0], heads[:, 1], heads[:, 2:] = DTYPES[value.dtype], ndim, batch.shapes
        size = 4 * (2 + ndim)
        return join([Column(heads.view(np.uint8).reshape(-1), np.arange(n) * size, np.full(n, size)), as_bytes(batch)])

    @property
    def collection(self) -> tuple[str, ...]:
        return ("index.json",)

    @classmethod
    def collect(cls, manifest: Mapping[str, Any], carry: Mapping[str, Any]) -> dict[str, bytes]:
        writer = cls.of(manifest["write"]["options"])
        values = writer.values(carry.get("columns", {}))
        chunks = [
            {"chunk_bytes": file["bytes"], "chunk_size": shard["samples"], "dim": None, "filename": file["name"]}
            for shard in manifest["shards"] for file in shard["files"] if shard["samples"]
        ]  # fmt: skip
        leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
        spec = {"type": "builtins.dict", "context": json.dumps(list(values)), "children_spec": [leaf] * len(values)}
        config = {
            "chunk_bytes": max((c["chunk_bytes"] for c in chunks), default=0), "chunk_size": None, "compression": None,
            "data_format": [writer.encoding(name, v) for name, v in values.items()],
            "data_spec": json.dumps([1, spec]), "encryption": None, "item_loader": "PyTreeLoader",
        }  # fmt: skip
        index = {"chunks": chunks, "config": config, "updated_at": "0"}
        return {"index.json": json.dumps(index, sort_keys=True).encode()}
