"""Operators tensor_subscript (Python's indexing of samples) and shapes (their shapes as data)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies.strided import run, whole
from ..errors import SampleError, SpecError
from ..types import DALIDataType, to_numpy

KINDS = ":[]si"


class TensorSubscript(Operator, name="tensor_subscript"):
    """Index each sample as Python indexes a NumPy array: integers, slices, negative values and steps.

    ``kinds`` has one letter per leading dimension: ``i``: the element at start (the dimension is removed), ``[``: from
    start on, ``]``: up to stop, ``s``: from start to stop, ``:``: everything. Slices are clipped to the data; an index
    outside of the data rejects the sample.
    """

    replayable = True
    example = '{op: tensor_subscript, in: images, kinds: "ss", start: [0, 0], stop: [10, -1], out: images}'

    kinds: Annotated[str, Arg("kind of indexing, one letter per leading dimension: i, [, ], s or :")]
    start: Annotated[tuple[int, ...], Arg("indices, or starts of the slices", per_sample=True)] = (0,)
    stop: Annotated[tuple[int, ...], Arg("ends of the slices, exclusive", per_sample=True)] = (0,)
    step: Annotated[
        tuple[int, ...] | None, Arg("steps of the slices; negative steps go backwards", per_sample=True)
    ] = None

    def check(self) -> None:
        wrong = [k for k in self.kinds if k not in KINDS]
        if wrong:
            raise SpecError(f"kinds is made of {', '.join(KINDS)}, got {wrong[0]!r}")
        for name, kinds in (("start", "i[s"), ("stop", "]s"), ("step", "")):
            value, needed = getattr(self, name), self.is_set(name) or not set(kinds).isdisjoint(self.kinds)
            if name not in self.per_sample and needed and len(value) != len(self.kinds):
                raise SpecError(f"{name} has {len(value)} values for {len(self.kinds)} kinds")
        if self.step is not None and 0 in self.step:
            raise SpecError("a step must not be 0")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.shape is None:
            return Spec(None, data.dtype, "")
        self._check_dims(len(data.shape))
        shape: list[int | None] = []
        for d, extent in enumerate(data.shape):
            kind = self.kinds[d] if d < len(self.kinds) else ":"
            if kind == "i":
                self._check_index(d, extent)
                continue
            constant = extent is not None and not {"start", "stop", "step"} & self.per_sample
            shape.append(len(range(*self._slice(d, kind).indices(extent or 0))) if constant else
                         extent if kind == ":" and d >= len(self.kinds) else None)  # fmt: skip
        return Spec(tuple(shape), data.dtype, self._layout(data.layout))

    def _check_dims(self, ndim: int) -> None:
        if len(self.kinds) > ndim:
            raise SpecError(f"too many indices: {len(self.kinds)} for {ndim} dimensions")

    def _check_index(self, d: int, extent: int | None) -> None:
        if extent is not None and "start" not in self.per_sample and not -extent <= self.start[d] < extent:
            raise SpecError(f"index {self.start[d]} is outside dimension {d} of length {extent}")

    def _slice(self, d: int, kind: str) -> slice:
        """Return the slice along dimension ``d`` for one ``kind`` of subscript, from constant arguments."""
        step = self._steps()[d] if d < len(self.kinds) else 1
        return slice(self.start[d] if kind in "[s" else None, self.stop[d] if kind in "]s" else None, step)

    def _steps(self) -> tuple[int, ...]:
        return self.step or (1,) * len(self.kinds)

    def _layout(self, layout: str) -> str:
        return "".join(a for d, a in enumerate(layout) if d >= len(self.kinds) or self.kinds[d] != "i")

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        self._check_dims(data.ndim)
        plan = whole(data)
        starts, stops, steps = ctx.arg("start", np.int64), ctx.arg("stop", np.int64), self._all_steps(ctx)
        for name, given in (("start", starts), ("stop", stops), ("step", steps)):
            if given.shape[1] != len(self.kinds):
                raise SampleError("bad_argument", f"{name} has {given.shape[1]} numbers for {len(self.kinds)} indices")
        shape, stride, base = plan.shape.copy(), plan.stride.copy(), plan.base.copy()
        kept = []
        for d in range(data.ndim):
            kind = self.kinds[d] if d < len(self.kinds) else ":"
            extent = plan.shape[:, d]
            if kind == "i":
                first = np.where(starts[:, d] < 0, starts[:, d] + extent, starts[:, d])
                outside = (first < 0) | (first >= extent)
                for i in np.flatnonzero(outside).tolist():
                    ctx.reject(i, "out_of_bounds", f"index {starts[i, d]} is outside dimension {d} of {extent[i]}")
                base += np.where(outside, 0, first) * stride[:, d]
                continue
            kept.append(d)
            step = steps[:, d] if d < len(self.kinds) else np.ones(len(data), np.int64)
            if kind == ":" and (step == 1).all():
                continue
            first, count = _range(starts[:, d] if kind in "[s" else None, stops[:, d] if kind in "]s" else None,
                                  step, extent)  # fmt: skip
            base += np.where(count > 0, first, 0) * stride[:, d]
            stride[:, d] *= step
            shape[:, d] = count
        shape, stride = shape[:, kept], stride[:, kept]
        view = replace(plan, shape=shape, base=base, stride=stride, anchor=np.zeros_like(shape), extent=shape,
                       layout=self._layout(data.layout))  # fmt: skip
        return run(ctx, view, data)

    gpu = cpu

    def _all_steps(self, ctx: Context) -> I64:
        """Return the step of each subscript, [N, number of subscripts]."""
        if not self.is_set("step"):
            return np.ones((len(ctx.samples), len(self.kinds)), np.int64)
        steps = ctx.arg("step", np.int64)
        for i in np.flatnonzero((steps == 0).any(axis=1)).tolist():
            ctx.reject(i, "bad_argument", "a step must not be 0")
        steps[steps == 0] = 1
        return steps


def _range(start: I64 | None, stop: I64 | None, step: I64, extent: I64) -> tuple[I64, I64]:
    """Return first index and length of each sample's slice along an axis of ``extent`` elements, by Python's rules
    (slice.indices)."""
    ahead = step > 0
    low, high = np.where(ahead, 0, -1), np.where(ahead, extent, extent - 1)

    def clipped(value: I64 | None, default: I64) -> I64:
        return default if value is None else np.clip(np.where(value < 0, value + extent, value), low, high)

    first = clipped(start, np.where(ahead, low, high))
    last = clipped(stop, np.where(ahead, high, low))
    span = np.where(ahead, last - first, first - last)
    return first, np.maximum(0, -(-span // np.abs(step)))


class Shapes(Operator, name="shapes"):
    """Return the shape of each sample as a 1-D tensor."""

    metadata_only = shape_only = True
    example = "{op: shapes, in: images, out: extents}"

    dtype: Annotated[DALIDataType, Arg("data type of the output")] = DALIDataType.INT64
    type: Annotated[DALIDataType | None, Arg("data type of the output", deprecated="dtype")] = None

    def infer(self, *specs: Spec) -> Spec:
        return Spec(None if specs[0].ndim is None else (specs[0].ndim,), self.dtype)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        flat: Any = data.shapes.astype(to_numpy(self.dtype)).reshape(-1)
        if ctx.stage != "cpu":
            (flat,) = ctx.device.upload(flat)
        n = len(data)
        shapes = np.full((n, 1), data.ndim, np.int32)
        return Batch(flat, np.arange(n, dtype=np.int64) * data.ndim, shapes, "", data.samples)

    gpu = cpu
