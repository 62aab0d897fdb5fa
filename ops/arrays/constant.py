"""Operators full, zeros, ones, their _like forms, and constant: samples filled with a value. Samples share memory if
possible."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch, elements
from ..context import Context
from ..conversion import saturate
from ..copies.strided import MAX_ELEMENTS, CopyPlan, affordable, run, whole
from ..errors import SampleError, SpecError
from ..types import DALIDataType, from_numpy, to_numpy
from .cast import cast


def shared(ctx: Context, values: npt.NDArray[Any], shapes: I64, layout: str) -> Batch:
    """Return a batch whose samples share memory: each is a view of the beginning of the flat array ``values``."""
    n = len(shapes)
    if layout and len(layout) != shapes.shape[1]:
        raise SampleError("bad_argument", f"layout {layout!r} does not name {shapes.shape[1]} dimensions")
    flat: Any = values if ctx.stage == "cpu" else ctx.device.upload(values)[0]
    return Batch(flat, np.zeros(n, np.int64), shapes.astype(np.int32), layout, ctx.samples)


def shape_argument(ctx: Context, given: bool) -> I64:
    """Return argument ``shape`` for every sample, [N, D], or D = 0 (scalars) if the argument is not ``given``. Samples
    with negative lengths are rejected."""
    if "shape" not in ctx.args:
        constant = ctx.op.shape if given else ()  # type: ignore[attr-defined]
        if all(0 <= d <= MAX_ELEMENTS for d in constant) and math.prod(constant) <= MAX_ELEMENTS:
            return _repeated(len(ctx.samples), tuple(constant))
    shapes = ctx.arg("shape", np.int64)
    wrong = np.any(shapes < 0, axis=1)
    for i in np.flatnonzero(wrong).tolist():
        ctx.reject(i, "bad_argument", f"shape must not be negative, got {shapes[i].tolist()}")
    return affordable(ctx, np.where(wrong[:, None], 0, shapes))


@lru_cache(64)
def _repeated(n: int, shape: tuple[int, ...]) -> I64:
    """Return the shapes of ``n`` samples that all have this ``shape``. Cached; do not modify the result."""
    shapes = np.empty((n, len(shape)), np.int64)
    shapes[:] = shape
    return shapes


class _Filled(Operator, abstract=True):
    inputs = (0, 0)

    shape: Annotated[tuple[int, ...] | None, Arg("shape of each sample; scalars by default", per_sample=True)] = None
    dtype: Annotated[DALIDataType, Arg("data type of the output")] = DALIDataType.INT32
    layout: Annotated[str | None, Arg("layout of the output")] = None

    def infer(self, *specs: Spec) -> Spec:
        shape = None if "shape" in self.per_sample else self.shape or ()
        return Spec(shape, self.dtype, self.layout or "")

    def filled(self, ctx: Context, value: int) -> Batch:
        shapes = shape_argument(ctx, self.is_set("shape"))
        size = int(elements(shapes).max(initial=0))
        return shared(ctx, np.full(size, value, to_numpy(self.dtype)), shapes, self.layout or "")


class Zeros(_Filled, name="zeros"):
    """Create zeros of a shape and type."""

    example = "{op: zeros, shape: [4], dtype: FLOAT, out: nothing}"

    def cpu(self, ctx: Context) -> Batch:
        return self.filled(ctx, 0)

    gpu = cpu


class Ones(_Filled, name="ones"):
    """Create ones of a shape and type."""

    example = "{op: ones, shape: [4], dtype: FLOAT, out: weights}"

    def cpu(self, ctx: Context) -> Batch:
        return self.filled(ctx, 1)

    gpu = cpu


class _FilledLike(Operator, abstract=True):
    metadata_only = True

    dtype: Annotated[DALIDataType | None, Arg("data type of the output; by default that of the input")] = None

    def infer(self, *specs: Spec) -> Spec:
        return specs[0] if self.dtype is None else replace(specs[0], dtype=self.dtype)

    def filled(self, ctx: Context, data: Batch, value: int) -> Batch:
        dtype = data.dtype if self.dtype is None else to_numpy(self.dtype)
        size = int(data.sizes.max(initial=0))
        return shared(ctx, np.full(size, value, dtype), data.shapes.astype(np.int64), data.layout)


class ZerosLike(_FilledLike, name="zeros_like"):
    """Create zeros with the shape, type and layout of the input."""

    example = "{op: zeros_like, in: images, out: empty}"

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        return self.filled(ctx, data, 0)

    gpu = cpu


class OnesLike(_FilledLike, name="ones_like"):
    """Create ones with the shape, type and layout of the input."""

    example = "{op: ones_like, in: images, out: mask}"

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        return self.filled(ctx, data, 1)

    gpu = cpu


def broadcast(ctx: Context, values: Batch, shapes: I64, layout: str) -> Batch:
    """Repeat the samples of ``values`` to ``shapes`` [N, D] by NumPy's broadcasting rules; samples that do not fit are
    rejected."""
    if ctx.stage == "cpu" and values.ndim <= shapes.shape[1] and len(values) and (values.sizes == 1).all():
        out = Batch.allocate(ctx.empty, affordable(ctx, shapes).astype(np.int32), values.dtype, layout, ctx.samples)
        numbers = values.data[values.offsets]
        if out.is_uniform:
            out.data.reshape(len(out), -1)[:] = numbers[:, None]
        else:
            out.data[:] = np.repeat(numbers, out.sizes)
        return out
    have = whole(values)
    missing = shapes.shape[1] - have.ndim
    if missing < 0:
        raise SampleError("bad_argument", f"the fill value has {have.ndim} dimensions, the output {shapes.shape[1]}")
    n = len(shapes)
    extent = np.concatenate([np.ones((n, missing), np.int64), have.shape], axis=1)
    stride = np.concatenate([np.zeros((n, missing), np.int64), have.stride], axis=1)
    wrong = np.any((extent != 1) & (extent != shapes), axis=1)
    for i in np.flatnonzero(wrong).tolist():
        ctx.reject(i, "bad_shape", f"a fill value of {have.shape[i].tolist()} does not fill {shapes[i].tolist()}")
    shapes = np.where(wrong[:, None], 0, shapes)
    plan = CopyPlan(
        shapes, have.base, np.where(extent == 1, 0, stride), np.zeros_like(shapes), shapes, layout, values.dtype
    )
    return run(ctx, plan, values)


class Full(Operator, name="full"):
    """Repeat the input to ``shape``, by NumPy's broadcasting rules."""

    example = "{op: full, in: value, shape: [2, 3], out: filled}"

    shape: Annotated[tuple[int, ...] | None, Arg("shape of each sample; scalars by default", per_sample=True)] = None
    layout: Annotated[str | None, Arg("layout of the output")] = None

    def infer(self, *specs: Spec) -> Spec:
        return Spec(None if "shape" in self.per_sample else self.shape or (), specs[0].dtype, self.layout or "")

    def cpu(self, ctx: Context, value: Batch) -> Batch:
        return broadcast(ctx, value, shape_argument(ctx, self.is_set("shape")), self.layout or "")

    gpu = cpu


class FullLike(Operator, name="full_like"):
    """Repeat the second input to the shape and layout of the first, and convert it to its data type, by the rules of
    cast."""

    inputs = (2, 2)
    example = "{op: full_like, in: [images, value], out: filled}"

    def infer(self, *specs: Spec) -> Spec:
        return specs[0]

    def cpu(self, ctx: Context, data: Batch, value: Batch) -> Batch:
        return broadcast(ctx, cast(ctx, value, data.dtype), data.shapes.astype(np.int64), data.layout)

    gpu = cpu


class Constant(Operator, name="constant"):
    """Create the same tensor for every sample."""

    inputs = (0, 0)
    example = "{op: constant, idata: [1, 2, 3], out: numbers}"

    idata: Annotated[tuple[int, ...] | None, Arg("integers of the tensor, row by row")] = None
    fdata: Annotated[tuple[float, ...] | None, Arg("floats of the tensor, row by row")] = None
    shape: Annotated[
        tuple[int, ...] | None, Arg("shape of the tensor, a vector by default; a single value fills it")
    ] = None
    dtype: Annotated[DALIDataType | None, Arg("data type; by default INT32 for idata, FLOAT for fdata")] = None
    layout: Annotated[str, Arg("layout of the output")] = ""

    def check(self) -> None:
        if (self.idata is None) == (self.fdata is None):
            raise SpecError("needs either idata or fdata")
        if self.shape is None:
            return
        size = math.prod(self.shape)
        if not all(0 <= d <= MAX_ELEMENTS for d in (*self.shape, size)):
            raise SpecError(f"shape {list(self.shape)} must have 0 to {MAX_ELEMENTS} elements")
        if len(self._data()) not in (1, size):
            raise SpecError(f"shape {list(self.shape)} takes 1 or {size} values, got {len(self._data())}")

    def _data(self) -> tuple[Any, ...]:
        return self.idata if self.idata is not None else self.fdata or ()

    @cached_property
    def _values(self) -> npt.NDArray[Any]:
        exact = np.array(self._data(), np.int64 if self.idata is not None else np.float64)
        natural = np.dtype(np.int32 if self.idata is not None else np.float32)
        values = saturate(exact, natural if self.dtype is None else to_numpy(self.dtype))
        if self.shape is None or values.size == math.prod(self.shape):
            return values if self.shape is None else values.reshape(self.shape)
        return np.broadcast_to(values[0], self.shape)

    def infer(self, *specs: Spec) -> Spec:
        values = self._values
        return Spec(values.shape, from_numpy(values.dtype), self.layout)

    def cpu(self, ctx: Context) -> Batch:
        values = self._values
        flat = np.array(values, order="C").reshape(-1)  # a copy: programs may modify arrays that they receive
        return shared(ctx, flat, _repeated(len(ctx.samples), values.shape), self.layout)

    gpu = cpu
