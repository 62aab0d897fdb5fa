"""Extents, parts of a buffer: asked for ahead, and copied into places of another buffer."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

# Numba's own copies between slices go element by element, at a tenth of the speed
_memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))

_madvise: Any = types.ExternalFunction("madvise", types.int32(types.intp, types.uintp, types.int32))
_WILLNEED = 3


@numba.njit("void(uint8[::1], int64[::1], int64[::1], int64)", nogil=True, cache=True)
def will_need(data: Any, offsets: Any, sizes: Any, page: Any) -> None:
    """Ask for the pages of extents of a mapping, all at once instead of one after the other when they are touched.

    Extents that follow each other within a page are asked for together.
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


@numba.njit("void(uint8[::1], int64, int64, uint8[::1], int64)", nogil=True, cache=True)
def copy_extent(source: Any, offset: Any, size: Any, out: Any, at: Any) -> None:
    """``source[offset : offset + size]`` to ``out[at:]``; the caller has checked the bounds."""
    _memcpy(out.ctypes.data + at, source.ctypes.data + offset, np.uintp(size))


@numba.njit("void(uint8[::1], int64[::1], int64[::1], uint8[::1], int64[::1])", nogil=True, cache=True)
def copy_extents(source: Any, offsets: Any, sizes: Any, out: Any, at: Any) -> None:
    """``source[offsets[i] : offsets[i] + sizes[i]]`` to ``out[at[i] :]``; the caller has checked the bounds."""
    for i in range(len(offsets)):
        copy_extent(source, offsets[i], sizes[i], out, at[i])
