"""Operator slice: windows given by start, end or shape, absolute or relative, along selected axes."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies.strided import convert, pad, run, whole, window
from ..copies.windows import OutOfBounds, border, bounded, fill_along, image_layout, refused, round_half_away
from ..errors import SampleError, SpecError
from ..gpu.launch_recording import not_replayable
from ..kernels import Kernels
from ..types import DALIDataType, DALIImageType, to_numpy

F64 = npt.NDArray[np.float64]
_kernels: Any = Kernels("..copies.windows_cpu", __package__)


class Slice(Operator, name="slice"):
    """Cut out a window of each sample.

    Start and end are computed as real numbers (float32) and rounded separately, half away from zero. Without a start,
    the slice starts at 0; without an end or shape, it ends with the input. With ``dtype``, values are rounded half away
    from zero and saturate (DALI truncates fractions here).
    """

    replayable = host_arguments = True
    inputs = (1, 3)
    example = "{op: slice, in: images, rel_start: [0.1, 0.1], rel_shape: [0.8, 0.8], axis_names: HW, out: images}"

    axes: Annotated[tuple[int, ...], Arg("axes to which the arguments refer, in their order", per_sample=True)] = (1, 0)
    axis_names: Annotated[str, Arg("letters of the axes to which the arguments refer; has precedence over axes")] = "WH"
    start: Annotated[tuple[int, ...] | None, Arg("index of the first element", per_sample=True)] = None
    end: Annotated[tuple[int, ...] | None, Arg("index after the last element", per_sample=True)] = None
    shape: Annotated[tuple[int, ...] | None, Arg("lengths of the slice", per_sample=True)] = None
    rel_start: Annotated[
        tuple[float, ...] | None, Arg("start as a fraction of the input's length", per_sample=True)
    ] = None
    rel_end: Annotated[tuple[float, ...] | None, Arg("end as a fraction of the input's length", per_sample=True)] = None
    rel_shape: Annotated[
        tuple[float, ...] | None, Arg("shape as a fraction of the input's length", per_sample=True)
    ] = None
    normalized_anchor: Annotated[bool, Arg("a floating-point second input is relative")] = True
    normalized_shape: Annotated[bool, Arg("a floating-point third input is relative")] = True
    out_of_bounds_policy: Annotated[OutOfBounds, Arg("policy if the slice extends beyond the input")] = "error"
    fill_values: Annotated[
        tuple[float, ...], Arg("value outside the input, one number or one per channel", or_default=True)
    ] = (0.0,)
    dtype: Annotated[DALIDataType | None, Arg("data type of the output; by default that of the input")] = None
    output_dtype: Annotated[DALIDataType | None, Arg("data type of the output", deprecated="dtype")] = None
    image_type: Annotated[
        DALIImageType | None, Arg("colour space", ignored="DALI no longer uses it", obsolete=True)
    ] = None

    def check(self) -> None:
        for a, b in (("start", "rel_start"), ("end", "rel_end"), ("shape", "rel_shape")):
            if self.has_value(a) and self.has_value(b):
                raise SpecError(f"{a} and {b} exclude each other")
        ends, shapes = self._which("end"), self._which("shape")
        if ends and shapes:
            raise SpecError(f"{ends} and {shapes} exclude each other: give either the end or the shape of the slice")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if len(specs) == 2:
            raise SpecError("takes the data, or the data, anchors and shapes; got two inputs")
        named = [n for n in ("start", "end", "shape") if self._which(n)]
        if len(specs) == 3 and named:
            raise SpecError(f"anchors and shapes as inputs exclude {self._which(named[0])}")
        if len(specs) == 1 and not named and all(getattr(self, n) is None for n in _ENDS):
            raise SpecError("needs start, end or shape (or rel_...), or anchors and shapes as second and third input")
        dtype = self.dtype if self.dtype is not None else data.dtype
        if data.shape is None:
            return Spec(None, dtype, data.layout)
        shape = list(data.shape)
        if "axes" in self.per_sample:
            return Spec((None,) * len(shape), dtype, data.layout)
        for k, at in enumerate(self._axes(data.layout, len(shape))):
            shape[at] = self._constant_extent(k)
        return Spec(tuple(shape), dtype, data.layout)

    def _constant_extent(self, k: int) -> int | None:
        """Return the length of the slice along the ``k``-th of its axes, if constant arguments determine it; else
        None."""
        trimmed = self.out_of_bounds_policy == "trim_to_shape"
        constant = self._which("shape") == "shape" or self._which("end") == "end"
        if trimmed or self.rel_start or not constant or {"start", "rel_start", "shape", "end"} & self.per_sample:
            return None
        start = self.start or (0,)
        first = start[min(k, len(start) - 1)]
        if self.shape:
            return self.shape[min(k, len(self.shape) - 1)]
        end = self.end or (0,)
        return max(end[min(k, len(end) - 1)] - first, 0)

    def _which(self, name: str) -> str:
        """Return the name of the argument that is set: ``name``, or ``rel_name``, whose values are fractions of the
        length; empty if neither is set."""
        return name if self.has_value(name) else f"rel_{name}" if self.has_value(f"rel_{name}") else ""

    def _axes(self, layout: str, ndim: int) -> list[int]:
        layout = image_layout(layout, ndim, ("HWC", "DHWC"))
        if self.axis_names == "" or self.axes == ():
            return list(range(ndim))
        if self.is_set("axis_names") or (not self.is_set("axes") and set("WH") <= set(layout)):
            missing = [a for a in self.axis_names if a not in layout]
            if missing:
                raise SpecError(f"axis {missing[0]!r} of axis_names is not in the layout {layout or '(none)'!r}")
            return [layout.index(a) for a in self.axis_names]
        return resolve_axes(self.axes, ndim)

    def windows(self, ctx: Context, data: Batch, inputs: tuple[Batch, ...]) -> tuple[I64, I64]:
        """Return start (anchor) and shape of each sample's slice, [N, D] each, with ``out_of_bounds_policy`` applied.
        Only the shapes of ``data`` are read."""
        extent = data.shapes.astype(np.int64)
        found = self._of_one_group(ctx, data, inputs)
        if found is None:
            start, end = self._ranges(ctx, extent, data, inputs)
            anchor = round_half_away(start)
            shape = round_half_away(end) - anchor
        else:
            anchor, shape = found
        backwards = np.any(shape < 0, axis=1) if found is None or (shape < 0).any() else np.zeros(len(data), np.bool_)
        for i in np.flatnonzero(backwards).tolist():
            stop = (anchor[i] + shape[i]).tolist()
            ctx.reject(i, "bad_argument", f"the slice {anchor[i].tolist()} to {stop} ends before it starts")
        anchor, shape = refused(anchor, backwards), refused(shape, backwards)
        return bounded(ctx, self.out_of_bounds_policy, anchor, shape, extent)

    def _of_one_group(self, ctx: Context, data: Batch, inputs: tuple[Batch, ...]) -> tuple[I64, I64] | None:
        """Return start (anchor) and shape of all slices, [N, D] each, by one compiled call. Return None if samples name
        different axes."""
        if "axes" in ctx.args or data.ndim == 0 or len(data) == 0:
            return None
        if not isinstance(next(ctx.alike(*inputs))[0], slice):
            return None
        axes = self._axes(data.layout, data.ndim)
        if inputs:
            (first, first_parts), (last, last_parts) = (
                (rows, relative and rows.dtype.kind == "f")
                for rows, relative in zip(_rows(inputs), (self.normalized_anchor, self.normalized_shape), strict=True)
            )
            sized = _kernels.AFTER
        else:
            first, first_parts = self._argument_rows(ctx, "start")
            sized = _kernels.AFTER if self._which("shape") else _kernels.AT if self._which("end") else _kernels.WITH_IT
            last, last_parts = self._argument_rows(ctx, "shape" if sized == _kernels.AFTER else "end")
        for name, values in (("start", first), ("shape" if sized == _kernels.AFTER else "end", last)):
            if values.shape[1] not in (1, len(axes)):
                raise SampleError("bad_argument", f"{name} has {values.shape[1]} values for {len(axes)} axes")
        anchor, shape = np.empty(data.shapes.shape, np.int64), np.empty(data.shapes.shape, np.int64)
        first, last = (np.ascontiguousarray(values, np.float64) for values in (first, last))
        _kernels.slices(
            data.shapes, np.array(axes, np.int64), first, first_parts, last, last_parts, sized, anchor, shape
        )
        return anchor, shape

    def _argument_rows(self, ctx: Context, name: str) -> tuple[npt.NDArray[Any], bool]:
        """Return the values of argument ``name``, [1 or N, k], with zeros if it is not set; and whether they are
        fractions of the length."""
        which = self._which(name)
        if not which:
            return np.zeros((1, 1)), False
        relative = which.startswith("rel_")
        return ctx.rows(which, np.float32 if relative else np.int64), relative

    def cpu(self, ctx: Context, data: Batch, *inputs: Batch) -> Batch:
        if inputs:
            not_replayable(ctx.device)  # windows depend on the data of these inputs
        anchor, shape = self.windows(ctx, data, inputs)
        channel = data.layout.index("C") if "C" in data.layout else data.ndim - 1
        plan = window(whole(data), anchor, shape)
        # Channels are counted in the output, so that a slice of channels uses the first fill values.
        cut = data.replace(shapes=shape.astype(np.int32))
        plan = pad(plan, border(self.out_of_bounds_policy), *fill_along(ctx, self.fill_values, cut, channel))
        return run(ctx, plan if self.dtype is None else convert(plan, to_numpy(self.dtype)), data)

    gpu = cpu

    def _ranges(self, ctx: Context, extent: I64, data: Batch, inputs: tuple[Batch, ...]) -> tuple[F64, F64]:
        """Return start and end of each slice in elements, [N, D] each, as float64. For relative arguments, sums are
        computed in float32 before."""
        start, end = np.zeros(extent.shape), extent.astype(np.float64)
        for rows, group in ctx.alike(*inputs):
            some = inputs if isinstance(rows, slice) else tuple(b.take(rows) for b in inputs)
            start[rows], end[rows] = self._ranges_alike(group, extent[rows], data.layout, some)
        return start, end

    def _ranges_alike(self, ctx: Context, extent: I64, layout: str, inputs: tuple[Batch, ...]) -> tuple[F64, F64]:
        """Return start and end of each slice, like `_ranges`, for samples whose lists of axes have equal length."""
        n, ndim = extent.shape
        start, end = np.zeros((n, ndim)), extent.astype(np.float64)
        if "axes" in ctx.args and ctx.args["axes"].sizes[:1].any():
            axes = ctx.arg("axes", np.int64)
            axes = np.where(axes < 0, axes + ndim, axes)
            wrong = np.any((axes < 0) | (axes >= ndim), axis=1)
            in_order = np.sort(axes, axis=1)
            wrong |= np.any(in_order[:, 1:] == in_order[:, :-1], axis=1)
            for i in np.flatnonzero(wrong).tolist():
                ctx.reject(i, "bad_argument", f"axes must differ, and be {-ndim} to {ndim - 1}, got {axes[i].tolist()}")
            axes = np.where(wrong[:, None], np.arange(axes.shape[1]) % ndim, axes)
        else:
            known = list(range(ndim)) if "axes" in ctx.args else self._axes(layout, ndim)
            axes = np.broadcast_to(np.array(known, np.int64), (n, len(known)))
        along = np.take_along_axis(extent, axes, axis=1)
        first, last = self._given(ctx, along) if not inputs else self._positional(inputs, along)
        np.put_along_axis(start, axes, first, axis=1)
        np.put_along_axis(end, axes, last, axis=1)
        return start, end

    def _given(self, ctx: Context, along: I64) -> tuple[Any, Any]:
        def value(name: str) -> Any:
            which = self._which(name)
            if not which:
                return None
            return scaled(ctx.arg(which, np.float32 if which.startswith("rel_") else np.int64), along, which)

        first, last, size = value("start"), value("end"), value("shape")
        first = np.zeros(along.shape) if first is None else first
        if size is not None:
            return first, first + size
        return first, along.astype(np.float64) if last is None else last

    def _positional(self, inputs: tuple[Batch, ...], along: I64) -> tuple[Any, Any]:
        values = []
        for batch, relative in zip(inputs, (self.normalized_anchor, self.normalized_shape), strict=True):
            rows = batch.dense().reshape(len(batch), -1)
            # shapes are computed on the host, so that the download must complete first
            rows = rows.get() if not batch.on_host else rows
            real = rows.dtype.kind == "f"
            values.append(scaled(rows, along, "rel_" if real and relative else ""))
        return values[0], values[0] + values[1]


def _rows(inputs: tuple[Batch, ...]) -> list[npt.NDArray[Any]]:
    """Return each input as an array [N, k] on the host. Inputs on a device are downloaded first, because shapes are
    computed on the host."""
    rows = [batch.dense().reshape(len(batch), -1) for batch in inputs]
    return [values if batch.on_host else values.get() for batch, values in zip(inputs, rows, strict=True)]


_ENDS = ("start", "end", "shape", "rel_start", "rel_end", "rel_shape")


def scaled(values: npt.NDArray[Any], along: I64, name: str) -> npt.NDArray[Any]:
    """Return the values [N, k or 1] of the argument ``name`` in elements. Values of ``rel_...`` arguments are
    fractions, and are multiplied by the lengths ``along`` in float32."""
    if values.shape[1] not in (1, along.shape[1]):
        raise SpecError(f"{name or 'the slice'} has {values.shape[1]} values for {along.shape[1]} axes")
    values = np.broadcast_to(values, along.shape)
    if name.startswith("rel_"):
        return values.astype(np.float32) * along.astype(np.float32)
    return values.astype(np.float64)


def resolve_axes(axes: tuple[int, ...], ndim: int) -> list[int]:
    """Return ``axes`` counted from the front. Raises SpecError for an axis that does not exist or occurs twice."""
    out = [a + ndim if a < 0 else a for a in axes]
    for given, a in zip(axes, out, strict=True):
        if not 0 <= a < ndim:
            raise SpecError(f"axis {given} is outside the {ndim} dimensions: allowed are {-ndim} to {ndim - 1}")
    if len(set(out)) != len(out):
        raise SpecError(f"axes {list(axes)} name an axis twice")
    return out
