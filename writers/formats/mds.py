"""MDS: shards of MosaicML's streaming, with their index.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...ops.batch import Batch
from ...ops.errors import SpecError
from ..base import Records, Refused
from .columns import Column, as_bytes, join
from .offset_table import OffsetTableWriter, Value

_IMAGES = ("jpeg", "png")
"""Values of `encode` that are also names of MDS encodings."""
_BYTES = ("bytes", "jpeg", "png", "json", "str")
"""Names of the MDS encodings that a field of bytes may have."""
_ARRAYS = ("uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64")


class MDS(OffsetTableWriter, name="mds", suffix=".mds"):
    """Shards of MosaicML's streaming (MDS), and the index.json that `StreamingDataset` reads.

    Bytes are stored as `bytes`, images of ``encode: jpeg`` or ``png`` as `jpeg` or `png`, texts as `str`, one number in
    its own type (int64 as `int`, booleans as `uint8`), lists and arrays as `ndarray:<type>`. Give ``shard: {bytes:
    64MB}``: offsets have 32 bits, and a shard of unknown length is kept in memory until it is complete.
    """

    has_fixed_sizes = True

    def order(self, names: Sequence[str]) -> list[str]:
        return sorted(names)

    def encoding(self, name: str, value: Value) -> str:
        if value.kind == "text":
            return "str"
        if value.kind == "bytes":
            chosen = str((self.columns or {}).get(name, value.encode if value.encode in _IMAGES else "bytes"))
            if chosen not in _BYTES:
                raise SpecError(f"option columns: {name!r} must be {', '.join(_BYTES)}, got {chosen!r}")
            return chosen
        dtype = self.number(value.dtype).name
        if dtype not in _ARRAYS:
            raise SpecError(f"field {name!r}: mds has no type {dtype}")
        if value.kind == "number":
            return "int" if dtype == "int64" else dtype
        return f"ndarray:{dtype}"

    def number(self, dtype: str) -> np.dtype[Any]:
        return np.dtype("uint8" if dtype == "bool" else dtype)

    def layout(self, value: Value, batch: Batch) -> Column:
        n, shapes = len(batch), batch.shapes.astype(np.int64).reshape(len(batch), -1)
        if not batch.ndim:
            shapes = np.ones((n, 1), np.int64)
        largest = shapes.max(axis=1, initial=0)
        width = np.where(largest < 1 << 8, 0, np.where(largest < 1 << 16, 1, 2))
        sizes = 1 + shapes.shape[1] * (1 << width)
        starts = np.cumsum(sizes) - sizes
        heads = np.empty(int(sizes.sum()), np.uint8)
        for k in np.unique(width).tolist():
            at = starts[width == k]
            heads[at] = shapes.shape[1] << 2 | k
            dims = shapes[width == k].astype(f"<u{1 << k}").view(np.uint8).reshape(len(at), -1)
            heads[at[:, None] + 1 + np.arange(dims.shape[1])] = dims
        return join([Column(heads, starts, sizes), as_bytes(batch)])

    def refuse(self, records: Records, carry: dict[str, Any]) -> Sequence[Refused]:
        refused = {r.at: r for r in super().refuse(records, carry)}
        for name, batch in records.fields.items():
            if Value(*carry["columns"][name]).kind == "array":
                for i in np.flatnonzero(batch.sizes == 0).tolist():
                    message = f"field {name!r} is an array without elements, which MDS does not hold"
                    refused.setdefault(i, Refused(i, "bad_shape", message))
        return [refused[i] for i in sorted(refused)]

    def after_table(self, values: Mapping[str, Value]) -> bytes:
        return json.dumps(self._config_of(values), sort_keys=True).encode()

    def _config_of(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Return the part of index.json that says how the records of a shard are read."""
        return {
            "column_encodings": [self.encoding(name, v) for name, v in values.items()],
            "column_names": list(values),
            "column_sizes": [self.fixed_size(v) for v in values.values()],
            "compression": None, "format": "mds", "hashes": [], "size_limit": None, "version": 2,
        }  # fmt: skip

    @property
    def collection(self) -> tuple[str, ...]:
        return ("index.json",)

    @classmethod
    def collect(cls, manifest: Mapping[str, Any], carry: Mapping[str, Any]) -> dict[str, bytes]:
        writer = cls.of(manifest["write"]["options"])
        config = writer._config_of(writer.values(carry.get("columns", {})))
        shards = [
            {**config, "samples": shard["samples"], "zip_data": None,
             "raw_data": {"basename": file["name"], "bytes": file["bytes"], "hashes": {}}}
            for shard in manifest["shards"] for file in shard["files"] if shard["samples"]
        ]  # fmt: skip
        return {"index.json": json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()}
