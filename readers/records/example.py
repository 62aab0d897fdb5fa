"""Features of records (tf.train.Example, MessagePack): how they are declared, and a batch of records taken apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...ops.base import Spec
from ...ops.batch import Batch
from ...ops.context import Context
from ...ops.errors import SpecError
from ...ops.types import DALIDataType
from ..fetch.extents import MAX_RECORD, U8, payload

I64 = npt.NDArray[np.int64]

_DTYPES = {
    "string": "string", "bytes": "string", "float": "float", "float32": "float", "int64": "int64",
}  # fmt: skip
_KINDS = {"string": 1, "float": 2, "int64": 3}  # the field numbers of Feature
_KIND_NAMES = {1: "bytes", 2: "floats", 3: "integers", 4: "something else"}

Wire = Literal["example", "msgpack"]
_WIRE_NAMES = {"example": "tf.train.Example", "msgpack": "MessagePack map or array"}


def _compiled(wire: Wire) -> Any:
    """The parsers of a format; all have the same calls."""
    if wire == "example":
        from . import example_cpu

        return example_cpu
    from . import msgpack_cpu

    return msgpack_cpu


def _dtype(value: Any) -> str:
    name = value if isinstance(value, str) else getattr(value, "name", str(value))
    try:
        return _DTYPES[name.lower()]
    except KeyError:
        raise SpecError(f"{value!r} is not a type of a feature; allowed: string, float, int64") from None


def _shape(value: Any) -> tuple[int, ...]:
    shape = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not all(isinstance(d, int) and not isinstance(d, bool) and d >= 0 for d in shape):
        raise SpecError(f"the shape of a feature is a list of sizes, got {value!r}")
    return shape


class FixedLenFeature:
    """A feature with as many values in every record.

    A string is one value, given as its bytes. ``default`` stands for a missing feature; without one (None) such a
    record is rejected.
    """

    def __init__(self, shape: Sequence[int] | int, dtype: Any, default: Any = None) -> None:
        self.dtype = _dtype(dtype)
        self.shape = _shape(shape)
        if self.dtype == "string" and math.prod(self.shape) != 1:
            raise SpecError(f"a string feature holds one value; shape must be [] or [1], got {list(self.shape)}")
        self.default = None if default is None else self._default(default)

    def _default(self, value: Any) -> npt.NDArray[Any]:
        try:
            if self.dtype == "string":
                data = value.encode() if isinstance(value, str) else bytes(value)
                return np.frombuffer(data, np.uint8).copy()
            dtype = np.float32 if self.dtype == "float" else np.int64
            return np.broadcast_to(np.asarray(value, dtype), self.shape).copy()
        except (TypeError, ValueError, OverflowError):
            raise SpecError(f"{value!r} is no default for {self.dtype} of shape {list(self.shape)}") from None

    @property
    def spec(self) -> Spec:
        """The values of the feature."""
        if self.dtype == "string":
            return Spec((None,), DALIDataType.UINT8)
        return Spec(self.shape, DALIDataType.FLOAT if self.dtype == "float" else DALIDataType.INT64)


class VarLenFeature:
    """A feature with any number of values, rows of ``shape``. A missing feature has no values."""

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        self.dtype = _dtype(dtype)
        self.shape = _shape(shape)
        if 0 in self.shape:
            raise SpecError("the partial shape of a feature cannot hold 0")
        if self.dtype == "string" and self.shape:
            raise SpecError("a string feature holds one value and has no partial shape")

    @property
    def spec(self) -> Spec:
        """The values of the feature."""
        if self.dtype == "string":
            return Spec((None,), DALIDataType.UINT8)
        return Spec((None, *self.shape), DALIDataType.FLOAT if self.dtype == "float" else DALIDataType.INT64)


Feature = FixedLenFeature | VarLenFeature


def declared(features: Mapping[str, Any]) -> dict[str, Feature]:
    """Features as they stand in a spec: ``{name: {dtype, shape, default}}``, ``{dtype, var_len: true}`` or ``dtype``.

    Without a shape, a string is one value and a number a list of one. Raises SpecError with the name.
    """
    out: dict[str, Feature] = {}
    for name, value in features.items():
        try:
            out[str(name)] = _declared(value)
        except SpecError as e:
            raise SpecError(f"feature {name!r}: {e}") from None
    return out


def _declared(value: Any) -> Feature:
    if isinstance(value, str):
        value = {"dtype": value}
    if not isinstance(value, Mapping) or "dtype" not in value:
        raise SpecError(f"needs a mapping with a dtype (string, float, int64), got {value!r}")
    unknown = sorted(set(map(str, value)) - {"dtype", "shape", "default", "var_len"})
    if unknown:
        raise SpecError(f"has no key {unknown[0]!r}; allowed: dtype, shape, default, var_len")
    dtype = _dtype(value["dtype"])
    if value.get("var_len"):
        if "default" in value:
            raise SpecError("a feature of any length has no default; a missing one has no values")
        return VarLenFeature(value.get("shape") or [], dtype)
    return FixedLenFeature(value.get("shape", [] if dtype == "string" else [1]), dtype, value.get("default"))


@dataclass(frozen=True, slots=True)
class Places:
    """Where the features of some records lie, as compiled code says it."""

    found: I64
    """[records, features, 4]: start, stop, count, kind."""
    status: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RecordParser:
    """Takes the wanted features out of records, a batch at a time."""

    wire: Wire
    features: Mapping[str, Feature]
    names: U8
    name_starts: I64

    @staticmethod
    def of(features: Mapping[str, Feature], wire: Wire = "example") -> RecordParser:
        """For these features."""
        encoded = [name.encode() for name in features]
        starts = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
        return RecordParser(wire, features, np.frombuffer(bytearray(b"".join(encoded) + b"\0"), np.uint8), starts)

    def parse(self, ctx: Context, data: U8, offsets: I64, sizes: I64, good: npt.NDArray[np.bool_]) -> tuple[Batch, ...]:
        """One batch a feature from the records ``data[offsets[i] : offsets[i] + sizes[i]]``.

        ``good`` marks the records that were not rejected before; this rejects the rest of the bad ones, each once.
        """
        places = self.places(len(offsets))
        self.find(data, offsets, sizes, good, places, 0, len(offsets))
        return self.take(ctx, data, sizes, good, places)

    def places(self, n: int) -> Places:
        """Room for what `find` finds in ``n`` records."""
        return Places(np.empty((n, len(self.features), 4), np.int64), np.empty(n, np.int32))

    def find(
        self, data: U8, offsets: I64, sizes: I64, good: npt.NDArray[np.bool_], places: Places, low: int, high: int
    ) -> None:  # fmt: skip
        """Where the features of the records [low, high) lie. Several threads may share a batch's records."""
        cpu = _compiled(self.wire)
        part = slice(low, high)
        places.status[part] = np.where(good[part], cpu.OK, cpu.DAMAGED)
        cpu.find_features(
            data, offsets[part], sizes[part], self.names, self.name_starts, places.found[part], places.status[part]
        )

    def take(
        self, ctx: Context, data: U8, sizes: I64, good: npt.NDArray[np.bool_], places: Places
    ) -> tuple[Batch, ...]:  # fmt: skip
        """One batch a feature of records whose features were found; see `parse`."""
        cpu = _compiled(self.wire)
        found, status = places.found, places.status
        for i in np.flatnonzero((status != cpu.OK) & good).tolist():
            ctx.reject(i, "corrupt_record", f"is no {_WIRE_NAMES[self.wire]}: its {int(sizes[i])} bytes do not parse")
        good = status == cpu.OK
        for f, (name, feature) in enumerate(self.features.items()):
            for i, code, message in _problems(name, feature, found[:, f], good):
                ctx.reject(i, code, message)
                good[i] = False
        found[~good] = 0
        return tuple(
            _take(self.wire, ctx, data, feature, np.ascontiguousarray(found[:, f]), good)
            for f, feature in enumerate(self.features.values())
        )


def _problems(name: str, feature: Feature, found: I64, good: npt.NDArray[np.bool_]) -> list[tuple[int, Any, str]]:
    count, kind = found[:, 2], found[:, 3]
    wanted = _KINDS[feature.dtype]
    missing = (kind == 0) | (count == 0)
    wrong = ~missing & (kind != wanted)
    fixed = isinstance(feature, FixedLenFeature)
    size = math.prod(feature.shape)
    absent = missing & (fixed and size > 0 and feature.default is None)  # type: ignore[union-attr]
    odd = ~missing & ~wrong & ((count != size) if fixed else (count % size != 0))
    if feature.dtype == "string":
        odd = ~missing & ~wrong & (count != 1)
    large = ~missing & ~wrong & ((found[:, 1] - found[:, 0] > MAX_RECORD) | (count > MAX_RECORD))
    out: list[tuple[int, Any, str]] = []
    for i in np.flatnonzero(good & (absent | wrong | odd | large)).tolist():
        if absent[i]:
            out.append((i, "missing_feature", f"has no feature {name!r}; give it a default, or leave it out"))
        elif wrong[i]:
            have = _KIND_NAMES[int(kind[i])]
            out.append((i, "missing_feature", f"feature {name!r} holds {have}, not {_KIND_NAMES[wanted]}"))
        elif large[i]:
            out.append((i, "too_large", f"feature {name!r} is larger than {MAX_RECORD}"))
        elif feature.dtype == "string":
            out.append((i, "bad_shape", f"feature {name!r} holds {int(count[i])} strings; one is allowed"))
        else:
            shape = f"shape {list(feature.shape)}" if fixed else f"rows of shape {list(feature.shape)}"
            out.append((i, "bad_shape", f"feature {name!r} holds {int(count[i])} values, which is not {shape}"))
    return out


def _take(wire: Wire, ctx: Context, data: U8, feature: Feature, found: I64, good: npt.NDArray[np.bool_]) -> Batch:
    cpu = _compiled(wire)
    missing = good & (found[:, 2] == 0)
    default = feature.default if isinstance(feature, FixedLenFeature) else None
    if feature.dtype == "string":
        sizes = np.where(found[:, 2] == 0, 0, found[:, 1] - found[:, 0])
        if default is None or not missing.any():
            return payload(ctx, data, np.where(sizes == 0, 0, found[:, 0]), sizes)
        return _with_default(ctx, data, found[:, 0], sizes, missing, default)
    counts = found[:, 2].copy()
    if default is not None:
        counts[missing] = default.size
    ends = np.cumsum(counts)
    at = ends - counts
    total = int(ends[-1]) if len(ends) else 0
    if feature.dtype == "float":
        values: npt.NDArray[Any] = np.empty(total, np.float32)
        cpu.read_floats(data, found, at, values)
    else:
        values = np.empty(total, np.int64)
        cpu.read_integers(data, found, at, values)
    if default is not None:
        for i in np.flatnonzero(missing).tolist():
            values[at[i] : at[i] + default.size] = default.reshape(-1)
    shapes = np.empty((len(found), 0), np.int32)
    if isinstance(feature, VarLenFeature):
        shapes = np.column_stack([counts // math.prod(feature.shape), np.tile(feature.shape, (len(found), 1))])
    elif feature.shape:
        shapes = np.tile(np.array(feature.shape), (len(found), 1))
        shapes[~good] = 0  # nothing was read
    elif not good.all():  # a scalar has one element, a rejected one too
        values, at = np.append(values, values.dtype.type(0)), np.where(good, at, total)
    return Batch(values, at, shapes.astype(np.int32), "", ctx.samples)


def _with_default(
    ctx: Context, data: U8, offsets: I64, sizes: I64, missing: npt.NDArray[np.bool_], default: U8
) -> Batch:
    """Bytes, with ``default`` where there are none: copied, as the default does not lie in the container."""
    from ..fetch.extents_cpu import copy_extents

    room = np.where(missing, len(default), sizes)
    ends = np.cumsum(room)
    at = ends - room
    out = ctx.staging(int(ends[-1]) if len(ends) else 0)
    copy_extents(data, np.where(sizes == 0, 0, offsets), sizes, out, at)
    for i in np.flatnonzero(missing).tolist():
        out[at[i] : at[i] + len(default)] = default
    return Batch(out, at, room.astype(np.int32).reshape(-1, 1), "", ctx.samples)
