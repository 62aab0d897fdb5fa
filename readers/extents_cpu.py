"""Copying extents: parts of one buffer, one after the other, into places of another."""

from __future__ import annotations

from typing import Any

import numba


@numba.njit("void(uint8[::1], int64[::1], int64[::1], uint8[::1], int64[::1])", nogil=True, cache=True)
def copy_extents(source: Any, offsets: Any, sizes: Any, out: Any, at: Any) -> None:
    """``source[offsets[i] : offsets[i] + sizes[i]]`` to ``out[at[i] :]``; the caller has checked the bounds."""
    for i in range(len(offsets)):
        out[at[i] : at[i] + sizes[i]] = source[offsets[i] : offsets[i] + sizes[i]]
