"""Compiled parser of a batch of MessagePack records in one pass: entries of maps by name, of arrays by number. It has
the same functions as `example_cpu`.

Format: github.com/msgpack/msgpack, spec.md. Arrays of the msgpack-numpy package (maps with "nd" and "data") count as
their bytes. Nothing is read outside a record, and nesting needs no recursion.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .example_cpu import BYTES_LIST, COUNT, DAMAGED, FLOAT_LIST, INT64_LIST, KIND, OK, START, STOP

NIL, INTEGER, FLOAT, BYTES, ARRAY, MAP, EXTENSION, BAD = range(8)
OTHER = 4
"""Kind of a feature that is neither bytes nor numbers; the other kinds are in `example_cpu`."""


@numba.njit("uint64(uint8[::1], int64, int64)", nogil=True, cache=True)
def _big(data: Any, at: Any, nbytes: Any) -> Any:
    value = np.uint64(0)
    for k in range(nbytes):
        value = value << np.uint64(8) | np.uint64(data[at + k])
    return value


@numba.njit("Tuple((int64, int64, int64))(uint8[::1], int64, int64)", nogil=True, cache=True)
def head(data: Any, at: Any, stop: Any) -> Any:
    """Read the first bytes of the MessagePack value at ``at``. Return its type, the offset of its content, and the
    content's length in bytes (for arrays and maps: in elements). The content of a number includes the first byte;
    `number` reads it."""
    bad = np.int64(BAD), at, np.int64(0)
    if at >= stop:
        return bad
    first = np.int64(data[at])
    kind, content, length = np.int64(BAD), at + 1, np.int64(0)
    width = np.int64(0)  # bytes of the length field that follows
    if first < 0x80 or first >= 0xE0:
        kind, content, length = np.int64(INTEGER), at, np.int64(1)
    elif first < 0x90:
        kind, length = np.int64(MAP), first & 15
    elif first < 0xA0:
        kind, length = np.int64(ARRAY), first & 15
    elif first < 0xC0:
        kind, length = np.int64(BYTES), first & 31
    elif first == 0xC0:
        kind = np.int64(NIL)
    elif first in (0xC2, 0xC3):
        kind, content, length = np.int64(INTEGER), at, np.int64(1)
    elif 0xC4 <= first <= 0xC6:
        kind, width = np.int64(BYTES), np.int64(1 << (first - 0xC4))
    elif 0xC7 <= first <= 0xC9:
        kind, width = np.int64(EXTENSION), np.int64(1 << (first - 0xC7))
    elif first in (0xCA, 0xCB):
        kind, content, length = np.int64(FLOAT), at, np.int64(5 if first == 0xCA else 9)
    elif 0xCC <= first <= 0xD3:
        kind, content, length = np.int64(INTEGER), at, np.int64(1 + (1 << (first & 3)))
    elif 0xD4 <= first <= 0xD8:
        kind, length = np.int64(EXTENSION), np.int64(1 + (1 << (first - 0xD4)))
    elif 0xD9 <= first <= 0xDB:
        kind, width = np.int64(BYTES), np.int64(1 << (first - 0xD9))
    elif first in (0xDC, 0xDD):
        kind, width = np.int64(ARRAY), np.int64(2 << (first - 0xDC))
    elif first in (0xDE, 0xDF):
        kind, width = np.int64(MAP), np.int64(2 << (first - 0xDE))
    if width > 0:
        if stop - content < width:
            return bad
        length = np.int64(_big(data, content, width)) + (1 if kind == EXTENSION else 0)
        content += width
    if kind not in (ARRAY, MAP) and length > stop - content:
        return bad
    return kind, content, length


@numba.njit("int64(uint8[::1], int64, int64)", nogil=True, cache=True)
def skip(data: Any, at: Any, stop: Any) -> Any:
    """Return the offset after the value at ``at``; -1 if it is corrupt."""
    pending = np.int64(1)
    while pending > 0:
        kind, at, length = head(data, at, stop)
        if kind == BAD:
            return np.int64(-1)
        pending -= 1
        if kind == ARRAY:
            pending += length
        elif kind == MAP:
            pending += 2 * length
        else:
            at += length
        if pending > stop - at:  # every value takes at least one byte
            return np.int64(-1)
    return at


@numba.njit("Tuple((int64, float64))(uint8[::1], int64)", nogil=True, cache=True)
def number(data: Any, at: Any) -> Any:
    """Return the MessagePack number at ``at`` (type INTEGER or FLOAT), both as an integer and as a float."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, np.float64(first)
    if first >= 0xE0:
        return first - 256, np.float64(first - 256)
    if first in (0xC2, 0xC3):
        return first - 0xC2, np.float64(first - 0xC2)
    eight = np.empty(8, np.uint8)
    if first in (0xCA, 0xCB):
        width = 4 << (first - 0xCA)
        for k in range(width):
            eight[k] = data[at + width - k]
        real = np.float64(eight[:4].view(np.float32)[0]) if width == 4 else eight.view(np.float64)[0]
        return np.int64(0), real
    width = 1 << (first & 3)
    raw = _big(data, at + 1, np.int64(width))
    if first >= 0xD0 and width < 8 and raw >> np.uint64(8 * width - 1):
        value = np.int64(raw) - (np.int64(1) << (8 * width))
    else:
        value = np.int64(raw)
    return value, np.float64(value)


@numba.njit("boolean(uint8[::1], int64, int64, uint8[::1], int64, int64)", nogil=True, cache=True)
def _equal(data: Any, at: Any, size: Any, names: Any, low: Any, name_size: Any) -> Any:
    if size != name_size:
        return False
    for k in range(size):  # noqa: SIM110
        if data[at + k] != names[low + k]:
            return False
    return True


@numba.njit("int64(int64, uint8[::1], int64[::1])", nogil=True, cache=True)
def _by_number(position: Any, names: Any, name_starts: Any) -> Any:
    """Return the index of the requested feature whose name is ``position`` in decimal digits; -1 if there is none."""
    for f in range(len(name_starts) - 1):
        low, high = name_starts[f], name_starts[f + 1]
        value = np.int64(0)
        plain = 0 < high - low <= 9 and (names[low] != 48 or high - low == 1)
        for k in range(low, high):
            plain = plain and 48 <= names[k] <= 57
            value = value * 10 + (np.int64(names[k]) - 48)
        if plain and value == position:
            return f
    return -1


@numba.njit("void(uint8[::1], int64, int64, int64[::1])", nogil=True, cache=True)
def _value(data: Any, at: Any, stop: Any, found: Any) -> Any:
    """Fill ``found`` with position, number of values and kind of the complete MessagePack value at ``at``."""
    end = skip(data, at, stop)
    kind, content, length = head(data, at, stop)
    found[START], found[STOP], found[COUNT], found[KIND] = at, end, 1, OTHER
    if kind == NIL:
        found[COUNT], found[KIND] = 0, 0
    elif kind == INTEGER:
        found[KIND] = INT64_LIST
    elif kind == FLOAT:
        found[KIND] = FLOAT_LIST
    elif kind == BYTES:
        found[START], found[STOP], found[KIND] = content, content + length, BYTES_LIST
    elif kind == ARRAY:
        found[START], found[COUNT] = content, length
        integers, floats, texts = 0, 0, 0
        place = content
        for _ in range(length):
            inner, low, size = head(data, place, stop)
            if inner == BYTES:
                if texts == 0:
                    found[START], found[STOP] = low, low + size
                texts += 1
            integers += 1 if inner == INTEGER else 0
            floats += 1 if inner == FLOAT else 0
            place = skip(data, place, stop)
        if length == 0:
            found[KIND] = 0
        elif texts == length:
            found[KIND] = BYTES_LIST
        elif texts == 0 and integers + floats == length:
            found[KIND] = INT64_LIST if floats == 0 else FLOAT_LIST
    elif kind == MAP:  # msgpack-numpy's arrays
        place, is_array = content, False
        for _ in range(length):
            key, low, size = head(data, place, stop)
            place = skip(data, place, stop)
            if key == BYTES and size == 2 and data[low] == 110 and data[low + 1] == 100:
                is_array = True
            elif key == BYTES and size == 4 and data[low] == 100 and data[low + 1] == 97 and data[low + 3] == 97:
                inner, low, size = head(data, place, stop)
                if inner == BYTES:
                    found[START], found[STOP] = low, low + size
            place = skip(data, place, stop)
        if is_array and found[START] != at:
            found[KIND] = BYTES_LIST


@numba.njit(
    "void(uint8[::1], int64[::1], int64[::1], boolean[::1], uint8[::1], int64[::1], int64[:, :, ::1], int32[::1])",
    nogil=True,
    cache=True,
)
def find_features(
    data: Any, offsets: Any, sizes: Any, good: Any, names: Any, name_starts: Any, found: Any, status: Any
) -> None:  # fmt: skip
    """Locate features in MessagePack, as `example_cpu.find_features` does: by key in maps, by position in arrays."""
    for i in range(len(offsets)):
        found[i] = 0
        status[i] = OK if good[i] else DAMAGED
        if not good[i]:
            continue
        at, stop = offsets[i], offsets[i] + sizes[i]
        kind, place, length = head(data, at, stop)
        if kind not in (MAP, ARRAY) or skip(data, at, stop) < 0:
            status[i] = DAMAGED
            continue
        for k in range(length):
            which = np.int64(-1)
            if kind == ARRAY:
                which = _by_number(k, names, name_starts)
            else:
                key, low, size = head(data, place, stop)
                place = skip(data, place, stop)
                if key == INTEGER:
                    which = _by_number(number(data, low)[0], names, name_starts)
                elif key == BYTES:
                    for f in range(len(name_starts) - 1):
                        if _equal(data, low, size, names, name_starts[f], name_starts[f + 1] - name_starts[f]):
                            which = np.int64(f)
            if which >= 0:
                _value(data, place, stop, found[i, which])
            place = skip(data, place, stop)


@numba.njit("void(uint8[::1], int64[:, ::1], int64[::1], float32[::1])", nogil=True, cache=True)
def read_floats(data: Any, found: Any, at: Any, out: Any) -> None:
    """Copy a feature's float values to ``out``, as `example_cpu.read_floats` does."""
    for i in range(len(found)):
        place = found[i, START]
        for k in range(found[i, COUNT] if found[i, KIND] == FLOAT_LIST else 0):
            out[at[i] + k] = np.float32(number(data, place)[1])
            place = skip(data, place, found[i, STOP])


@numba.njit("void(uint8[::1], int64[:, ::1], int64[::1], int64[::1])", nogil=True, cache=True)
def read_integers(data: Any, found: Any, at: Any, out: Any) -> None:
    """Copy a feature's integer values to ``out``, as `example_cpu.read_integers` does."""
    for i in range(len(found)):
        place = found[i, START]
        for k in range(found[i, COUNT] if found[i, KIND] == INT64_LIST else 0):
            out[at[i] + k] = number(data, place)[0]
            place = skip(data, place, found[i, STOP])
