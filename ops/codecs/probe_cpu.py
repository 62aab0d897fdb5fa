"""Compiled loop that reads the headers of PNG, TIFF, BMP and PNM files of a batch, without the GIL.

It handles files without unusual features, and returns the same facts as `formats.probe`. Called by `headers`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .png.format import CODE as PNG
from .tiff import directory_cpu as tiff
from .tiff.format import CODE as TIFF
from .uncompressed.decoder_cpu import bmp_header, pnm_header

_LEAST = 54
"""Minimum size in bytes of a file whose header `headers` reads."""
_CHUNKS = 4096
"""Maximum number of chunks of a PNG that are searched for its orientation."""
_IHDR, _EXIF = 0x49484452, 0x65584966


@njit(nogil=True, cache=True)
def headers(raw: Any, offsets: Any, sizes: Any, rows: Any) -> None:
    """Read the headers of M image files, the bytes raw[offset : offset + size]. ``rows`` [M, 6] gets one row per file,
    with the columns that `format` defines; zeros if this loop does not support the file's format or features."""
    facts = np.zeros(tiff.FACTS, np.int64)
    for k in range(len(sizes)):
        rows[k] = 0
        if sizes[k] >= _LEAST:
            _header(raw, offsets[k], sizes[k], facts, rows[k])
            rows[k, 5] = max(rows[k, 5], np.int64(rows[k, 0] != 0))
    _keep(raw)


@njit(nogil=True, cache=True)
def _header(raw: Any, start: Any, size: Any, facts: Any, row: Any) -> None:
    first, second = raw[start], raw[start + 1]
    if first == 137:
        _png(raw, start, size, row)
    elif first == second and (first == 73 or first == 77):
        _tiff(raw.ctypes.data + start, size, facts, row)
    elif first == 66 and second == 77:
        bmp_header(raw, start, row)
    elif first == 80 and (second == 53 or second == 54):
        pnm_header(raw, start, size, row)


@njit(nogil=True, cache=True)
def _png(raw: Any, start: Any, size: Any, row: Any) -> None:
    if _u32(raw, start) != 0x89504E47 or _u32(raw, start + 4) != 0x0D0A1A0A or _u32(raw, start + 12) != _IHDR:
        return
    width, height, bits, kind = _u32(raw, start + 16), _u32(raw, start + 20), raw[start + 24], raw[start + 25]
    channels = 1 if kind == 0 else 3 if kind == 2 or kind == 3 else 2 if kind == 4 else 4 if kind == 6 else 0
    if channels == 0 or not (0 < width < 1 << 31 and 0 < height < 1 << 31) or not 0 < bits <= 16:
        return
    at = np.int64(33)
    for _ in range(_CHUNKS):
        if at + 12 > size:
            break
        if _u32(raw, start + at + 4) == _EXIF:  # the image may be turned
            return
        at += 12 + _u32(raw, start + at)
    row[0], row[1], row[2], row[3], row[4] = PNG, width, height, channels, 8 if kind == 3 else bits


@njit(nogil=True, cache=True)
def _tiff(start: Any, size: Any, facts: Any, row: Any) -> None:
    if tiff.read(start, size, facts):
        row[0], row[1], row[2] = TIFF, facts[tiff.WIDTH], facts[tiff.HEIGHT]
        row[3], row[4], row[5] = facts[tiff.SAMPLES], facts[tiff.BITS], facts[tiff.ORIENTATION]


@njit(nogil=True, cache=True)
def _u32(raw: Any, at: Any) -> Any:
    return np.int64(raw[at]) << 24 | np.int64(raw[at + 1]) << 16 | np.int64(raw[at + 2]) << 8 | np.int64(raw[at + 3])


@njit(nogil=True, cache=True)
def _keep(raw: Any) -> Any:
    """Do nothing; a call after the last use of the array's address keeps Numba from freeing the array earlier."""
    return len(raw)
