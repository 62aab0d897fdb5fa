"""Compiled loop that converts packets of MP4 to byte streams in place."""

from __future__ import annotations

from typing import Any

import numba


@numba.njit("int64(uint8[::1], int64[::1], int64[::1])", nogil=True, cache=True)
def start_codes(data: Any, starts: Any, sizes: Any) -> Any:
    """Replace the length of four bytes before each NAL unit of each packet by a start code (ITU-T H.264, annex B).
    Return the number of packets whose lengths do not add up; they are unchanged from the wrong length on."""
    bad = 0
    for k in range(len(starts)):
        at, end = starts[k], starts[k] + sizes[k]
        while at + 4 <= end:
            size = (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]
            data[at] = data[at + 1] = data[at + 2] = 0
            data[at + 3] = 1
            at += 4 + size
        bad += at != end
    return bad
