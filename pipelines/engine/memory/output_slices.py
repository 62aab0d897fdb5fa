"""Place the results of a batch's chunks next to each other in one array, so that joining them copies nothing.

Used by `HostExecutor` for chunks of workers, and by `OnDevice` for launches that are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.batch import I64, Batch, concat, concat_samples
from .estimate import Outputs

Empty = Callable[[int, Any], Any]
Array = npt.NDArray[Any]

_MIN_BYTES = 1 << 20
"""Minimum size in bytes of an output for which one array per batch is allocated before the chunks run. Smaller outputs
are copied together afterwards, which takes almost no time."""


def whole_outputs(outputs: Outputs, empty: Empty) -> list[tuple[Array, I64]]:
    """Allocate one array per large output of a step, with the estimated size, into which all chunks of a batch will
    write. Return each array with the index at which every sample ends in it (int64[N]). If the results have other
    sizes, the arrays stay unused."""
    arrays = []
    for dtype, elements in outputs:
        ends = np.cumsum(elements)
        if len(ends) and int(ends[-1]) * dtype.itemsize >= _MIN_BYTES:
            arrays.append((empty(int(ends[-1]), dtype), ends))
    return arrays


def peak_without_outputs(peak: I64, whole: Sequence[tuple[Array, I64]]) -> I64:
    """Return the ``peak`` of each sample in bytes (int64[N]), minus the sample's bytes in the output arrays ``whole``.
    At least half of the peak is left, because the peak may come before the outputs exist."""
    if not whole:
        return peak
    placed = sum(np.diff(ends, prepend=0) * array.dtype.itemsize for array, ends in whole)
    remaining: I64 = np.maximum(peak - placed, peak // 2)
    return remaining


class OutputSlice:
    """The part of a batch's output arrays that one chunk fills, so that joining chunks copies nothing.

    The first kernel of the chunk that allocates exactly this size and dtype gets the memory. If that allocation is not
    the output, joining costs one extra copy."""

    def __init__(self, whole: Sequence[tuple[Array, I64]], first: int, stop: int) -> None:
        """``whole``: the output arrays of the batch, from `whole_outputs`. The chunk has the samples [first, stop)."""
        self._left = [array[int(ends[first - 1]) if first else 0 : int(ends[stop - 1])] for array, ends in whole]

    def take(self, n: int, dtype: Any) -> Array | None:
        """Return uninitialised memory for ``n`` elements of ``dtype`` in one of the output arrays. Return None if the
        chunk has no part of this length and dtype, or if that part was taken already."""
        for k, array in enumerate(self._left):
            if len(array) == n and array.dtype == dtype:
                return self._left.pop(k)
        return None


def in_place(parts: Sequence[Batch], whole: Sequence[tuple[Array, I64]]) -> Batch | None:
    """Return ``parts`` as one batch, without a copy, if their data follow one another in one of the arrays ``whole``,
    from its beginning. Return None if they do not. The arrays may be on the host or on a device."""
    filled = [b for b in parts if len(b)]
    first = next(iter(filled), None)
    for array, _ in whole if first is not None else ():
        at = begin = _address(array)
        for b in filled:
            same = b.dtype == array.dtype and b.ndim == filled[0].ndim and b.is_packed and type(b.data) is type(array)
            if not same or _address(b.data) + int(b.offsets[0]) * b.dtype.itemsize != at:
                break
            at += b.nbytes
        else:
            sizes = np.concatenate([b.sizes for b in filled])
            data = array[: (at - begin) // array.dtype.itemsize]
            shapes = np.concatenate([b.shapes for b in filled])
            samples = concat_samples([b.samples for b in parts])
            return Batch(data, np.cumsum(sizes) - sizes, shapes, filled[0].layout, samples)
    return None


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def join(parts: Sequence[Batch], empty: Empty) -> Batch:
    """Concatenate the batches ``parts``. Nothing is copied if their data already follow each other in one array."""
    filled = [b for b in parts if len(b)]
    adjacent = len(filled) > 1 and isinstance(filled[0].data, np.ndarray) and filled[0].data.base is not None
    stop = None
    for b in filled if adjacent else ():
        begin = b.data.__array_interface__["data"][0] + int(b.offsets[0]) * b.dtype.itemsize
        same = b.data.base is filled[0].data.base and b.dtype == filled[0].dtype and b.ndim == filled[0].ndim
        adjacent = adjacent and same and b.is_packed and begin == (begin if stop is None else stop)
        stop = begin + b.nbytes
    root = filled[0].data.base if adjacent else None
    if not isinstance(root, np.ndarray) or root.dtype != np.uint8 or root.ndim != 1:
        return concat(parts, empty=empty)
    first, sizes = filled[0], np.concatenate([b.sizes for b in filled])
    begin = first.data.__array_interface__["data"][0] + int(first.offsets[0]) * first.dtype.itemsize
    start = begin - root.__array_interface__["data"][0]
    data = root[start : start + int(sizes.sum()) * first.dtype.itemsize].view(first.dtype)
    offsets = np.cumsum(sizes) - sizes
    shapes = np.concatenate([b.shapes for b in filled])
    return Batch(data, offsets, shapes, first.layout, concat_samples([b.samples for b in parts]))
