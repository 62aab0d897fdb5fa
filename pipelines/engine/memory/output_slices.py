"""Results of a batch's chunks lie side by side in one array, so that joining them copies nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.batch import I64, Batch, concat, concat_samples
from .estimate import Outputs

Empty = Callable[[int, Any], Any]
Array = npt.NDArray[Any]

_SMALLEST = 1 << 20
"""Bytes of a batch. Smaller ones are copied in no time."""


def whole_outputs(made: Outputs, empty: Empty) -> list[tuple[Array, I64]]:
    """An array for every large output of a step, as it is estimated, and where each sample ends in it. If the step
    makes something else, its memory is never touched."""
    found = []
    for dtype, elements in made:
        ends = np.cumsum(elements)
        if len(ends) and int(ends[-1]) * dtype.itemsize >= _SMALLEST:
            found.append((empty(int(ends[-1]), dtype), ends))
    return found


def peak_without_outputs(peak: I64, whole: Sequence[tuple[Array, I64]]) -> I64:
    """Return the ``peak`` of each sample in bytes, int64[N], without its part of the output arrays ``whole``.

    At least half of the peak is left, because the peak may come before the outputs exist."""
    if not whole:
        return peak
    placed = sum(np.diff(ends, prepend=0) * array.dtype.itemsize for array, ends in whole)
    remaining: I64 = np.maximum(peak - placed, peak // 2)
    return remaining


class OutputSlice:
    """The part of a chunk in the outputs of its batch. Kernels that ask for memory of that size and type get it, each
    part once; should one use it for something else, that is only one copy more."""

    def __init__(self, whole: Sequence[tuple[Array, I64]], first: int, behind: int) -> None:
        """For the samples [first, behind) of the batch."""
        self._left = [array[int(ends[first - 1]) if first else 0 : int(ends[behind - 1])] for array, ends in whole]

    def take(self, n: int, dtype: Any) -> Array | None:
        """Uninitialised memory for ``n`` elements, if the part is that long."""
        for k, array in enumerate(self._left):
            if len(array) == n and array.dtype == dtype:
                return self._left.pop(k)
        return None


def in_place(parts: Sequence[Batch], whole: Sequence[tuple[Array, I64]]) -> Batch | None:
    """The batch that ``parts`` are if they are side by side in one of the arrays ``whole``, from its beginning on, of
    the host or of a device."""
    live = [b for b in parts if len(b)]
    first = next(iter(live), None)
    for array, _ in whole if first is not None else ():
        at = begin = _address(array)
        for b in live:
            same = b.dtype == array.dtype and b.ndim == live[0].ndim and b.is_packed and type(b.data) is type(array)
            if not same or _address(b.data) + int(b.offsets[0]) * b.dtype.itemsize != at:
                break
            at += b.nbytes
        else:
            sizes = np.concatenate([b.sizes for b in live])
            data = array[: (at - begin) // array.dtype.itemsize]
            shapes = np.concatenate([b.shapes for b in live])
            samples = concat_samples([b.samples for b in parts])
            return Batch(data, np.cumsum(sizes) - sizes, shapes, live[0].layout, samples)
    return None


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def join(parts: Sequence[Batch], empty: Empty) -> Batch:
    """`concat`, without a copy where the parts already lie one after the other in one array."""
    live = [b for b in parts if len(b)]
    side_by_side = len(live) > 1 and isinstance(live[0].data, np.ndarray) and live[0].data.base is not None
    behind = None
    for b in live if side_by_side else ():
        begin = b.data.__array_interface__["data"][0] + int(b.offsets[0]) * b.dtype.itemsize
        same = b.data.base is live[0].data.base and b.dtype == live[0].dtype and b.ndim == live[0].ndim
        side_by_side = side_by_side and same and b.is_packed and begin == (begin if behind is None else behind)
        behind = begin + b.nbytes
    root = live[0].data.base if side_by_side else None
    if not isinstance(root, np.ndarray) or root.dtype != np.uint8 or root.ndim != 1:
        return concat(parts, empty=empty)
    first, sizes = live[0], np.concatenate([b.sizes for b in live])
    begin = first.data.__array_interface__["data"][0] + int(first.offsets[0]) * first.dtype.itemsize
    start = begin - root.__array_interface__["data"][0]
    data = root[start : start + int(sizes.sum()) * first.dtype.itemsize].view(first.dtype)
    offsets = np.cumsum(sizes) - sizes
    shapes = np.concatenate([b.shapes for b in live])
    return Batch(data, offsets, shapes, first.layout, concat_samples([b.samples for b in parts]))
