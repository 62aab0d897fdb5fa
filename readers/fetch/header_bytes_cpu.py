"""Encoded files on their way to a GPU that decodes them: as much of each as the host looks at."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ...ops.codecs.jpeg.header import head_of, walking
from ...ops.codecs.png.simd_cpu import call_3
from ...ops.codecs.tiff import directory_cpu as tiff
from ...ops.codecs.uncompressed.decoder_cpu import bmp_header, pnm_header
from .extents_cpu import copy_extent

_LEAST, _PLAIN = 54, 1024
"""Bytes of a BMP or PNM: of smaller ones all is kept, of larger ones no more is looked at (`codecs.uncompressed`)."""
_SIGNATURE = 8
"""Bytes that a PNG begins with, and a TIFF up to its directory."""
_IDAT = 0x49444154


@njit(nogil=True, cache=True)
def scratch() -> Any:
    """Arrays that `keep` works with."""
    return walking(), np.empty(tiff.FACTS, np.int64)


@njit(nogil=True, cache=True)
def keep(data: Any, shown: Any, functions: Any, arrays: Any) -> Any:
    """Copy to ``shown`` those bytes of the file ``data`` that the host looks at, as long as nothing turns out odd; all
    of them where a decoder of the host takes it, or may. Returns from which byte on some are missing.

    ``functions`` as of `libdeflate.addresses`, ``arrays`` as `scratch` gives them. Of a PNG all is kept but the
    bodies of IDATs, whose CRCs are right then; of a plain TIFF all from where its directory, or what that points to,
    begins."""
    size = len(data)
    kept = _seen(data, size, functions, shown, arrays)
    if kept >= 0:
        _copy(data, 0, kept, shown)
    return abs(kept)


@njit(nogil=True, cache=True)
def _copy(data: Any, begin: Any, end: Any, shown: Any) -> None:
    """Copy ``data[begin:end]`` to the same place of ``shown``. An assignment to a slice takes ten times as long."""
    copy_extent(data, begin, end - begin, shown, begin)


@njit(nogil=True, cache=True)
def _seen(data: Any, size: Any, functions: Any, shown: Any, arrays: Any) -> Any:
    """How many bytes from the beginning on are to be copied; negative where they were, and others."""
    (row, tables, known), facts = arrays
    if size < _LEAST:
        return size
    if data[0] == 0xFF and data[1] == 0xD8:
        return head_of(data, row, tables, known)
    row[0] = 0
    if data[0] == 66 and data[1] == 77:
        bmp_header(data, 0, row)
    elif data[0] == 80 and (data[1] == 53 or data[1] == 54):
        pnm_header(data, 0, size, row)
    elif data[0] == 137 and functions[3]:
        return -_SIGNATURE if _png(data, size, functions[3], shown) else size
    elif data[0] == data[1] and tiff.read(data.ctypes.data, size, facts):
        low = _lowest(data.ctypes.data, facts)
        _copy(data, 0, _SIGNATURE, shown)
        _copy(data, low, size, shown)
        return -_SIGNATURE
    return min(size, _PLAIN) if row[0] else size


@njit(nogil=True, cache=True)
def _png(data: Any, size: Any, crc: Any, shown: Any) -> Any:
    """Copy all of the PNG but the bodies of IDATs; false where one of those is not in order, or none of them hides
    anything."""
    at, hidden, start = np.int64(_SIGNATURE), 0, data.ctypes.data
    _copy(data, 0, at, shown)
    while at < size:
        if size - at < 12:
            return False
        length, tag = tiff.number(start + at, 4, True), tiff.number(start + at + 4, 4, True)
        end = at + 12 + length
        if end > size:
            return False
        if tag == _IDAT:
            found = call_3(crc, (0, start + at + 4, length + 4)) & 0xFFFFFFFF
            if found != tiff.number(start + end - 4, 4, True):
                return False
            _copy(data, at, at + 8, shown)
            _copy(data, end - 4, end, shown)
            hidden += length
        else:
            _copy(data, at, end, shown)
        at = end
    return hidden > 0


@njit(nogil=True, cache=True)
def _lowest(start: Any, facts: Any) -> Any:
    """The first byte of a plain TIFF's directory, or of what it points to, but for its strips and tiles."""
    big = facts[tiff.BIG]
    low = tiff.number(start + 4, 4, big)
    at, entries = low + 2, tiff.number(start + low, 2, big)
    for _ in range(entries):
        nbytes = tiff.bytes_of(tiff.number(start + at + 2, 2, big)) * tiff.number(start + at + 4, 4, big)
        if nbytes > 4:
            low = min(low, tiff.number(start + at + 8, 4, big))
        at += 12
    return low
