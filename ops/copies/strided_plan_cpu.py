"""Compiled loops that plan strided copies for a whole batch: which loops copy a plan, and to which memory.

NumPy would need dozens of calls, which cost more than the copy itself if the batch is small. The loops keep the GIL:
taking it again would take longer than they run.
"""

# Numba has no type annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

_GIVEN = types.Array(types.int64, 2, "A", readonly=True)
"""Numba type of arrays that a function only reads: they may have any strides, and be read-only."""
_MADE = types.Array(types.int64, 2, "C")
_FLAT = types.Array(types.int64, 1, "C")

SHAPE, STRIDE, ANCHOR, EXTENT, OUT_STRIDE = range(5)
"""Columns that describe one loop of a copy, in arrays such as `strided.Loops.dims`."""
_SHORT = 4
"""Maximum length of a dimension, such as the channels, that the CPU kernel uses as its innermost loop."""


@numba.njit(types.void(types.Array(types.int32, 2, "A", readonly=True), _MADE, _MADE, _MADE), cache=True)
def whole(shapes: Any, shape: Any, stride: Any, anchor: Any) -> None:
    """Fill the arrays [N, D] of a plan (`strided.CopyPlan`) that copies packed samples of ``shapes`` unchanged."""
    for i in range(shapes.shape[0]):
        step = np.int64(1)
        for d in range(shapes.shape[1] - 1, -1, -1):
            shape[i, d], stride[i, d], anchor[i, d] = shapes[i, d], step, 0
            step *= shapes[i, d]


@numba.njit(types.void(_GIVEN, _MADE), cache=True)
def row_major(shape: Any, stride: Any) -> None:
    """Compute the strides [N, D] of samples whose elements are stored without gaps."""
    for i in range(shape.shape[0]):
        step = np.int64(1)
        for d in range(shape.shape[1] - 1, -1, -1):
            stride[i, d] = step
            step *= shape[i, d]


@numba.njit(
    types.void(types.int64, types.Array(types.boolean, 1, "C", readonly=True), _GIVEN, _GIVEN, _FLAT,
               types.Array(types.int64, 2, "A"), types.Array(types.int64, 2, "A")),
    cache=True,
)  # fmt: skip
def mirror(axis: Any, where: Any, shape: Any, extent: Any, base: Any, stride: Any, anchor: Any) -> None:
    """Make a copy plan reverse samples along ``axis``, those for which the mask ``where`` is set: ``base``, ``stride``
    and ``anchor`` are changed in place."""
    for i in range(len(where)):
        if where[i]:
            base[i] += (extent[i, axis] - 1) * stride[i, axis]
            stride[i, axis] *= -1
            anchor[i, axis] = extent[i, axis] - anchor[i, axis] - shape[i, axis]


@numba.njit(types.int64(_GIVEN, types.float64), cache=True)
def larger(shape: Any, most: Any) -> Any:
    """Return the number of samples with more than ``most`` elements, or with a dimension longer than that."""
    found = 0
    for i in range(shape.shape[0]):
        elements, longest = 1.0, np.int64(0)
        for d in range(shape.shape[1]):
            elements *= np.float64(shape[i, d])
            longest = max(longest, shape[i, d])
        found += elements > most or longest > most
    return found


@numba.njit(types.int64(_GIVEN, types.Array(types.int32, 2, "C"), _FLAT), cache=True)
def packed(shape: Any, shapes: Any, offsets: Any) -> Any:
    """Compute the offsets of samples of ``shape`` that are stored one after the other, and their shapes in 32 bits.
    Return the total number of elements."""
    total = np.int64(0)
    for i in range(shape.shape[0]):
        elements = np.int64(1)
        for d in range(shape.shape[1]):
            shapes[i, d] = shape[i, d]
            elements *= shape[i, d]
        offsets[i] = total
        total += elements
    return total


@numba.njit(cache=True)
def _one(dims: Any, outer: Any, inner: Any, n: Any) -> Any:
    """Whether two dimensions can be joined to one loop: in all samples, each step of ``outer`` continues where
    ``inner`` ends, in source and output."""
    for i in range(n):
        length = dims[inner, i, SHAPE]
        if dims[outer, i, STRIDE] != dims[inner, i, STRIDE] * length:
            return False
        if dims[outer, i, OUT_STRIDE] != dims[inner, i, OUT_STRIDE] * length:
            return False
    return True


@numba.njit(cache=True)
def _fold(
    shape: Any, stride: Any, anchor: Any, extent: Any, out_stride: Any, channel: Any, fills: Any, dims: Any, kept: Any
) -> Any:
    """Join dimensions that are contiguous in all samples. ``dims`` [D, N, 5] receives all dimensions, ``kept`` the
    indices of those that remain after joining, innermost first. Return the number of remaining dimensions, and the
    position of the channel among them."""
    n, ndim = shape.shape
    count, found, is_open = 0, -1, False
    for d in range(ndim - 1, -1, -1):
        full, inside = True, True
        for i in range(n):
            dims[d, i, SHAPE], dims[d, i, STRIDE], dims[d, i, ANCHOR] = shape[i, d], stride[i, d], anchor[i, d]
            dims[d, i, EXTENT], dims[d, i, OUT_STRIDE] = extent[i, d], out_stride[i, d]
            full = full and anchor[i, d] == 0 and extent[i, d] == shape[i, d]
            inside = inside and anchor[i, d] >= 0 and anchor[i, d] + shape[i, d] <= extent[i, d]
        if is_open and d != channel and (fills or inside) and _one(dims, d, kept[count - 1], n):
            inner = kept[count - 1]
            for i in range(n):
                length = dims[inner, i, SHAPE]
                dims[inner, i, SHAPE] = dims[d, i, SHAPE] * length
                dims[inner, i, ANCHOR] = dims[d, i, ANCHOR] * length
                dims[inner, i, EXTENT] = dims[d, i, EXTENT] * length
            is_open = full
            continue
        if d == channel:
            found = count
        kept[count] = d
        count += 1
        is_open = full and d != channel
    return count, found


@numba.njit(cache=True)
def _put(out: Any, i: Any, at: Any, dims: Any, d: Any) -> None:
    """Store dimension ``d`` of sample ``i`` as loop number ``at`` of ``out``; if ``d`` is -1, store a loop of length
    1."""
    for k in range(5):
        out[i, at, k] = dims[d, i, k] if d >= 0 else np.int64(k in (SHAPE, EXTENT))


@numba.njit(cache=True)
def _short(dims: Any, d: Any, n: Any, dense: Any) -> Any:
    """Return whether dimension ``d`` is short in all samples, so that it can be the innermost loop, and (if ``dense``)
    its elements are adjacent."""
    short, near = True, True
    for i in range(n):
        short = short and dims[d, i, SHAPE] <= _SHORT
        near = near and abs(dims[d, i, STRIDE]) == 1
    return short and (near or not dense)


_PLAN = (_GIVEN, _GIVEN, _GIVEN, _GIVEN, _GIVEN, types.int64, types.boolean, _FLAT)


@numba.njit(types.UniTuple(types.int64, 2)(*_PLAN), cache=True)
def loops(
    shape: Any, stride: Any, anchor: Any, extent: Any, out_stride: Any, channel: Any, fills: Any, out: Any
) -> Any:
    """Compute the nested loops that carry out a copy plan (`strided.CopyPlan`); dimensions are joined if all samples
    are contiguous along them in source and output.

    Return the number of loops, and which of them is the ``channel``; ``out`` begins with these loops [N, loops, 5].
    ``fills``: values outside are one constant.
    """
    n, ndim = shape.shape
    dims, kept = np.empty((max(ndim, 1), n, 5), np.int64), np.empty(max(ndim, 1), np.int64)
    count, found = _fold(shape, stride, anchor, extent, out_stride, channel, fills, dims, kept)
    total = max(count, 1)
    table = out[: n * total * 5].reshape((n, total, 5))
    for i in range(n):
        if count == 0:
            _put(table, i, 0, dims, -1)
        for k in range(count):
            _put(table, i, k, dims, kept[count - 1 - k])
    return total, count - 1 - found if found >= 0 else -1


@numba.njit(types.boolean(_GIVEN, _GIVEN, _GIVEN, types.int64, types.int64), cache=True)
def channels_whole(shape: Any, anchor: Any, extent: Any, channel: Any, width: Any) -> Any:
    """Whether all samples of a copy plan keep all of their ``width`` channels; empty samples count as such."""
    for i in range(shape.shape[0]):
        same = anchor[i, channel] == 0 and extent[i, channel] == shape[i, channel] and shape[i, channel] == width
        if not same:
            elements = np.int64(1)
            for d in range(shape.shape[1]):
                if shape[i, d] == 0:
                    elements = np.int64(0)
            if elements:
                return False
    return True


@numba.njit(types.UniTuple(types.int64, 3)(types.Array(types.int64, 3, "C")), cache=True)
def lines(dims: Any) -> Any:
    """For loops [N, D, 5], return the maximum number of lines per sample, the longest line, and whether everything lies
    within the source; -1 lines if elements of a line are not adjacent in source or output."""
    n, ndim = dims.shape[0], dims.shape[1]
    most, longest, inside = np.int64(0), np.int64(0), np.int64(1)
    for i in range(n):
        last = dims[i, ndim - 1]
        rows, width = np.int64(1), last[SHAPE]
        for d in range(ndim - 1):
            if dims[i, d, SHAPE] == 0:
                width = np.int64(0)
        if width == 0:
            continue
        if last[STRIDE] != 1 and (width > 1 or last[ANCHOR] != 0):
            return np.int64(-1), longest, inside
        if last[OUT_STRIDE] != 1 and width > 1:
            return np.int64(-1), longest, inside
        for d in range(ndim):
            rows *= dims[i, d, SHAPE] if d < ndim - 1 else np.int64(1)
            if dims[i, d, ANCHOR] < 0 or dims[i, d, ANCHOR] + dims[i, d, SHAPE] > dims[i, d, EXTENT]:
                inside = np.int64(0)
        most, longest = max(most, rows), max(longest, width)
    return most, longest, inside


@numba.njit(types.int64(*_PLAN), cache=True)
def tiles(
    shape: Any, stride: Any, anchor: Any, extent: Any, out_stride: Any, channel: Any, fills: Any, out: Any
) -> Any:
    """Compute the nested loops of a copy plan, as `loops` does, in the order that the CPU kernel needs, at least two:
    outer dimensions, rows, and a short dimension (such as channels) innermost. Return their number; ``out`` begins with
    these loops [N, loops, 5]."""
    n, ndim = shape.shape
    dims, kept = np.empty((max(ndim, 1), n, 5), np.int64), np.empty(max(ndim, 1), np.int64)
    count, inner = _fold(shape, stride, anchor, extent, out_stride, channel, fills, dims, kept)
    if inner < 0 and count > 1 and _short(dims, kept[0], n, False):
        inner = 0
    for k in range(count - 1, 0 if inner < 0 else count, -1):
        if _short(dims, kept[k], n, True):
            inner = k
            break
    total = max(count - (inner >= 0), 1) + 1
    table = out[: n * total * 5].reshape((n, total, 5))
    for i in range(n):
        at = 0
        for k in range(count - 1, -1, -1):
            if k != inner:
                _put(table, i, at, dims, kept[k])
                at += 1
        if at == 0:
            _put(table, i, 0, dims, -1)
        _put(table, i, total - 1, dims, kept[inner] if inner >= 0 else -1)
    return total
