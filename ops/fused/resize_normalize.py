"""Fused resizing and crop_mirror_normalize, in one pass over the data; and `part`, which all fused operators use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import I32, I64, Batch, Samples
from ..context import Context
from ..images.crop_mirror_normalize import CropMirrorNormalize
from ..images.resampling.resample import F32, MOST_ELEMENTS, Finish, ResamplePlan, bounded, run
from ..images.resize import Resampling, Resize
from ..kernels import Kernels
from ..types import DALIDataType, to_numpy

_plans: Any = Kernels("..images.resampling.plan_cpu", __package__)

T = TypeVar("T")
RESIZE, NORMALIZE = "resize.", "normalize."
"""Prefixes of argument names in the fused operator, for its parts: ``resize.size``, ``normalize.mirror``."""


def joined_arguments(resize: Mapping[str, T], normalize: Mapping[str, T]) -> dict[str, T]:
    """Join the argument inputs of a resampling operator and of crop_mirror_normalize to one dict, with the prefixes of
    the fused operator."""
    return {RESIZE + k: v for k, v in resize.items()} | {NORMALIZE + k: v for k, v in normalize.items()}


def can_join(resize: Operator, normalize: Operator, images: Spec) -> bool:
    """Return whether `ResizeCropMirrorNormalize` can replace ``resize`` and the operator ``normalize`` after it, for
    inputs with the spec ``images``."""
    return (
        isinstance(resize, Resampling)
        and not (isinstance(resize, Resize) and resize.save_attrs)
        and resize.dtype is None
        and isinstance(normalize, CropMirrorNormalize)
        and normalize.out_of_bounds_policy == "error"
        and not normalize.pad_output
        and normalize.output_layout in ("CHW", "HWC")
        and images.dtype in (DALIDataType.UINT8, DALIDataType.FLOAT)
        and (images.layout == "HWC" or (images.layout == "" and images.ndim == 3))
    )


class ResizeCropMirrorNormalize(Operator, name="_fused.resize_crop_mirror_normalize"):
    """A resampling operator and the crop_mirror_normalize after it, in one operator; results equal those of separate
    operators.

    Only pixels that remain after cropping are resampled. Resized values are rounded to the input's type, as they would
    be between the two operators.
    """

    bound = Resampling.bound

    resize: Annotated[Any, Arg("the resampling operator")]
    normalize: Annotated[Any, Arg("the crop_mirror_normalize operator")]

    def infer(self, *specs: Spec) -> Spec:
        result: Spec = self.normalize.infer(self.resize.infer(*specs))
        return result

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        shapes = images.shapes.astype(np.int64)
        return sampled(ctx, images, self.sampling(ctx, shapes[:, :2], shapes[:, 2]))

    gpu = cpu

    def sampling(self, ctx: Context, extents: I64, channels: I64) -> Sampling:
        """Plan the resampling of images of ``extents`` and ``channels``, only inside the window that
        crop_mirror_normalize keeps. Samples without a valid window are rejected. See the function `sampling`."""
        first, second = part(ctx, self.resize, RESIZE), part(ctx, self.normalize, NORMALIZE)
        normalize: CropMirrorNormalize = self.normalize
        plan: ResamplePlan = self.resize.plan(first, extents, (0, 2))
        affine = normalize.affine(second)
        wanted, refused = _cut(
            plan, extents, channels, to_numpy(normalize.dtype), normalize.output_layout, normalize.rows(second),
            normalize.rounds, second.rows("mirror", np.int32), affine.width,
        )  # fmt: skip
        if refused:  # apply the operators one after the other, to find the error
            _, shape = normalize.windows_in(second, _images(plan.shape, channels), "HWC", "error")
            shape = normalize.matching(second, shape, 2, affine.width)
            bounded(first, plan, shape, _images(extents, channels), 0)
        wanted.factors = affine.factors
        return wanted


@dataclass(slots=True)
class Sampling:
    """Plan for resampling N images, with shapes, type and memory layout of the results."""

    plan: ResamplePlan
    shapes: I32
    """Shape of each result, [N, 3], in the order of ``layout``."""
    offsets: I64
    """Offset of each result in the output's data, [N]. There are no gaps between results."""
    strides: I64
    """Distance in elements between pixels and between channels of each result, [N, 2], for `resample.Finish`."""
    elements: int
    """Total number of elements of all results."""
    dtype: np.dtype[Any]
    layout: str
    factors: F32 | None = None
    """Factors of the normalisation, for `resample.Finish`; None if values are only rounded."""

    def allocate(self, ctx: Context, samples: Samples) -> Batch:
        """Return an uninitialised batch for the results of ``samples``."""
        return Batch.sized(
            ctx.empty(self.elements, self.dtype), self.offsets, self.shapes, self.layout, samples, self.elements
        )


def sampling(
    ctx: Context, op: Resampling | ResizeCropMirrorNormalize, extents: I64, channels: I64, dtype: np.dtype[Any]
) -> Sampling:
    """Plan how ``op`` resamples images of ``extents`` [N, 2], ``channels`` [N or 1] and type ``dtype``. Samples that it
    cannot process are rejected, with empty results."""
    if isinstance(op, ResizeCropMirrorNormalize):
        return op.sampling(ctx, extents, channels)
    plan = op.plan(ctx, extents, (0, 2))
    wanted, refused = _cut(plan, extents, channels, dtype if op.dtype is None else to_numpy(op.dtype), "HWC")
    if refused:
        bounded(ctx, plan, _images(plan.shape, channels), _images(extents, channels), 0)
    return wanted


_WHOLE = np.array([[0, 0, 0, 0]], np.float32)
_AS_IT_IS = np.zeros(1, np.int32)


def _cut(
    plan: ResamplePlan, extents: I64, channels: I64, dtype: np.dtype[Any], layout: str, windows: F32 = _WHOLE,
    rounding: int = 0, mirror: I32 = _AS_IT_IS, width: int = 0,
) -> tuple[Sampling, int]:  # fmt: skip
    """Return ``plan`` limited to the windows that remain after cropping, and mirrored (see `plan_cpu.cut_out`); and the
    number of rejected images."""
    n = len(extents)
    anchor, shape, flip = np.empty((n, 2), np.int64), np.empty((n, 2), np.int64), np.empty((n, 2), np.bool_)
    shapes, offsets, strides = np.empty((n, 3), np.int32), np.empty(n, np.int64), np.empty((n, 2), np.int64)
    refused, total = _plans.cut_out(
        extents, channels, plan.anchor, plan.shape, plan.flip, plan.across, windows, rounding, mirror, width,
        layout == "CHW", MOST_ELEMENTS, anchor, shape, flip, shapes, offsets, strides,
    )  # fmt: skip
    return Sampling(plan.shown(anchor, shape, flip), shapes, offsets, strides, total, dtype, layout), refused


def _images(extents: I64, channels: I64) -> I64:
    """Return the shapes (height, width, channels) of images of ``extents`` [N, 2] and ``channels`` [N or 1]."""
    return np.concatenate([extents, np.broadcast_to(channels, len(extents))[:, None]], axis=1)


def sampled(ctx: Context, images: Batch, wanted: Sampling) -> Batch:
    """Resample ``images`` by the plan ``wanted``, and return the result."""
    out = wanted.allocate(ctx, images.samples)
    run(ctx, wanted.plan, images, 0, out, None if wanted.factors is None else Finish(wanted.factors, wanted.strides))
    return out


def part(ctx: Context, op: Operator, prefix: str) -> Context:
    """Return the context for calling ``op``, a part of a fused operator: with the argument inputs whose names begin
    with ``prefix``, and the fused operator's list of rejects."""
    seen = Context(*_FIELDS(ctx))  # does what `dataclasses.replace` does, in a tenth of the time
    seen.op, seen.part = op, ctx.part + prefix
    if ctx.args:
        seen.args = {k[len(prefix) :]: v for k, v in ctx.args.items() if k.startswith(prefix)}
    return seen


_FIELDS = attrgetter(*(f.name for f in fields(Context)))
