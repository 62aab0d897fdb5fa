"""Compiled check of the size statistics in a Parquet footer, before pyarrow reads them: pyarrow 26 ends the process if
a histogram of levels has a wrong length.

The format: Apache Parquet's parquet.thrift (FileMetaData) in Thrift's compact protocol.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

REPETITION, DEFINITION, UNENCODED, ENCRYPTED = 0, 1, 2, 3
"""Columns of a row that describes a Parquet column: lengths of its histograms of repetition and definition levels (0
for none), whether its unencoded size is stated, and whether it is encrypted."""
COLUMNS = 4
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
_DEEPEST = 16


@numba.njit("UniTuple(int64, 2)(uint8[::1], int64, int64)", nogil=True, cache=True)
def _varint(data: Any, at: Any, stop: Any) -> Any:
    """Decode the varint at ``at``. Return the number and the offset after it; offset -1 if the bytes are corrupt."""
    value = np.int64(0)
    for k in range(10):
        if at + k >= stop:
            break
        value |= np.int64(data[at + k] & 127) << (7 * k)
        if data[at + k] < 128:
            return value, at + k + 1
    return np.int64(0), np.int64(-1)


@numba.njit("UniTuple(int64, 3)(uint8[::1], int64, int64, int64)", nogil=True, cache=True)
def _field(data: Any, at: Any, stop: Any, before: Any) -> Any:
    """Read the header of the Thrift field at ``at``; the previous field had the number ``before``. Return the field's
    number, type and the offset of its value; number 0 at the end of the struct, -1 if the bytes are corrupt."""
    if at < 0 or at >= stop:
        return np.int64(-1), np.int64(0), at
    head = np.int64(data[at])
    if head == 0:
        return np.int64(0), np.int64(0), at + 1
    if head >> 4:
        return before + (head >> 4), head & 15, at + 1
    number, at = _varint(data, at + 1, stop)
    number = number >> 1 ^ -(number & 1)
    return (number if at >= 0 and number > 0 else np.int64(-1)), head & 15, at


@numba.njit("UniTuple(int64, 3)(uint8[::1], int64, int64)", nogil=True, cache=True)
def _list(data: Any, at: Any, stop: Any) -> Any:
    """Read the header of the Thrift list at ``at``. Return its length, the type of its elements and the offset of the
    first; offset -1 if the bytes are corrupt."""
    if at < 0 or at >= stop:
        return np.int64(0), np.int64(0), np.int64(-1)
    head = np.int64(data[at])
    size, at = head >> 4, at + 1
    if size == 15:
        size, at = _varint(data, at, stop)
    return size, head & 15, (at if 0 <= size <= stop - at else np.int64(-1))


@numba.njit("int64(uint8[::1], int64, int64, int64)", nogil=True, cache=True)
def _skip(data: Any, at: Any, stop: Any, kind: Any) -> Any:
    """Return the offset after the Thrift value of type ``kind`` at ``at``; -1 if the bytes are corrupt."""
    left, kinds = np.empty(_DEEPEST, np.int64), np.empty(_DEEPEST, np.int64)
    left[0], kinds[0], depth = 1, kind, 1  # a list of one; structs have -1 left
    while depth > 0:
        if at < 0 or at > stop:
            return np.int64(-1)
        if left[depth - 1] == 0:
            depth -= 1
            continue
        if left[depth - 1] > 0:
            left[depth - 1] -= 1
            kind = kinds[depth - 1]
        else:
            number, kind, at = _field(data, at, stop, np.int64(1))
            if number < 0:
                return np.int64(-1)
            if number == 0:
                depth -= 1
                continue
            if kind in (_TRUE, _FALSE):
                continue
        if kind in (_TRUE, _FALSE, _BYTE):
            at += 1
        elif kind in (_I16, _I32, _I64):
            at = _varint(data, at, stop)[1]
        elif kind == _DOUBLE:
            at += 8
        elif kind == _BINARY:
            size, at = _varint(data, at, stop)
            at = at + size if at >= 0 and 0 <= size <= stop - at else np.int64(-1)
        elif kind in (_LIST, _SET, _STRUCT):
            if depth == _DEEPEST:
                return np.int64(-1)
            left[depth], kinds[depth] = -1, 0
            if kind != _STRUCT:
                left[depth], kinds[depth], at = _list(data, at, stop)
            depth += 1
        else:
            return np.int64(-1)
    return at


@numba.njit("int64(uint8[::1], int64, int64, int64[::1])", nogil=True, cache=True)
def _sizes(data: Any, at: Any, stop: Any, row: Any) -> Any:
    """Parse the Thrift struct SizeStatistics into ``row``. Return the offset after it, -1 if it is corrupt."""
    field = np.int64(0)
    while True:
        field, kind, at = _field(data, at, stop, field)
        if field <= 0:
            return at if field == 0 else np.int64(-1)
        if field in (2, 3) and kind == _LIST:
            size, element, _ = _list(data, at, stop)
            if size and element != _I64:
                return np.int64(-1)
            row[REPETITION if field == 2 else DEFINITION] = size
        elif field == 1 and kind == _I64:
            row[UNENCODED] = 1
        if kind not in (_TRUE, _FALSE):
            at = _skip(data, at, stop, kind)


@numba.njit("int64(uint8[::1], int64, int64, int64[::1])", nogil=True, cache=True)
def _column(data: Any, at: Any, stop: Any, row: Any) -> Any:
    """Parse the Thrift struct ColumnChunk into ``row``. Return the offset after it, -1 if it is corrupt."""
    inside = False
    outer = field = np.int64(0)
    while True:
        field, kind, at = _field(data, at, stop, field)
        if field == 0 and inside:
            inside, field = False, outer
            continue
        if field <= 0:
            return at if field == 0 else np.int64(-1)
        if not inside and field == 3 and kind == _STRUCT:
            inside, outer, field = True, field, np.int64(0)
            continue
        if inside and field == 16 and kind == _STRUCT:
            at = _sizes(data, at, stop, row)
            continue
        if not inside and field in (8, 9):
            row[ENCRYPTED] = 1
        if kind not in (_TRUE, _FALSE):
            at = _skip(data, at, stop, kind)


@numba.njit("int64(uint8[::1], int64[:, ::1])", nogil=True, cache=True)
def size_statistics(footer: Any, rows: Any) -> Any:
    """Parse ``footer``, Parquet's FileMetaData. Fill one of ``rows`` for every column of every row group, in order.
    Return the number of rows; -1 if the footer is corrupt or has more columns than ``rows`` can hold."""
    stop, at, n = np.int64(len(footer)), np.int64(0), np.int64(0)
    outer = field = np.int64(0)
    inside = False
    groups = np.int64(0)  # number of row groups that are still to be read
    while True:
        field, kind, at = _field(footer, at, stop, field)
        if field < 0 or at < 0:
            return np.int64(-1)
        if field == 0 and not inside:
            return n
        if field == 0:
            groups -= 1
            if groups == 0:
                inside, field = False, outer
        elif not inside and field == 4 and kind == _LIST:
            groups, element, at = _list(footer, at, stop)
            if at < 0 or (groups and element != _STRUCT):
                return np.int64(-1)
            if groups:
                inside, outer, field = True, field, np.int64(0)
        elif inside and field == 1 and kind == _LIST:
            columns, element, at = _list(footer, at, stop)
            if at < 0 or (columns and element != _STRUCT) or columns > len(rows) - n:
                return np.int64(-1)
            for _ in range(columns):
                rows[n] = 0
                at = _column(footer, at, stop, rows[n])
                n += 1
        elif kind not in (_TRUE, _FALSE):
            at = _skip(footer, at, stop, kind)
