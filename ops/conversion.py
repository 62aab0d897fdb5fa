"""Conversion between element types by DALI's rules, in NumPy: saturating, halves rounded away from zero, NaN to 0.

``cuda/convert.cuh`` implements the same rules for the GPU. float16 is rounded to nearest, ties to even (IEEE 754);
DALI's CPU backend rounds such ties away from zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .kernels import Kernels

_loops: Any = Kernels(".conversion_cpu", __package__)

_MIN_COMPILED = 4096
"""Minimum number of values from which the compiled loop is faster than NumPy."""


def saturate(values: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    """Return ``values`` as ``dtype``; the same array if it already has that type.

    Integers saturate at the ends of the range. Floats are first rounded, halves away from zero. bool is true if the
    rounded value is not zero (so 0.3 is false), and for NaN.
    """
    out = np.dtype(dtype)
    if values.dtype == out:
        return values
    if out.kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(out)
    if values.dtype.kind == "b":
        return values.astype(out)
    if values.dtype.kind in "iu":
        return values.astype(np.bool_) if out.kind == "b" else _saturate_integers(values, out)
    if out.kind == "b":
        return np.asarray(np.logical_not(np.abs(values) < 0.5))
    return _round_to_integers(values, out)


def _saturate_integers(values: npt.NDArray[Any], out: np.dtype[Any]) -> npt.NDArray[Any]:
    have, want = np.iinfo(values.dtype), np.iinfo(out)
    if want.min <= have.min and have.max <= want.max:
        return values.astype(out)
    clipped: npt.NDArray[Any] = np.clip(values, max(have.min, want.min), min(have.max, want.max))
    return clipped.astype(out)


def _round_to_integers(values: npt.NDArray[Any], out: np.dtype[Any]) -> npt.NDArray[Any]:
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    if values.size >= _MIN_COMPILED and out != np.uint64 and values.flags.c_contiguous:
        result = np.empty(values.shape, out)
        round_into(values.reshape(-1), result.reshape(-1))
        return result
    rounded = np.trunc(values)
    # The distance to the truncated value is exact; adding 0.5 before truncating is not (0.49999997 + 0.5 = 1).
    with np.errstate(invalid="ignore"):  # inf - inf, and NaN
        rounded += np.copysign(np.abs(values - rounded) >= 0.5, values)
    ends = np.iinfo(out)
    # as floats, the limits of the type may be rounded outwards, hence the masks
    below, above = values <= ends.min, values >= ends.max
    plain = ~(below | above | np.isnan(values))
    result = np.zeros(values.shape, out)
    np.copyto(result, rounded, where=plain, casting="unsafe")
    result[below], result[above] = ends.min, ends.max
    return result


def round_into(values: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Convert flat float32 or float64 ``values`` to the integers ``out`` (not uint64) as `saturate` does, with a
    compiled loop."""
    ends, kind = np.iinfo(out.dtype), values.dtype.type
    most = kind(ends.max)
    inside = most if int(most) <= ends.max else np.nextafter(most, kind(0))
    _loops.rounded(values, kind(ends.min), most, inside, np.int64(ends.max), out)
