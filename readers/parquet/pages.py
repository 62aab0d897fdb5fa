"""Walk the page headers of Parquet files before anything is unpacked, so that pages with absurd sizes can be rejected.

The format: Apache Parquet's parquet.thrift (PageHeader) in Thrift's compact protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...ops.errors import SampleError
from ..fetch.extents import FREE_UNPACKED, MAX_RATIO
from ..records.varint import varint

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DICTIONARY_PAGE = 2
_TYPE, _UNPACKED, _PACKED = 1, 2, 3
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
"""Field numbers in Parquet's PageHeader. The fields are structs whose first field is the number of values."""
_ENCODING, _ENCODING_V2 = 2, 4
_BY_WORDS = (2, 8)  # PLAIN_DICTIONARY, RLE_DICTIONARY
_DEEPEST = 8
_MOST_ITEMS = 1 << 16
_HEADER = 16 << 20
"""Largest accepted size of a page header in bytes. Headers may be large, because statistics hold whole values."""


@dataclass(slots=True)
class Pages:
    """Sums over the headers of all pages of a column in one row group."""

    values: int = 0
    unpacked: int = 0
    """Unpacked bytes of all pages of the column."""
    dictionary: int = 0
    """Unpacked bytes of the dictionary page; no value in it is longer."""
    words: int = 0
    """Number of values that are stored as indices into the dictionary."""


def walk_pages(data: memoryview, at: int, stop: int, values: int) -> Pages:
    """Read the headers of a column's pages from byte ``at`` on, until ``values`` values or byte ``stop``. Raises
    SampleError for damage and for pages that unpack to absurdly many bytes."""
    found = Pages()
    while found.values < values and at < stop:
        try:
            header, body = _struct(data[: min(stop, at + _HEADER)], at, 0)
            unpacked, packed = int(header[_UNPACKED]), int(header[_PACKED])
            fields: dict[int, Any] = next((header[f] for f in (_DATA, _DATA_V2, _DICTIONARY) if f in header), {})
            count = int(fields.get(1, 0))
            by_words = fields.get(_ENCODING_V2 if _DATA_V2 in header else _ENCODING) in _BY_WORDS
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as e:
            raise SampleError("corrupt_record", f"no page begins at byte {at}: {e}") from None
        if packed < 0 or unpacked < 0 or count < 0 or packed > len(data) - body:
            raise SampleError("corrupt_record", f"the page at byte {at} claims {packed} bytes and {count} values, "
                              "which is impossible")  # fmt: skip
        if unpacked > max(FREE_UNPACKED, MAX_RATIO * packed):
            raise SampleError("too_large", f"the page at byte {at} unpacks from {packed} to {unpacked} bytes, more "
                              f"than {MAX_RATIO} times its size")  # fmt: skip
        found.unpacked += unpacked
        if header.get(_TYPE) == _DICTIONARY_PAGE:
            found.dictionary = max(found.dictionary, unpacked)
        elif count == 0 and packed == 0:
            raise SampleError("corrupt_record", f"the page at byte {at} is empty")
        else:
            found.values += count
            found.words += count * by_words
        at = body + packed
    return found


def _struct(data: memoryview, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Parse the Thrift struct at ``at``. Return its numbers and inner structs by field number, and the offset after it.
    Raises IndexError, ValueError."""
    if depth > _DEEPEST:
        raise ValueError("structs are nested too deeply")
    fields: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        at += 1
        kind, step = head & 15, head >> 4
        if step:
            field += step
        else:
            number, at = varint(data, at)
            field = _signed(number)
        if kind in (_TRUE, _FALSE):
            continue
        fields[field], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: memoryview, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (_I16, _I32, _I64):
        number, at = varint(data, at)
        return _signed(number), at
    if kind == _BINARY:
        size, at = varint(data, at)
        if size > len(data) - at:
            raise ValueError("a text ends after its page")
        return None, at + size
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind in (_BYTE, _TRUE, _FALSE):
        return None, at + 1
    if kind == _DOUBLE:
        return None, at + 8
    if kind in (_LIST, _SET):
        return None, _past_list(data, at, depth)
    raise ValueError(f"type {kind}")


def _past_list(data: memoryview, at: int, depth: int) -> int:
    """Return the offset after the list that begins at ``at``."""
    head = data[at]
    at += 1
    size = head >> 4
    if size == 15:
        size, at = varint(data, at)
    if size > _MOST_ITEMS:
        raise ValueError(f"a list of {size}")
    for _ in range(size):
        _, at = _value(data, at, head & 15, depth + 1)
    return at


def _signed(number: int) -> int:
    return number >> 1 ^ -(number & 1)
