"""Numbers of variable length (LEB128), as protocol buffers and Thrift's compact protocol write them."""

from __future__ import annotations


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Decode the varint at byte ``at``. Return the number and the offset after it. Raises ValueError if it is cut short
    or has no end."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number ends after the data")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than ten bytes")
