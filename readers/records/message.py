"""Parse protobuf messages into Python values, one field after the other, outside of hot paths.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .varint import varint


def message_fields(data: bytes | memoryview) -> Iterator[tuple[int, Any]]:
    """Iterate over field numbers and values (int, or a slice of ``data``) of a protobuf message. Raises ValueError for
    anything else."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("field number 0")
        if wire == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if size > len(data) - at:
            raise ValueError("a field ends after its message")
        yield number, data[at : at + size]
        at += size
