"""Compiled loops over RecordIO framing, and over MXNet's image records in it. `readers.mxnet` calls them.

Format (dmlc-core, recordio.h): uint32 magic, uint32 kind (3 bits) and length (29 bits), data, padded to 4 bytes. A
record that holds the magic number at a multiple of 4 is cut there into parts of kind 1, 2 ..., 3, without the number
itself. Image records (MXNet, image_recordio.h): uint32 flag, float32 label, uint64 id, uint64 id2, ``flag`` float32
labels, image.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from .fetch.extents_cpu import copy_extent

MAGIC = 0xCED7230A
IMAGE_HEADER = 24

START, SIZE, PARTS, KIND = range(4)
"""Columns of the row that describes a record: offset of its first header, bytes of data when its parts are joined,
number of parts, kind."""
COLUMNS = 4

# kinds of an index entry
GOOD = 0
LOST = 1  # bytes in which no record begins
TRUNCATED = 2  # the file ends before its record does
NO_IMAGE = 3  # found when the record is read: shorter than its header says


@numba.njit("int64(uint8[::1], int64)", nogil=True, cache=True)
def _u32(data: Any, at: Any) -> Any:
    return (
        np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 24
    )


@numba.njit("Tuple((int64, int64, int64, int64))(uint8[::1], int64, int64)", nogil=True, cache=True)
def _record(data: Any, at: Any, stop: Any) -> Any:
    """Read the headers of the record at ``at``. Return its kind (GOOD, TRUNCATED, LOST), its size in bytes, its number
    of parts, and the offset of the next record."""
    size, parts = np.int64(0), np.int64(0)
    while True:
        if stop - at < 8:
            cut = parts > 0 or (stop - at >= 4 and _u32(data, at) == MAGIC)
            return np.int64(TRUNCATED if cut else LOST), size, parts, stop
        if _u32(data, at) != MAGIC:
            return np.int64(LOST), size, parts, at
        word = _u32(data, at + 4)
        part, length = word >> 29, word & 0x1FFFFFFF
        expected = part in (0, 1) if parts == 0 else part in (2, 3)
        if not expected:
            return np.int64(LOST), size, parts, at
        if length > stop - at - 8:
            return np.int64(TRUNCATED), size, parts, stop
        size += length + (4 if parts > 0 else 0)
        parts += 1
        at = min(stop, at + 8 + (length + 3) // 4 * 4)
        if part in (0, 3):
            return np.int64(GOOD), size, parts, at


@numba.njit("Tuple((int64, int64, int64))(uint8[::1], int64, int64, int64, int64[:, ::1])", nogil=True, cache=True)
def walk(data: Any, at: Any, stop: Any, search: Any, rows: Any) -> Any:
    """Scan a RecordIO file from ``at`` until ``stop`` or until ``rows`` is full. Return the number of rows, the offset
    to continue at, and the remainder of ``search``.

    After corrupt bytes, the scan looks for the next complete record that another record or the end follows. ``search``
    limits how many parts of incomplete records may be examined: a crafted file can share its parts between all records,
    and each would be followed to the end. When ``search`` is used up, the remaining bytes are LOST.
    """
    n = 0
    while at < stop and n < len(rows):
        kind, size, parts, after = _record(data, at, stop)
        rows[n, START], rows[n, SIZE], rows[n, PARTS], rows[n, KIND] = at, size, parts, kind
        if kind != GOOD:
            search -= parts
            begin = at
            after = stop
            at += 4
            while stop - at >= 8 and search > 0:
                if _u32(data, at) == MAGIC:
                    found, _, tried, next_ = _record(data, at, stop)
                    if found == GOOD and next_ != stop:
                        found, _, tried, _ = _record(data, next_, stop)
                    if found == GOOD:
                        after = at
                        break
                    search -= tried
                at += 4
            if kind == TRUNCATED and (after < stop or search <= 0):
                rows[n, KIND] = LOST
            rows[n, SIZE], rows[n, PARTS] = after - begin, 0
        at = after
        n += 1
    return n, at, search


@numba.njit("void(uint8[::1], int64[::1], int64[::1], int64[:, ::1])", nogil=True, cache=True)
def locate(data: Any, starts: Any, stops: Any, rows: Any) -> None:
    """Fill ``rows`` with records of known offsets. Record i must begin at ``starts[i]`` and end before ``stops[i]``."""
    for i in range(len(starts)):
        kind, size, parts, _ = _record(data, starts[i], stops[i])
        rows[i, START], rows[i, SIZE], rows[i, PARTS], rows[i, KIND] = starts[i], size, parts, kind


@numba.njit("void(uint8[::1], int64[:, ::1], int64[::1], uint8[::1])", nogil=True, cache=True)
def join(data: Any, rows: Any, at: Any, out: Any) -> None:
    """Copy the data of each GOOD record to ``out[at[i] :]``. A record's parts are joined, and RecordIO's magic number,
    which had split the data, is put back between them."""
    for i in range(len(rows)):
        if rows[i, KIND] != GOOD:
            continue
        place, to = rows[i, START], at[i]
        for part in range(rows[i, PARTS]):
            if part > 0:
                for k in range(4):
                    out[to + k] = (MAGIC >> 8 * k) & 255
                to += 4
            length = _u32(data, place + 4) & 0x1FFFFFFF
            copy_extent(data, place + 8, length, out, to)
            to += length
            place += 8 + (length + 3) // 4 * 4


@numba.njit("void(uint8[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True, cache=True)
def read_headers(data: Any, at: Any, sizes: Any, labels: Any, kinds: Any) -> None:
    """Fill ``labels`` with the number of labels in the header of each image record, which begins at ``at[i]``. Set the
    kind to NO_IMAGE if the labels do not fit into the record."""
    for i in range(len(at)):
        labels[i] = 0
        if kinds[i] != GOOD:
            continue
        flag = _u32(data, at[i]) if sizes[i] >= IMAGE_HEADER else np.int64(0)
        if sizes[i] < IMAGE_HEADER or flag > (sizes[i] - IMAGE_HEADER) // 4:
            kinds[i] = NO_IMAGE
        else:
            labels[i] = flag


@numba.njit("void(uint8[::1], int64[::1], int64[::1], int64[::1], int64[::1], float32[::1])", nogil=True, cache=True)
def read_labels(data: Any, at: Any, flags: Any, kinds: Any, to: Any, out: Any) -> None:
    """Copy the labels of each image record, which begins at ``at[i]``, to ``out[to[i] :]``. If its ``flags[i]`` is 0,
    that is the one label in the header; otherwise ``flags[i]`` numbers after the header."""
    bits = out.view(np.uint32)
    for i in range(len(at)):
        if kinds[i] != GOOD:
            continue
        if flags[i] == 0:
            bits[to[i]] = np.uint32(_u32(data, at[i] + 4))
        for k in range(flags[i]):
            bits[to[i] + k] = np.uint32(_u32(data, at[i] + IMAGE_HEADER + 4 * k))
