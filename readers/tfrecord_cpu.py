"""Compiled loops over TFRecord framing: uint64 length, its masked CRC-32C, the data, its masked CRC-32C
(tensorflow.org, "TFRecord")."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ..ops.storage.crc32c_cpu import masked_crc32c

HEADER, FOOTER = 12, 4

# kinds of an index entry
GOOD = 0
BAD_LENGTH_CRC = 1  # the length fits the bytes that follow, but not its checksum
LOST = 2  # bytes in which no record begins
TRUNCATED = 3  # the file ends before its record does
BAD_DATA_CRC = 4  # found when the record is read
GONE = 5  # the file was truncated after it was indexed
TOO_LARGE = 6


@numba.njit("int64(uint8[::1], int64)", nogil=True, cache=True)
def _u64(data: Any, at: Any) -> Any:
    value = np.uint64(0)
    for k in range(8):
        value |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return np.int64(value)


@numba.njit("uint32(uint8[::1], int64)", nogil=True, cache=True)
def _u32(data: Any, at: Any) -> Any:
    value = np.uint32(0)
    for k in range(4):
        value |= np.uint32(data[at + k]) << np.uint32(8 * k)
    return value


@numba.njit("boolean(uint8[::1], int64, int64)", nogil=True, cache=True)
def _is_header(data: Any, at: Any, stop: Any) -> Any:
    """Whether a TFRecord header, a length with a right checksum, is at ``at``. Its record may reach beyond ``stop``."""
    return stop - at >= HEADER and _u64(data, at) >= 0 and masked_crc32c(data, at, at + 8) == _u32(data, at + 8)


@numba.njit("boolean(uint8[::1], int64, int64)", nogil=True, cache=True)
def _fits(data: Any, at: Any, stop: Any) -> Any:
    return stop - at >= HEADER + FOOTER and 0 <= _u64(data, at) <= stop - at - HEADER - FOOTER


@numba.njit("int64(uint8[::1], int64, int64, int64)", nogil=True, cache=True)
def _next_header(data: Any, at: Any, end: Any, stop: Any) -> Any:
    """Search ``data[at:end]`` for a TFRecord header whose record fits; return its offset, or ``stop`` if there is none.
    The bytes may come from a gzip bomb: for most offsets, only the number that ends there is examined."""
    last = stop - HEADER - FOOTER
    if at > last:
        return stop
    value = np.uint64(_u64(data, at)) << np.uint64(8)
    while at <= last and at < end:
        value = value >> np.uint64(8) | np.uint64(data[at + 7]) << np.uint64(56)
        # Zeros are not a header (the checksum of a length of 0 is not 0), and bombs are full of them.
        if (
            value <= np.uint64(last - at)
            and (value != 0 or _u32(data, at + 8) != 0)
            and masked_crc32c(data, at, at + 8) == _u32(data, at + 8)
        ):
            return at
        at += 1
    return stop


@numba.njit(
    "Tuple((int64, int64, int64))(uint8[::1], int64, int64, int64, boolean, int64[::1], int64[::1], int32[::1])",
    nogil=True,
    cache=True,
)
def walk(data: Any, at: Any, stop: Any, search: Any, check: Any, offsets: Any, sizes: Any, kinds: Any) -> Any:
    """Scan a TFRecord file from ``at`` until ``stop`` or until the arrays are full. Return the number of records, the
    offset to continue at, and the remainder of ``search``.

    ``offsets`` and ``sizes`` locate each record's data. After corrupt bytes, the scan looks for the next length with a
    right checksum, in ``search`` bytes in total; the bytes before it become one entry LOST, and so does everything
    after ``search`` bytes. Without ``check`` any length that fits is accepted.
    """
    n = 0
    while at < stop and n < len(offsets):
        fits = _fits(data, at, stop)
        right = _is_header(data, at, stop)
        if fits and (right or not check):
            offsets[n], sizes[n], kinds[n] = at + HEADER, _u64(data, at), GOOD
            at = offsets[n] + sizes[n] + FOOTER
        elif right:
            offsets[n], sizes[n], kinds[n] = at, stop - at, TRUNCATED
            at = stop
        else:
            after = at + HEADER + _u64(data, at) + FOOTER if fits else at
            if fits and (after == stop or (_is_header(data, after, stop) and _fits(data, after, stop))):
                offsets[n], sizes[n], kinds[n] = at + HEADER, _u64(data, at), BAD_LENGTH_CRC
                at = after
            else:
                start = at
                at = _next_header(data, at + 1, at + 1 + search, stop)
                search = max(0, search - (at - start))
                offsets[n], sizes[n], kinds[n] = start, at - start, LOST
        n += 1
    return n, at, search


@numba.njit("int64(int64[::1], boolean[::1], int64, int32[::1], boolean[::1])", cache=True)
def sift(sizes: Any, gone: Any, most: Any, kinds: Any, good: Any) -> Any:
    """Fill ``good``: whether each record has kind GOOD, is not ``gone``, and has at most ``most`` bytes. Larger records
    get the kind TOO_LARGE, gone ones GONE. Return the total size of the good records. The loop takes some microseconds
    and keeps the GIL, which the NumPy equivalents would release and take again for each operation."""
    total = np.int64(0)
    for i in range(len(sizes)):
        if gone[i]:
            kinds[i] = GONE
        elif kinds[i] == GOOD and sizes[i] > most:
            kinds[i] = TOO_LARGE
        good[i] = kinds[i] == GOOD
        if good[i]:
            total += sizes[i]
    return total


@numba.njit("void(uint8[::1], int64[::1], int64[::1], int32[::1], boolean[::1], int64)", nogil=True, cache=True)
def check_record(data: Any, offsets: Any, sizes: Any, kinds: Any, good: Any, i: Any) -> None:
    """Check both checksums of record ``i`` if its kind is GOOD. If one is wrong, set the kind to BAD_LENGTH_CRC or
    BAD_DATA_CRC, and ``good`` to False. The record's header and footer must surround its data."""
    if kinds[i] != GOOD:
        return
    at, stop = offsets[i], offsets[i] + sizes[i]
    if _u64(data, at - HEADER) != sizes[i] or masked_crc32c(data, at - HEADER, at - 4) != _u32(data, at - 4):
        kinds[i] = BAD_LENGTH_CRC
    elif masked_crc32c(data, at, stop) != _u32(data, stop):
        kinds[i] = BAD_DATA_CRC
    good[i] = kinds[i] == GOOD


@numba.njit("void(uint8[::1], int64[::1], int64[::1], int32[::1], boolean[::1])", nogil=True, cache=True)
def check_records(data: Any, offsets: Any, sizes: Any, kinds: Any, good: Any) -> None:
    """Check the checksums of all records with `check_record`."""
    for i in range(len(offsets)):
        check_record(data, offsets, sizes, kinds, good, i)
