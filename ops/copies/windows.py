"""Windows of images: where a crop or slice starts and ends, and the policy if it extends beyond the image."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..context import Context
from ..errors import ArgumentValueError
from ..kernels import Kernels
from .strided import Border

_plans: Any = Kernels(".windows_cpu", __package__)

OutOfBounds = Literal[
    "error", "pad", "constant", "edge", "clamp", "reflect", "reflect_1001", "reflect_101", "wrap", "trim_to_shape"
]
"""DALI's policies for windows that extend beyond their input, such as ``pad``."""

_BORDERS = {
    "edge": Border.EDGE, "clamp": Border.EDGE, "reflect": Border.REFLECT_1001, "reflect_1001": Border.REFLECT_1001,
    "reflect_101": Border.REFLECT_101, "wrap": Border.WRAP,
}  # fmt: skip
IMAGE_LAYOUTS: tuple[str, ...] = ("HWC", "CHW", "DHWC", "CDHW", "FHWC", "FCHW", "CFHW", "FDHWC", "FCDHW", "CFDHW")
"""Layouts that DALI's cropping operators accept."""


def border(policy: OutOfBounds) -> Border:
    """Return the rule for values outside the source (`Border`) that implements DALI's ``policy``."""
    return _BORDERS.get(policy, Border.FILL)


def image_layout(layout: str, ndim: int | None, allowed: tuple[str, ...]) -> str:
    """Return ``layout``, or if it is empty DALI's default: the first of the ``allowed`` layouts with ``ndim``
    dimensions."""
    return layout or next((known for known in allowed if len(known) == ndim), "")


def known_layout(batch: Batch, allowed: tuple[str, ...]) -> str:
    """Return the layout of ``batch``, or DALI's default. Raises SpecError for a layout that is not ``allowed``."""
    layout = image_layout(batch.layout, batch.ndim, allowed)
    if layout not in allowed:
        what = f"the layout {layout}" if layout else f"{batch.ndim} dimensions without a layout"
        raise ArgumentValueError(f"takes layouts {', '.join(allowed)}, got {what}; set it with reshape (layout: ...)")
    return layout


def round_half_away(values: npt.NDArray[Any]) -> I64:
    """Round to the nearest integers, halves away from zero, as DALI rounds the starts of windows; see `integers`."""
    whole = np.trunc(values)
    with np.errstate(invalid="ignore"):
        return integers(whole + np.copysign(np.abs(values - whole) >= 0.5, values))


_FAR = 2.0**40


def integers(values: npt.NDArray[Any]) -> I64:
    """Truncate ``values`` to integers. NaN becomes -2^40, and values are limited to -2^40 ... 2^40, which is outside of
    any input."""
    # for NaN and a number, fmin and fmax return the number
    near: I64 = np.fmin(np.fmax(values, -_FAR), _FAR).astype(np.int64)
    return near


def bounded(ctx: Context, policy: OutOfBounds, anchor: I64, shape: I64, extent: I64) -> tuple[I64, I64]:
    """Apply DALI's ``policy`` for windows that extend beyond their sample. Windows are ``anchor`` and ``shape`` [N, D]
    in samples of shape ``extent``; return the new anchor and shape. "error" rejects the sample and makes its window
    empty, "trim_to_shape" clips the window, other policies leave it unchanged."""
    if policy == "trim_to_shape":
        start = np.clip(anchor, 0, extent)
        return start, np.clip(anchor + shape, 0, extent) - start
    if policy == "error":
        outside = np.empty(len(extent), np.bool_)
        if not _plans.outside(*map(np.ascontiguousarray, (anchor, shape, extent)), outside):
            return anchor, shape
        for i in np.flatnonzero(outside).tolist():
            end = (anchor[i] + shape[i]).tolist()
            ctx.reject(
                i, "out_of_bounds",
                f"the window {anchor[i].tolist()} to {end} reaches outside the input {extent[i].tolist()}; make it "
                "smaller, resize the input first, or set out_of_bounds_policy to pad or trim_to_shape",
            )  # fmt: skip
        return refused(anchor, outside), refused(shape, outside)
    return anchor, shape


def refused(array: I64, mask: npt.NDArray[Any]) -> I64:
    """Return ``array`` [N, D] (starts or shapes of windows) with zeros for the samples of ``mask``, which are
    rejected."""
    return np.where(mask[:, None], 0, array) if mask.any() else array


def fill_along(ctx: Context, values: tuple[float, ...], batch: Batch, channel: int) -> tuple[tuple[float, ...], int]:
    """Return the fill ``values``, and the dimension along which they vary: ``channel``, or -1 for a single value.
    Reject samples whose number of channels differs from the number of values."""
    if len(values) <= 1:
        return values or (0.0,), -1
    for i in np.flatnonzero(batch.shapes[:, channel] != len(values)).tolist():
        ctx.reject(i, "bad_argument", f"fill_values has {len(values)} values for {batch.shapes[i, channel]} channels; "
                   "give one value, or one for each channel")  # fmt: skip
    return values, channel
