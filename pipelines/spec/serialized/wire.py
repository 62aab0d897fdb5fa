"""Fields of DALI's protobuf files as values. The input is not trusted.

All functions raise ValueError for a field of another kind.
"""

from __future__ import annotations

import struct

from ....readers.records.varint import varint

Field = int | bytes
"""Value of a protobuf field: a varint as its unsigned number, any other kind as bytes (fixed-size numbers as 4 or 8
bytes)."""


def integers(field: Field) -> list[int]:
    """Decode a protobuf field of type int64, or a packed list of them."""
    if isinstance(field, int):
        return [_signed(field)]
    values, position = [], 0
    while position < len(field):
        value, position = varint(field, position)
        values.append(_signed(value))
    return values


def floats(field: Field) -> list[float]:
    """Decode a protobuf field of type float, or a packed list of them, as the shortest decimal numbers for these
    floats."""
    if isinstance(field, int) or len(field) % 4:
        raise ValueError("a number is not a float32")
    return [shortest(v) for (v,) in struct.iter_unpack("<f", field)]


def shortest(value: float) -> float:
    """Return the number with the fewest digits whose float32 is ``value``: 0.3, not 0.30000001192092896."""
    if value != value or value in (float("inf"), float("-inf")):
        return value
    for digits in range(6, 9):
        text = f"{value:.{digits}g}"
        if struct.unpack("<f", struct.pack("<f", float(text)))[0] == value:
            return float(text)
    return float(f"{value:.9g}")


def text(field: Field) -> str:
    """Decode a protobuf field of type string."""
    if isinstance(field, int):
        raise ValueError("found a number instead of a text")
    try:
        return field.decode()
    except UnicodeDecodeError:
        raise ValueError(f"a text is not UTF-8: {field[:40]!r}") from None


def message(field: Field) -> bytes:
    """Return the bytes of a nested protobuf message."""
    if isinstance(field, int):
        raise ValueError("found a number instead of a message")
    return field


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - (1 << 64) if value >> 63 else value
