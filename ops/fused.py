"""Operators that only the compiler makes: chains joined into one pass over the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import numpy as np

from .base import Arg, Operator, Spec
from .batch import I32, I64, Batch
from .context import Context
from .crop_mirror_normalize import CropMirrorNormalize
from .lazily import Kernels
from .resample import Finish, Plan, bounded, run
from .resize import Resampling, Resize
from .types import DALIDataType, to_numpy

_plans: Any = Kernels("resize_plan_cpu")

T = TypeVar("T")
RESIZE, NORMALIZE = "resize.", "normalize."
"""What the argument inputs of the joined operators are called: ``resize.size``, ``normalize.mirror``."""


def joined_arguments(resize: Mapping[str, T], normalize: Mapping[str, T]) -> dict[str, T]:
    """The argument inputs of a resampling operator and of crop_mirror_normalize as those of the joined operator."""
    return {RESIZE + k: v for k, v in resize.items()} | {NORMALIZE + k: v for k, v in normalize.items()}


def can_join(resize: Operator, normalize: Operator, images: Spec) -> bool:
    """Whether ``normalize`` after ``resize`` of ``images`` can run as `ResizeCropMirrorNormalize`."""
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
    """A resampling operator and the crop_mirror_normalize after it; equal to both, one after the other.

    Only the window that stays is resampled. Resized values are rounded to the input's type as they would be between
    the two.
    """

    bound = Resampling.bound

    resize: Annotated[Any, Arg("the resampling operator")]
    normalize: Annotated[Any, Arg("the crop_mirror_normalize operator")]

    def infer(self, *specs: Spec) -> Spec:
        result: Spec = self.normalize.infer(self.resize.infer(*specs))
        return result

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        return sampled(ctx, self, images, sampling(ctx, self, images.shapes.astype(np.int64), images.dtype))

    gpu = cpu

    def sampling(self, ctx: Context, shapes: I64) -> Sampling:
        """The window that is left of images of ``shapes``; samples without one are rejected."""
        second = part(ctx, self.normalize, NORMALIZE)
        normalize: CropMirrorNormalize = self.normalize
        first = part(ctx, self.resize, RESIZE)
        plan: Plan = self.resize.plan(first, shapes, (0, 2))
        resized = shapes.copy()
        resized[:, :2] = plan.shape
        anchor, shape = normalize.windows_in(second, resized, "HWC", normalize.out_of_bounds_policy)
        shape = normalize.matching(second, shape, 2, normalize.width(second))
        cut = plan.window(anchor[:, :2], shape[:, :2])
        made = bounded(first, cut, shape, shapes, 0)
        if made is not shape:
            shape, cut = made, plan.window(anchor[:, :2], made[:, :2])
        if "mirror" in second.args or normalize.mirror:
            flip = np.zeros((len(shapes), 2), np.bool_)
            flip[:, 1] = second.arg("mirror", np.int64) != 0
            cut = cut.mirrored(flip)
        if normalize.output_layout == "CHW":
            shape = shape[:, _PLANES]
        return Sampling(cut, shape.astype(np.int32), to_numpy(normalize.dtype), normalize.output_layout)


_PLANES = np.array([2, 0, 1])


@dataclass(slots=True)
class Sampling:
    """What an operator that resamples makes of N images."""

    plan: Plan
    shapes: I32
    """[N, 3] of the results, in ``layout``."""
    dtype: np.dtype[Any]
    layout: str


def sampling(ctx: Context, op: Resampling | ResizeCropMirrorNormalize, shapes: I64, dtype: np.dtype[Any]) -> Sampling:
    """What ``op`` makes of images of ``shapes`` [N, 3] (height, width, channels) and type ``dtype``, without them.

    Samples that it cannot make are rejected and come out empty.
    """
    if isinstance(op, ResizeCropMirrorNormalize):
        return op.sampling(ctx, shapes)
    plan = op.plan(ctx, shapes, (0, 2))
    results = bounded(ctx, plan, np.concatenate([plan.shape, shapes[:, 2:]], axis=1), shapes, 0)
    result = dtype if op.dtype is None else to_numpy(op.dtype)
    return Sampling(replace(plan, shape=results[:, :2]), results.astype(np.int32), result, "HWC")


def sampled(ctx: Context, op: Resampling | ResizeCropMirrorNormalize, images: Batch, wanted: Sampling) -> Batch:
    """``images`` resampled by ``op`` as `sampling` planned it."""
    out = Batch.allocate(ctx.empty, wanted.shapes, wanted.dtype, wanted.layout, images.samples)
    finish = None
    if isinstance(op, ResizeCropMirrorNormalize):
        affine = op.normalize.affine(part(ctx, op.normalize, NORMALIZE) if ctx.args else ctx)
        finish = Finish(affine.factors, _strides(wanted.shapes, wanted.layout))
    run(ctx, wanted.plan, images, 0, out, finish)
    return out


def part(ctx: Context, op: Operator, prefix: str) -> Context:
    """``ctx`` as operator ``op`` of a joined one sees it; what it rejects is rejected here."""
    seen = Context(*_FIELDS(ctx))  # what `dataclasses.replace` does, in a tenth of the time
    seen.op, seen.part = op, ctx.part + prefix
    seen.args = {k.removeprefix(prefix): v for k, v in ctx.args.items() if k.startswith(prefix)} if ctx.args else {}
    return seen


_FIELDS = attrgetter(*(f.name for f in fields(Context)))


def _strides(shapes: I32, layout: str) -> I64:
    """Elements between pixels and between channels of packed images of ``shapes`` [N, 3]: [N, 2]."""
    channels, columns = layout.index("C"), layout.index("W")
    strides = np.empty((len(shapes), 2), np.int64)
    _plans.pixel_strides(shapes, channels, columns, strides)
    return strides
