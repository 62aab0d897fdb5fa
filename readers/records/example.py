"""Declare features of records (tf.train.Example, MessagePack), and parse a batch of records into features."""

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
from ...ops.kernels import Kernels
from ...ops.types import DALIDataType
from ..fetch.extents import MAX_RECORD, NO_RECORDS, U8, UncheckedRecords, payload

_found: Any = Kernels(".example_checks_cpu", __package__)

I64 = npt.NDArray[np.int64]

_DTYPES = {
    "string": "string", "bytes": "string", "float": "float", "float32": "float", "int64": "int64",
}  # fmt: skip
_COUNT = 2
"""Column of `FeatureExtents.found` that holds the number of values."""
STRING = 1
"""Kind, in `FeatureExtents.found`, of a feature that holds bytes."""
_KINDS = {"string": STRING, "float": 2, "int64": 3}  # the field numbers of Feature
_KIND_NAMES = {1: "bytes", 2: "floats", 3: "integers", 4: "something else"}

Wire = Literal["example", "msgpack"]
_WIRE_NAMES = {"example": "a tf.train.Example", "msgpack": "a MessagePack map or array"}


def _compiled(wire: Wire) -> Any:
    """Return the module of compiled parsers for the record format ``wire``; all have the same functions."""
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
    """Declares a feature with the same number of values in every record. A string is one value, returned as its bytes.
    ``default`` replaces a missing feature; without a default (None) a record that lacks the feature is rejected."""

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
            raise SpecError(f"{value!r} is not a default for {self.dtype} of shape {list(self.shape)}") from None

    @property
    def spec(self) -> Spec:
        """Shape and dtype of the feature's values in the reader's output."""
        if self.dtype == "string":
            return Spec((None,), DALIDataType.UINT8)
        return Spec(self.shape, DALIDataType.FLOAT if self.dtype == "float" else DALIDataType.INT64)


class VarLenFeature:
    """Declares a feature with any number of values, as rows of ``shape``. A missing feature has no values."""

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        self.dtype = _dtype(dtype)
        self.shape = _shape(shape)
        if 0 in self.shape:
            raise SpecError("the partial shape of a feature cannot hold 0")
        if self.dtype == "string" and self.shape:
            raise SpecError("a string feature holds one value and has no partial shape")

    @property
    def spec(self) -> Spec:
        """Shape and dtype of the feature's values in the reader's output."""
        if self.dtype == "string":
            return Spec((None,), DALIDataType.UINT8)
        return Spec((None, *self.shape), DALIDataType.FLOAT if self.dtype == "float" else DALIDataType.INT64)


Feature = FixedLenFeature | VarLenFeature


def declared(features: Mapping[str, Any]) -> dict[str, Feature]:
    """Parse the argument ``features`` of a reader: ``{name: {dtype, shape, default}}``, ``{dtype, var_len: true}`` or
    ``dtype``. Without a shape, a string is one value, and a number is a list of one. Raises SpecError with the
    feature's name."""
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
class FeatureExtents:
    """Positions of the requested features in some records. Compiled loops fill the arrays."""

    found: I64
    """Start, stop, number of values and kind of each record's features. Shape [records, features, 4]."""
    status: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RecordParser:
    """Parser that extracts requested features from batches of records. Several threads may share it."""

    wire: Wire
    features: Mapping[str, Feature]
    names: U8
    name_starts: I64
    wanted: I64
    """Requirements for each feature (kind, number of values, rules), which compiled loops of `example_checks_cpu`
    check. Shape [features, 3]."""

    @staticmethod
    def of(features: Mapping[str, Feature], wire: Wire = "example") -> RecordParser:
        """Create a parser that extracts these features from records of the format ``wire``."""
        encoded = [name.encode() for name in features]
        starts = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
        names = np.frombuffer(bytearray(b"".join(encoded) + b"\0"), np.uint8)
        wanted = np.array([_wanted(f) for f in features.values()], np.int64).reshape(-1, 3)
        return RecordParser(wire, features, names, starts, wanted)

    def parse(self, ctx: Context, data: U8, offsets: I64, sizes: I64, good: npt.NDArray[np.bool_]) -> tuple[Batch, ...]:
        """Return one batch per feature from the records ``data[offsets[i] : offsets[i] + sizes[i]]``.

        ``good`` marks the records that were not rejected before; `parse` rejects the other bad records, each once.
        """
        extents = self.extents(len(offsets))
        self.find(data, offsets, sizes, good, extents, 0, len(offsets))
        return self.take(ctx, data, sizes, good, extents)

    def first_strings(
        self, data: U8, offsets: I64, sizes: I64, good: npt.NDArray[np.bool_], otherwise: Sequence[bytes]
    ) -> list[bytes]:
        """Return the text of the first requested feature of each record in UTF-8, such as its key. A record without
        exactly one such string gets its element of ``otherwise``."""
        extents = self.extents(len(offsets))
        self.find(data, offsets, sizes, good, extents, 0, len(offsets))
        start, stop, count, kind = extents.found[:, 0].T
        named = good & (extents.status == 0) & (kind == STRING) & (count == 1)
        return [
            data[a:b].tobytes().decode("utf-8", "backslashreplace").encode() if yes else other
            for other, yes, a, b in zip(otherwise, named.tolist(), start.tolist(), stop.tolist(), strict=True)
        ]

    def extents(self, n: int) -> FeatureExtents:
        """Allocate the arrays that `find` fills for ``n`` records."""
        return FeatureExtents(np.empty((n, len(self.features), 4), np.int64), np.empty(n, np.int32))

    def find(
        self, data: U8, offsets: I64, sizes: I64, good: npt.NDArray[np.bool_], extents: FeatureExtents, low: int,
        high: int,
    ) -> None:  # fmt: skip
        """Find the requested features in the records [low, high) and fill their rows of ``extents``. Several threads
        may do this for different records of a batch."""
        part = slice(low, high)
        _compiled(self.wire).find_features(
            data, offsets[part], sizes[part], good[part], self.names, self.name_starts, extents.found[part],
            extents.status[part],
        )  # fmt: skip

    def sift(self, extents: FeatureExtents) -> npt.NDArray[np.bool_] | None:
        """Check that the records have all requested features, by ``extents``. Return a mask of the records that do;
        None if all do."""
        right = np.empty(len(extents.found), np.bool_)
        return right if _found.sift(extents.found, extents.status, self.wanted, MAX_RECORD, right) else None

    def take(
        self, ctx: Context, data: U8, sizes: I64, good: npt.NDArray[np.bool_], extents: FeatureExtents,
        records: UncheckedRecords = NO_RECORDS,
    ) -> tuple[Batch, ...]:  # fmt: skip
        """Return one batch per feature, from records in which `find` has found the features. ``good`` is as in `parse`,
        ``records`` as in `payload`."""
        found, right = extents.found, np.ones(len(extents.found), np.bool_)
        if self.sift(extents) is not None:
            right = self._reject_invalid(ctx, sizes, good, extents)
        return tuple(
            _take(self.wire, ctx, data, feature, found, f, right, records)
            for f, feature in enumerate(self.features.values())
        )

    def _reject_invalid(
        self, ctx: Context, sizes: I64, good: npt.NDArray[np.bool_], extents: FeatureExtents
    ) -> npt.NDArray[np.bool_]:
        """Reject records whose features are not as requested, and clear their rows of ``extents``. Return the mask of
        the other records."""
        cpu = _compiled(self.wire)
        found, status = extents.found, extents.status
        for i in np.flatnonzero((status != cpu.OK) & good).tolist():
            ctx.reject(i, "corrupt_record", f"is not {_WIRE_NAMES[self.wire]}: its {int(sizes[i])} bytes do not parse")
        right: npt.NDArray[np.bool_] = status == cpu.OK
        for f, (name, feature) in enumerate(self.features.items()):
            for i, code, message in _problems(name, feature, found[:, f], right):
                ctx.reject(i, code, message)
                right[i] = False
        found[~right] = 0
        return right


def _wanted(feature: Feature) -> tuple[int, int, int]:
    """Return kind, number of values and rules that are requested for a feature, as `example_checks_cpu.sift` takes
    them. `_problems` reports the same rules in words."""
    size = 1 if feature.dtype == "string" else math.prod(feature.shape)
    fixed = isinstance(feature, FixedLenFeature)
    needed = fixed and math.prod(feature.shape) > 0 and feature.default is None  # type: ignore[union-attr]
    rules = _found.NEEDED * needed + _found.FIXED * (fixed or feature.dtype == "string")
    return _KINDS[feature.dtype], size, rules


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


def _take(
    wire: Wire, ctx: Context, data: U8, feature: Feature, found: I64, f: int, good: npt.NDArray[np.bool_],
    records: UncheckedRecords,
) -> Batch:  # fmt: skip
    """Return a batch of the values of feature number ``f``; records that are not ``good`` have no values."""
    default = feature.default if isinstance(feature, FixedLenFeature) else None
    n = len(found)
    if feature.dtype == "string":
        offsets, sizes = np.empty(n, np.int64), np.empty(n, np.int64)
        if not _found.texts(found, f, offsets, sizes) or default is None:
            return payload(ctx, data, offsets, sizes, f, records)
        return _with_default(ctx, data, offsets, sizes, good & (found[:, f, _COUNT] == 0), default)
    rows, counts, at = np.empty((n, 4), np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    total = _found.numbers(found, f, good, 0 if default is None else default.size, rows, counts, at)
    if feature.dtype == "float":
        values: npt.NDArray[Any] = np.empty(total, np.float32)
        _compiled(wire).read_floats(data, rows, at, values)
    else:
        values = np.empty(total, np.int64)
        _compiled(wire).read_integers(data, rows, at, values)
    if default is not None:
        for i in np.flatnonzero(good & (rows[:, _COUNT] == 0)).tolist():
            values[at[i] : at[i] + default.size] = default.reshape(-1)
    shapes = np.empty((n, 0), np.int32)
    if isinstance(feature, VarLenFeature):
        shapes = np.column_stack([counts // math.prod(feature.shape), np.tile(feature.shape, (n, 1))])
    elif feature.shape:
        shapes = np.tile(np.array(feature.shape), (n, 1))
        shapes[~good] = 0  # nothing was read
    elif total < n:  # a scalar has one element, also in a rejected record
        values, at = np.append(values, values.dtype.type(0)), np.where(good, at, total)
    return Batch(values, at, shapes.astype(np.int32), "", ctx.samples)


def _with_default(
    ctx: Context, data: U8, offsets: I64, sizes: I64, missing: npt.NDArray[np.bool_], default: U8
) -> Batch:
    """Return a batch of bytes, with ``default`` for missing values. The bytes are copied, because the default is not in
    the container."""
    from ..fetch.extents_cpu import copy_extents

    room = np.where(missing, len(default), sizes)
    ends = np.cumsum(room)
    at = ends - room
    out = ctx.staging(int(ends[-1]) if len(ends) else 0)
    copy_extents(data, np.where(sizes == 0, 0, offsets), sizes, out, at)
    for i in np.flatnonzero(missing).tolist():
        out[at[i] : at[i] + len(default)] = default
    return Batch(out, at, room.astype(np.int32).reshape(-1, 1), "", ctx.samples)
