"""Operator erase: fill boxes of images, sequences or other tensors with a value."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..arrays.slice import resolve_axes
from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies.strided import CopyPlan, Target, filled, row_major, run, run_into, whole
from ..errors import SampleError, SpecError
from ..gpu.launch_recording import FIXED, without_data
from ..kernels import Kernels

_kernels: Any = Kernels(".erase_cpu", __package__)

F32 = npt.NDArray[np.float32]


class Erase(Operator, name="erase"):
    """Fill one or more boxes of each sample with a value.

    ``anchor`` and ``shape`` hold one number per axis, box after box: (y0, x0, y1, x1, ...). Without ``axis_names`` and
    ``axes`` they refer to all axes except channels. A box starts at anchor and ends at anchor + shape, both computed in
    float32 and truncated to integers separately, and may extend beyond the data. The fill value is rounded and
    saturates (DALI truncates it, and values that are too large wrap around).
    """

    replayable = True
    example = (
        "{op: erase, in: images, anchor: [0.2, 0.3], shape: [0.1, 0.2], normalized: true, fill_value: 128, out: images}"
    )

    anchor: Annotated[tuple[float, ...], Arg("start of the boxes; 0 by default", per_sample=True)] = ()
    shape: Annotated[tuple[float, ...], Arg("lengths of the boxes", per_sample=True)] = ()
    fill_value: Annotated[
        tuple[float, ...], Arg("value to fill with: one number, or one per channel", per_sample=True)
    ] = (0.0,)
    axes: Annotated[tuple[int, ...] | None, Arg("axes to which anchor and shape refer, in their order")] = None
    axis_names: Annotated[str | None, Arg("letters of the axes to which anchor and shape refer")] = None
    normalized: Annotated[bool, Arg("anchor and shape are fractions of the data's lengths")] = False
    normalized_anchor: Annotated[bool, Arg("anchor is a fraction of the data's lengths")] = False
    normalized_shape: Annotated[bool, Arg("shape is a fraction of the data's lengths")] = False
    centered_anchor: Annotated[bool, Arg("anchor is the centre of the box, not its start")] = False

    def check(self) -> None:
        if self.axes and self.axis_names:
            raise SpecError("axes and axis_names exclude each other")
        if self.normalized and (self.normalized_anchor or self.normalized_shape):
            raise SpecError("normalized stands for normalized_anchor and normalized_shape; give it alone")
        if self.is_set("anchor") and not self.is_set("shape"):
            raise SpecError("anchor needs shape: give the lengths of the boxes")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.shape is not None:
            count = len(self._axes(data.layout, len(data.shape)))
            for name in ("anchor", "shape"):
                if len(getattr(self, name)) % count:
                    raise SpecError(f"{name} needs {count} numbers for each box, got {len(getattr(self, name))}")
            channels = None if "C" not in data.layout else data.shape[data.layout.index("C")]
            if len(self.fill_value) > 1 and "C" not in data.layout:
                raise SpecError(f"fill_value has {len(self.fill_value)} values, but {data} has no channels (C)")
            if len(self.fill_value) > 1 and channels not in (None, len(self.fill_value)):
                raise SpecError(f"fill_value needs 1 or {channels} values, got {len(self.fill_value)}")
        return data

    def _axes(self, layout: str, ndim: int) -> list[int]:
        if self.axis_names:
            missing = [a for a in self.axis_names if a not in layout]
            if missing:
                raise SpecError(f"axis {missing[0]!r} of axis_names is not in the layout {layout or '(none)'!r}")
            return [layout.index(a) for a in self.axis_names]
        if self.axes:
            return resolve_axes(self.axes, ndim)
        if not layout:
            raise SpecError("a tensor without a layout needs axes: the ones to which anchor and shape refer")
        return [d for d in range(ndim) if layout[d] != "C"]

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        shape, count = ctx.lists("shape", np.float32)
        if shape.shape[1] == 0 or len(data) == 0:
            return data
        like = without_data(data)
        out = run(ctx, whole(data), data, FIXED)
        made = without_data(out)
        plan, at, steps = self._filling(ctx, like, made, shape, count)
        run_into(ctx, plan, data, Target(out, at, steps), lambda c: self._again(c, like, made))
        return out

    gpu = cpu

    def _again(self, ctx: Context, data: Batch, out: Batch) -> tuple[CopyPlan, Target]:
        plan, at, steps = self._filling(ctx, data, out, *ctx.lists("shape", np.float32))
        return plan, Target(out, at, steps)

    def _filling(self, ctx: Context, data: Batch, out: Batch, shape: F32, count: I64) -> tuple[CopyPlan, I64, I64]:
        """Return the copy plan that fills the boxes, the index in ``out``'s data at which each box begins, and the
        strides of the samples."""
        axes = self._axes(data.layout, data.ndim)
        anchor = np.zeros_like(shape)
        if self.is_set("anchor"):
            anchor, anchors = ctx.lists("anchor", np.float32)
            self._refuse_odd(ctx, anchors, count)
            anchor, shape = _of_one_width(anchor, shape)
        for i in np.flatnonzero(count % len(axes)).tolist():
            ctx.reject(i, "bad_argument", f"shape has {count[i]} numbers, which is not {len(axes)} for each box")
        boxes = shape.shape[1] // len(axes)
        steps = row_major(data.shapes.astype(np.int64))
        extent, at = np.empty((len(data) * boxes, data.ndim), np.int64), np.empty(len(data) * boxes, np.int64)
        _kernels.boxes(
            data.shapes, np.array(axes), *(np.ascontiguousarray(v[:, : boxes * len(axes)]) for v in (anchor, shape)),
            self.normalized or self.normalized_anchor, self.normalized or self.normalized_shape, self.centered_anchor,
            steps, out.offsets, extent, at,
        )  # fmt: skip
        fill, channel = self._fill(ctx, data)
        fills = np.repeat(fill, boxes, axis=0) if len(fill) > 1 else fill
        rows = steps if boxes == 1 else np.repeat(steps, boxes, axis=0)
        return filled(extent, data.dtype, data.layout, fills, channel), at, rows

    def _refuse_odd(self, ctx: Context, anchors: I64, shapes: I64) -> None:
        for i in np.flatnonzero((anchors != shapes) & (shapes > 0)).tolist():
            ctx.reject(i, "bad_argument", f"anchor has {anchors[i]} numbers, shape {shapes[i]}; boxes need both")

    def _fill(self, ctx: Context, data: Batch) -> tuple[npt.NDArray[np.float64], int]:
        """Return the fill values, [N or 1, K or 1], and the dimension along which they vary; -1 for a single value."""
        values: npt.NDArray[Any] = (
            ctx.arg("fill_value", np.float64) if "fill_value" in ctx.args else ctx.rows("fill_value", np.float64)
        )
        if values.shape[1] <= 1:
            return values if values.shape[1] else np.zeros((1, 1)), -1
        if "C" not in data.layout:
            raise SampleError(
                "bad_argument",
                f"fill_value has {values.shape[1]} values, the layout {data.layout!r} no channels",
            )
        channel = data.layout.index("C")
        for i in np.flatnonzero(data.shapes[:, channel] != values.shape[1]).tolist():
            ctx.reject(
                i,
                "bad_argument",
                f"fill_value has {values.shape[1]} values for {data.shapes[i, channel]} "
                "channels; give one value, or one for each channel",
            )
        return values, channel


def _of_one_width(a: F32, b: F32) -> tuple[F32, F32]:
    """Return ``a`` and ``b`` with as many columns as the narrower of the two. Samples whose lists differ in length were
    rejected before."""
    width = min(a.shape[1], b.shape[1])
    return a[:, :width], b[:, :width]
