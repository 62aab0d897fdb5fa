"""Operators cat and stack: join the samples of several inputs along an existing or a new axis."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies import weave
from ..copies.strided import Target, row_major, run_into, whole
from ..errors import SpecError
from ..types import DALIDataType


class Cat(Operator, name="cat"):
    """Join samples along an existing axis; their lengths along all other axes must be equal."""

    replayable = True
    inputs = (1, 999)
    example = "{op: cat, in: [left, right], axis_name: W, out: pair}"

    axis: Annotated[int, Arg("axis along which samples are joined, from -ndim to ndim - 1")] = 0
    axis_name: Annotated[str | None, Arg("letter of that axis in the layout")] = None

    def check(self) -> None:
        if self.axis_name is not None and self.axis != 0:
            raise SpecError("axis and axis_name exclude each other")
        check_axis_name(self.axis_name)

    def infer(self, *specs: Spec) -> Spec:
        dtype = _common_dtype(specs)
        layout = next((s.layout for s in specs if s.layout), "")
        shapes = [s.shape for s in specs if s.shape is not None]
        if not shapes:
            return Spec(None, dtype, layout)
        at = self._axis(layout, len(shapes[0]))
        if any(len(s) != len(shapes[0]) for s in shapes):
            raise SpecError(f"inputs have different numbers of dimensions: {', '.join(map(str, specs))}")
        shape: list[int | None] = []
        for d in range(len(shapes[0])):
            known = {s[d] for s in shapes} - {None}
            if d == at:
                complete = len(shapes) == len(specs) and all(s[d] is not None for s in shapes)
                shape.append(sum(s[d] or 0 for s in shapes) if complete else None)
                continue
            if len(known) > 1:
                raise SpecError(f"inputs differ in dimension {d}, which is not the axis: {', '.join(map(str, specs))}")
            shape.append(known.pop() if known else None)
        return Spec(tuple(shape), dtype, layout)

    def _axis(self, layout: str, ndim: int) -> int:
        if self.axis_name is not None:
            if self.axis_name not in layout:
                raise SpecError(f"axis_name {self.axis_name!r} is not in the layout {layout or '(none)'!r}")
            return layout.index(self.axis_name)
        if not -ndim <= self.axis < ndim:
            raise SpecError(f"axis {self.axis} is outside the {ndim} dimensions of the inputs")
        return self.axis % ndim

    def cpu(self, ctx: Context, *parts: Batch) -> Batch:
        _check_types(parts)
        layout = next((p.layout for p in parts if p.layout), "")
        at = self._axis(layout, parts[0].ndim)
        shapes = [p.shapes.astype(np.int64) for p in parts]
        rest = [np.delete(s, at, axis=1) for s in shapes]
        wrong = _differing(ctx, rest, shapes)
        shape = shapes[0].copy()
        shape[:, at] = sum(s[:, at] for s in shapes)
        shape[wrong] = 0
        out = Batch.allocate(ctx.empty, shape.astype(np.int32), parts[0].dtype, layout, parts[0].samples)
        if ctx.stage == "gpu" and weave.launch(ctx, parts, at, out):
            return out
        stride, start = row_major(shape), np.zeros(len(shape), np.int64)
        for part, own in zip(parts, shapes, strict=True):
            plan = whole(part)
            plan = replace(plan, shape=np.where(wrong[:, None], 0, plan.shape))
            run_into(ctx, plan, part, Target(out, out.offsets + start * stride[:, at], stride))
            start = start + own[:, at]
        return out

    gpu = cpu


class Stack(Operator, name="stack"):
    """Join samples along a new axis; their shapes must be equal.

    The output has a layout only if ``axis_name`` names the new axis.
    """

    replayable = True
    inputs = (1, 999)
    example = "{op: stack, in: [first, second], axis_name: F, out: frames}"

    axis: Annotated[int, Arg("index of the new axis in the output, from -ndim to ndim; -1 is last")] = 0
    axis_name: Annotated[str | None, Arg("letter of the new axis in the layout")] = None

    def check(self) -> None:
        check_axis_name(self.axis_name)

    def infer(self, *specs: Spec) -> Spec:
        dtype = _common_dtype(specs)
        shapes = [s.shape for s in specs if s.shape is not None]
        layout = next((s.layout for s in specs if s.layout), "")
        if not shapes:
            return Spec(None, dtype, "")
        ndim = len(shapes[0])
        at = self._axis(ndim)
        merged: list[int | None] = []
        for d in range(ndim):
            known = {s[d] for s in shapes if len(s) == ndim} - {None}
            if len(known) > 1 or any(len(s) != ndim for s in shapes):
                raise SpecError(f"inputs differ in shape: {', '.join(map(str, specs))}; resize, crop or pad them first")
            merged.append(known.pop() if known else None)
        return Spec((*merged[:at], len(specs), *merged[at:]), dtype, with_axis(layout, self.axis_name, at, ndim))

    def _axis(self, ndim: int) -> int:
        if not -max(ndim, 1) <= self.axis <= ndim:
            raise SpecError(f"axis {self.axis} is outside what inputs of {ndim} dimensions allow: {-ndim} to {ndim}")
        return self.axis % (ndim + 1)

    def cpu(self, ctx: Context, *parts: Batch) -> Batch:
        _check_types(parts)
        ndim = parts[0].ndim
        at = self._axis(ndim)
        shapes = [p.shapes.astype(np.int64) for p in parts]
        wrong = _differing(ctx, shapes, shapes)
        shape = np.insert(shapes[0], at, len(parts), axis=1)
        shape[wrong] = 0
        layout = with_axis(next((p.layout for p in parts if p.layout), ""), self.axis_name, at, ndim)
        out = Batch.allocate(ctx.empty, shape.astype(np.int32), parts[0].dtype, layout, parts[0].samples)
        if ctx.stage == "gpu" and weave.launch(ctx, parts, at, out):
            return out
        stride = row_major(shape)
        inner = np.delete(stride, at, axis=1)
        for j, part in enumerate(parts):
            plan = whole(part)
            plan = replace(plan, shape=np.where(wrong[:, None], 0, plan.shape))
            run_into(ctx, plan, part, Target(out, out.offsets + j * stride[:, at], inner))
        return out

    gpu = cpu


def check_axis_name(name: str | None) -> None:
    """Check that ``name`` is one letter, or None. Raises SpecError."""
    if name is not None and len(name) != 1:
        raise SpecError(f"axis_name is one letter, got {name!r}")


def with_axis(layout: str, name: str | None, at: int, ndim: int) -> str:
    """Return ``layout`` with an axis ``name`` inserted at index ``at``, for samples of ``ndim`` axes; empty if the
    layout or the name is unknown."""
    if name is None or len(layout) != ndim:
        return ""
    return layout[:at] + name + layout[at:]


def _common_dtype(specs: tuple[Spec, ...]) -> DALIDataType | None:
    known = {s.dtype for s in specs} - {None}
    if len(known) > 1:
        raise SpecError(f"inputs have different types: {', '.join(map(str, specs))}; cast them to one")
    return known.pop() if known else None


def _check_types(parts: tuple[Batch, ...]) -> None:
    for p in parts[1:]:
        if p.dtype != parts[0].dtype or p.ndim != parts[0].ndim:
            raise SpecError(
                f"inputs must agree in type and number of dimensions, got {parts[0].dtype}, {parts[0].ndim}-D and "
                f"{p.dtype}, {p.ndim}-D"
            )


def _differing(ctx: Context, compared: list[I64], shapes: list[I64]) -> npt.NDArray[np.bool_]:
    """Reject samples whose inputs have lengths that do not fit together: their rows in ``compared`` differ. Return a
    mask of these samples, bool[N]."""
    wrong = np.zeros(len(shapes[0]), np.bool_)
    for other in compared[1:]:
        wrong |= (other != compared[0]).any(axis=1)
    for i in np.flatnonzero(wrong).tolist():
        ctx.reject(i, "bad_shape", f"its parts do not fit together: {', '.join(str(s[i].tolist()) for s in shapes)}; "
                   "resize, crop or pad them to fitting shapes")  # fmt: skip
    return wrong
