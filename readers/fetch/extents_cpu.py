"""Compiled loops over extents, (offset, size) ranges of a buffer: prefetch their pages, lay them out, and copy them."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types

intrinsic: Any = extending.intrinsic  # typed after the wrapped function, which has one argument more

# Numba copies between slices element by element, at a tenth of the speed of memcpy
_memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))

_madvise: Any = types.ExternalFunction("madvise", types.int32(types.intp, types.uintp, types.int32))
_WILLNEED = 3


_LINE = 64
_LONG = 8192
"""Size in bytes from which on a copy bypasses the processor's caches: the copied bytes are read next by a GPU, or much
later."""


@intrinsic
def _stream_line(_typing: Any, _to: Any, _source: Any) -> Any:
    """Copy 64 bytes from an address of any alignment to one that is a multiple of 32, bypassing the caches."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        to, source = args
        half, i64 = ir.VectorType(ir.IntType(64), 4), ir.IntType(64)
        places = [[builder.inttoptr(builder.add(a, i64(k)), half.as_pointer()) for k in (0, 32)] for a in (source, to)]
        values = [builder.load(place, align=1) for place in places[0]]
        for value, place in zip(values, places[1], strict=True):
            store = builder.store(value, place, align=32)
            store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _fence(_typing: Any) -> Any:
    """Make streamed bytes visible to other threads from here on."""

    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@numba.njit("void(uint8[::1], int64[::1], int64[::1], int64)", nogil=True, cache=True)
def will_need(data: Any, offsets: Any, sizes: Any, page: Any) -> None:
    """Ask the kernel (madvise) to load the pages of many byte ranges of a mapped file at once, instead of one by one
    when they are touched.

    Consecutive ranges that share a page are requested together.
    """
    base = data.ctypes.data
    i = 0
    while i < len(offsets):
        low, high = offsets[i], offsets[i] + sizes[i]
        i += 1
        while i < len(offsets) and 0 <= offsets[i] - high <= page:
            high = offsets[i] + sizes[i]
            i += 1
        low = (base + low) // page * page
        if high + base > low:
            _madvise(low, np.uintp(base + high - low), np.int32(_WILLNEED))


@numba.njit("int64(int64[::1], int64, int64[::1], int32[:, ::1])", cache=True)
def lay_out(sizes: Any, step: Any, at: Any, shapes: Any) -> Any:
    """Compute where byte ranges of ``sizes`` are placed one after the other, each at a multiple of ``step``. Fill their
    offsets ``at`` and ``shapes`` [N, 1]; return the end of the last one, rounded up. The loop takes some microseconds
    and keeps the GIL, which the NumPy equivalents would release and take again for each operation."""
    end = np.int64(0)
    for i in range(len(sizes)):
        at[i], shapes[i, 0] = end, sizes[i]
        end += (sizes[i] + step - 1) // step * step
    return end


@numba.njit(cache=True)  # no signature: callers also pass read-only arrays
def files_of(starts: Any, offsets: Any, files: Any) -> Any:
    """Fill ``files`` with the index of the file that holds each of ``offsets``. File i begins at ``starts[i]``;
    ``starts`` are ascending. Return the smallest and the largest of these indices."""
    low: Any = len(starts)
    high: Any = -1
    file = np.int64(0)
    for i in range(len(offsets)):
        last = file + 1 == len(starts)
        if offsets[i] < starts[file] or not (
            last or offsets[i] < starts[file + 1]
        ):  # not in the previous offset's file
            file = np.searchsorted(starts, offsets[i], side="right") - 1
        files[i] = file
        low, high = min(low, file), max(high, file)
    return low, high


@numba.njit("void(uint8[::1], int64, int64, uint8[::1], int64)", nogil=True, cache=True)
def copy_extent(source: Any, offset: Any, size: Any, out: Any, at: Any) -> None:
    """Copy ``source[offset : offset + size]`` to ``out[at:]``; the caller has checked the bounds."""
    _memcpy(out.ctypes.data + at, source.ctypes.data + offset, np.uintp(size))


@numba.njit("void(uint8[::1], int64[::1], int64[::1], uint8[::1], int64[::1])", nogil=True, cache=True)
def copy_extents(source: Any, offsets: Any, sizes: Any, out: Any, at: Any) -> None:
    """Copy ``source[offsets[i] : offsets[i] + sizes[i]]`` to ``out[at[i] :]``; the caller has checked the bounds."""
    for i in range(len(offsets)):
        if sizes[i] < _LONG:
            copy_extent(source, offsets[i], sizes[i], out, at[i])
            continue
        to, low = out.ctypes.data + at[i], source.ctypes.data + offsets[i]
        head = -to % 32
        stop = head + (sizes[i] - head) // _LINE * _LINE
        _memcpy(to, low, np.uintp(head))
        for k in range(head, stop, _LINE):
            _stream_line(to + k, low + k)
        _memcpy(to + stop, low + stop, np.uintp(sizes[i] - stop))
    _fence()
