"""Rows of text tables: keys of whole files hashed, rows found by key, and their fields, without the GIL.

A row is the bytes from its offset on, in one of four syntaxes: delimited (CSV, TSV), a line of JSON, an element of a
JSON array, or a member of a JSON object. A selection of columns is `columns` for delimited rows, a path otherwise.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ...ops.arrays.json_cpu import (
    ABSENT,
    DOUBLED,
    FOUND,
    MALFORMED,
    PLAIN,
    find_value,
    measure,
    skip_space,
    skip_string,
    skip_value,
    unpack,
)  # fmt: skip

DELIMITED, LINE, ELEMENT, MEMBER = range(4)
"""Kinds of rows in a table file: delimited fields (CSV), one JSON object per line, elements of a JSON array, members of
a JSON object."""
WHOLE, NAME, STEM = range(3)
"""Parts of a sample's key that can be compared: all of it; the name after the last slash; the name to its first dot."""
FINE, OPEN_QUOTE, AFTER_QUOTE, WRONG_COUNT, NO_JSON, NO_KEY, LONG_KEY, AT_END = range(8)
"""Results of reading a row: FINE, AT_END after the last row, or else why the row is malformed."""
MAX_KEY = 1 << 16
"""Maximum size of a key in bytes."""

_TABLE = "uint8[::1], int64, int64, int64, int64, int64[::1], uint8[::1], int64[::1], int64[::1]"
"""Numba types of the parameters that describe a table file: its bytes, kind of rows, delimiter, quote (-1: none),
number of columns (-1: any), columns to read, and a JSON path (three arrays)."""


@numba.njit("int64(uint8[::1], int64, int64, int64, int64, int64[::1], int64[:, ::1], int64[::1])",
            nogil=True, cache=True)  # fmt: skip
def read_delimited(
    data: Any, at: Any, stop: Any, delimiter: Any, quote: Any, columns: Any, values: Any, state: Any
) -> Any:
    """Read the delimited row at ``at``. Put start, size and kind of its ``columns`` into ``values`` [K, 3]. Put the
    offset after the row and its number of fields into ``state``. Return FINE, OPEN_QUOTE or AFTER_QUOTE."""
    number = 0
    while True:
        kind = np.int64(PLAIN)
        if at < stop and data[at] == quote:
            at += 1
            start = at
            while at < stop:
                if data[at] == quote:
                    if at + 1 < stop and data[at + 1] == quote:
                        kind, at = np.int64(DOUBLED), at + 2
                        continue
                    break
                at += 1
            if at >= stop:
                return np.int64(OPEN_QUOTE)
            size = at - start
            at += 1
            if at < stop and data[at] != delimiter and data[at] != 10 and data[at] != 13:
                return np.int64(AFTER_QUOTE)
        else:
            start = at
            while at < stop and data[at] != delimiter and data[at] != 10:
                at += 1
            size = at - start
            if size > 0 and data[at - 1] == 13 and (at == stop or data[at] == 10):
                size -= 1
        for k in range(len(columns)):
            if columns[k] == number:
                values[k, 0], values[k, 1], values[k, 2] = start, size, kind
        number += 1
        if at < stop and data[at] == delimiter:
            at += 1
            continue
        if at < stop and data[at] == 13:
            at += 1
        if at < stop and data[at] == 10:
            at += 1
        state[0], state[1] = at, number
        return np.int64(FINE)


@numba.njit("int64(uint8[::1], int64, int64)", nogil=True, cache=True)
def end_of_line(data: Any, at: Any, stop: Any) -> Any:
    """Return the offset of the line feed that ends the line at ``at``; ``stop`` if there is none."""
    while at < stop and data[at] != 10:
        at += 1
    return at


@numba.njit("int64(uint8[::1], int64, int64, int64)", nogil=True, cache=True)
def _value_of(data: Any, at: Any, stop: Any, syntax: Any) -> Any:
    """Return the offset of the JSON value of the row at ``at``. For a member, it is the offset behind the name."""
    if syntax != MEMBER:
        return at
    at = skip_string(data, at, stop)
    at = skip_space(data, at, stop) if at >= 0 else stop
    return skip_space(data, at + 1, stop) if at < stop and data[at] == 58 else stop


@numba.njit(f"int64({_TABLE}, int64, int64, int64[:, ::1], uint8[::1], int64[::1])", nogil=True, cache=True)
def read_key(
    data: Any, syntax: Any, delimiter: Any, quote: Any, count: Any, columns: Any, names: Any, cuts: Any, indices: Any,
    at: Any, stop: Any, values: Any, scratch: Any, state: Any,
) -> Any:  # fmt: skip
    """Read the key of the row at ``at`` into ``scratch``. ``state`` gets the offset after the row and the size of the
    key. Return FINE, or the reason why the row is malformed. If it is malformed and rows are lines, ``state[0]`` is the
    start of the next line."""
    if syntax == DELIMITED:
        problem = read_delimited(data, at, stop, delimiter, quote, columns, values, state)
        if problem != FINE:
            state[0] = min(end_of_line(data, at, stop) + 1, stop)
            return problem
        if count >= 0 and state[1] != count:
            return np.int64(WRONG_COUNT)
    elif syntax == MEMBER and len(indices) == 0:
        result = measure(data, at, stop, values[0])
        after = _value_of(data, at, stop, syntax)
        end = skip_value(data, after, stop)
        if result != FOUND or end < 0:
            return np.int64(NO_JSON)
        state[0] = end
    else:
        if syntax == LINE:
            line = end_of_line(data, at, stop)
            state[0], stop = min(line + 1, stop), line
        first = _value_of(data, at, stop, syntax)
        end = skip_value(data, first, stop)
        if end < 0 or (syntax == LINE and (data[first] != 123 or skip_space(data, end, stop) < stop)):
            return np.int64(NO_JSON)
        result = find_value(data, first, stop, names, cuts, indices, 0, len(indices), values[0])
        if result == MALFORMED:
            return np.int64(NO_JSON)
        if syntax != LINE:
            state[0] = end
        if result != FOUND:
            return np.int64(NO_KEY)
    if values[0, 1] > MAX_KEY:
        return np.int64(LONG_KEY)
    size = unpack(data, values[0, 0], values[0, 1], values[0, 2], scratch, 0)
    if size <= 0:
        return np.int64(NO_KEY)
    state[1] = size
    return np.int64(FINE)


@numba.njit("void(uint8[::1], int64, int64, int64, int64[::1])", nogil=True, cache=True)
def cut_key(text: Any, at: Any, size: Any, part: Any, out: Any) -> None:
    """Put start and size of the compared ``part`` of a key (WHOLE, NAME or STEM) into ``out``."""
    stop = at + size
    if part != WHOLE:
        for k in range(stop - 1, at - 1, -1):
            if text[k] == 47:
                at = k + 1
                break
    if part == STEM:
        for k in range(at + 1, stop):  # a name may begin with a dot
            if text[k] == 46:
                stop = k
                break
    out[0], out[1] = at, stop - at


@numba.njit("uint64(uint8[::1], int64, int64)", nogil=True, cache=True)
def hash_text(text: Any, at: Any, size: Any) -> Any:
    """Return a hash of ``size`` bytes: FNV-1a, mixed so that its upper bits select buckets evenly."""
    value = np.uint64(14695981039346656037)
    for k in range(at, at + size):
        value = (value ^ np.uint64(text[k])) * np.uint64(1099511628211)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@numba.njit(f"int64({_TABLE}, int64, int64, uint64[::1], int64[::1], int64[::1])", nogil=True, cache=True)
def index_rows(
    data: Any, syntax: Any, delimiter: Any, quote: Any, count: Any, columns: Any, names: Any, cuts: Any, indices: Any,
    stop: Any, part: Any, hashes: Any, rows: Any, state: Any,
) -> Any:  # fmt: skip
    """Hash the keys of rows from offset ``state[0]`` on, and put hash and offset of each row into ``hashes`` and
    ``rows``. Return the number of rows.

    Afterwards ``state`` holds: the offset to continue at; FINE, AT_END after the last row, or the reason why a row is
    malformed; the offset of that row.
    """
    values, scratch, found = np.zeros((1, 3), np.int64), np.empty(MAX_KEY, np.uint8), np.zeros(2, np.int64)
    at, n = state[0], 0
    while n < len(hashes):
        at = skip_space(data, at, stop) if syntax != DELIMITED else at
        while syntax == DELIMITED and at < stop and (data[at] == 10 or data[at] == 13):
            at += 1
        if syntax >= ELEMENT and at < stop and data[at] == 44:
            at = skip_space(data, at + 1, stop)
        if at >= stop or (syntax >= ELEMENT and (data[at] == 93 or data[at] == 125)):
            state[0], state[1], state[2] = at, FINE if syntax >= ELEMENT and at >= stop else AT_END, at
            if state[1] == FINE:  # a JSON text that does not end
                state[1] = NO_JSON
            return n
        problem = read_key(
            data, syntax, delimiter, quote, count, columns, names, cuts, indices, at, stop, values, scratch, found
        )
        if problem != FINE:
            state[0], state[1], state[2] = found[0], problem, at
            return n
        cut_key(scratch, 0, found[1], part, state[3:])
        hashes[n], rows[n] = hash_text(scratch, state[3], state[4]), at
        at, n = found[0], n + 1
    state[0], state[1] = at, FINE
    return n


@numba.njit("int64(int64, int64[::1], int64[::1])", nogil=True, cache=True)
def stop_of(row: Any, firsts: Any, stops: Any) -> Any:
    """Return the offset at which the file that contains the row at offset ``row`` ends."""
    return stops[np.searchsorted(firsts, row, side="right") - 1]


@numba.njit(
    f"void({_TABLE}, int64[::1], int64[::1], uint64[::1], int64[::1], int64[::1], int64, boolean, uint8[::1], "
    "int64[::1], int64[::1], int64, int64[::1])", nogil=True, cache=True,
)  # fmt: skip
def find_rows(
    data: Any, syntax: Any, delimiter: Any, quote: Any, count: Any, columns: Any, names: Any, cuts: Any, indices: Any,
    firsts: Any, stops: Any, hashes: Any, rows: Any, buckets: Any, shift: Any, last: Any, keys: Any, at: Any,
    sizes: Any, part: Any, found: Any,
) -> None:  # fmt: skip
    """Put the offset of the row of each key into ``found``, -1 if no row has the key. If several rows have the key,
    ``last`` chooses the last instead of the first. Rows with equal hashes are ordered by offset, so that the first row
    with the key ends the search."""
    values, scratch, state = np.zeros((1, 3), np.int64), np.empty(MAX_KEY, np.uint8), np.zeros(2, np.int64)
    mine, other = np.zeros(2, np.int64), np.zeros(2, np.int64)
    for i in range(len(at)):
        found[i] = -1
        cut_key(keys, at[i], sizes[i], part, mine)
        value = hash_text(keys, mine[0], mine[1])
        b = np.int64(value >> np.uint64(shift)) if shift < 64 else np.int64(0)
        begin = buckets[b] + np.searchsorted(hashes[buckets[b] : buckets[b + 1]], value)
        end = buckets[b] + np.searchsorted(hashes[buckets[b] : buckets[b + 1]], value, side="right")
        for n in range(end - begin):
            row = rows[end - 1 - n if last else begin + n]
            problem = read_key(
                data, syntax, delimiter, quote, count, columns, names, cuts, indices, row,
                stop_of(row, firsts, stops), values, scratch, state,
            )  # fmt: skip
            if problem != FINE:
                continue
            cut_key(scratch, 0, state[1], part, other)
            same = mine[1] == other[1]
            for c in range(mine[1] if same else 0):
                same = same and keys[mine[0] + c] == scratch[other[0] + c]
            if same:
                found[i] = row
                break


@numba.njit(
    "void(uint8[::1], int64, int64, int64, int64[::1], uint8[::1], int64[::1], int64[::1], int64[::1], int64[::1], "
    "int64[::1], int64[::1], int64[:, :, ::1])", nogil=True, cache=True,
)  # fmt: skip
def read_fields(
    data: Any, syntax: Any, delimiter: Any, quote: Any, columns: Any, names: Any, cuts: Any, indices: Any, ends: Any,
    firsts: Any, stops: Any, rows: Any, values: Any,
) -> None:  # fmt: skip
    """Put start, size and kind of the fields of ``rows`` into ``values`` [N, K, 3]. A field that does not exist, and
    each field of a row given as -1, gets the kind ABSENT, and MISSING or MALFORMED as its start."""
    state = np.zeros(2, np.int64)
    for i in range(len(rows)):
        for k in range(values.shape[1]):
            values[i, k, 0], values[i, k, 1], values[i, k, 2] = 0, 0, ABSENT
        if rows[i] < 0:
            continue
        stop = stop_of(rows[i], firsts, stops)
        if syntax == DELIMITED:
            read_delimited(data, rows[i], stop, delimiter, quote, columns, values[i], state)
            continue
        if syntax == LINE:
            stop = end_of_line(data, rows[i], stop)
        at = _value_of(data, rows[i], stop, syntax)
        for k in range(values.shape[1]):
            result = find_value(data, at, stop, names, cuts, indices, ends[k], ends[k + 1], values[i, k])
            if result != FOUND:
                values[i, k, 0], values[i, k, 1], values[i, k, 2] = result, 0, ABSENT
