"""Separable resampling of images: a plan for a whole batch, and functions that run it on CPU and GPU.

Filters, order of operations and borders are DALI 2.4's, so that results differ by at most one level: weights are
float32, taps outside the image read the pixel at the edge, nothing is rounded between the passes. Called by the
operators of this room and by `ops.fused`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base import Spec
from ...batch import I64, Batch, elements
from ...context import Context
from ...conversion import saturate
from ...copies.windows import image_layout
from ...errors import SpecError
from ...gpu.launch_recording import changing, fixed, unchanging, with_margin, without_data
from ...interfaces import Lane
from ...kernels import Kernels
from ...types import DALIDataType, DALIInterpType, from_numpy, to_numpy

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

NEAREST, TRIANGULAR, GAUSSIAN, CUBIC, LANCZOS3 = range(5)
"""Filters of DALI; each number is the index of the filter's table."""

LAYOUTS: tuple[str, ...] = ("HWC", "FHWC", "CHW", "FCHW", "CFHW", "DHWC", "FDHWC", "CDHW", "FCDHW", "CFDHW")
"""Layouts of images, sequences and volumes. A batch without a layout is taken as channels-last."""

DTYPES = (DALIDataType.UINT8, DALIDataType.INT16, DALIDataType.UINT16, DALIDataType.FLOAT)

MOST_ELEMENTS = 1 << 30
"""Maximum number of elements of a sample's output, and of the values between the two passes. Larger samples are
rejected, such as a thin image whose shorter side is enlarged."""


def _tables() -> tuple[F32, ...]:
    """Return the filters as DALI 2.4 tabulates them (values between entries are interpolated): a triangle, exp(-x^2)
    over [-2, 2], Keys' cubic with a = -1/2 over [-2, 2], sinc(x) sinc(x/3) over [-3, 3]."""
    gaussian = np.exp(-(np.linspace(-2, 2, 65) ** 2))
    x = np.abs(np.linspace(-2, 2, 129))
    cubic = np.where(x < 1, 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2)
    x = np.linspace(-3, 3, 193)
    lanczos = np.sinc(x) * np.sinc(x / 3)
    lanczos[[0, -1]] = 0
    parts = (np.zeros(0), np.array([0, 1, 0]), gaussian, cubic, lanczos)
    return tuple(p.astype(np.float32) for p in parts)


TABLE: F32 = np.concatenate(_tables())
TABLE_SIZE: I64 = np.array([len(t) for t in _tables()], np.int64)
TABLE_START: I64 = np.cumsum(TABLE_SIZE) - TABLE_SIZE


_plans: Any = Kernels(".plan_cpu", __package__)
_copies: Any = Kernels(".resample_cpu", __package__)
_presets: Any = Kernels(".libraries_cpu", __package__)
_passes: Any = Kernels(".passes_cpu", __package__)


@dataclass(slots=True)
class ResamplePlan:
    """Description of how N samples are resampled along A spatial axes (in the order of the layout), as C-contiguous
    arrays [N, A]. Created by `plan` or `libraries.plan`, and read only.

    Output j of an axis is at source coordinate lo + (j + 0.5) (hi - lo) / size - 0.5; pixel centres are at integers.
    Only the window ``anchor``, ``shape`` of these outputs is computed; it may extend beyond [0, size).
    """

    lo: F32
    hi: F32
    """End of the source region in pixels, [N, A]; ``lo`` is its begin. If ``hi`` < ``lo``, the region is mirrored."""
    size: I64
    """Number of output pixels that the source region becomes, [N, A]."""
    kind: I8
    """Filter of each axis, [N, A]: a number from NEAREST to LANCZOS3, or a `libraries.Filter` if ``domain`` is set."""
    support: F32
    """Width of the filter in source pixels, [N, A]."""
    anchor: I64
    shape: I64
    flip: Mask
    """Whether the outputs are written in reverse order along each axis, which mirrors the window, [N, A]."""
    across: Mask
    """Whether the horizontal pass comes first, [N]. The choice does not depend on the window, so that a part of an
    output has the same bits as in the whole."""
    domain: I64 | None = None
    """Begin and end of the source pixels that the filter may read, [N, A, 2]. Set if results follow another library
    than DALI: ``kind`` is then a `libraries.Filter`, and ``lo`` is less than ``hi``."""
    arithmetic: I8 | None = None
    """Rule for rounding weights and sums, a `libraries.Arithmetic` per sample, [N]; set if ``domain`` is set."""

    def window(self, anchor: I64, shape: I64) -> ResamplePlan:
        """Return the plan for a part of this plan's window: the outputs [anchor, anchor + shape), counted from the
        window's start."""
        at = self.anchor + np.where(self.flip, self.shape - anchor - shape, anchor)
        return self.shown(at, np.ascontiguousarray(shape), self.flip)

    def take(self, where: slice) -> ResamplePlan:
        """Return the part of the plan for the samples in the slice ``where``."""
        return ResamplePlan(
            self.lo[where], self.hi[where], self.size[where], self.kind[where], self.support[where], self.anchor[where],
            self.shape[where], self.flip[where], self.across[where],
            None if self.domain is None else self.domain[where],
            None if self.arithmetic is None else self.arithmetic[where],
        )  # fmt: skip

    def mirrored(self, where: Mask) -> ResamplePlan:
        """Return the plan with the window mirrored along the axes selected by ``where``, bool[N, A]."""
        return self.shown(self.anchor, self.shape, self.flip ^ where)

    def shown(self, anchor: I64, shape: I64, flip: Mask) -> ResamplePlan:
        """Return the plan with another window: the outputs [anchor, anchor + shape), in reverse order where ``flip`` is
        set; all [N, A]."""
        return ResamplePlan(self.lo, self.hi, self.size, self.kind, self.support, anchor, shape, flip, self.across,
                            self.domain, self.arithmetic)  # fmt: skip


def plan(lo: F32, hi: F32, size: I64, shrink: I64, enlarge: I64, antialias: bool) -> ResamplePlan:
    """Return a plan for regions [``lo``, ``hi``) that become ``size`` pixels, all [N, A].

    ``shrink`` and ``enlarge`` [N or 1] are the DALIInterpType of axes that lose pixels and of the others. ``antialias``
    widens the filter with the scale of axes that lose pixels, as in DALI; NEAREST is never widened.
    """
    lo, hi, size = np.ascontiguousarray(lo), np.ascontiguousarray(hi), np.ascontiguousarray(size)
    form = size.shape
    kind, support, across = np.empty(form, np.int8), np.empty(form, np.float32), np.empty(form[0], np.bool_)
    anchor, flip = np.empty(form, np.int64), np.empty(form, np.bool_)  # np.zeros would release the GIL
    _plans.filters(
        lo, hi, size, shrink, enlarge, antialias, _KINDS, _WIDTH, GAUSSIAN, kind, support, anchor, flip, across
    )
    return ResamplePlan(lo, hi, size, kind, support, anchor, size, flip, across)


_WIDTH: F32 = np.array([0, 2, 2, 4, 6], np.float32)
"""Width in source pixels of each filter, if the axis does not shrink."""
_KINDS: I8 = np.zeros(len(DALIInterpType), np.int8)
_KINDS[DALIInterpType.INTERP_LINEAR] = TRIANGULAR
_KINDS[DALIInterpType.INTERP_TRIANGULAR] = TRIANGULAR
_KINDS[DALIInterpType.INTERP_CUBIC] = CUBIC
_KINDS[DALIInterpType.INTERP_LANCZOS3] = LANCZOS3
_KINDS[DALIInterpType.INTERP_GAUSSIAN] = GAUSSIAN


# -- layouts ----------------------------------------------------------------------------------------------------------


def spatial_axes(layout: str, ndim: int) -> tuple[int, int]:
    """Return the index of the first spatial dimension and the number of spatial dimensions (2 or 3). Raises SpecError
    for layouts that cannot be resampled."""
    layout = image_layout(layout, ndim, LAYOUTS)
    if layout not in LAYOUTS:
        raise SpecError(f"cannot resample layout {layout!r} with {ndim} dimensions; it takes {', '.join(LAYOUTS)}")
    if len(layout) != ndim:
        raise SpecError(f"layout {layout!r} does not fit data with {ndim} dimensions")
    count = 3 if "D" in layout else 2
    return layout.index("D" if count == 3 else "H"), count


def output_spec(spec: Spec, dtype: DALIDataType | None, size: tuple[int | None, ...] | None) -> Spec:
    """Return the spec of the output of resampling a batch with ``spec``. ``size`` has the new spatial lengths, None if
    unknown. Raises SpecError."""
    if spec.dtype is not None and spec.dtype not in DTYPES:
        allowed = ", ".join(d.name for d in DTYPES)
        raise SpecError(f"cannot resample {spec.dtype.name}; it takes {allowed} (cast the input first)")
    if dtype is not None and spec.dtype is not None and dtype not in (spec.dtype, DALIDataType.FLOAT):
        raise SpecError(f"dtype must be that of the input ({spec.dtype.name}) or FLOAT, got {dtype.name}")
    shape: tuple[int | None, ...] | None = None
    if spec.shape is not None:
        first, count = spatial_axes(spec.layout, len(spec.shape))
        known = (None,) * count if size is None else size
        shape = (*spec.shape[:first], *known, *spec.shape[first + count :])
    return Spec(shape, dtype or spec.dtype, image_layout(spec.layout, spec.ndim, LAYOUTS))


# -- running ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finish:
    """Normalisation and placement of resampled pixels, after rounding to the input's type, uint8 or float32. For images
    only, [1, height, width, C].

    The value becomes (value - mean) * mul + add. Pixel k (row by row) and channel c of sample i are written to element
    offsets[i] + k * strides[i, 0] + c * strides[i, 1] of the output.
    """

    factors: F32
    """Mean, multiplier and summand of each channel, [1 or N, 1 or C, 3]."""
    strides: I64
    """Distance in elements of the output from one pixel to the next, and from one channel to the next, [N, 2]."""


def resample(
    ctx: Context, plan: ResamplePlan, batch: Batch, dtype: DALIDataType | None = None,
    recompute: Callable[[Context], ResamplePlan] | None = None,
) -> Batch:  # fmt: skip
    """Return ``batch`` resampled by ``plan``, in the dtype of the input or in float32, on the CPU or the GPU by the
    stage of ``ctx``. ``recompute`` returns the plan for replays of recorded launches
    (`gpu.launch_recording.changing`).

    Samples whose output would be too large are rejected.
    """
    first, count = spatial_axes(batch.layout, batch.ndim)
    out_dtype = batch.dtype if dtype is None else to_numpy(dtype)
    output_spec(Spec(dtype=from_numpy(batch.dtype)), from_numpy(out_dtype), None)
    shapes = batch.shapes.astype(np.int64)
    shapes[:, first : first + count] = plan.shape
    shapes = bounded(ctx, plan, shapes, batch.shapes, first)
    layout = image_layout(batch.layout, batch.ndim, LAYOUTS)
    out = Batch.allocate(ctx.empty, shapes.astype(np.int32), out_dtype, layout, batch.samples)
    made = np.ascontiguousarray(shapes[:, first : first + count])
    shown = plan.shown(plan.anchor, made, plan.flip)
    if recompute is None or ctx.stage == "cpu":
        run(ctx, shown, batch, first, out, None)
        return out
    make, same, before, dims = recompute, shapes.tobytes(), batch.shapes, plan.shape.shape

    def other(ctx: Context) -> ResamplePlan | None:
        found = make(ctx)
        after = before.astype(np.int64)
        if found.shape.shape != dims:
            return None
        after[:, first : first + count] = found.shape
        if bounded(ctx, found, after, before, first).tobytes() != same:
            return None
        return found.shown(found.anchor, made, found.flip)

    run(ctx, shown, batch, first, out, None, other)
    return out


def bounded(ctx: Context, plan: ResamplePlan, shapes: I64, before: npt.NDArray[Any], first: int) -> I64:
    """Reject the samples whose output, or whose values between the passes, would be too large. Return the output
    ``shapes``, with zeros for these samples. ``before``: shapes of the input; ``first``: its first spatial
    dimension."""
    needed = np.empty(len(shapes))
    made, given = np.ascontiguousarray(shapes, np.int64), np.ascontiguousarray(before, np.int64)
    if not _plans.elements(plan.across, made, given, first, plan.size.shape[1], MOST_ELEMENTS, needed):
        return shapes
    refused = needed > MOST_ELEMENTS
    for i in np.flatnonzero(refused).tolist():
        result = "x".join(map(str, shapes[i].tolist()))
        ctx.reject(i, "too_large", f"needs {needed[i]:.0f} values to become {result}, more than {MOST_ELEMENTS}; "
                   "limit it with max_size")  # fmt: skip
    return np.where(refused[:, None], 0, shapes)


Replan = Callable[[Context], "ResamplePlan | None"]
"""Function that returns the plan for replays of recorded launches, or None if the output then has another shape."""


def run(
    ctx: Context, plan: ResamplePlan, batch: Batch, first: int, out: Batch, finish: Finish | None,
    recompute: Replan | None = None,
) -> None:  # fmt: skip
    """Resample the spatial axes of ``batch``, which start at dimension ``first``, by ``plan``, and write the result to
    ``out``."""
    if len(batch) == 0 or out.data.size == 0:
        return
    if ctx.stage == "cpu":
        _run_cpu(plan, batch, first, out, finish)
    else:
        _run_gpu(ctx, plan, batch, first, out, finish, recompute)


def _around(shapes: npt.NDArray[Any], first: int, count: int) -> tuple[I64, I64]:
    """Return the number of elements of the dimensions before the spatial ones (frames) and after them (channels), [N]
    each."""
    if first == 0 and shapes.shape[1] == count + 1:  # images
        return np.ones(len(shapes), np.int64), shapes[:, count].astype(np.int64)
    return elements(shapes[:, :first]), elements(shapes[:, first + count :])


# -- on the CPU -------------------------------------------------------------------------------------------------------


_COMPILED = (np.dtype(np.uint8), np.dtype(np.float32))
"""Element types for which the CPU loops are compiled; other types are converted to float32."""


def _run_cpu(plan: ResamplePlan, batch: Batch, first: int, out: Batch, finish: Finish | None) -> None:
    if plan.domain is not None:
        preset(plan, batch, first, out, finish)
        return
    kernels = _copies
    count = plan.size.shape[1]
    frames, channels = _around(batch.shapes, first, count)
    extents = batch.shapes[:, first : first + count].astype(np.int64)
    source, offsets, target = batch.data, batch.offsets, out
    if count == 3 or batch.dtype not in _COMPILED:
        source = source.astype(np.float32, copy=False)
        if out.dtype != np.float32:
            target = Batch.allocate(np.empty, out.shapes, np.float32, out.layout, out.samples)
    if count == 3:  # first along the depth, by whole slices
        slices = extents[:, 1] * extents[:, 2] * channels
        sizes = frames * plan.shape[:, 0] * slices
        between = np.empty(int(sizes.sum()), np.float32)
        places = _places(sizes)
        kernels.slices(
            source,
            np.ascontiguousarray(offsets),
            frames,
            extents[:, 0].copy(),
            slices,
            *_axes(plan, 0),
            between,
            places,
        )
        source, offsets, frames = between, places, frames * plan.shape[:, 0]
    geometry = (frames, np.ascontiguousarray(extents[:, -2:]), channels, plan.across, *_axes(plan, slice(-2, None)))
    if finish is None:
        rounds = target.dtype == np.uint8
        kernels.images(source, np.ascontiguousarray(offsets), *geometry, rounds, target.data, target.offsets)
        if target is not out:
            out.data[...] = saturate(target.data, out.dtype)
    else:
        # Numba has no float16 on the CPU; strided_cpu takes uint16 for it
        data = out.data.view(np.uint16) if out.dtype == np.float16 else out.data
        rounds = batch.dtype == np.uint8
        kernels.finished_images(source, np.ascontiguousarray(offsets), *geometry, rounds, data, out.offsets,
                                finish.factors, finish.strides)  # fmt: skip


def preset(plan: ResamplePlan, batch: Batch, first: int, out: Batch, finish: Finish | None) -> None:
    """Resample ``batch`` into ``out`` on the CPU, with the results of a library other than DALI (a plan with
    ``domain``). ``first``: first spatial dimension."""
    kernels = _presets
    assert plan.arithmetic is not None
    assert plan.domain is not None
    frames, channels = _around(batch.shapes, first, 2)
    sizes = frames * channels * plan.shape.prod(axis=1)
    target, offsets = out.data, out.offsets
    if finish is not None:
        target, offsets = np.empty(int(sizes.sum()), batch.dtype), _places(sizes)
    extents = batch.shapes[:, first : first + 2].astype(np.int64)
    axes: tuple[npt.NDArray[Any], ...] = (plan.lo, plan.hi, plan.size, plan.anchor, plan.shape, plan.kind, plan.flip,
                                          plan.domain, plan.arithmetic)  # fmt: skip

    def run(kernel: Any, which: Any, source: Any, target: Any, to: I64) -> None:
        arrays = (batch.offsets, frames, extents, channels, *axes)
        kernel(source, *(np.ascontiguousarray(a[which]) for a in arrays), target, np.ascontiguousarray(to))

    everything = slice(None)
    if batch.dtype == np.uint8 and target.dtype == np.uint8:
        run(kernels.fixed_images, everything, batch.data, target, offsets)
        which = np.flatnonzero(plan.arithmetic >= kernels.FLOATS)
        if len(which):
            exact = np.empty(int(sizes[which].sum()), np.float32)
            places = _places(sizes[which])
            run(kernels.float_images, which, batch.data.astype(np.float32), exact, places)
            up = np.repeat(plan.arithmetic[which] > kernels.FLOATS, sizes[which])
            exact = np.clip(np.where(up, np.floor(exact + np.float32(0.5)), np.rint(exact)), 0, 255)
            for i, at in zip(which.tolist(), places.tolist(), strict=True):
                target[offsets[i] : offsets[i] + sizes[i]] = exact[at : at + sizes[i]]
    else:
        run(kernels.float_images, everything, batch.data.astype(np.float32, copy=False), target, offsets)
    if finish is not None:
        data = out.data.view(np.uint16) if out.dtype == np.float16 else out.data
        _copies.finished(
            target, offsets, plan.shape.prod(axis=1), channels, data, out.offsets, finish.factors, finish.strides
        )


def preset_on_gpu(lane: Lane, plan: ResamplePlan, batch: Batch, first: int, out: Batch) -> None:
    """Resample like `preset`, on a GPU, for 8-bit images as Pillow and torchvision resize them. The CPU's loops compute
    the weights on the host."""
    if len(batch) == 0 or out.data.size == 0:
        return
    passes, (start_of, weight_of) = _fixed_passes(lane, plan, batch, first, out)
    there = lane.upload(*passes)
    between = lane.empty(int(passes[0][:, 2].sum()), np.uint8)
    memory = (batch.data, between), (between, out.data)
    for rows, columns, (source, target) in zip(passes, there, memory, strict=True):
        grid = (-(-int(rows[:, 2].max()) // (4 * _BLOCK)), len(batch))
        lane.launch("resample.cu", "fixed_pass", grid, _BLOCK, source, target, columns, start_of, weight_of)


def _fixed_passes(
    lane: Lane, plan: ResamplePlan, batch: Batch, first: int, out: Batch
) -> tuple[list[I64], tuple[Any, Any]]:
    """Return the tables of the two passes, [N, 12] with the columns of `_Pass.rows`. The last column is the number of
    weights per pixel, plus 2^32 times the number of bits of a weight. Also return the first source pixels and the
    weights of all axes, in device memory."""
    from .known_taps import known_taps

    assert plan.domain is not None
    assert plan.arithmetic is not None
    frames, channels = _around(batch.shapes, first, 2)
    extents = batch.shapes[:, first : first + 2].astype(np.int64)
    arrays = (plan.lo, plan.hi, plan.size, plan.anchor, plan.shape, plan.kind, plan.flip, plan.domain, plan.arithmetic)
    axes = tuple(np.ascontiguousarray(a) for a in arrays)
    known = known_taps(lane, axes)
    if known is None:
        starts, weights, table = _presets.whole_axes(*axes)
        taps, begins = lane.upload(starts, weights), np.zeros((len(batch), 2), np.int64)
    else:
        table, taps = known[0], unchanging(lane, *known[1])
        begins = plan.domain[:, :, 0]
    place, weight, kept, bits, begin, length = np.moveaxis(table, 2, 0)
    (top, left), (rows, columns) = begin.T, length.T
    down = plan.arithmetic == _presets.DOWN_FIRST
    high, wide = plan.shape[:, 0], plan.shape[:, 1]
    one, none, stride = np.ones_like(high), np.zeros_like(high), extents[:, 1] * channels
    between = _places(np.where(down, high * columns, rows * wide) * frames * channels)

    def made(axis: int, source: I64, tap_stride: I64, **columns_of: I64) -> I64:
        found = _Pass(source=source + begins[:, axis] * tap_stride, tap_stride=tap_stride, **columns_of)
        return found.rows(place[:, axis], weight[:, axis], kept[:, axis] | bits[:, axis] << 32)

    total = frames * high * wide * channels
    across_first = made(
        1, source=batch.offsets + top * stride, target=between, total=frames * rows * wide * channels, inner=channels,
        outputs=wide, lines=rows, frame_stride=extents[:, 0] * stride, line_stride=stride, tap_stride=channels,
    )  # fmt: skip
    down_second = made(
        0, source=between - top * wide * channels, target=out.offsets, total=total, inner=wide * channels, outputs=high,
        lines=one, frame_stride=rows * wide * channels, line_stride=none, tap_stride=wide * channels,
    )  # fmt: skip
    down_first = made(
        0, source=batch.offsets + left * channels, target=between, total=frames * high * columns * channels,
        inner=columns * channels, outputs=high, lines=one, frame_stride=extents[:, 0] * stride, line_stride=none,
        tap_stride=stride,
    )  # fmt: skip
    across_second = made(
        1, source=between - left * channels, target=out.offsets, total=total, inner=channels, outputs=wide, lines=high,
        frame_stride=high * columns * channels, line_stride=columns * channels, tap_stride=channels,
    )  # fmt: skip
    which = down[:, None]
    passes = [np.where(which, down_first, across_first), np.where(which, across_second, down_second)]
    return passes, (taps[0], taps[1])


def _axes(plan: ResamplePlan, which: int | slice) -> tuple[npt.NDArray[Any], ...]:
    """Return the arrays of ``plan`` for the axes with index ``which``, in the order of parameters of the CPU loops."""
    arrays = (plan.lo, plan.hi, plan.size, plan.anchor, plan.shape, plan.kind, plan.support, plan.flip)
    if plan.size.shape[1] == 2:
        return arrays
    return tuple(np.ascontiguousarray(a[:, which]) for a in arrays)


# -- on the GPU -------------------------------------------------------------------------------------------------------

_CUDA = {"uint8": "unsigned char", "int8": "signed char", "int16": "short", "uint16": "unsigned short",
         "float16": "half", "float32": "float"}  # fmt: skip
_BLOCK = 256


def _run_gpu(
    ctx: Context,
    plan: ResamplePlan,
    batch: Batch,
    first: int,
    out: Batch,
    finish: Finish | None,
    recompute: Replan | None,
) -> None:
    """Launch one kernel that computes the filter weights of all axes, then one per pass; two passes for images, three
    for volumes."""
    count = plan.size.shape[1]
    if count == 2:
        _planes_on_gpu(ctx, plan, batch, first, out, finish, recompute)
        return
    frames, channels = _around(batch.shapes, first, count)
    extents = batch.shapes[:, first : first + count].astype(np.int64)
    kept = np.where(plan.kind == NEAREST, 1, np.minimum(extents, np.maximum(1, np.ceil(plan.support).astype(np.int64))))
    starts, weights = _places(plan.shape), _places(plan.shape * kept)
    axes = np.stack([extents, plan.size, plan.anchor, plan.shape, plan.kind.astype(np.int64),
                     plan.flip.astype(np.int64), kept, starts, weights], axis=2)  # fmt: skip
    regions = np.stack([plan.lo, plan.hi, plan.support], axis=2)
    passes: list[_Pass] = []
    offsets = batch.offsets
    if count == 3:
        passes.append(_depth_pass(plan, offsets, frames, extents, channels))
        offsets, frames = passes[0].target, frames * plan.shape[:, 0]
    passes += _plane_passes(plan, offsets, frames, extents, channels, kept, out.offsets)
    columns = plan.across
    axis_of = [np.full(len(columns), 0)] * (count - 2)
    axis_of += [np.where(columns, count - 1, count - 2), np.where(columns, count - 2, count - 1)]
    each = np.arange(len(columns))
    tables = np.stack([TABLE_START, TABLE_SIZE], axis=1)
    uploads = [axes, regions, tables, TABLE]
    for p, axis in zip(passes, axis_of, strict=True):
        uploads.append(p.rows(starts[each, axis], weights[each, axis], kept[each, axis]))
    if finish is not None:
        uploads += [np.concatenate([channels[:, None], finish.strides], axis=1), finish.factors]
    arrays = ctx.device.upload(*uploads)
    start_of, weight_of = (
        ctx.empty(int(plan.shape.sum()), np.int32),
        ctx.empty(int((plan.shape * kept).sum()), np.float32),
    )
    grid = (-(-int(plan.shape.max()) // _BLOCK), axes.shape[0] * count)
    ctx.device.launch("resample.cu", "taps", grid, _BLOCK, *arrays[:4], np.int32(count), start_of, weight_of)
    source = batch.data
    for number, (p, rows) in enumerate(zip(passes, arrays[4:], strict=False)):
        last = number == len(passes) - 1
        grid = (-(-int(p.total.max()) // (4 * _BLOCK)), len(batch))
        if last and finish is not None:
            kernel = f"normalize_pass<{_cuda(source)}, {_CUDA[batch.dtype.name]}, {_cuda(out.data)}>"
            ctx.device.launch("resample.cu", kernel, grid, _BLOCK, source, out.data, rows, start_of, weight_of,
                              *arrays[-2:], np.int32(finish.factors.shape[1]),
                              np.int32(finish.factors.shape[0] > 1))  # fmt: skip
        else:
            target = out.data if last else ctx.empty(int(p.total.sum()), np.float32)
            kernel = f"resample_pass<{_cuda(source)}, {_cuda(target)}>"
            ctx.device.launch("resample.cu", kernel, grid, _BLOCK, source, target, rows, start_of, weight_of)
            source = target


def _planes_on_gpu(
    ctx: Context,
    plan: ResamplePlan,
    batch: Batch,
    first: int,
    out: Batch,
    finish: Finish | None,
    recompute: Replan | None,
) -> None:
    """Launch the kernels of both passes for images (two spatial axes); see `_run_gpu`."""
    n = len(batch)
    if _of_pixels(batch, first, out, finish) and _pixels_on_gpu(ctx, plan, batch, first, out, finish, recompute):
        return
    tables = partial(_plane_tables, without_data(batch), first, out.offsets)
    arrays, (widest, starts, weights, between, most, most_last) = tables(plan)
    lane, source = ctx.device, batch.data
    weights_room, room_between = with_margin(lane, weights), with_margin(lane, between)

    def other(ctx: Context) -> Sequence[npt.NDArray[Any]] | None:
        assert recompute is not None
        plan = recompute(ctx)
        if plan is None:
            return None
        found, (_, _, weights, between, _, _) = tables(plan)  # any grid size works
        return found if weights <= weights_room and between <= room_between else None

    axes, regions, one, two = changing(lane, None if recompute is None else other, *arrays)
    for_taps = axes, regions, *fixed(lane, _TABLES, TABLE)
    factors: tuple[Any, ...] = ()
    if finish is not None:
        _, channels = _around(batch.shapes, first, 2)
        factors = _factors(lane, np.concatenate([channels[:, None], finish.strides], axis=1), finish)
    start_of, weight_of = ctx.empty(starts, np.int32), ctx.empty(weights_room, np.float32)
    lane.launch(
        "resample.cu", "taps", (-(-widest // _BLOCK), 2 * n), _BLOCK, *for_taps, np.int32(2), start_of, weight_of
    )
    middle = ctx.empty(room_between, np.float32)
    lane.launch("resample.cu", f"resample_pass<{_cuda(source)}, float>", (-(-most // (4 * _BLOCK)), n), _BLOCK, source,
                middle, one, start_of, weight_of)  # fmt: skip
    grid = (-(-most_last // (4 * _BLOCK)), n)
    if finish is None:
        lane.launch("resample.cu", f"resample_pass<float, {_cuda(out.data)}>", grid, _BLOCK, middle, out.data, two,
                    start_of, weight_of)  # fmt: skip
        return
    lane.launch("resample.cu", f"normalize_pass<float, {_CUDA[batch.dtype.name]}, {_cuda(out.data)}>", grid, _BLOCK,
                middle, out.data, two, start_of, weight_of, *factors)  # fmt: skip


def _of_pixels(batch: Batch, first: int, out: Batch, finish: Finish | None) -> bool:
    """Return whether the kernel for three-byte pixels supports ``batch``: images of three uint8 channels, whose output
    is uint8 or float32, or has a ``finish``."""
    last = batch.shapes[:, first + 2 :]
    kinds = batch.dtype == np.uint8 and (finish is not None or out.dtype in (np.uint8, np.float32))
    return kinds and last.shape[1] == 1 and bool((last == 3).all())


def _pixels_on_gpu(
    ctx: Context,
    plan: ResamplePlan,
    batch: Batch,
    first: int,
    out: Batch,
    finish: Finish | None,
    recompute: Replan | None,
) -> bool:
    """Launch both passes in one kernel, for images of three bytes per pixel; see `_planes_on_gpu`. Return False, with
    nothing launched, if filters reach too far for a block's shared memory."""
    n, like, offsets = len(batch), without_data(batch), out.offsets

    def tables(plan: ResamplePlan) -> tuple[tuple[npt.NDArray[Any], ...], tuple[int, ...]]:
        axes, regions = np.empty((n, 2, 9), np.int64), np.empty((n, 2, 3), np.float32)
        table = np.empty((n, 16), np.int64)
        arrays = (plan.lo, plan.hi, plan.size, plan.kind, plan.support, plan.anchor, plan.shape, plan.flip, plan.across)
        numbers = _passes.tiles(
            *map(np.ascontiguousarray, arrays), like.shapes, first, like.offsets, offsets, axes, regions, table
        )
        return (axes, regions, table), numbers

    arrays, (widest, starts, weights, most) = tables(plan)
    if most == 0:
        return False
    lane = ctx.device
    weights_room = with_margin(lane, weights)

    def other(ctx: Context) -> Sequence[npt.NDArray[Any]] | None:
        assert recompute is not None
        plan = recompute(ctx)
        if plan is None:
            return None
        found, (_, _, weights, most) = tables(plan)  # any grid size works
        return found if most and weights <= weights_room else None

    axes, regions, table = changing(lane, None if recompute is None else other, *arrays)
    start_of, weight_of = ctx.empty(starts, np.int32), ctx.empty(weights_room, np.float32)
    lane.launch(
        "resample.cu", "taps", (-(-widest // _BLOCK), 2 * n), _BLOCK, axes, regions, *fixed(lane, _TABLES, TABLE),
        np.int32(2), start_of, weight_of,
    )  # fmt: skip
    kernel, factors = "resample_pixels", ()
    if finish is not None:
        places = np.concatenate([np.full((n, 1), 3), finish.strides], axis=1)
        kernel, factors = "normalize_pixels", _factors(lane, places, finish)
    lane.launch("resample_pixels.cu", f"{kernel}<{_cuda(out.data)}>", (most, n), _BLOCK, batch.data, out.data, table,
                start_of, weight_of, *factors)  # fmt: skip
    return True


def _factors(lane: Lane, places: I64, finish: Finish) -> tuple[Any, ...]:
    """Return the arguments that describe ``finish`` to a GPU kernel. ``places`` [N, 3] are the number of channels and
    two strides."""
    there = lane.upload(places, finish.factors)
    return (*there, np.int32(finish.factors.shape[1]), np.int32(finish.factors.shape[0] > 1))


def _plane_tables(
    batch: Batch, first: int, offsets: I64, plan: ResamplePlan
) -> tuple[tuple[npt.NDArray[Any], ...], tuple[int, ...]]:
    """Return the tables that resample.cu reads, one each for axes, regions and passes, and the numbers that
    `passes_cpu.planes` returns. Outputs begin at ``offsets``."""
    n = len(batch)
    axes, regions = np.empty((n, 2, 9), np.int64), np.empty((n, 2, 3), np.float32)
    rows = np.empty((2, n, 12), np.int64)
    arrays = (plan.lo, plan.hi, plan.size, plan.kind, plan.support, plan.anchor, plan.shape, plan.flip, plan.across)
    numbers = _passes.planes(
        *map(np.ascontiguousarray, arrays), batch.shapes, first, batch.offsets, offsets, axes, regions, rows
    )
    return (axes, regions, rows[0], rows[1]), numbers


_TABLES = np.stack([TABLE_START, TABLE_SIZE], axis=1)


def _cuda(array: Any) -> str:
    return _CUDA[array.dtype.name]


def _places(sizes: I64) -> I64:
    """Return the offsets of blocks of ``sizes`` elements that follow each other."""
    ends: I64 = np.cumsum(sizes.reshape(-1)).reshape(sizes.shape)
    return ends - sizes


@dataclass(frozen=True, slots=True)
class _Pass:
    """Parameters of one resampling pass over N samples for ``cuda/resample.cu``. Each field has one number per sample,
    counted in elements."""

    source: I64
    target: I64
    total: I64
    inner: I64
    outputs: I64
    lines: I64
    """Number of rows of a frame that are resampled separately; 1 if the pass treats a whole frame as one row."""
    frame_stride: I64
    line_stride: I64
    tap_stride: I64

    def rows(self, starts: I64, weights: I64, kept: I64) -> I64:
        """Return the parameters of the pass as a table for the kernel, int64[N, 12], with columns in the order of its
        enum PassColumn."""
        columns = (self.source, self.target, self.total, np.maximum(self.inner, 1), np.maximum(self.outputs, 1),
                   np.maximum(self.lines, 1), self.frame_stride, self.line_stride, self.tap_stride, starts, weights,
                   kept)  # fmt: skip
        found = np.empty((len(self.source), len(columns)), np.int64)
        for k, column in enumerate(columns):
            found[:, k] = column
        return found


def _depth_pass(plan: ResamplePlan, offsets: I64, frames: I64, extents: I64, channels: I64) -> _Pass:
    inner = extents[:, 1] * extents[:, 2] * channels
    total = frames * plan.shape[:, 0] * inner
    one, none = np.ones_like(inner), np.zeros_like(inner)
    return _Pass(offsets, _places(total), total, inner, plan.shape[:, 0], one, extents[:, 0] * inner, none, inner)


def _plane_passes(
    plan: ResamplePlan, offsets: I64, frames: I64, extents: I64, channels: I64, kept: I64, out: I64
) -> tuple[_Pass, _Pass]:
    """Return the parameters of the two passes over images; the first pass computes only the rows or columns that the
    second reads."""
    begin, length = _reach(plan, extents, kept)
    (top, left), (rows, columns) = begin[:, -2:].T, length[:, -2:].T
    height, width = extents[:, -2:].T
    oh, ow = plan.shape[:, -2:].T
    one, none = np.ones_like(oh), np.zeros_like(oh)
    stride = width * channels
    across = plan.across

    def pick(columns_first: I64, rows_first: I64) -> I64:
        return np.where(across, columns_first, rows_first)

    total = frames * channels * pick(rows * ow, oh * columns)
    between = _places(total)
    first = _Pass(
        source=offsets + pick(top * stride, left * channels), target=between, total=total,
        inner=pick(channels, columns * channels), outputs=pick(ow, oh), lines=pick(rows, one),
        frame_stride=height * stride, line_stride=pick(stride, none), tap_stride=pick(channels, stride),
    )  # fmt: skip
    second = _Pass(
        source=between - pick(top * ow * channels, left * channels), target=out, total=frames * oh * ow * channels,
        inner=pick(ow * channels, channels), outputs=pick(oh, ow), lines=pick(one, oh),
        frame_stride=channels * pick(rows * ow, oh * columns), line_stride=pick(none, columns * channels),
        tap_stride=pick(ow * channels, channels),
    )  # fmt: skip
    return first, second


def _reach(plan: ResamplePlan, extents: I64, kept: I64) -> tuple[I64, I64]:
    """Return begin and length [N, A] of the range of source pixels that a plan's filters may read, with a margin of a
    few pixels."""
    scale = (plan.hi.astype(np.float64) - plan.lo) / np.maximum(plan.size, 1)
    ends = np.stack([plan.lo + plan.anchor * scale, plan.lo + (plan.anchor + plan.shape) * scale])
    margin = np.ceil(plan.support / 2.0) + 2
    begin = np.floor(ends.min(axis=0) - margin).astype(np.int64)
    end = np.ceil(ends.max(axis=0) + margin).astype(np.int64)
    begin = np.clip(begin, 0, extents - kept)
    end = np.clip(end, begin + kept, extents)
    return begin, end - begin
