"""Parity presets: resize images as torchvision, OpenCV or Pillow does, for models that were trained with them.

Formulas: Pillow's Resample.c, PyTorch's UpSampleKernel.cpp and OpenCV's resize.cpp; results are compared with those
libraries themselves (docs/parity.md).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64
from ...errors import SpecError
from ...types import DALIInterpType
from .resample import F32, I8, ResamplePlan

F64 = npt.NDArray[np.float64]


class Filter(IntEnum):
    """Resize filters of Pillow, PyTorch and OpenCV, with the numbers that ``libraries_cpu.py`` uses. From BOX to
    LANCZOS, filters widen with the scale, and ignore pixels outside the image. The others have a fixed width, and
    repeat the image's edge."""

    NEAREST = 0
    """Nearest pixel: output x is source pixel floor(x scale)."""
    CENTRE = 1
    """Nearest pixel by centres: output x is source pixel floor((x + 1/2) scale)."""
    BOX = 2
    LINEAR = 3
    HAMMING = 4
    CUBIC = 5
    """Keys' cubic filter with a = -1/2."""
    LANCZOS = 6
    """Lanczos filter with three lobes."""
    LINEAR_2 = 7
    CUBIC_4 = 8
    """Keys' cubic filter with a = -3/4, four pixels wide at every scale."""
    LANCZOS_8 = 9
    """Lanczos filter with four lobes, normalised."""
    AREA = 10
    """Mean of source pixels, each weighted by its overlap with the output pixel; for shrinking only."""
    AREA_UP = 11
    """OpenCV's INTER_AREA for enlarged axes: linear, with transitions between pixels as wide as an output pixel."""


class Arithmetic(IntEnum):
    """Rules by which libraries round weights and sums. The horizontal pass comes first unless stated otherwise."""

    BYTES_22 = 0
    """Pillow's rule: weights have 22 fractional bits, and values between the two passes are rounded to bytes."""
    BYTES_22_DOWN = 1
    """Pillow's rule as in `BYTES_22`, but the vertical pass comes first."""
    BYTES_15 = 2
    """PyTorch's rule: weights have as many bits as 16-bit integers can hold; values between the passes are rounded to
    bytes."""
    LINEAR_11 = 3
    """Rule of OpenCV's INTER_LINEAR: weights have 11 bits; 4 bits of the sums are dropped between the passes."""
    FIXED_11 = 4
    """Rule of OpenCV's cubic, Lanczos and area filters: 11-bit weights; exact sums are rounded once, ties to even."""
    FLOATS = 5
    """Weights and sums in floating point; the result is rounded once, ties to even."""
    FLOATS_UP = 6
    """Weights and sums in floating point; the result is rounded once, ties up."""


_NAMES: dict[str, dict[str, Filter]] = {
    "pillow": {
        "nearest": Filter.CENTRE, "box": Filter.BOX, "bilinear": Filter.LINEAR, "hamming": Filter.HAMMING,
        "bicubic": Filter.CUBIC, "lanczos": Filter.LANCZOS,
    },
    "torchvision": {
        "nearest": Filter.NEAREST, "nearest-exact": Filter.CENTRE, "bilinear": Filter.LINEAR, "bicubic": Filter.CUBIC,
    },
    "opencv": {
        "nearest": Filter.NEAREST, "nearest-exact": Filter.CENTRE, "linear": Filter.LINEAR_2, "cubic": Filter.CUBIC_4,
        "area": Filter.AREA, "lanczos4": Filter.LANCZOS_8,
    },
}  # fmt: skip
"""Filters of each library, by the names that the library gives them."""

_FIXED = {Filter.LINEAR: Filter.LINEAR_2, Filter.CUBIC: Filter.CUBIC_4}
"""Filters of fixed width that torchvision uses with antialias=False, by the filters that widen with the scale."""

_INTERP = {
    "pillow": ("nearest", "bilinear", "bicubic", "lanczos", "bilinear", None),
    "torchvision": ("nearest", "bilinear", "bicubic", None, "bilinear", None),
    "opencv": ("nearest", "linear", "cubic", "lanczos4", "area", None),
}
"""Names of filters of each library, by the number of the corresponding DALIInterpType."""


def filters_of(library: str) -> tuple[str, ...]:
    """Return the names that ``library`` gives to its filters."""
    return tuple(_NAMES[library])


def interpolation_of(library: str, interp: int) -> str:
    """Return the name that ``library`` gives to the filter ``interp``, a DALIInterpType. Raises SpecError if the
    library has none."""
    name = _INTERP[library][interp]
    if name is None:
        raise SpecError(
            f"parity: {library} has no {DALIInterpType(interp).name}; "
            f"give interpolation as one of {', '.join(filters_of(library))}"
        )
    return name


def size(library: str, wanted: npt.NDArray[Any], extent: npt.NDArray[Any], mode: str, limit: Any) -> I64:
    """Return the output sizes [N, A] of regions of ``extent`` pixels. ``wanted`` are the requested sizes; a size of 0
    is computed from the others, by ``mode``.

    For Pillow and torchvision, sizes are truncated by torchvision's rule, int(size * long / short). For OpenCV, which
    has no rule, they are rounded as in DALI. ``limit`` [A] are the maximum sizes, 0 for no limit.
    """
    given = (wanted != 0) & (extent != 0)
    wanted, extent = np.abs(wanted).astype(np.float64), extent.astype(np.float64)
    whole = np.maximum(extent, 1)
    if mode == "not_smaller":
        lead = np.argmax(np.where(given, wanted / whole, 0), axis=1)
    else:
        lead = np.argmin(np.where(given, wanted / whole, np.inf), axis=1)
    each = np.arange(len(wanted))
    derived = wanted[each, lead][:, None] * extent / whole[each, lead][:, None]
    keeps = given if mode in ("default", "stretch") else given & (np.arange(wanted.shape[1]) == lead[:, None])
    exact = np.where(keeps, wanted, extent if mode == "stretch" else _whole(library, derived))
    exact = np.where(given.any(axis=1, keepdims=True), exact, extent)
    if limit is not None:
        most = np.where(limit > 0, limit, np.inf)
        worst = np.argmax(exact / most, axis=1)
        top = np.broadcast_to(most, exact.shape)[each, worst][:, None]
        scaled = _whole(library, top * exact / np.maximum(exact[each, worst], 1)[:, None])
        scaled[each, worst] = top[:, 0]
        exact = np.where((exact > most).any(axis=1, keepdims=True), scaled, exact)
    least = np.where((extent == 0).any(axis=1, keepdims=True), 0, 1)
    return np.clip(np.floor(exact + 0.5), least, 2**31 - 1).astype(np.int64)


def _whole(library: str, values: F64) -> F64:
    values = np.where(np.isfinite(values), values, 0)
    return np.floor(values + 0.5) if library == "opencv" else np.floor(values)


def plan(
    library: str, interpolation: list[str], antialias: bool, lo: F32, hi: F32, size: I64, extents: I64, flip: Any
) -> ResamplePlan:
    """Return a plan for resizing regions [``lo``, ``hi``) of images of ``extents`` to ``size`` pixels, all [N, 2] (y,
    x).

    ``interpolation`` [N] are filters, by the names that the library uses. Pillow reads pixels around a region as with
    its ``box``; the other libraries see only the region, widened to whole pixels, as if it had been cut out before.
    """
    outside = lo >= hi  # only the edge of the image remains of such a region
    lo = np.where(outside, np.minimum(lo, extents - np.float32(0.5)), lo).astype(np.float32)
    hi = np.where(outside, lo + np.float32(0.5), hi).astype(np.float32)
    kind = np.array([_NAMES[library][name] for name in interpolation], np.int8)
    if library == "torchvision" and not antialias:
        kind = np.array([_FIXED.get(Filter(k), k) for k in kind], np.int8)
    kinds = np.repeat(kind[:, None], 2, axis=1)
    if library == "pillow":
        domain = np.stack([np.zeros_like(extents), extents], axis=2)
    else:
        begin = np.clip(np.floor(lo).astype(np.int64), 0, np.maximum(extents - 1, 0))
        end = np.clip(np.ceil(hi).astype(np.int64), begin + 1, np.maximum(extents, begin + 1))
        domain = np.stack([begin, end], axis=2)
    scale = (hi - lo).astype(np.float64) / np.maximum(size, 1)
    exactly_half = np.zeros(len(kinds), np.bool_)
    if library == "opencv":
        exactly_half = (scale == 2).all(axis=1) & np.isin(kind, (Filter.LINEAR_2, Filter.AREA))
        kinds[exactly_half] = Filter.AREA
        grows = (kinds[:, 0] == Filter.AREA) & (scale < 1).any(axis=1)
        kinds[grows] = Filter.AREA_UP
    support = _RADIUS[kinds] * 2 * np.where((kinds >= Filter.BOX) & (kinds <= Filter.LANCZOS), np.maximum(scale, 1), 1)
    width = np.where(kinds == Filter.AREA, scale + 2, support).astype(np.float32)
    return ResamplePlan(
        lo, hi, size, kinds, width, np.zeros_like(size), size, flip, np.ones(len(size), np.bool_),
        domain, _arithmetic(library, kinds, size, extents, exactly_half),
    )  # fmt: skip


def plan_of_windows(
    interpolation: str, antialias: bool, begin: I64, extent: I64, size: I64, flip: npt.NDArray[np.bool_]
) -> ResamplePlan:
    """Return the plan that `plan` makes for torchvision, if regions are windows of whole pixels inside images:
    ``begin`` and ``extent`` [N, 2]."""
    kind = _NAMES["torchvision"][interpolation]
    kind = kind if antialias else _FIXED.get(kind, kind)
    kinds = np.full(size.shape, kind, np.int8)
    end, widens = begin + extent, Filter.BOX <= kind <= Filter.LANCZOS
    scale = np.maximum(extent / size, 1) if widens else np.ones(size.shape)
    return ResamplePlan(
        begin.astype(np.float32), end.astype(np.float32), size, kinds, (_RADIUS[kind] * 2 * scale).astype(np.float32),
        np.zeros_like(size), size, flip, np.ones(len(size), np.bool_), np.stack([begin, end], axis=2),
        np.full(len(size), Arithmetic.BYTES_15, np.int8),
    )  # fmt: skip


_RADIUS: F64 = np.array([0.5, 0.5, 0.5, 1, 1, 2, 3, 1, 2, 4, 1, 1])
"""Radius in source pixels of each filter, for axes that do not shrink."""


def _arithmetic(library: str, kinds: I8, size: I64, extents: I64, exactly_half: npt.NDArray[np.bool_]) -> I8:
    """Return the rounding rule (`Arithmetic`) of each sample, [N], for 8-bit images."""
    kind = kinds[:, 0]
    if library == "opencv":
        rule = np.where(np.isin(kind, (Filter.LINEAR_2, Filter.AREA_UP)), Arithmetic.LINEAR_11, Arithmetic.FIXED_11)
        rule = np.where(kind == Filter.AREA, Arithmetic.FLOATS, rule)
        return np.where(exactly_half, Arithmetic.FLOATS_UP, rule).astype(np.int8)
    if library == "torchvision":
        return np.full(len(kind), Arithmetic.BYTES_15, np.int8)
    lost = extents - size  # Pillow 13's rule; in earlier versions the horizontal pass always came first
    down = (lost[:, 0] > 0) & (lost[:, 0] > 2 * lost[:, 1])
    return np.where(down, Arithmetic.BYTES_22_DOWN, Arithmetic.BYTES_22).astype(np.int8)
