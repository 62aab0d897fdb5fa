"""The NumPy writer: one .npy file per field and shard, samples stacked along the first axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...ops.base import Spec
from ...ops.errors import SpecError
from ...ops.types import to_numpy
from ..base import ENCODED, FieldConfig, Frames, Records, Refused, Shard, ShardFile, ShardFiles, Writer
from ..bytes.written import Problem, WrittenShard
from .columns import as_bytes, as_they_are, npy_header

_HEAD = 128
"""Size in bytes to which every .npy header is padded, so that the number of samples can be filled in at the end."""


class NumPy(Writer, name="numpy", suffix=".npy"):
    """Dense arrays, ``<shard>.<field>.npy`` of shape (samples, *shape), to be loaded or mapped by numpy.load.

    All samples of a field have one dtype and shape: those of the spec, or else of the data set's first sample. Other
    samples are rejected.
    """

    independent = True

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        for name, config in fields.items():
            if config.encode in ENCODED:
                raise SpecError(
                    f"field {name!r}: the numpy writer stores arrays of one shape, not {config.encode} bytes; use raw "
                    "after a decoder, or another writer"
                )
            if "/" in name or name.startswith("."):
                raise SpecError(f"field {name!r} cannot be part of a file name")

    def schema(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> dict[str, Any] | None:
        """Return dtype and shape of each field, which hold for all shards: ``{"image": {"dtype": "uint8", "shape":
        [224, 224, 3]}}``."""
        found = {name: _array(specs.get(name, Spec())) for name in fields}
        return None if None in found.values() else found

    def refuse(self, records: Records, carry: dict[str, Any]) -> Sequence[Refused]:
        refused: dict[int, Refused] = {}
        for name, batch in records.fields.items():
            model = carry.setdefault(name, {"dtype": batch.dtype.name, "shape": batch.shapes[0].tolist()})
            if isinstance(model, list):  # the shape alone, as in journals of version 0.1
                model = carry[name] = {"dtype": batch.dtype.name, "shape": model}
            shape = model["shape"]
            odd = np.ones(len(batch), bool)
            if batch.ndim == len(shape) and batch.dtype == np.dtype(model["dtype"]):
                odd = (batch.shapes != np.array(shape, np.int32)).any(axis=1)
            for i in np.flatnonzero(odd).tolist():
                refused.setdefault(i, Refused(i, "bad_shape", (
                    f"field {name!r} is {_text(batch.dtype.name, batch.shapes[i].tolist())}, that of the data set "
                    f"{_text(**model)}; a .npy shard is one dense array: resize, crop, pad or cast them to one"
                )))  # fmt: skip
        return [refused[i] for i in sorted(refused)]

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return NumPyShard(files, fields)

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        if not shard.sound:  # the header's parser raises any exception for damaged ones
            return
        mode: Literal["r"] | None = "r" if shard.entry["samples"] else None
        for info in shard.entry["files"]:
            array = np.load(shard.root / info["name"], mmap_mode=mode, allow_pickle=False)
            yield from shard.count(info["name"], len(array))
            model = shard.schema.get(info["name"].removesuffix(".npy").removeprefix(f"{shard.entry['shard']}."))
            found = {"dtype": array.dtype.name, "shape": list(array.shape[1:])}
            if model is not None and found != model:
                yield Problem(info["name"], "", f"holds {_text(**found)}, the data set's arrays are {_text(**model)}")


def _array(spec: Spec) -> dict[str, Any] | None:
    """Return dtype and shape of a field's samples; None if the spec leaves one of them open."""
    if spec.dtype is None or spec.shape is None or None in spec.shape:
        return None
    return {"dtype": to_numpy(spec.dtype).name, "shape": list(spec.shape)}


def _text(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype}[{'x'.join(map(str, shape)) or 'scalar'}]"


@dataclass(slots=True)
class NumPyFrames(Frames):
    """Records of a batch, unchanged: their bytes are written without a copy."""

    records: Records


class NumPyShard(Shard):
    """The .npy files of one shard, one per field."""

    def __init__(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._expected, self._models = files.expected, dict(files.carry)
        """Expected number of samples (0 if unknown); for each field, the dtype and shape that its samples must have."""
        self._files: dict[str, ShardFile] = {name: files.create(f".{name}.npy") for name in fields}
        self._count = 0

    def frame(self, records: Records) -> NumPyFrames:
        sizes = np.zeros(len(records), np.int64)
        for batch in records.fields.values():
            sizes += batch.sizes * batch.dtype.itemsize
        return NumPyFrames(sizes, records)

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, NumPyFrames)
        records = frames.records
        for name, file in self._files.items():
            batch = records.fields[name].take(slice(0, n), records.samples.take(slice(0, n)))
            if not self._count:
                self._models[name] = {"dtype": batch.dtype.name, "shape": batch.shapes[0].tolist()}
                file.write(self._header(name, self._expected))
            column = as_bytes(batch)
            if batch.is_packed:
                first = int(column.starts[0])
                file.write(column.data[first : first + int(column.sizes.sum())])
            else:
                file.write(as_they_are(column).io_vector(n))
        self._count += n

    def _header(self, name: str, count: int) -> bytes:
        model = self._models.get(name, {"dtype": "uint8", "shape": []})
        return npy_header(np.dtype(model["dtype"]), (count, *model["shape"]), _HEAD)

    def close(self) -> None:
        for name, file in self._files.items():
            if not self._count:
                file.write(self._header(name, 0))
            elif self._count != self._expected:
                file.rewrite(0, self._header(name, self._count))
