"""Operators resize and resize_crop_mirror, and DALI's older names of them."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from ..base import Arg, Operator, Spec, Stage
from ..batch import I64, Batch, Samples
from ..context import Context
from ..copies.windows import round_half_away
from ..errors import SpecError
from ..kernels import Kernels
from ..types import DALIDataType, DALIImageType, DALIInterpType, Library
from .crop import CropWindow
from .resampling import libraries as presets
from .resampling.resample import F32, LAYOUTS, Mask, ResamplePlan, output_spec, plan, resample, spatial_axes

_plans: Any = Kernels(".resampling.plan_cpu", __package__)

Mode = Literal["default", "stretch", "not_larger", "not_smaller"]

_THINNEST = np.float32(1e-3)
"""Minimum length of a source region in pixels; thinner regions are widened to it, as in DALI."""


class Resampling(Operator, abstract=True):
    """Base class of operators that resample. It defines the arguments for filters and the output type."""

    replayable = True
    layouts = LAYOUTS
    bound = "exact; DALI's results are at most 1 level away, FLOAT 2e-5 of the largest value"

    interp_type: Annotated[DALIInterpType, Arg("filter for both directions", per_sample=True)] = (
        DALIInterpType.INTERP_LINEAR
    )
    min_filter: Annotated[
        DALIInterpType | None, Arg("filter for axes that shrink, instead of interp_type", per_sample=True)
    ] = None
    mag_filter: Annotated[
        DALIInterpType | None, Arg("filter for axes that grow, instead of interp_type", per_sample=True)
    ] = None
    antialias: Annotated[bool, Arg("widen the filter with the scale where an axis shrinks")] = True
    dtype: Annotated[DALIDataType | None, Arg("output type: that of the input (default) or FLOAT")] = None
    parity: Annotated[
        Library,
        Arg("library that the filters, sizes, borders and rounding follow: dali; on CPU torchvision, opencv, pillow"),
    ] = "dali"
    interpolation: Annotated[
        str | None, Arg("with parity, instead of interp_type: the filter by the library's own name (area, box, ...)")
    ] = None
    minibatch_size: Annotated[int, Arg("images per kernel call", ignored="whole batches are one call")] = 32
    temp_buffer_hint: Annotated[int, Arg("size hint", ignored="buffers are sized from the plan")] = 0

    def same_on_gpu(self) -> Resampling | None:
        return self if self.parity == "dali" else None

    def plan(self, ctx: Context, shapes: I64, axes: tuple[int, int]) -> ResamplePlan:
        """Return the plan for resampling samples of ``shapes`` [N, ndim] along ``axes``. Samples that cannot be
        resampled are rejected."""
        raise NotImplementedError

    def runs_in(self) -> tuple[Stage, ...]:
        return self.stages if self.parity == "dali" else ("cpu",)

    def check(self) -> None:
        if self.parity == "dali":
            if self.interpolation is not None:
                raise SpecError("interpolation goes with parity: torchvision, opencv or pillow; else give interp_type")
            return
        for name in ("min_filter", "mag_filter"):
            if self.is_set(name):
                raise SpecError(f"parity: {self.parity} has one filter for both directions; give interp_type")
        if self.parity == "pillow" and not self.antialias:
            raise SpecError("Pillow's filters always antialias; remove antialias, or take parity: torchvision")
        if self.interpolation is not None:
            if self.is_set("interp_type"):
                raise SpecError("interp_type and interpolation exclude each other")
            allowed = presets.filters_of(self.parity)
            if self.interpolation not in allowed:
                raise SpecError(
                    f"{self.parity} has no interpolation {self.interpolation!r}; it has {', '.join(allowed)}"
                )
        elif "interp_type" not in self.per_sample:
            presets.interpolation_of(self.parity, self.interp_type)

    def resampled(self, spec: Spec, size: tuple[int | None, ...] | None) -> Spec:
        """Return the spec of a resampled batch. ``spec``: of the input. ``size``: new spatial lengths, None if unknown.
        Raises SpecError."""
        if self.parity != "dali":
            if spec.shape is not None:
                self._needs_images(spatial_axes(spec.layout, len(spec.shape))[1])
            if spec.dtype not in (None, DALIDataType.UINT8, DALIDataType.FLOAT):
                raise SpecError(f"parity: {self.parity} takes UINT8 or FLOAT, got {spec}; cast it first")
        return output_spec(spec, self.dtype, size)

    def planned(self, ctx: Context, lo: F32, hi: F32, size: I64, extents: I64) -> ResamplePlan:
        """Return a plan that resamples the regions [``lo``, ``hi``) of images of shape ``extents`` to ``size``, all [N,
        A], with this operator's filters."""
        if self.parity == "dali":
            return plan(lo, hi, size, *self.filters(ctx), self.antialias)
        self._needs_images(size.shape[1])
        names = [self.interpolation or "nearest"] * len(size)
        if self.interpolation is None:
            for i, interp in enumerate(np.broadcast_to(self.filters(ctx)[0], len(size)).tolist()):
                try:
                    names[i] = presets.interpolation_of(self.parity, interp)
                except SpecError as e:
                    ctx.reject(i, "bad_argument", str(e))
        flip = hi < lo
        begin, end = np.minimum(lo, hi), np.maximum(lo, hi)
        return presets.plan(self.parity, names, self.antialias, begin, end, size, extents, flip)

    def _needs_images(self, axes: int) -> None:
        if axes != 2:
            raise SpecError(f"parity: {self.parity} resizes images, not volumes; give parity: dali to this step")

    def cpu(self, ctx: Context, images: Batch) -> Any:
        """Resample the batch on the CPU, and return the result."""
        axes = spatial_axes(images.layout, images.ndim)
        shapes = images.shapes.astype(np.int64)
        return resample(ctx, self.plan(ctx, shapes, axes), images, self.dtype, lambda c: self.plan(c, shapes, axes))

    gpu = cpu

    @cached_property
    def _filter_names(self) -> tuple[str, str]:
        """Names of two arguments: the filter for axes that shrink, and the filter for axes that grow."""
        return ("min_filter" if self.is_set("min_filter") else "interp_type",
                "mag_filter" if self.is_set("mag_filter") else "interp_type")  # fmt: skip

    def filters(self, ctx: Context) -> tuple[I64, I64]:
        """Return the filter (DALIInterpType) for axes that shrink, and the one for axes that grow, [N] each, or [1] if
        equal for all samples."""
        found = []
        for name in self._filter_names:
            values = ctx.rows(name, np.int64)
            if name not in ctx.args:  # constants were checked before
                found.append(values)
                continue
            bad = (values < 0) | (values >= len(DALIInterpType))
            for i in np.flatnonzero(bad).tolist():
                ctx.reject(i, "bad_argument", f"{name} {values[i]} is no filter; use 0 to {len(DALIInterpType) - 1}")
            found.append(np.where(bad, 0, values))
        return found[0], found[1]


class Sized(Resampling, abstract=True):
    """Base class of operators with arguments for the output size, and for the region of the image that the output
    shows."""

    size: Annotated[
        tuple[float, ...] | None,
        Arg(
            "output size, one number for each spatial axis or one for all; 0: computed from the other sizes",
            per_sample=True,
        ),
    ] = None
    resize_x: Annotated[
        float | None, Arg("output width; negative flips, 0: computed from the other sizes", per_sample=True)
    ] = None
    resize_y: Annotated[
        float | None, Arg("output height; negative flips, 0: computed from the other sizes", per_sample=True)
    ] = None
    resize_z: Annotated[
        float | None, Arg("output depth; negative flips, 0: computed from the other sizes", per_sample=True)
    ] = None
    resize_shorter: Annotated[float | None, Arg("output size of the shortest axis", per_sample=True)] = None
    resize_longer: Annotated[float | None, Arg("output size of the longest axis", per_sample=True)] = None
    max_size: Annotated[
        tuple[float, ...] | None,
        Arg("maximum output size, one number for each spatial axis or one for all; 0: no limit"),
    ] = None
    mode: Annotated[
        Mode,
        Arg("default: missing sizes keep the aspect ratio; "
"stretch: they stay those of the input; not_larger: fit into size; not_smaller: cover size"),
    ] = "default"  # fmt: skip
    roi_start: Annotated[
        tuple[float, ...] | None, Arg("start of the source region in pixels, ordered as size", per_sample=True)
    ] = None  # fmt: skip
    roi_end: Annotated[
        tuple[float, ...] | None, Arg("end of the source region; if before its start: flipped", per_sample=True)
    ] = None
    roi_relative: Annotated[bool, Arg("the region is given in fractions of the image")] = False
    subpixel_scale: Annotated[
        bool, Arg("if a size was rounded, adjust the source region so that the scale stays exact")
    ] = True

    def check(self) -> None:
        Resampling.check(self)
        ways = {
            "size": self.is_set("size"),
            "resize_x, resize_y, resize_z": any(map(self.is_set, ("resize_x", "resize_y", "resize_z"))),
            "resize_shorter": self.is_set("resize_shorter"),
            "resize_longer": self.is_set("resize_longer"),
        }
        given = [way for way, is_given in ways.items() if is_given]
        if len(given) != 1:
            raise SpecError(f"say the size in one way: {'; or '.join(ways)}; got {' and '.join(given) or 'none'}")
        if given[0] in ("resize_shorter", "resize_longer") and self.mode != "default":
            raise SpecError(f"{given[0]} and mode exclude each other")
        if self.is_set("roi_start") != self.is_set("roi_end"):
            raise SpecError("roi_start and roi_end go together")
        for name in ("size", "max_size", "roi_start", "roi_end"):
            value = getattr(self, name)
            if value is not None and not np.isfinite(value).all():
                raise SpecError(f"{name} must be finite, got {list(value)}")

    def infer(self, *specs: Spec) -> Spec | tuple[Spec, ...]:
        return self.resampled(specs[0], self._known_size(specs[0]))

    def _known_size(self, spec: Spec) -> tuple[int | None, ...] | None:
        """Return the output's spatial lengths if constant arguments and the input's spec determine them, else None."""
        if spec.shape is None:
            return None
        first, count = spatial_axes(spec.layout, len(spec.shape))
        self._check_lengths(count)
        extents = spec.shape[first : first + count]
        names = ("size", "resize_x", "resize_y", "resize_z", "resize_shorter", "resize_longer", "roi_start", "roi_end")
        if self.per_sample.intersection(names):
            return None
        complete = self._is_complete(count)
        if None in extents and not complete:
            return None
        if complete and self.parity == "dali" and self.max_size is None:  # specs are checked without Numba, see `fit`
            given = self.size or tuple(getattr(self, n) for n in ("resize_z", "resize_y", "resize_x")[3 - count :])
            sizes = round_half_away(np.abs(np.broadcast_to(np.asarray(given, np.float32), (count,))))
            return tuple(np.maximum(sizes, 1).tolist())
        ctx = Context(self, "cpu", Samples.numbered(1))
        shapes = np.array([[1 if d is None else d for d in spec.shape]], np.int64)
        plan = Sized.plan(self, ctx, shapes, (first, count))
        return None if ctx.rejects else tuple(plan.size[0].tolist())

    def _is_complete(self, count: int) -> bool:
        """Return whether the arguments give all spatial lengths of the output, which then do not depend on the
        image."""
        names = ("resize_z", "resize_y", "resize_x")[3 - count :]
        given = self.size if self.size is not None else tuple(getattr(self, n) or 0.0 for n in names)
        return self.mode in ("default", "stretch") and all(given) and self.resize_shorter is self.resize_longer is None

    def _check_lengths(self, count: int) -> None:
        if self._lengths <= {1, count}:
            return
        for name in ("size", "max_size", "roi_start", "roi_end"):
            value = getattr(self, name)
            if value is not None and len(value) not in (1, count):
                raise SpecError(f"{name} needs 1 or {count} numbers, got {len(value)}")

    @cached_property
    def _lengths(self) -> set[int]:
        """Numbers of values that constant arguments with one value per axis have, such as ``size``."""
        return {len(v) for v in (self.size, self.max_size, self.roi_start, self.roi_end) if v is not None}

    def plan(self, ctx: Context, shapes: I64, axes: tuple[int, int]) -> ResamplePlan:
        first, count = axes
        self._check_lengths(count)
        extents = shapes[:, first : first + count]
        region, wanted = self._region(ctx, extents), self._requested(ctx, count)
        if self.parity != "dali":
            return self._as_library(ctx, wanted, region, extents)
        lo, hi, size, endless = fit(
            wanted, region, extents, self._mode, self._limit(count), subpixel=self.subpixel_scale
        )
        if endless:
            _refuse_endless(ctx, wanted, region, extents)
        return self.planned(ctx, lo, hi, size, extents)

    def _as_library(self, ctx: Context, wanted: F32, region: tuple[F32, F32] | None, extents: I64) -> ResamplePlan:
        """Return the plan of a resize whose results equal those of the library ``parity``, such as Pillow."""
        lo, hi = (np.float32(0), extents.astype(np.float32)) if region is None else region
        bad = _refuse_endless(ctx, wanted, region, extents)
        wanted = np.where(bad, 1, np.broadcast_to(wanted, extents.shape))
        lo, hi = np.where(bad, 0, lo), np.where(bad, 1, hi)
        size = presets.size(self.parity, wanted, np.abs(hi - lo), self._mode, self._limit(extents.shape[1]))
        lo, hi = np.clip(lo, 0, extents).astype(np.float32), np.clip(hi, 0, extents).astype(np.float32)
        lo, hi = np.where(wanted < 0, hi, lo), np.where(wanted < 0, lo, hi)
        return self.planned(ctx, lo, hi, size, extents)

    @cached_property
    def _mode(self) -> Mode:
        if self.is_set("resize_shorter"):
            return "not_smaller"
        return "not_larger" if self.is_set("resize_longer") else self.mode

    def _limit(self, count: int) -> F32 | None:
        if self.max_size is None:
            return None
        return np.broadcast_to(np.asarray(self.max_size, np.float32), (count,))

    @cached_property
    def _way(self) -> str:
        """Name of the argument that gives the output size, such as ``resize_shorter``; empty for arguments by axis
        (``resize_x``, ...)."""
        return next((name for name in ("resize_shorter", "resize_longer", "size") if self.is_set(name)), "")

    def _requested(self, ctx: Context, count: int) -> F32:
        """Return the requested output size [N, A], with 0 for lengths that are not set. A single row is for all
        samples, a single column for all axes."""
        if self._way == "size":
            return _for_axes(ctx, "size", count)
        if self._way:
            return ctx.rows(self._way)[:, None]
        names = ("resize_z", "resize_y", "resize_x")[3 - count :]
        columns = [ctx.rows(name) if self.is_set(name) else np.zeros(1, np.float32) for name in names]
        return np.stack(np.broadcast_arrays(*columns), axis=1)

    @cached_property
    def _whole(self) -> bool:
        """Return whether the source region is the whole image, because no argument restricts it."""
        return not self.is_set("roi_start")

    def _region(self, ctx: Context, extents: I64) -> tuple[F32, F32] | None:
        """Return begin and end of the source region in pixels, [N, A] each; None for the whole image."""
        if self._whole:
            return None
        count = extents.shape[1]
        whole = extents.astype(np.float32)
        lo, hi = _for_axes(ctx, "roi_start", count), _for_axes(ctx, "roi_end", count)
        if self.roi_relative:
            lo, hi = lo * whole, hi * whole
        thin = (np.abs(hi - lo) < _THINNEST) & (extents > 0)
        half = np.where(thin, np.copysign(_THINNEST / 2, hi - lo), np.float32(0))
        return (lo - half).astype(np.float32), (hi + half).astype(np.float32)


def _extents(shape: I64) -> str:
    return "x".join(map(str, shape.tolist()))


def _refuse_endless(ctx: Context, wanted: F32, region: tuple[F32, F32] | None, extents: I64) -> Mask:
    """Reject samples whose requested size or region is not finite. Return a mask of these samples, [N, 1]."""
    wanted = np.broadcast_to(wanted, extents.shape)
    finite = np.isfinite(wanted)
    if region is not None:
        finite &= np.isfinite(region[0]) & np.isfinite(region[1])
    bad: Mask = ~np.logical_and.reduce(finite, axis=1, keepdims=True)
    for i in np.flatnonzero(bad[:, 0]).tolist():
        ctx.reject(i, "bad_argument", f"size {wanted[i].tolist()} or region is not finite")
    return bad


def _for_axes(ctx: Context, name: str, count: int) -> F32:
    """Return the argument ``name`` with one value per axis, [N, A]. A single row is for all samples, a single column
    for all axes."""
    values = ctx.rows(name)
    if values.shape[1] not in (1, count):
        for i in range(len(values)):
            ctx.reject(i, "bad_argument", f"{name} needs 1 or {count} numbers, got {values.shape[1]}")
        return np.ones((len(values), count), np.float32)
    return values


def fit(
    wanted: F32, region: tuple[F32, F32] | None, extents: I64, mode: Mode, limit: F32 | None, *, subpixel: bool
) -> tuple[F32, F32, I64, int]:
    """Return source regions (begin and end) and output sizes, [N, A] each. Also return the number of invalid samples,
    whose arguments are not finite.

    ``wanted``: requested sizes [N or 1, A or 1]. ``region``: part of the image that is shown, in images of shape
    ``extents``; None for all.

    The rules and arithmetic are DALI 2.4's: a size of 0 follows from the other sizes by ``mode``, negative sizes and
    reversed regions flip, sizes are rounded half away from zero to at least 1, and ``subpixel`` grows or shrinks the
    region around its centre if rounding changed the scale.
    """
    lo, hi = np.empty(extents.shape, np.float32), np.empty(extents.shape, np.float32)
    size = np.empty(extents.shape, np.int64)
    begin, end = _EVERYTHING if region is None else region
    most = _UNLIMITED if limit is None else np.array(limit, np.float32)
    endless = _plans.fit(wanted, begin, end, extents, _plans.MODES.index(mode), most, subpixel, lo, hi, size)
    return lo, hi, size, endless


_EVERYTHING = np.empty((0, 0), np.float32), np.empty((0, 0), np.float32)
_UNLIMITED = np.empty(0, np.float32)


class Resize(Sized, name="resize"):
    """Resize images, sequences and volumes.

    With save_attrs, the second output is the size before resizing: int32, the lengths of the spatial axes. If a region
    extends beyond the image, the image's edge is repeated (DALI's INTERP_NN reads other memory beyond the right edge).
    """

    aliases = ("experimental.resize",)
    example: ClassVar[str] = "{op: resize, in: images, resize_shorter: 256, out: images}"

    save_attrs: Annotated[bool, Arg("add a second output: the size of the input")] = False
    image_type: Annotated[
        DALIImageType | None, Arg("colour space", ignored="resizing does not depend on it", obsolete=True)
    ] = None

    @property
    def num_outputs(self) -> int:
        return 2 if self.save_attrs else 1

    def infer(self, *specs: Spec) -> Spec | tuple[Spec, ...]:
        out = self.resampled(specs[0], self._known_size(specs[0]))
        if not self.save_attrs:
            return out
        shape = specs[0].shape
        count = None if shape is None else spatial_axes(specs[0].layout, len(shape))[1]
        return out, Spec((count,), DALIDataType.INT32)

    def cpu(self, ctx: Context, images: Batch) -> Any:
        resized = super().cpu(ctx, images)
        if not self.save_attrs:
            return resized
        first, count = spatial_axes(images.layout, images.ndim)
        before = np.ascontiguousarray(images.shapes[:, first : first + count])
        if ctx.stage != "cpu":
            (before,) = ctx.device.upload(before)
        return resized, Batch.from_dense(before, "", images.samples)

    gpu = cpu


class ResizeCropMirror(Sized, CropWindow, name="resize_crop_mirror"):
    """Resize, cut a window out and mirror it, in one step: only the window is resampled.

    Results equal those of resize, crop and flip up to 1 level. A window that extends beyond the resized image shows its
    edge.
    """

    example: ClassVar[str] = (
        "{op: resize_crop_mirror, in: images, resize_shorter: 256, crop: [224, 224], mirror: $coin, out: images}"
    )

    layouts: ClassVar[tuple[str, ...]] = LAYOUTS

    mirror: Annotated[
        int, Arg("1 mirrors left to right, 2 top to bottom, 4 front to back, and their sums", per_sample=True)
    ] = 0

    def check(self) -> None:
        Sized.check(self)
        CropWindow.check(self)

    def infer(self, *specs: Spec) -> Spec:
        resized = self.resampled(specs[0], self._known_size(specs[0]))
        return Spec(self.cropped(resized).shape, resized.dtype, resized.layout)

    def plan(self, ctx: Context, shapes: I64, axes: tuple[int, int]) -> ResamplePlan:
        first, count = axes
        whole = Sized.plan(self, ctx, shapes, axes)
        resized = shapes.copy()
        resized[:, first : first + count] = whole.size
        layout = "".join("DHW"[d - first - count] if 0 <= d - first < count else "-" for d in range(shapes.shape[1]))
        anchor, shape = self.windows_in(ctx, resized, layout, "pad")
        anchor, shape = anchor[:, first : first + count], shape[:, first : first + count]
        nothing = ((whole.size == 0) & (shape > 0)).any(axis=1)  # their edge would fill the window
        for i in np.flatnonzero(nothing).tolist():
            ctx.reject(i, "bad_shape", f"there is nothing to cut from: the image is {_extents(shapes[i])}")
        shape = np.where(nothing[:, None], 0, shape) if nothing.any() else shape
        mirror = (ctx.arg("mirror", np.int64)[:, None] & np.array([4, 2, 1])[3 - count :]) != 0
        if self.parity != "dali":
            return whole.window(anchor, shape).mirrored(mirror)
        step = (whole.hi.astype(np.float64) - whole.lo) / np.maximum(whole.size, 1)
        lo, hi = (whole.lo + anchor * step).astype(np.float32), (whole.lo + (anchor + shape) * step).astype(np.float32)
        lo, hi = np.where(mirror, hi, lo), np.where(mirror, lo, hi)
        return self.planned(ctx, lo, hi, shape, shapes[:, first : first + count])


class FastResizeCropMirror(ResizeCropMirror, name="fast_resize_crop_mirror"):
    """DALI's older name of resize_crop_mirror without antialiasing."""

    antialias: Annotated[bool, Arg("widen the filter with the scale where an axis shrinks")] = False
