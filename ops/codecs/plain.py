"""Pictures that are stored as they are, binary PGM and PPM and BMP of 24 bits: read without a decoder.

Files that are not whole, or not plain, are left to Pillow, whose pixels these are.
"""

from __future__ import annotations

import re
import struct

import numpy as np

from .formats import Header
from .pixels import Pixels

_PNM = re.compile(rb"P[56](?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+255\s")


def view(data: memoryview, header: Header) -> Pixels | None:
    """(H, W, C) uint8, perhaps a view of ``data``; None where the file is in none of these formats."""
    if header.bits != 8:
        return None
    if header.format == "pnm":
        return _pnm(data, header)
    return _bmp(data, header) if header.format == "bmp" else None


def _pnm(data: memoryview, header: Header) -> Pixels | None:
    found = _PNM.match(bytes(data[:1024]))
    if found is None or (int(found[1]), int(found[2])) != (header.width, header.height):
        return None
    shape = (header.height, header.width, header.channels)
    size = header.height * header.width * header.channels
    if len(data) - found.end() < size:
        return None
    return np.frombuffer(data, np.uint8, size, found.end()).reshape(shape)


def _bmp(data: memoryview, header: Header) -> Pixels | None:
    if len(data) < 54:
        return None
    at, size, width, height, planes, bits, compression = struct.unpack_from("<10xIIiiHHI", data)
    if (planes, bits, compression, width, abs(height)) != (
        1,
        24,
        0,
        header.width,
        header.height,
    ) or size not in _HEADERS:
        return None
    pitch, rows = (3 * width + 3) & ~3, abs(height)
    if at < 14 + size or len(data) - at < pitch * rows:
        return None
    lines = np.frombuffer(data, np.uint8, pitch * rows, at).reshape(rows, pitch)[:, : 3 * width]
    stored = lines.reshape(rows, width, 3) if height < 0 else lines.reshape(rows, width, 3)[::-1]
    pixels = np.empty((rows, width, 3), np.uint8)
    for k in range(3):  # one channel after the other: NumPy is slow where the innermost axis is short
        pixels[..., k] = stored[..., 2 - k]
    return pixels


_HEADERS = (40, 108, 124)
"""Bytes of BITMAPINFOHEADER and its fourth and fifth version."""
