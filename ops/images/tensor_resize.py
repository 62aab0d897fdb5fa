"""Operator tensor_resize: resample any axes of any tensors, to sizes or by scales."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..arrays.slice import resolve_axes
from ..base import Arg, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies.windows import round_half_away
from ..errors import SampleError, SpecError, UnlikeSamplesError
from ..types import DALIDataType
from .resampling.resample import DTYPES, F32, ResamplePlan, resample
from .resize import Mode, Resampling, fit

_AXES = 3
_SPAN = "resizes up to three neighbouring axes (those that keep their length do not count)"
_FAR = np.float32(2**30)

_FARTHEST = 1e6
"""Maximum distance of the fixed point ``alignment`` from the start of its region, in multiples of the region's
length."""


class TensorResize(Resampling, name="tensor_resize"):
    """Resample tensors along chosen axes, all by default, to ``sizes``, or by ``scales``.

    The axes that change must lie within three neighbouring axes. If an output size is rounded, the source region grows
    or shrinks around its point ``alignment``, so that the scale stays. Filters and results are those of resize.
    """

    layouts = ()
    example = "{op: tensor_resize, in: masks, axis_names: HW, scales: [0.5, 0.5], out: masks}"

    sizes: Annotated[
        tuple[float, ...] | None, Arg("output size for each axis; 0: computed from the other sizes", per_sample=True)
    ] = None
    scales: Annotated[tuple[float, ...] | None, Arg("output size / input size for each axis", per_sample=True)] = None
    axes: Annotated[tuple[int, ...] | None, Arg("axes to which the arguments refer; all by default")] = None
    axis_names: Annotated[str | None, Arg("axes by their letters in the layout, instead of axes")] = None
    alignment: Annotated[
        tuple[float, ...],
        Arg("point of the region that stays fixed when a size is rounded: 0 its start, 1 its end",
            per_sample=True),
    ] = (0.5,)  # fmt: skip
    size_rounding: Annotated[Literal["round", "truncate", "ceil"], Arg("rounding of sizes computed from scales")] = (
        "round"
    )
    max_size: Annotated[tuple[float, ...] | None, Arg("maximum output size for each axis, or for all; 0: no limit")] = (
        None
    )
    mode: Annotated[
        Mode,
        Arg(
            "default: missing sizes keep the aspect ratio; "
            "stretch: they stay those of the input; not_larger: fit into size; not_smaller: cover size"
        ),
    ] = "default"
    roi_start: Annotated[tuple[float, ...] | None, Arg("start of the source region", per_sample=True)] = None
    roi_end: Annotated[
        tuple[float, ...] | None, Arg("end of the source region; if before its start: flipped", per_sample=True)
    ] = None
    roi_relative: Annotated[bool, Arg("the region is given in fractions of the tensor")] = False
    subpixel_scale: Annotated[
        bool, Arg("if a size was rounded, adjust the source region so that the scale stays exact")
    ] = True

    def check(self) -> None:
        Resampling.check(self)
        if self.parity != "dali":
            raise SpecError(f"tensor_resize has DALI's filters only; resize has those of {self.parity}")
        if self.is_set("sizes") == self.is_set("scales"):
            raise SpecError("needs sizes or scales, and not both")
        if self.axes is not None and self.axis_names is not None:
            raise SpecError("axes and axis_names exclude each other")
        if self.is_set("roi_start") != self.is_set("roi_end"):
            raise SpecError("roi_start and roi_end go together")
        if self.axes is not None and len(set(self.axes)) != len(self.axes):
            raise SpecError(f"axes names an axis twice: {list(self.axes)}")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype is not None and data.dtype not in DTYPES:
            raise SpecError(f"cannot resample {data.dtype.name}; it takes {', '.join(d.name for d in DTYPES)}")
        if self.dtype is not None and data.dtype is not None and self.dtype not in (data.dtype, DALIDataType.FLOAT):
            raise SpecError(f"dtype must be that of the input ({data.dtype.name}) or FLOAT, got {self.dtype.name}")
        dtype = self.dtype or data.dtype
        if data.shape is None:
            return Spec(None, dtype, data.layout)
        axes = self._axes(data.layout, len(data.shape))
        shape = list(data.shape)
        sizes = self.sizes if "sizes" not in self.per_sample else None
        for k, axis in enumerate(axes):
            shape[axis] = None
            if sizes is not None and len(sizes) == len(axes) and all(sizes) and self._takes_sizes:
                shape[axis] = max(int(round_half_away(np.abs(np.float32(sizes[k])))), 1)
        scales = self.scales if "scales" not in self.per_sample else None
        changed = [a for a in axes if None not in (shape[a], data.shape[a]) and shape[a] != data.shape[a]]
        if scales is not None:
            changed = [a for k, a in enumerate(axes) if scales[k % len(scales)] != 1]
        if changed and max(changed) - min(changed) >= _AXES:
            raise SpecError(f"{_SPAN}, got {changed} of {len(shape)}")
        return Spec(tuple(shape), dtype, data.layout)

    @property
    def _takes_sizes(self) -> bool:
        """Return whether the output has the requested lengths whatever the shape of the input."""
        return self.mode in ("default", "stretch") and self.max_size is None

    def _axes(self, layout: str, ndim: int) -> list[int]:
        """Return the indices of the axes to resize, in the order of the arguments."""
        if self.axis_names is not None:
            missing = [a for a in self.axis_names if a not in layout]
            if missing:
                raise SpecError(f"axis {missing[0]!r} of axis_names is not in the layout {layout or '(none)'!r}")
            axes = [layout.index(a) for a in self.axis_names]
        else:
            axes = list(range(ndim)) if self.axes is None else resolve_axes(self.axes, ndim)
        if not axes:
            raise SpecError("axes names no axis; leave it out to resize all")
        for name in ("sizes", "scales", "max_size", "roi_start", "roi_end", "alignment"):
            value = None if name in self.per_sample else getattr(self, name)
            if value is not None and len(value) not in (1, len(axes)):
                raise SpecError(f"{name} needs {len(axes)} numbers, one for each axis, got {len(value)}")
        return axes

    def _span(self, axes: list[int], changed: npt.NDArray[np.bool_]) -> tuple[int, int]:
        """Return the first and the last of the axes along which a batch is resized. ``changed`` [N, A]: mask of the
        axes that change. If these axes are too far apart, raises SampleError; or UnlikeSamplesError if samples differ
        in their axes, because fewer samples may work."""
        resized = [axes[k] for k in np.flatnonzero(changed.any(axis=0)).tolist()] or axes[:1]
        if max(resized) - min(resized) >= _AXES:
            if (changed != changed[0]).any():
                raise UnlikeSamplesError(changed)
            raise SampleError("bad_shape", f"{_SPAN}, got {resized}")
        return min(resized), max(resized)

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        data = images
        axes = self._axes(data.layout, data.ndim)
        shapes = data.shapes.astype(np.int64)
        lo, hi, size = self._regions(ctx, shapes[:, axes])
        first, last = self._span(axes, (size != shapes[:, axes]) | (lo != 0) | (hi != shapes[:, axes]))
        resized = [k for k, a in enumerate(axes) if first <= a <= last]
        # Reshape to frames of images or volumes: axes before the resized ones, the resized and those between, axes
        # after them.
        outer, inner = shapes[:, :first].prod(axis=1), shapes[:, last + 1 :].prod(axis=1)
        between = shapes[:, first : last + 1]
        lows, highs, sizes = np.zeros(between.shape, np.float32), between.astype(np.float32), between.copy()
        at = [axes[k] - first for k in resized]
        lows[:, at], highs[:, at], sizes[:, at] = lo[:, resized], hi[:, resized], size[:, resized]
        if between.shape[1] == 1:
            one = np.ones_like(between)
            between, lows, highs = (
                np.hstack([one, between]),
                np.hstack([one * np.float32(0), lows]),
                np.hstack([one, highs]),
            )
            sizes = np.hstack([one, sizes])
        frames = data.replace(
            shapes=np.column_stack([outer, between, inner]).astype(np.int32),
            layout="FHWC" if between.shape[1] == 2 else "FDHWC",
        )
        plan: ResamplePlan = self.planned(ctx, lows.astype(np.float32), highs.astype(np.float32), sizes, between)
        out = resample(ctx, plan, frames, self.dtype)
        after = data.shapes.copy()
        after[:, axes] = np.where((out.sizes > 0)[:, None], size, 0)
        return out.replace(shapes=after, layout=data.layout)

    gpu = cpu

    def _regions(self, ctx: Context, extents: I64) -> tuple[F32, F32, I64]:
        """Return begin and end of the source region, and the output size, for each axis of each sample, [N, A] each."""
        count = extents.shape[1]
        wanted = self._rows(ctx, "sizes" if self.is_set("sizes") else "scales", extents.shape)
        region = None
        if self.is_set("roi_start"):
            lo, hi = self._rows(ctx, "roi_start", extents.shape), self._rows(ctx, "roi_end", extents.shape)
            factor = extents.astype(np.float32) if self.roi_relative else np.float32(1)
            region = np.ascontiguousarray(lo * factor), np.ascontiguousarray(hi * factor)
        limit = None if self.max_size is None else np.broadcast_to(np.asarray(self.max_size, np.float32), (count,))
        scaled = self.is_set("scales")
        if scaled:
            wanted = (wanted * extents.astype(np.float32)).astype(np.float32)
        bad: npt.NDArray[np.bool_] = np.any(~(np.abs(wanted) <= _FAR), axis=1)
        for i in np.flatnonzero(bad).tolist():
            ctx.reject(i, "bad_argument", f"sizes must be numbers, got {wanted[i].tolist()}")
        wanted = np.where(bad[:, None], np.float32(1), wanted)
        lo, hi, size, _ = fit(wanted, region, extents, self.mode, limit, subpixel=False)
        shown_lo, shown_hi, _, _ = fit(wanted, region, extents, self.mode, limit, subpixel=True)
        if not scaled or self.size_rounding == "round":
            if not self.subpixel_scale:
                return lo, hi, size
            return *self._aligned(ctx, lo, hi, shown_hi - shown_lo), size
        ideal = (hi - lo).astype(np.float64) * size / np.where(shown_hi == shown_lo, 1, shown_hi - shown_lo)
        ideal = np.abs(ideal)
        near = np.round(ideal)  # sizes that are integers except for the last digit of a float32
        ideal = np.where(np.abs(ideal - near) < 1e-5 * np.maximum(near, 1), near, ideal)
        rounded = np.maximum(np.trunc(ideal) if self.size_rounding == "truncate" else np.ceil(ideal), 1).astype(
            np.int64
        )
        if not self.subpixel_scale:
            return lo, hi, rounded
        width = (hi - lo) * (rounded / np.maximum(ideal, 1e-6)).astype(np.float32)
        return *self._aligned(ctx, lo, hi, width), rounded

    def _aligned(self, ctx: Context, lo: F32, hi: F32, width: Any) -> tuple[F32, F32]:
        """Scale the regions from ``lo`` to ``hi`` to the length ``width``, with the point ``alignment`` of each region
        fixed. Return their begins and ends."""
        part = self._rows(ctx, "alignment", lo.shape)
        bad = np.any(~(np.abs(part) <= _FARTHEST), axis=1)
        if bad.any():
            for i in np.flatnonzero(bad).tolist():
                ctx.reject(i, "bad_argument", f"alignment must be within {_FARTHEST:g} of 0, got {part[i].tolist()}")
            part = np.where(bad[:, None], np.float32(0.5), part)
        middle = lo + (hi - lo) * part
        begin = (middle - part * width).astype(np.float32)
        return begin, (begin + width).astype(np.float32)

    def _rows(self, ctx: Context, name: str, shape: tuple[int, ...]) -> F32:
        """Return the values of the argument ``name`` for each sample and axis, as an array of ``shape``."""
        values: F32 = ctx.arg(name)
        if values.shape[1] not in (1, shape[1]):
            raise SampleError(
                "bad_argument", f"{name} needs a number for each of {shape[1]} axes, got {values.shape[1]}"
            )
        return np.ascontiguousarray(np.broadcast_to(values, shape))
