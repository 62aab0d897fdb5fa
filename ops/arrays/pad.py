"""Operator pad: extend samples to a common, given or aligned shape."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies.strided import Border, run, whole, window
from ..copies.strided import pad as filled
from ..errors import SpecError
from .slice import resolve_axes


class Pad(Operator, name="pad"):
    """Extend samples at their ends, to ``shape`` and then to a multiple of ``align``; samples are never cut.

    If no shape is set (or a number that is not positive), an axis grows to the largest length in the batch. The result
    then depends on which samples share a batch; set ``shape`` to avoid that.
    """

    replayable = True
    example = "{op: pad, in: tokens, axes: [0], shape: [512], fill_value: -1, out: tokens}"

    axes: Annotated[tuple[int, ...] | None, Arg("axes to pad; all by default", per_sample=True)] = None
    axis_names: Annotated[str | None, Arg("letters of the axes to pad in the layout")] = None
    fill_value: Annotated[float, Arg("value of added elements", per_sample=True)] = 0.0
    align: Annotated[
        tuple[int, ...] | None,
        Arg("lengths are rounded up to multiples of this; one number for all axes, or one per axis", per_sample=True),
    ] = None
    shape: Annotated[tuple[int, ...] | None, Arg("minimum lengths, one for all axes or one per axis; -1: the largest "
                                                 "of the batch", per_sample=True)] = None  # fmt: skip

    @property
    def per_batch(self) -> bool:  # type: ignore[override]
        """Whether an axis grows to the largest length in the batch, so that the kernel must see the whole batch."""
        return "shape" in self.per_sample or self.shape is None or min(self.shape, default=0) <= 0

    def check(self) -> None:
        if self.is_set("axes") and self.is_set("axis_names"):
            raise SpecError("axes and axis_names exclude each other")
        if self.align is not None and min(self.align, default=1) < 1:
            raise SpecError(f"align must be at least 1, got {list(self.align)}")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.shape is None:
            return data
        if "axes" in self.per_sample:
            return Spec((None,) * len(data.shape), data.dtype, data.layout)
        padded = set(self._axes(data.layout, len(data.shape)))
        return Spec(tuple(None if i in padded else d for i, d in enumerate(data.shape)), data.dtype, data.layout)

    def _axes(self, layout: str, ndim: int) -> list[int]:
        if self.axis_names:
            missing = [a for a in self.axis_names if a not in layout]
            if missing:
                raise SpecError(f"axis {missing[0]!r} of axis_names is not in the layout {layout or '(none)'!r}")
            return [layout.index(a) for a in self.axis_names]
        return resolve_axes(self.axes, ndim) if self.axes else list(range(ndim))

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        extent = data.shapes.astype(np.int64)
        shape = self._shape(ctx, extent, data.layout)
        plan = window(whole(data), np.zeros_like(extent), shape)
        fill = ctx.rows("fill_value", np.float64)
        return run(ctx, filled(plan, Border.FILL, fill[:, None]), data)

    gpu = cpu

    def _shape(self, ctx: Context, extent: I64, layout: str) -> I64:
        shape, largest = extent.copy(), extent.max(axis=0, initial=0)
        if not any(name in ctx.args for name in ("axes", "align", "shape")) and min(self.align or (1,)) > 0:
            axes = self._axes(layout, extent.shape[1])
            least, multiple = (self._each(name, len(axes)) for name in ("shape", "align"))
            for k, axis in enumerate(axes):
                wanted = np.maximum(extent[:, axis], least[k]) if least[k] > 0 else largest[axis]
                shape[:, axis] = wanted if multiple[k] <= 1 else -(-wanted // multiple[k]) * multiple[k]
            return shape
        for rows, group in ctx.alike():
            shape[rows] = self._padded(group, extent[rows], layout, largest)
        return shape

    def _padded(self, ctx: Context, extent: I64, layout: str, largest_of_batch: I64) -> I64:
        """Return the padded shapes, like `_shape`, for samples whose lists of axes have equal length."""
        n, ndim = extent.shape
        if "axes" in ctx.args and ctx.args["axes"].sizes[:1].any():
            axes = ctx.arg("axes", np.int64)
            axes = np.where(axes < 0, axes + ndim, axes)
            wrong = np.any((axes < 0) | (axes >= ndim), axis=1)
            in_order = np.sort(axes, axis=1)
            wrong |= np.any(in_order[:, 1:] == in_order[:, :-1], axis=1)
            for i in np.flatnonzero(wrong).tolist():
                ctx.reject(i, "bad_argument", f"axes must differ, and be {-ndim} to {ndim - 1}, got {axes[i].tolist()}")
            axes = np.where(wrong[:, None], 0, axes)
        else:
            known = list(range(ndim)) if "axes" in ctx.args else self._axes(layout, ndim)
            axes = np.broadcast_to(np.array(known, np.int64), (n, len(known)))
        if n == 0 or axes.shape[1] == 0:
            return extent
        along = np.take_along_axis(extent, axes, axis=1)
        largest = largest_of_batch[axes]
        if self.has_value("shape"):
            least = self._row(ctx, "shape", axes.shape[1])
            wanted = np.where(least > 0, np.maximum(least, along), largest)
        else:
            wanted = largest
        if self.has_value("align"):
            multiple = self._row(ctx, "align", axes.shape[1])
            for i in np.flatnonzero((multiple < 1).any(axis=1)).tolist():
                ctx.reject(i, "bad_argument", f"align must be at least 1, got {multiple[i].tolist()}")
            multiple = np.maximum(multiple, 1)
            wanted = -(-wanted // multiple) * multiple
        shape = extent.copy()
        np.put_along_axis(shape, axes, wanted, axis=1)
        return shape

    def _each(self, name: str, width: int) -> tuple[int, ...]:
        """Return the constant argument ``name`` as one number for each of ``width`` axes; zeros if it is not set."""
        values: tuple[int, ...] = getattr(self, name) if self.has_value(name) else (0,)
        if len(values) not in (1, width):
            raise SpecError(f"{name} has {len(values)} values for {width} axes")
        return values if len(values) == width else values * width

    def _row(self, ctx: Context, name: str, width: int) -> I64:
        """Return argument ``name`` of every sample, with one number per axis: [N, width]. A single number is for all
        axes."""
        values: I64 = ctx.arg(name, np.int64)
        if values.shape[1] not in (1, width):
            for i in range(len(values)):
                ctx.reject(i, "bad_argument", f"{name} has {values.shape[1]} values for {width} axes")
            values = np.ones((len(values), 1), np.int64)
        return np.broadcast_to(values, (len(values), width))
