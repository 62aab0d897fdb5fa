"""Compiled, bounded parser of the protobuf wire format: nothing is read outside [at, stop), whatever the bytes say.

Format: protobuf.dev, "Encoding". Groups, which no message here has, count as damage.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


@numba.njit("Tuple((uint64, int64))(uint8[::1], int64, int64)", nogil=True, cache=True)
def varint(data: Any, at: Any, stop: Any) -> Any:
    """Decode the varint at ``at``. Return the number and the offset after it; offset -1 if it is corrupt."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < stop and shift < np.uint64(70):
        byte = np.uint64(data[at])
        value |= (byte & np.uint64(127)) << shift
        at += 1
        if byte < np.uint64(128):
            return value, at
        shift += np.uint64(7)
    return np.uint64(0), np.int64(-1)


@numba.njit("Tuple((int64, int64, int64, int64))(uint8[::1], int64, int64)", nogil=True, cache=True)
def field(data: Any, at: Any, stop: Any) -> Any:
    """Read the protobuf field at ``at``. Return its number, its wire type (-1 if it is corrupt), and start and end of
    its value's bytes: without the length for BYTES, still encoded for a varint."""
    tag, at = varint(data, at, stop)
    if at < 0 or tag > np.uint64(0xFFFFFFFF) or tag < np.uint64(8):
        return np.int64(0), np.int64(-1), np.int64(0), np.int64(0)
    number, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
    if wire == VARINT:
        _, end = varint(data, at, stop)
    elif wire == FIXED64:
        end = at + 8
    elif wire == FIXED32:
        end = at + 4
    elif wire == BYTES:
        length, at = varint(data, at, stop)
        if at < 0 or length > np.uint64(stop - at):
            return number, np.int64(-1), np.int64(0), np.int64(0)
        end = at + np.int64(length)
    else:
        return number, np.int64(-1), np.int64(0), np.int64(0)
    if end < 0 or end > stop:
        return number, np.int64(-1), np.int64(0), np.int64(0)
    return number, wire, at, end


@numba.njit("int64(uint8[::1], int64, int64)", nogil=True, cache=True)
def count_varints(data: Any, at: Any, stop: Any) -> Any:
    """Count the varints in ``data[at:stop]``; return -1 if the last is cut off or one is too long."""
    count, length = 0, 0
    for i in range(at, stop):
        length += 1
        if length > 10:
            return np.int64(-1)
        if data[i] < 128:
            count += 1
            length = 0
    return np.int64(count if length == 0 else -1)
