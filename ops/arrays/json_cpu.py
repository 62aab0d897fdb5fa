"""Loops that find values in JSON texts by path, without building Python objects: they return offsets and kinds of
values, and decode the escapes of strings. `json_values` and the readers' tables call them.

A path is three arrays: the bytes of its names, the offsets at which each name begins and ends (``cuts``, one more than
names), and for each step an index into a JSON array, or -1 for a name. The JSON text is the bytes ``[at, stop)`` of an
array.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

PLAIN, DOUBLED, ESCAPED, RAW, ABSENT = range(5)
"""Kinds of values: a string without escapes; a string with doubled quotes (CSV); a string with JSON's escapes; the JSON
text of any other value; no value (null, or a member that does not exist)."""
FOUND, MISSING, MALFORMED = 1, 0, -1
"""Results of `find_value`: the value exists; it does not exist or is null; the JSON is malformed."""
NO_TEXT = -1
"""Result of `unpack` if a string has invalid escapes."""


@numba.njit("int64(uint8[::1], int64, int64)", nogil=True, cache=True)
def skip_space(data: Any, at: Any, stop: Any) -> Any:
    """Return the first offset at or after ``at`` of a byte that is not white space."""
    while at < stop and (data[at] == 32 or 9 <= data[at] <= 13):
        at += 1
    return at


@numba.njit("int64(uint8[::1], int64, int64)", nogil=True, cache=True)
def skip_string(data: Any, at: Any, stop: Any) -> Any:
    """Return the offset after the string whose opening quote is at ``at``; -1 if the closing quote is missing."""
    at += 1
    while at < stop:
        if data[at] == 34:
            return at + 1
        at += 2 if data[at] == 92 else 1
    return np.int64(-1)


@numba.njit("int64(uint8[::1], int64, int64)", nogil=True, cache=True)
def skip_value(data: Any, at: Any, stop: Any) -> Any:
    """Return the offset after the value at ``at``; -1 if it is empty, or its end is missing."""
    if at >= stop:
        return np.int64(-1)
    if data[at] == 34:
        return skip_string(data, at, stop)
    if data[at] == 123 or data[at] == 91:
        depth = 0
        while at < stop:
            c = data[at]
            if c == 34:
                at = skip_string(data, at, stop)
                if at < 0:
                    return np.int64(-1)
                continue
            if c == 123 or c == 91:
                depth += 1
            elif c == 125 or c == 93:
                depth -= 1
                if depth == 0:
                    return at + 1
            at += 1
        return np.int64(-1)
    first = at
    while at < stop:
        c = data[at]
        if c == 44 or c == 125 or c == 93 or c == 58 or c == 34 or c == 32 or 9 <= c <= 13:
            break
        at += 1
    return at if at > first else np.int64(-1)


@numba.njit("boolean(uint8[::1], int64, int64, uint8[::1], int64, int64)", nogil=True, cache=True)
def _is_name(data: Any, at: Any, stop: Any, names: Any, first: Any, last: Any) -> Any:
    """Whether the string ``data[at:stop]``, quotes included, is ``names[first:last]``."""
    if stop - at - 2 != last - first:
        return False
    for k in range(last - first):  # noqa: SIM110 (compiled)
        if data[at + 1 + k] != names[first + k]:
            return False
    return True


@numba.njit("int64(uint8[::1], int64, int64, uint8[::1], int64, int64, int64)", nogil=True, cache=True)
def enter(data: Any, at: Any, stop: Any, names: Any, first: Any, last: Any, index: Any) -> Any:
    """Follow one step of a JSON path (a member's name or an element's index) from the value at ``at``. Return the
    offset of that member or element; -1 if it does not exist, -2 if the JSON is malformed."""
    at = skip_space(data, at, stop)
    if at >= stop:
        return np.int64(-2)
    if data[at] != (123 if index < 0 else 91):
        return np.int64(-1)
    closing, number = data[at] + 2, 0
    at = skip_space(data, at + 1, stop)
    while at < stop and data[at] != closing:
        wanted = number == index
        if index < 0:
            if data[at] != 34:
                return np.int64(-2)
            end = skip_string(data, at, stop)
            if end < 0:
                return np.int64(-2)
            wanted = _is_name(data, at, end, names, first, last)
            at = skip_space(data, end, stop)
            if at >= stop or data[at] != 58:
                return np.int64(-2)
            at = skip_space(data, at + 1, stop)
        if wanted:
            return at
        at = skip_value(data, at, stop)
        if at < 0:
            return np.int64(-2)
        at = skip_space(data, at, stop)
        if at < stop and data[at] == 44:
            at = skip_space(data, at + 1, stop)
        elif at >= stop or data[at] != closing:
            return np.int64(-2)
        number += 1
    return np.int64(-1 if at < stop else -2)


@numba.njit("int64(uint8[::1], int64, int64, int64[::1])", nogil=True, cache=True)
def measure(data: Any, at: Any, stop: Any, value: Any) -> Any:
    """Write start, size and kind of the value at ``at`` to ``value`` [3]. Return FOUND, MISSING for null, or
    MALFORMED."""
    at = skip_space(data, at, stop)
    end = skip_value(data, at, stop)
    if end < 0:
        return np.int64(MALFORMED)
    if data[at] == 34:
        value[0], value[1], value[2] = at + 1, end - at - 2, PLAIN
        for k in range(at + 1, end - 1):
            if data[k] == 92:
                value[2] = ESCAPED
                break
        return np.int64(FOUND)
    value[0], value[1], value[2] = at, end - at, RAW
    if end - at == 4 and data[at] == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108:
        value[2] = ABSENT
        return np.int64(MISSING)
    return np.int64(FOUND)


@numba.njit(
    "int64(uint8[::1], int64, int64, uint8[::1], int64[::1], int64[::1], int64, int64, int64[::1])",
    nogil=True, cache=True,
)  # fmt: skip
def find_value(
    data: Any, at: Any, stop: Any, names: Any, cuts: Any, indices: Any, low: Any, high: Any, value: Any
) -> Any:
    """Follow the steps [low, high) of a JSON path from the value at ``at``, and `measure` the value at its end."""
    value[0], value[1], value[2] = at, 0, ABSENT
    for k in range(low, high):
        at = enter(data, at, stop, names, cuts[k], cuts[k + 1], indices[k])
        if at < 0:
            return np.int64(MISSING if at == -1 else MALFORMED)
    return measure(data, at, stop, value)


@numba.njit("int64(uint8[::1], int64)", nogil=True, cache=True)
def _hexadecimal(data: Any, at: Any) -> Any:
    """Return the number of the four hexadecimal digits at ``at``; -1 if other characters are there."""
    number = np.int64(0)
    for k in range(at, at + 4):
        c = data[k]
        if 48 <= c <= 57:
            digit = c - 48
        elif 65 <= c <= 70 or 97 <= c <= 102:
            digit = (c & 0xDF) - 55
        else:
            return np.int64(-1)
        number = number * 16 + digit
    return number


@numba.njit("int64(int64, uint8[::1], int64)", nogil=True, cache=True)
def _put_code(code: Any, out: Any, to: Any) -> Any:
    """Write a Unicode code point in UTF-8 to ``out[to:]``; return the offset after it."""
    if code < 0x80:
        out[to] = code
        return to + 1
    if code < 0x800:
        out[to], out[to + 1] = 0xC0 | code >> 6, 0x80 | code & 63
        return to + 2
    if code < 0x10000:
        out[to], out[to + 1], out[to + 2] = 0xE0 | code >> 12, 0x80 | code >> 6 & 63, 0x80 | code & 63
        return to + 3
    out[to], out[to + 1] = 0xF0 | code >> 18, 0x80 | code >> 12 & 63
    out[to + 2], out[to + 3] = 0x80 | code >> 6 & 63, 0x80 | code & 63
    return to + 4


@numba.njit("int64(uint8[::1], int64, int64, int64, uint8[::1], int64)", nogil=True, cache=True)
def unpack(data: Any, at: Any, size: Any, kind: Any, out: Any, to: Any) -> Any:
    """Write a value's text without escapes to ``out[to:]``; it is never longer than the value. Return its size; NO_TEXT
    for invalid escapes and unpaired surrogates."""
    first, stop = to, at + size
    if kind == ABSENT:
        return np.int64(0)
    while at < stop:
        c = data[at]
        at += 1
        if kind == DOUBLED and c == 34:
            at += 1
        elif kind == ESCAPED and c == 92:
            if at >= stop:
                return np.int64(NO_TEXT)
            e = data[at]
            at += 1
            if e == 117:
                code = _hexadecimal(data, at) if at + 4 <= stop else np.int64(-1)
                at += 4
                if 0xD800 <= code < 0xDC00 and at + 6 <= stop and data[at] == 92 and data[at + 1] == 117:
                    low = _hexadecimal(data, at + 2)
                    at += 6
                    code = 0x10000 + (code - 0xD800 << 10) + low - 0xDC00 if 0xDC00 <= low < 0xE000 else np.int64(-1)
                if code < 0 or 0xD800 <= code < 0xE000:
                    return np.int64(NO_TEXT)
                to = _put_code(code, out, to)
                continue
            if e == 110:
                c = np.uint8(10)
            elif e == 116:
                c = np.uint8(9)
            elif e == 114:
                c = np.uint8(13)
            elif e == 98:
                c = np.uint8(8)
            elif e == 102:
                c = np.uint8(12)
            elif e == 34 or e == 92 or e == 47:
                c = e
            else:
                return np.int64(NO_TEXT)
        out[to] = c
        to += 1
    return to - first


@numba.njit("boolean(uint8[::1], int64, int64)", nogil=True, cache=True)
def is_utf8(data: Any, at: Any, size: Any) -> Any:
    """Whether ``size`` bytes are valid UTF-8 (RFC 3629: no overlong forms, no surrogates)."""
    stop = at + size
    while at < stop:
        c = data[at]
        if c < 0x80:
            at += 1
            continue
        more = 1 if 0xC2 <= c < 0xE0 else 2 if 0xE0 <= c < 0xF0 else 3 if 0xF0 <= c < 0xF5 else 0
        if more == 0 or at + more >= stop:
            return False
        second = data[at + 1]
        low = 0xA0 if c == 0xE0 else 0x90 if c == 0xF0 else 0x80
        high = 0x9F if c == 0xED else 0x8F if c == 0xF4 else 0xBF
        if second < low or second > high:
            return False
        for k in range(2, more + 1):
            if data[at + k] & 0xC0 != 0x80:
                return False
        at += more + 1
    return True


@numba.njit("void(uint8[::1], int64[::1], int64[::1], boolean[::1])", nogil=True, cache=True)
def are_utf8(data: Any, at: Any, sizes: Any, good: Any) -> None:
    """Fill ``good``: whether each text is valid UTF-8."""
    for i in range(len(at)):
        good[i] = is_utf8(data, at[i], sizes[i])


@numba.njit("void(uint8[::1], int64[:, ::1], uint8[::1], int64[::1], int64[::1])", nogil=True, cache=True)
def put_texts(data: Any, values: Any, out: Any, at: Any, sizes: Any) -> None:
    """Write the text of each value ([N, 3]: start, size, kind) to ``out[at[i]:]``, and its size to ``sizes``: NO_TEXT
    if the value is not text in UTF-8."""
    for i in range(len(values)):
        sizes[i] = unpack(data, values[i, 0], values[i, 1], values[i, 2], out, at[i])
        if sizes[i] > 0 and not is_utf8(out, at[i], sizes[i]):
            sizes[i] = NO_TEXT


@numba.njit("void(uint8[::1], int64[::1], int64[::1], int64[::1], boolean[::1])", nogil=True, cache=True)
def put_integers(text: Any, at: Any, sizes: Any, out: Any, good: Any) -> None:
    """Parse texts as integers of at most 18 digits. ``true`` becomes 1 and ``false`` 0."""
    for i in range(len(at)):
        first, last = at[i], at[i] + max(sizes[i], 0)
        while first < last and text[first] == 32:
            first += 1
        while first < last and text[last - 1] == 32:
            last -= 1
        out[i] = 0
        if last - first == 4 and text[first] == 116 and text[last - 1] == 101:
            out[i], good[i] = 1, True
            continue
        if last - first == 5 and text[first] == 102 and text[last - 1] == 101:
            good[i] = True
            continue
        negative = first < last and text[first] == 45
        first += 1 if first < last and (negative or text[first] == 43) else 0
        good[i] = 0 < last - first <= 18
        for k in range(first, last):
            if not good[i]:
                break
            good[i] = 48 <= text[k] <= 57
            out[i] = out[i] * 10 + text[k] - 48
        out[i] = 0 if not good[i] else -out[i] if negative else out[i]


@numba.njit(
    "void(uint8[::1], int64[::1], int64[::1], uint8[::1], int64[::1], int64[::1], int64[:, ::1], int64[::1])",
    nogil=True, cache=True,
)  # fmt: skip
def find_values(data: Any, at: Any, sizes: Any, names: Any, cuts: Any, indices: Any, values: Any, results: Any) -> None:
    """Find the value at one JSON path in each of many texts, with `find_value`. Write its start, size and kind to
    ``values`` [N, 3], and FOUND, MISSING or MALFORMED for each text."""
    for i in range(len(at)):
        results[i] = find_value(data, at[i], at[i] + sizes[i], names, cuts, indices, 0, len(indices), values[i])
