"""Fields of DALI's protobuf files as the values that they stand for. Nothing is trusted.

All raise ValueError where a field is of another kind.
"""

from __future__ import annotations

import struct

from ....readers.records.varint import varint

Field = int | bytes
"""A varint as its unsigned number; anything else as bytes (fixed numbers as 4 or 8 of them)."""


def integers(field: Field) -> list[int]:
    """An int64 field, or a packed row of them."""
    if isinstance(field, int):
        return [_signed(field)]
    found, at = [], 0
    while at < len(field):
        value, at = varint(field, at)
        found.append(_signed(value))
    return found


def floats(field: Field) -> list[float]:
    """A float field, or a packed row of them: the shortest decimal numbers that are these floats."""
    if isinstance(field, int) or len(field) % 4:
        raise ValueError("a number is no float32")
    return [shortest(v) for (v,) in struct.iter_unpack("<f", field)]


def shortest(value: float) -> float:
    """The number with the fewest digits whose float32 is ``value``: 0.3, not 0.30000001192092896."""
    if value != value or value in (float("inf"), float("-inf")):
        return value
    for digits in range(6, 9):
        text = f"{value:.{digits}g}"
        if struct.unpack("<f", struct.pack("<f", float(text)))[0] == value:
            return float(text)
    return float(f"{value:.9g}")


def text(field: Field) -> str:
    """A string field."""
    if isinstance(field, int):
        raise ValueError("a number is where a text must be")
    try:
        return field.decode()
    except UnicodeDecodeError:
        raise ValueError(f"a text is not UTF-8: {field[:40]!r}") from None


def message(field: Field) -> bytes:
    """A nested message."""
    if isinstance(field, int):
        raise ValueError("a number is where a message must be")
    return field


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - (1 << 64) if value >> 63 else value
