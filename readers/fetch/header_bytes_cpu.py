"""Compiled loops that choose the header bytes of encoded files: the bytes that the host needs if a GPU decodes the
file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ...ops.codecs.jpeg.header import head_of, walking
from ...ops.codecs.png.simd_cpu import call_3
from ...ops.codecs.tiff import directory_cpu as tiff
from ...ops.codecs.uncompressed.decoder_cpu import bmp_header, pnm_header
from .extents_cpu import copy_extent

_MIN_BYTES, _UNCOMPRESSED = 54, 1024
"""Two limits in bytes for BMP and PNM images. A file smaller than the first is copied completely. Of a larger file the
host reads at most as many bytes as the second (`codecs.uncompressed`)."""
_SIGNATURE = 8
"""Number of first bytes of a file that are always copied: the signature of a PNG, or a TIFF's header up to the end of
the offset of its directory."""
_IDAT = 0x49444154


@njit(nogil=True, cache=True)
def scratch() -> Any:
    """Allocate the working memory that `keep` gets as its parameter ``arrays``."""
    return walking(), np.empty(tiff.FACTS, np.int64)


@njit(nogil=True, cache=True)
def keep(data: Any, shown: Any, functions: Any, arrays: Any) -> Any:
    """Copy the bytes of an image file that the CPU needs, usually its header, to the same offsets of ``shown``. The
    whole file is copied if a CPU decoder decodes it, or might. Return the offset from which on bytes of the file are
    missing in ``shown``.

    ``functions`` comes from `libdeflate.addresses`, ``arrays`` from `scratch`. Of a PNG everything is kept but the
    bodies of IDATs, whose CRCs are checked here. Of a supported TIFF everything is kept from its directory, or the
    first values that the directory refers to, to the end of the file.
    """
    size = len(data)
    kept = _seen(data, size, functions, shown, arrays)
    if kept >= 0:
        _copy(data, 0, kept, shown)
    return abs(kept)


@njit(nogil=True, cache=True)
def _copy(data: Any, begin: Any, end: Any, shown: Any) -> None:
    """Copy ``data[begin:end]`` to the same offsets of ``shown``. In Numba, slice assignment takes ten times as long."""
    copy_extent(data, begin, end - begin, shown, begin)


@njit(nogil=True, cache=True)
def _seen(data: Any, size: Any, functions: Any, shown: Any, arrays: Any) -> Any:
    """Return how many bytes from the file's start the caller has to copy to ``shown``. A negative number means that
    this function has copied all needed bytes itself."""
    (row, tables, known), facts = arrays
    if size < _MIN_BYTES:
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
    return min(size, _UNCOMPRESSED) if row[0] else size


@njit(nogil=True, cache=True)
def _png(data: Any, size: Any, crc: Any, shown: Any) -> Any:
    """Copy all bytes of a PNG except the compressed pixels (the bodies of IDAT chunks) to the same offsets of
    ``shown``, and check the IDAT chunks' CRCs. Return False if a chunk is corrupt, or if there is no IDAT body."""
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
    """Return the lowest offset at which a supported TIFF has its directory, or values that the directory refers to.
    Strips and tiles do not count."""
    big = facts[tiff.BIG]
    low = tiff.number(start + 4, 4, big)
    at, entries = low + 2, tiff.number(start + low, 2, big)
    for _ in range(entries):
        nbytes = tiff.bytes_of(tiff.number(start + at + 2, 2, big)) * tiff.number(start + at + 4, 4, big)
        if nbytes > 4:
            low = min(low, tiff.number(start + at + 8, 4, big))
        at += 12
    return low
