"""Compiled functions that read marker segments of JPEGs (T.81, B.2), shared by all walks through a file. Nothing
outside ``data`` is read."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

FINE, DAMAGED = 0, 4  # equal to OK and CORRUPT of `header`


@numba.njit(nogil=True, cache=True)
def u16(data, at):  # type: ignore[no-untyped-def]
    return (np.int64(data[at]) << 8) | np.int64(data[at + 1])


@numba.njit(nogil=True, cache=True)
def past_fill(data, at):  # type: ignore[no-untyped-def]
    """Return the offset of a marker's code, after any fill bytes (FF) at ``at``."""
    while at < len(data) and data[at] == 0xFF:
        at += 1
    return at


@numba.njit(nogil=True, cache=True)
def huffman_tables(data, at, end, tables):  # type: ignore[no-untyped-def]
    while at + 17 <= end:
        kind, index = data[at] >> 4, data[at] & 15
        symbols: Any = 0
        for i in range(1, 17):
            symbols += np.int64(data[at + i])
        if kind > 1 or index > 3 or symbols > 256 or at + 17 + symbols > end:
            return DAMAGED
        tables[1 + kind, index] = at + 1
        at += 17 + symbols
    return FINE if at == end else DAMAGED


@numba.njit(nogil=True, cache=True)
def quantisation_tables(data, at, end, tables, wide):  # type: ignore[no-untyped-def]
    while at < end:
        entry, index = data[at] >> 4, data[at] & 15
        length = 128 if entry else 64
        if index > 3 or at + 1 + length > end:
            return DAMAGED, wide
        tables[0, index] = at + 1
        wide = wide | (1 << index) if entry else wide & ~(1 << index)
        at += 1 + length
    return FINE, wide


_I8, _I64 = ir.IntType(8), ir.IntType(64)
_AT_ONCE = 32


def _find_markers(_typing: Any, _address: Any) -> Any:
    """Return a mask of markers in 32 bytes: bit i is 1 if byte i from the address on is FF, and the next byte is not 0.
    Reads 33 bytes."""
    vector = ir.VectorType(_I8, _AT_ONCE)

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        places = args[0], builder.add(args[0], ir.Constant(_I64, 1))
        here, after = (builder.load(builder.inttoptr(p, vector.as_pointer()), align=1) for p in places)
        full = builder.icmp_unsigned("==", here, ir.Constant(vector, [255] * _AT_ONCE))
        other = builder.icmp_unsigned("!=", after, ir.Constant(vector, [0] * _AT_ONCE))
        bits = builder.bitcast(builder.and_(full, other), ir.IntType(_AT_ONCE))
        return builder.zext(bits, _I64)

    return types.uint64(types.uint64), generate


_markers: Any = intrinsic(_find_markers)


@numba.njit(nogil=True, cache=True)
def past_scan(data, at):  # type: ignore[no-untyped-def]
    """Skip entropy-coded bytes up to the marker that ends them, which is neither FF 00 nor RSTn. Return the marker's
    offset, the offset after it, and its code, which is -1 if there is no marker."""
    size = np.int64(len(data))
    base = np.uint64(data.ctypes.data)
    at = np.int64(at)
    while True:
        while at + _AT_ONCE < size and _markers(base + np.uint64(at)) == 0:
            at += _AT_ONCE
        while at + 1 < size and (data[at] != 0xFF or data[at + 1] == 0):
            at += 1
        stop = at
        at = np.int64(past_fill(data, at))
        if at >= size or data[stop] != 0xFF:
            return stop, at, np.int64(-1)
        marker = np.int64(data[at])
        at += 1
        if marker != 0 and not 0xD0 <= marker <= 0xD7:
            return stop, at, marker
