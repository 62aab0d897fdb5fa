"""Operator crop_mirror_normalize: crop, mirror, normalise, change layout and type in one pass."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np

from ..base import Arg, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies.strided import F32, Affine, Border, CopyPlan, convert, mirror, pad, permute, run, whole, window
from ..copies.windows import known_layout, refused
from ..errors import SpecError
from ..gpu.launch_recording import without_data
from ..kernels import Kernels
from ..types import DALIDataType, to_numpy
from .crop import Cropping

_plans: Any = Kernels("..copies.windows_cpu", __package__)


class CropMirrorNormalize(Cropping, name="crop_mirror_normalize"):
    """Crop, mirror left to right and normalise: scale * (x - mean) / std + shift.

    ``fill_values`` are not normalised, and are used only if ``out_of_bounds_policy`` pads; otherwise, channels that
    ``pad_output`` adds are 0. std = 0 gives infinities. Integers are rounded half away from zero and saturated; float16
    ties go to even.
    """

    bound = "float32 within 1e-6 of the largest term (x - mean) * scale / std or shift; other types that, rounded"
    example = "{op: crop_mirror_normalize, in: images, crop: [224, 224], mean: [123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375], mirror: $coin, out: images}"  # noqa: E501

    mean: Annotated[
        tuple[float, ...], Arg("value subtracted, one or one per channel", per_sample=True, or_default=True)
    ] = (0.0,)
    std: Annotated[tuple[float, ...], Arg("divisor, one or one per channel", per_sample=True, or_default=True)] = (1.0,)
    scale: Annotated[float, Arg("factor for the normalised value")] = 1.0
    shift: Annotated[float, Arg("number added after scale")] = 0.0
    mirror: Annotated[int, Arg("not 0: mirror left to right", per_sample=True)] = 0
    dtype: Annotated[DALIDataType, Arg("FLOAT, FLOAT16, INT8 or UINT8")] = DALIDataType.FLOAT
    output_dtype: Annotated[DALIDataType | None, Arg("type of the output", deprecated="dtype")] = None
    output_layout: Annotated[str, Arg("order of the axes in the output")] = "CHW"
    pad_output: Annotated[bool, Arg("add channels up to a power of two")] = False
    out_of_bounds_policy: Annotated[
        Literal["error", "pad", "constant", "trim_to_shape"], Arg("what to do if the window reaches outside the input")
    ] = "error"

    def check(self) -> None:
        Cropping.check(self)
        allowed = (DALIDataType.FLOAT, DALIDataType.FLOAT16, DALIDataType.INT8, DALIDataType.UINT8)
        if self.dtype not in allowed:
            raise SpecError(
                f"dtype must be one of {', '.join(d.name for d in allowed)}, got {self.dtype.name}; cast it"
            )
        lengths = {len(v) for v in (self.mean, self.std) if len(v) > 1}
        if len(lengths) > 1 and not self.per_sample & {"mean", "std"}:
            raise SpecError(
                f"mean has {len(self.mean)} values, std {len(self.std)}; give both one value, or one per channel"
            )

    def infer(self, *specs: Spec) -> Spec:
        known = self.cropped(specs[0])
        if not known.layout or known.shape is None:
            return Spec(None, self.dtype, self.output_layout)
        order = self._order(known.layout)
        shape = list(known.shape)
        channels = shape[known.layout.index("C")]
        width = max(len(self.mean), len(self.std))
        if channels is not None and width > 1 and width != channels and not self.per_sample & {"mean", "std"}:
            raise SpecError(
                f"mean and std have {width} values for {channels} channels; give one value, or one per channel"
            )
        if self.out_of_bounds_policy == "trim_to_shape":
            shape = [None] * len(shape)
        if channels is not None:
            shape[known.layout.index("C")] = _power_of_two(channels) if self.pad_output else channels
        return Spec(tuple(shape[i] for i in order), self.dtype, self.output_layout)

    def _order(self, layout: str) -> list[int]:
        if sorted(layout) != sorted(self.output_layout):
            raise SpecError(
                f"output_layout {self.output_layout!r} does not order the axes of {layout!r}; give all of them, "
                f"{layout!r} for example"
            )
        return [layout.index(letter) for letter in self.output_layout]

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        like = without_data(images)
        return run(ctx, self._plan(ctx, like), images, lambda c: self._plan(c, like))

    def _plan(self, ctx: Context, images: Batch) -> CopyPlan:
        layout = known_layout(images, self.layouts)
        order, channel = self._order(layout), layout.index("C")
        anchor, shape = self.windows(ctx, images, layout, self.out_of_bounds_policy)
        affine = self.affine(ctx)
        shape = self.matching(ctx, shape, channel, affine.width)
        padding = self.out_of_bounds_policy in ("pad", "constant")
        own = shape[:, channel].copy()
        if self.pad_output:
            shape[:, channel] = np.where(shape[:, channel] > 0, _powers_of_two(shape[:, channel]), 0)
        fill = self.fill_values if padding else (0.0,)
        if len(fill) > 1:
            shape = self._fillable(ctx, shape, channel, own)
            fill = (*fill, *(0.0,) * (_power_of_two(len(fill)) - len(fill))) if self.pad_output else fill
        plan = window(whole(images.replace(layout=layout)), anchor, shape)
        plan = mirror(plan, layout.index("W"), ctx.arg("mirror", np.int32) != 0)
        plan = convert(plan, to_numpy(self.dtype), affine, channel if affine.width > 1 else -1)
        plan = pad(plan, Border.FILL, fill, channel)
        return permute(plan, order, self.output_layout)

    gpu = cpu

    def affine(self, ctx: Context) -> Affine:
        """Return mean, factor and summand of the normalisation for each channel: one row [1, K] if mean and std are
        constants, otherwise one row per sample [N, K]."""
        if not {"mean", "std"} & ctx.args.keys():
            return _affine(self.mean, self.std, self.scale, self.shift)
        mean, std = (ctx.arg(n) if n in ctx.args else np.array([getattr(self, n)], np.float32) for n in ("mean", "std"))
        mean, std = (values if values.shape[1] else np.array([[d]], np.float32) for values, d in ((mean, 0), (std, 1)))
        return _normalising(mean, std, self.scale, self.shift)

    def width(self, ctx: Context) -> int:
        """Return the number of values in the arguments mean and std: one, or one per channel."""
        return self.affine(ctx).width

    def matching(self, ctx: Context, shape: I64, channel: int, width: int) -> I64:
        """Reject samples whose number of channels is not ``width``, the number of values in mean and std. Return
        ``shape``, the window shapes, with zeros for these samples."""
        if width <= 1 or not _plans.of_other_width(shape, channel, width):
            return shape
        wrong = (shape[:, channel] != width) & (shape[:, channel] > 0)
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(
                i, "bad_shape",
                f"has {shape[i, channel]} channels where mean and std have {width} values; decode as RGB, "
                "or give one value for all channels",
            )  # fmt: skip
        return refused(shape, wrong)

    def _fillable(self, ctx: Context, shape: I64, channel: int, own: I64) -> I64:
        """Reject samples whose number of channels does not fit the number of ``fill_values``: one per channel of the
        output, or per channel of the input (``own`` channels; channels that ``pad_output`` adds then get 0). Return
        ``shape``, the window shapes, with zeros for these samples."""
        width = len(self.fill_values)
        wrong = (shape[:, channel] != width) & (own != width) & (shape[:, channel] > 0)
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_argument", f"fill_values has {width} values for {shape[i, channel]} channels of the "
                       "output; give one, or one for each")  # fmt: skip
        return refused(shape, wrong)


@lru_cache(64)
def _affine(mean: tuple[float, ...], std: tuple[float, ...], scale: float, shift: float) -> Affine:
    """Return the factors of the normalisation for constant arguments; the result is cached."""
    return _normalising(np.array([mean], np.float32), np.array([std], np.float32), scale, shift)


def _normalising(mean: F32, std: F32, scale: float, shift: float) -> Affine:
    if mean.shape[1] != std.shape[1] and 1 not in (mean.shape[1], std.shape[1]):
        raise SpecError(f"mean has {mean.shape[1]} values, std {std.shape[1]}; give both one value, or one per channel")
    with np.errstate(divide="ignore"):
        mul = np.float32(scale) / std
    return Affine.of(mean, mul, np.full((1, 1), shift, np.float32))


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _powers_of_two(n: I64) -> I64:
    known, which = np.unique(n, return_inverse=True)
    return np.array([_power_of_two(k) for k in known.tolist()], np.int64)[which]
