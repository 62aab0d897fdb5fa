"""Strided copies: the plan into which crop, flip, transpose, pad, cast, normalise, cat, ... are translated, and its
execution.

Operators start from `whole` and change the plan with `window`, `mirror`, `permute`, `insert`, `convert`; `run` then
moves all samples of the batch in one kernel, on the CPU (``strided_cpu.py``) or the GPU (``cuda/strided.cu``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..context import Context
from ..conversion import saturate
from ..gpu.launch_recording import FIXED, changing, without_data
from ..kernels import Kernels
from . import pixels, rows

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class Border(IntEnum):
    """Rule for the values of output elements that lie outside the source. Numbers are those of the kernels."""

    FILL = 0
    EDGE = 1
    REFLECT_1001 = 2
    REFLECT_101 = 3
    WRAP = 4


@dataclass(frozen=True, slots=True)
class Affine:
    """Conversion of values, ``(value - mean) * mul + add`` in float32, with separate factors per channel."""

    factors: F32
    """Mean, mul and add of K channels, float32[N or 1, K, 3]."""

    @staticmethod
    def of(mean: F32, mul: F32, add: F32) -> Affine:
        """Return the conversion with the factors ``mean``, ``mul`` and ``add``, [N or 1, K or 1] each."""
        shape = np.broadcast_shapes(mean.shape, mul.shape, add.shape)
        return Affine(np.stack([np.broadcast_to(a, shape) for a in (mean, mul, add)], axis=2))

    @property
    def width(self) -> int:
        """Number K of channels for which there are factors."""
        return int(self.factors.shape[1])


@dataclass(slots=True)
class CopyPlan:
    """Description of a copy of N samples with D dimensions, such as a crop or a transposition: the source of every
    output element, and the conversion of its value.

    Along each dimension, output element ``i`` is read from source index ``anchor + i``. The source has ``extent``
    indices, ``stride`` elements apart; index 0 of all dimensions is element ``base`` of the batch's data. Indices
    outside the extent get values by the rule ``border``. Plans are never modified. (They are not a frozen dataclass
    because creating one would take three times as long, and a batch of one image needs dozens.)"""

    shape: I64
    """Shape of each output sample, int64[N, D]."""
    base: I64
    """For each sample, the element of the batch's data at source index 0 of all dimensions, int64[N]."""
    stride: I64
    """Distance in elements between neighbours along each source dimension, int64[N, D]; negative if mirrored, 0 if
    repeated."""
    anchor: I64
    """Source index of the first output element along each dimension, int64[N, D]."""
    extent: I64
    """Number of source indices along each dimension, int64[N, D]."""
    layout: str
    dtype: np.dtype[Any]
    """Data type of the output."""
    border: Border = Border.FILL
    fill: F64 | None = None
    """Values of elements outside the source, float64[N or 1, K or 1], in the output's type; zeros if None."""
    channel: int = -1
    """Index of the dimension of K channels along which ``fill`` and ``affine`` vary; -1 if they do not vary."""
    affine: Affine | None = None
    turned: bool = False
    """Whether some samples may be mirrored. Which ones may change from batch to batch when recorded kernel launches are
    replayed."""

    def __len__(self) -> int:
        return len(self.base)

    @property
    def ndim(self) -> int:
        return int(self.shape.shape[1])


_kernels: Any = Kernels(".strided_plan_cpu", __package__)
_copies: Any = Kernels(".strided_cpu", __package__)


def row_major(shape: I64) -> I64:
    """Return the strides, in elements, of samples of ``shape`` [N, D] that are stored without gaps."""
    stride = np.empty(shape.shape, np.int64)
    _kernels.row_major(shape, stride)
    return stride


# -- construction of plans -------------------------------------------------------------------------------------------


def whole(batch: Batch) -> CopyPlan:
    """Return a plan that copies every sample of ``batch`` completely and unchanged."""
    shape, stride, anchor = (np.empty(batch.shapes.shape, np.int64) for _ in range(3))
    _kernels.whole(batch.shapes, shape, stride, anchor)
    return CopyPlan(shape, batch.offsets, stride, anchor, shape, batch.layout, batch.dtype)


def window(plan: CopyPlan, anchor: I64, shape: I64) -> CopyPlan:
    """Return a plan for a part of the output of ``plan``: ``shape`` [N, D] elements from ``anchor`` [N, D] on. The part
    may extend beyond the source."""
    return replace(plan, anchor=plan.anchor + anchor, shape=shape)


def mirror(plan: CopyPlan, axis: int, mask: npt.NDArray[np.bool_]) -> CopyPlan:
    """Return ``plan`` with the samples selected by ``mask`` [N] mirrored along ``axis``."""
    base, stride, anchor = plan.base.copy(), plan.stride.copy(), plan.anchor.copy()
    _kernels.mirror(axis, np.ascontiguousarray(mask), plan.shape, plan.extent, base, stride, anchor)
    return replace(plan, base=base, stride=stride, anchor=anchor, turned=True)


def permute(plan: CopyPlan, order: Sequence[int], layout: str) -> CopyPlan:
    """Return ``plan`` with its dimensions reordered: output dimension ``i`` is dimension ``order[i]`` of ``plan``."""
    at = list(order)
    channel = at.index(plan.channel) if plan.channel >= 0 else -1
    return replace(plan, shape=plan.shape[:, at], stride=plan.stride[:, at], anchor=plan.anchor[:, at],
                   extent=plan.extent[:, at], layout=layout, channel=channel)  # fmt: skip


def convert(plan: CopyPlan, dtype: Any, affine: Affine | None = None, channel: int = -1) -> CopyPlan:
    """Return ``plan`` with values converted to ``dtype``, after the conversion ``affine``, whose factors vary along
    dimension ``channel``."""
    return replace(plan, dtype=np.dtype(dtype), affine=affine, channel=channel if channel >= 0 else plan.channel)


def filled(shape: I64, dtype: Any, layout: str, fill: npt.ArrayLike = 0.0, channel: int = -1) -> CopyPlan:
    """Return a plan for samples of ``shape`` [N, D] that have no source: all elements are ``fill``, as in `pad`."""
    nothing = np.zeros_like(shape)
    base = np.zeros(len(shape), np.int64)
    return pad(CopyPlan(shape, base, nothing, nothing, nothing, layout, np.dtype(dtype)), Border.FILL, fill, channel)


def pad(plan: CopyPlan, border: Border, fill: npt.ArrayLike = 0.0, channel: int = -1) -> CopyPlan:
    """Return ``plan`` with the rule ``border`` for elements outside the source. ``fill`` is one value, K values along
    ``channel``, or [N, K or 1] values."""
    values = np.asarray(fill, np.float64)
    values = values.reshape(1, -1) if values.ndim < 2 else values
    return replace(plan, border=border, fill=values, channel=channel if values.shape[1] > 1 else plan.channel)


# -- execution of plans ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of a copy: where in a batch the outputs of a plan are written, such as a part of each sample."""

    batch: Batch
    base: I64
    """For each sample, the element of the batch's data at which writing begins, [N]."""
    stride: I64
    """Distance in elements between neighbours in the destination, along each dimension of the plan, [N, D]."""


def run(ctx: Context, plan: CopyPlan, batch: Batch, recompute: Callable[[Context], CopyPlan] | None = None) -> Batch:
    """Make a new batch from ``batch`` by the copy ``plan``, on the CPU or GPU (the stage of ``ctx``). ``recompute``
    returns the plan for a later batch of the same shapes (see `gpu.launch_recording.changing`). A sample becomes empty
    if it has more channels than ``fill`` or ``affine`` has values for; operators reject such samples. Samples of more
    than MAX_ELEMENTS elements are rejected here."""
    shape = affordable(ctx, _fitting(plan))
    if shape is not plan.shape:
        plan = replace(plan, shape=shape)
    if ctx.stage == "cpu" and plan.affine is not None and plan.dtype not in _FUSED_OUT:
        exact = run(ctx, replace(plan, dtype=np.dtype(np.float32)), batch)
        return exact.replace(data=saturate(exact.data, plan.dtype))
    shapes, offsets = np.empty(shape.shape, np.int32), np.empty(len(shape), np.int64)
    data = ctx.empty(_kernels.packed(shape, shapes, offsets), plan.dtype)
    out = Batch(data, offsets, shapes, plan.layout, batch.samples)
    target = Target(out, offsets, row_major(shape))
    if recompute is None or recompute is FIXED or ctx.stage == "cpu":
        constant: Any = FIXED if recompute is FIXED else None
        run_into(ctx, plan, batch, target, constant)
        return out
    same, like, make = shape.tobytes(), replace(target, batch=without_data(out)), recompute

    def other(ctx: Context) -> tuple[CopyPlan, Target] | None:
        found = make(ctx)
        return (found, like) if found.shape.tobytes() == same else None

    run_into(ctx, plan, batch, target, other)
    return out


MAX_ELEMENTS = 2**31 - 1
"""Maximum number of elements of an output sample. It keeps a wrong argument from exhausting memory."""


def affordable(ctx: Context, shape: I64) -> I64:
    """Reject samples that are too large: over MAX_ELEMENTS elements, or empty but longer than that in one dimension.
    Return ``shape`` [N, D] with zeros for these samples."""
    if not _kernels.larger(shape, MAX_ELEMENTS):
        return shape
    huge = (np.multiply.reduce(shape, axis=1, dtype=np.float64) > MAX_ELEMENTS) | (shape > MAX_ELEMENTS).any(axis=1)
    for i in np.flatnonzero(huge).tolist():
        ctx.reject(i, "too_large", f"the output {shape[i].tolist()} has more than {MAX_ELEMENTS} elements")
    return np.where(huge[:, None], 0, shape)


def _fitting(plan: CopyPlan) -> I64:
    """Return the output shapes of ``plan``, with zeros for samples with more channels than ``fill`` or ``affine`` has
    values for."""
    c = plan.channel
    if c < 0:
        return plan.shape
    beyond = np.zeros(len(plan), np.bool_)
    if plan.fill is not None and plan.fill.shape[1] > 1:
        beyond |= plan.shape[:, c] > plan.fill.shape[1]
    if plan.affine is not None and plan.affine.width > 1:
        inside = np.minimum(plan.shape[:, c], plan.extent[:, c] - plan.anchor[:, c])
        beyond |= inside > plan.affine.width
    return np.where(beyond[:, None], 0, plan.shape) if beyond.any() else plan.shape


Replan = Callable[[Context], "tuple[CopyPlan, Target] | None"]
"""Function that returns copy plan and destination for a later batch of the same shapes, or None if that batch needs
other kernel launches."""


def run_into(ctx: Context, plan: CopyPlan, batch: Batch, target: Target, recompute: Replan | None = None) -> None:
    """Write the result of the copy ``plan`` of ``batch`` to ``target``, which is part of a batch of the plan's
    dtype."""
    shape = _fitting(plan)  # values that do not exist must not be read, not even for a rejected sample
    if shape is not plan.shape:
        plan = replace(plan, shape=shape)
    if len(plan) == 0 or target.batch.data.size == 0:
        return
    if ctx.stage == "cpu":
        _run_cpu(plan, batch, target)
    else:
        _run_gpu(ctx, plan, batch, target, recompute)


@dataclass(frozen=True, slots=True)
class Loops:
    """A copy plan as nested loops, in the form that compiled loops and kernels take. Dimensions are joined to one loop
    if all samples are contiguous along them in source and output."""

    dims: I64
    """Columns SHAPE, STRIDE, ANCHOR, EXTENT and OUT_STRIDE of each loop, [N, D, 5]."""
    channel: int
    """Index of the loop along which fill values and affine factors vary; -1 if they are constant."""


SHAPE, STRIDE, ANCHOR, EXTENT, OUT_STRIDE = range(5)


def loops(plan: CopyPlan, target: Target, keep_channel: bool = True) -> Loops:
    """Return ``plan`` as nested loops that write to ``target``. With ``keep_channel``, channels are not joined with
    other dimensions."""
    n, ndim = plan.shape.shape
    table = np.empty(n * (ndim + 1) * 5, np.int64)
    count, channel = _kernels.loops(*_arrays(plan, target, keep_channel), table)
    return Loops(table[: n * count * 5].reshape(n, count, 5), channel)


def _arrays(plan: CopyPlan, target: Target, keep_channel: bool = True) -> tuple[Any, ...]:
    fills = plan.border == Border.FILL
    channel = plan.channel if keep_channel else -1
    return plan.shape, plan.stride, plan.anchor, plan.extent, target.stride, channel, fills


def _lines(plan: CopyPlan, source: np.dtype[Any], target: Target) -> rows.Lines | None:
    """Return ``plan`` as lines (runs of adjacent bytes) for the kernel of `rows`. Return None if that kernel does not
    support the plan or is slower."""
    if plan.affine is not None or not rows.supports(source, plan.dtype):
        return None
    if plan.ndim and not plan.extent.any():  # for `filled`: a source in which the first dimension is empty
        extent = plan.shape.copy()
        extent[:, 0] = 0
        plan = replace(plan, stride=row_major(plan.shape), extent=extent)
    fill, c = _fill(plan), plan.channel
    along = fill.shape[1] > 1 and c == plan.ndim - 1
    if along and not _kernels.channels_whole(plan.shape, plan.anchor, plan.extent, c, fill.shape[1]):
        return None
    loop = loops(plan, target, keep_channel=fill.shape[1] > 1 and not along)
    most, longest, inside = _kernels.lines(loop.dims)
    if most < 0 or (most and not rows.fits(longest, plan.dtype.itemsize)) or not (inside or plan.border == Border.FILL):
        return None
    fills, period = rows.pattern(fill, along)
    return rows.Lines(loop.dims, plan.base, target.base, fills, period, loop.channel, most, longest)


_FUSED_IN = (np.dtype(np.uint8), np.dtype(np.float32))
_FUSED_OUT = tuple(np.dtype(t) for t in (np.float32, np.float16, np.uint8, np.int8))
_IDENTITY = Affine(np.array([[[0, 1, 0]]], np.float32))


def _fill(plan: CopyPlan) -> npt.NDArray[Any]:
    if plan.fill is None:
        return np.zeros((1, 1), plan.dtype)
    if len(plan.fill) == 1:
        return _one_fill(plan.fill.tobytes(), plan.dtype)
    return np.ascontiguousarray(saturate(plan.fill, plan.dtype))


@lru_cache(256)
def _one_fill(values: bytes, dtype: Any) -> npt.NDArray[Any]:
    """Return the fill values that `_fill` computes from ``values``, bytes of float64 that are equal for all samples.
    The result is cached: do not modify it."""
    return np.ascontiguousarray(saturate(np.frombuffer(values).reshape(1, -1), dtype))


def _run_cpu(plan: CopyPlan, batch: Batch, target: Target) -> None:
    source, base, affine = batch.data, plan.base, plan.affine
    fused_in = source.dtype in _FUSED_IN
    if affine is None and source.dtype != plan.dtype and fused_in and plan.dtype in _FUSED_OUT:
        affine = _IDENTITY  # exact: float32 represents all values of these types
    wanted = source.dtype if affine is not None and fused_in else np.dtype(np.float32) if affine else plan.dtype
    if wanted != source.dtype:
        # Types without a kernel of their own are converted first, but only the data that these samples span.
        lo, hi = int(batch.offsets.min()), int((batch.offsets + batch.sizes).max())
        source, base = saturate(source[lo:hi], wanted), base - lo
    n, ndim = plan.shape.shape
    table = np.empty(n * (ndim + 2) * 5, np.int64)
    count = _kernels.tiles(*_arrays(plan, target), table)
    dims = table[: n * count * 5].reshape(n, count, 5)
    factors = None if affine is None else affine.factors
    _copies.move(source, target.batch.data, dims, base, target.base, int(plan.border), _fill(plan), factors)


def _copied(planned: tuple[CopyPlan, Target] | None) -> pixels.Copied | None:
    if planned is None:
        return None
    plan, target = planned
    factors = None if plan.affine is None else plan.affine.factors
    dims = plan.shape, plan.stride, plan.anchor, plan.extent
    # two rows, which means: no fill value
    fill = _fill(plan) if plan.border == Border.FILL else np.zeros((2, 1), plan.dtype)
    return dims, plan.base, target.base, target.stride, factors, fill


def _widened(plan: CopyPlan, target: Target) -> bool:
    """Return whether the copy only converts adjacent values to adjacent float32 values. The general kernel is then
    faster than the kernel of `pixels`, because its neighbouring threads write adjacent values."""
    if plan.dtype != np.float32 or plan.affine is not None or plan.turned:
        return False
    return bool((plan.stride[:, -1] == 1).all() and (target.stride[:, -1] == 1).all())


def _run_gpu(ctx: Context, plan: CopyPlan, batch: Batch, target: Target, recompute: Replan | None) -> None:
    varies = plan.turned and recompute is not None and recompute is not FIXED  # later batches may be of another kind
    lines = None if varies else _lines(plan, batch.dtype, target)
    if lines is not None:
        dtype = batch.dtype

        def others(ctx: Context) -> rows.Lines | None:
            assert recompute is not None
            found = recompute(ctx)
            return None if found is None else _lines(found[0], dtype, found[1])

        rows.launch(
            ctx, batch.data, target.batch.data, lines, recompute if recompute is None or recompute is FIXED else others
        )
        return
    copied = _copied((plan, target))
    assert copied is not None
    remade = recompute if recompute is None or recompute is FIXED else lambda c: _copied(recompute(c))
    if not _widened(plan, target) and pixels.launch(ctx, batch.data, target.batch.data, copied, plan.channel, remade):
        return
    folded = loops(plan, target)
    n, ndim = folded.dims.shape[:2]
    source, out, fill, affine = batch.data, target.batch.data, _fill(plan), plan.affine
    if source.dtype == out.dtype and affine is None:  # bits are moved: one kernel for all types of a size
        bits = np.dtype(f"u{out.dtype.itemsize}")
        source, out, fill = source.view(bits), out.view(bits), fill.view(bits)
    most, packed = _extent(folded)
    own = (affine or _IDENTITY).factors
    in_word = 16 // out.dtype.itemsize  # number of elements; the first word may begin before the sample
    of_tile = _THREADS * _RUNS * in_word
    tiles = -(-(most + in_word - 1) // of_tile)

    def other(ctx: Context) -> tuple[npt.NDArray[Any], ...] | None:
        assert recompute is not None
        found = recompute(ctx)
        if found is None:
            return None
        plan, target = found
        loop = loops(plan, target)
        most, other_packed = _extent(loop)
        if loop.dims.shape[1] != ndim or loop.channel != folded.channel or other_packed != packed:
            return None
        own = (plan.affine or _IDENTITY).factors
        enough = most + in_word - 1 <= tiles * of_tile
        return (loop.dims, plan.base, target.base, _fill(plan).view(fill.dtype), own) if enough else None

    arrays = folded.dims, plan.base, target.base, fill, own
    known = recompute if recompute is None or recompute is FIXED else other
    dims, base, out_base, fills, there = changing(ctx.device, known, *arrays)
    name = f"strided<{CUDA_TYPES[source.dtype]}, {CUDA_TYPES[out.dtype]}, {ndim}, {str(affine is not None).lower()}>"
    ctx.device.launch(
        "strided.cu", name, (tiles, n), _THREADS, source, out, dims, base, out_base, np.int32(packed),
        np.int32(plan.border), np.int32(folded.channel), fills, np.int32(fill.shape[1]), np.int32(len(fill) > 1),
        there, np.int32(own.shape[1]), np.int32(len(own) > 1),
    )  # fmt: skip


def _extent(loop: Loops) -> tuple[int, bool]:
    """Return the maximum number of elements per sample that ``loop`` writes, and whether the output has no gaps."""
    shape = loop.dims[:, :, SHAPE]
    return int(shape.prod(axis=1).max()), bool((loop.dims[:, :, OUT_STRIDE] == row_major(shape)).all())


_THREADS, _RUNS = 256, 4  # threads per block, and 16-byte words per thread (cuda/strided.cu)
CUDA_TYPES = {
    np.dtype(np.uint8): "unsigned char", np.dtype(np.uint16): "unsigned short", np.dtype(np.uint32): "unsigned int",
    np.dtype(np.uint64): "unsigned long long", np.dtype(np.int8): "signed char", np.dtype(np.int16): "short",
    np.dtype(np.int32): "int", np.dtype(np.int64): "long long", np.dtype(np.float16): "half",
    np.dtype(np.float32): "float", np.dtype(np.float64): "double", np.dtype(np.bool_): "boolean",
}  # fmt: skip
"""Names in ``cuda/convert.cuh`` of element types, by NumPy dtype."""
