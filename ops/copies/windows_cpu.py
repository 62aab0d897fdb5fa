"""Compiled loops that compute where windows lie in samples, for a whole batch, without the GIL."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_FAR = 2.0**40
ROUNDINGS = ("truncate", "round", "even")
"""Ways to round the start of a window: truncate, round halves away from zero, round halves to even (as in Python)."""
_, ROUND, EVEN = range(3)


@numba.njit(error_model="numpy", forceinline=True)
def _integer(value: Any) -> Any:
    """Truncate ``value`` to an integer; NaN and values beyond 2^40 become -2^40 or 2^40, outside of any input."""
    return np.int64(min(max(value, -_FAR), _FAR)) if value == value else np.int64(-_FAR)


@numba.njit(error_model="numpy", forceinline=True)
def place_along(extent: Any, size: Any, position: Any, rounding: Any) -> Any:
    """Return start and length of a window along an axis, see `place`."""
    wanted = _integer(np.float64(size))
    length = wanted if wanted > 0 else extent
    start = np.float64(position) * np.float64(extent - length)
    if rounding == EVEN:
        start = np.rint(start)
    elif rounding == ROUND:
        whole = np.trunc(start)
        start = whole + np.copysign(1.0 if abs(start - whole) >= 0.5 else 0.0, start)
    return _integer(start), length


@numba.njit(
    "void(int64[:, ::1], int64, float32[:], float32[:], int64, int64[:, ::1], int64[:, ::1])",
    nogil=True, cache=True, error_model="numpy",
)  # fmt: skip
def place(extent: Any, axis: Any, size: Any, position: Any, rounding: Any, anchor: Any, shape: Any) -> None:
    """Compute start and length of each sample's window along ``axis``: fill that column of ``anchor`` and ``shape`` for
    samples of size ``extent``, all [N, D].

    ``size`` [N or 1] is truncated; the whole length is used if it is not above 0. ``position`` [N or 1], 0 to 1, is the
    start of a window as a fraction of the space that it leaves; the start is rounded by ``rounding``. The product is
    computed in float64, as in DALI's crop: 0.7 of 5 is 3.4999999 and starts at 3.
    """
    for i in range(len(extent)):
        anchor[i, axis], shape[i, axis] = place_along(
            extent[i, axis], size[i if len(size) > 1 else 0], position[i if len(position) > 1 else 0], rounding
        )


@numba.njit("int64(int64[:, ::1], int64[:, ::1], int64[:, ::1], boolean[::1])", nogil=True, cache=True)
def outside(anchor: Any, shape: Any, extent: Any, out: Any) -> Any:
    """Fill the mask ``out``: whether each window extends beyond its sample, whose size is ``extent``, all [N, D].
    Return the number of these windows."""
    found = 0
    for i in range(len(extent)):
        out[i] = False
        for d in range(extent.shape[1]):
            if anchor[i, d] < 0 or anchor[i, d] + shape[i, d] > extent[i, d]:
                out[i] = True
        found += out[i]
    return found


@numba.njit("int64(int64[:, :], int64, int64)", nogil=True, cache=True)
def of_other_width(shape: Any, channel: Any, width: Any) -> Any:
    """Return the number of samples of ``shape`` [N, D] that have neither ``width`` channels nor 0."""
    found = 0
    for i in range(len(shape)):
        found += shape[i, channel] != width and shape[i, channel] > 0
    return found


AT, AFTER, WITH_IT = range(3)


@numba.njit(error_model="numpy", forceinline=True)
def _rounded(value: Any) -> Any:
    """Round to the nearest integer, halves away from zero; NaN and values beyond 2^40 as in `_integer`."""
    whole = np.trunc(value)
    return _integer(whole + np.copysign(1.0 if abs(value - whole) >= 0.5 else 0.0, value - whole))


@numba.njit(
    "int64(int32[:, :], int64[::1], float64[:, ::1], boolean, float64[:, ::1], boolean, int64, "
    "int64[:, ::1], int64[:, ::1])",
    nogil=True, cache=True, error_model="numpy",
)  # fmt: skip
def slices(
    extent: Any,
    axes: Any,
    first: Any,
    first_parts: Any,
    last: Any,
    last_parts: Any,
    sized: Any,
    anchor: Any,
    shape: Any,
) -> Any:
    """Compute where slices lie in samples of ``extent`` [N, D]: ``anchor`` and ``shape`` of each; the length is
    negative if a slice ends before it starts. Return the number of such slices.

    Along ``axes`` slices start at ``first`` and end at ``last``, or have ``last`` elements (``sized``: AFTER), or end
    with the sample (WITH_IT); both are [N or 1, axes or 1], and fractions of the length, in float32, if the
    corresponding ``*_parts`` is set. Other axes are not cut.
    """
    wrong = 0
    for i in range(len(extent)):
        for d in range(extent.shape[1]):
            anchor[i, d], shape[i, d] = 0, extent[i, d]
        backwards = False
        for k in range(len(axes)):
            along = extent[i, axes[k]]
            a = first[i if len(first) > 1 else 0, k if first.shape[1] > 1 else 0]
            b = last[i if len(last) > 1 else 0, k if last.shape[1] > 1 else 0]
            if first_parts:
                a = np.float64(np.float32(a) * np.float32(along))
            if last_parts:
                b = np.float64(np.float32(b) * np.float32(along))
            if sized == WITH_IT:
                b = np.float64(along)
            elif sized == AFTER:
                b = np.float64(np.float32(a) + np.float32(b)) if first_parts and last_parts else a + b
            start, stop = _rounded(a), _rounded(b)
            anchor[i, axes[k]], shape[i, axes[k]] = start, stop - start
            backwards = backwards or stop < start
        wrong += backwards
    return wrong
