"""Compiled loops that find the pixels of BMP and PNM files and copy them, a whole batch without the GIL.

Only these variants are supported: BMP of 24 and 32 bits (BITMAPINFOHEADER and its versions 4 and 5, without
compression), bottom up or top down, and binary PGM and PPM with maxval 255 or 65535. All lines must be in the file.

Sources: Microsoft, BITMAPFILEHEADER and BITMAPINFOHEADER; Netpbm, pgm(5) and ppm(5).

Lines are copied by address. Accesses stay in bounds because `find` accepts no image whose last line is not in the file,
and windows are inside the image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..jpeg.simd_cpu import put_u8, put_u64, u8_at, u64_at
from ..png.samples_cpu import narrow, rounded, sample, to_three
from .decoder import BACKWARDS, FIRST, PITCH, STEP
from .format import BMP, PNM

_PNM_HEADER = 1024
_HIGHEST = 1 << 24


@njit(nogil=True, cache=True)
def _little(raw: Any, at: Any, n: Any) -> Any:
    value: Any = np.int64(0)
    for k in range(n):
        value |= np.int64(raw[at + k]) << 8 * k
    return value


@njit(nogil=True, cache=True)
def _is_space(byte: Any) -> Any:
    return byte == 32 or 9 <= byte <= 13


@njit(nogil=True, cache=True)
def _field(raw: Any, at: Any, end: Any) -> Any:
    """Return the offset of the next field in a PNM's header, after spaces and comments of whole lines; -1 if the header
    is invalid. Forms that programs read differently also count as invalid: a comment right after a field, or one with a
    CR in it."""
    if at >= end or not _is_space(raw[at]):
        return -1
    while at < end:
        if _is_space(raw[at]):
            at += 1
        elif raw[at] == 35:  # "#", to the end of the line
            while at < end and raw[at] != 10 and raw[at] != 13:
                at += 1
            if at == end or raw[at] == 13:
                return -1
            at += 1
        else:
            return at
    return -1


@njit(nogil=True, cache=True)
def _number(raw: Any, at: Any, end: Any) -> Any:
    """Read the number of up to ten digits at offset ``at``. Return it, and the offset where it ends."""
    value, begun = np.int64(0), at
    while at < end and 48 <= raw[at] <= 57 and at - begun < 10:
        value = 10 * value + raw[at] - 48
        at += 1
    return value, at


@njit(nogil=True, cache=True)
def _pnm(raw: Any, start: Any, size: Any, height: Any, width: Any, row: Any) -> None:
    end = start + min(size, _PNM_HEADER)
    if size < 2 or raw[start] != 80 or (raw[start + 1] != 53 and raw[start + 1] != 54):
        return
    at = start + 2
    for wanted in (width, height):
        at = _field(raw, at, end)
        if at < 0:
            return
        begun = at
        value, at = _number(raw, at, end)
        if at == begun or value != wanted:
            return
    at = _field(raw, at, end)
    if at < 0:
        return
    begun = at
    most, at = _number(raw, at, end)
    bytes_each = 1 if most == 255 else 2
    if (most != 255 and most != 65535) or at - begun != 1 + 2 * bytes_each or at == end or not _is_space(raw[at]):
        return
    step = bytes_each * (1 if raw[start + 1] == 53 else 3)
    first = at + 1 - start
    if (size - first) // (width * step) < height:
        return
    row[FIRST], row[PITCH], row[STEP] = first, width * step, step


@njit(nogil=True, cache=True)
def _bmp(raw: Any, start: Any, size: Any, height: Any, width: Any, row: Any) -> None:
    if size < 54 or raw[start] != 66 or raw[start + 1] != 77:
        return
    first, head = _little(raw, start + 10, 4), _little(raw, start + 14, 4)
    rows = _little(raw, start + 22, 4)
    down = rows >= 1 << 31
    if down:
        rows = (1 << 32) - rows
    bits = _little(raw, start + 28, 2)
    if (head != 40 and head != 108 and head != 124) or (bits != 24 and bits != 32) or first < 14 + head:
        return
    if _little(raw, start + 18, 4) != width or rows != height or height >= _HIGHEST:
        return
    if _little(raw, start + 26, 2) != 1 or _little(raw, start + 30, 4) != 0:  # planes, compression
        return
    step = bits >> 3
    pitch = step * width + 3 & ~3
    if (size - first) // pitch < height:
        return
    row[STEP], row[BACKWARDS] = step, 1
    row[FIRST], row[PITCH] = (first, pitch) if down else (first + (height - 1) * pitch, -pitch)


@njit(nogil=True, cache=True)
def bmp_header(raw: Any, start: Any, row: Any) -> None:
    """Read the header of a BMP of at least 54 bytes that begins at ``start``. Write `format.BMP`, width, height,
    channels and bits to ``row``, which must hold zeros. If anything is unusual, ``row`` stays zero."""
    width, height = _little(raw, start + 18, 4), _little(raw, start + 22, 4)
    if height >= 1 << 31:
        height = (1 << 32) - height
    if _little(raw, start + 14, 4) < 40 or not (0 < width < 1 << 31 and 0 < height < 1 << 31):
        return
    if _little(raw, start + 30, 4) == 0:  # compressed files need a closer look
        row[0], row[1], row[2], row[3], row[4] = BMP, width, height, 3, 8


@njit(nogil=True, cache=True)
def pnm_header(raw: Any, start: Any, size: Any, row: Any) -> None:
    """Read the header of a PGM or PPM file of ``size`` bytes to ``row``, like `bmp_header`. The first number of the row
    is set only if the header is valid."""
    at, end = start + 2, start + min(size, _PNM_HEADER)
    for n in range(3):
        begun = at
        while at < end and _is_space(raw[at]):
            at += 1
        digits = at
        row[1 + n], at = _number(raw, at, end)
        if digits == begun or at in (digits, end) or not _is_space(raw[at]):
            return
    if not (0 < row[1] < 1 << 31 and 0 < row[2] < 1 << 31):
        return
    row[0], row[4] = PNM, 16 if row[3] > 255 else 8
    row[3] = 3 if raw[start + 1] == 54 else 1


@njit(nogil=True, cache=True)
def find(raw: Any, offsets: Any, sizes: Any, extents: Any, rows: Any) -> None:
    """Find the pixels in M files, the bytes raw[offset : offset + size]. ``extents`` [M, 2]: heights and widths, as the
    headers say. ``rows`` [M, 4] gets a row per file, with the columns `decoder.FIRST` to `decoder.BACKWARDS`; byte
    offsets count from the start of the file."""
    for k in range(len(sizes)):
        rows[k] = 0
        if sizes[k] >= 2 and 0 < extents[k, 0] < 1 << 31 and 0 < extents[k, 1] < 1 << 31:
            if raw[offsets[k]] == 66:
                _bmp(raw, offsets[k], sizes[k], extents[k, 0], extents[k, 1], rows[k])
            else:
                _pnm(raw, offsets[k], sizes[k], extents[k, 0], extents[k, 1], rows[k])


@njit(nogil=True, cache=True)
def _same(source: Any, target: Any, n: Any) -> None:
    """Copy ``n`` bytes from the address ``source`` to ``target``."""
    for k in range(0, n - 7, 8):
        put_u64(np.uint64(target + k), u64_at(np.uint64(source + k)))
    for k in range(n & ~7, n):
        put_u8(np.uint64(target + k), u8_at(np.uint64(source + k)))


@njit(nogil=True, cache=True)
def _rounded_line(source: Any, target: Any, n: Any, stored: Any, channels: Any, bgr: Any) -> None:
    """Convert ``n`` pixels with 16-bit samples to 8 bits with rounding, from the address ``source`` to ``target``."""
    if stored == channels and not (bgr and stored == 3):
        narrow(source, n * stored, True, target)
        return
    for _ in range(n):
        for c in range(3):
            at = 0 if stored == 1 else 2 - c
            put_u8(np.uint64(target + c), rounded(sample(source + 2 * at, True)))
        source += 2 * stored
        target += 3


@njit(nogil=True, cache=True)
def copy_images(
    raw: Any, offsets: Any, rows: Any, windows: Any, channels: Any, bgr: Any, out: Any, origins: Any, pitches: Any
) -> None:
    """Copy pixels of M files to ``out``. ``rows``: positions of pixels, as `find` wrote them. ``windows`` [M, 4]: the
    pixels to copy (y0, x0, y1, x1, inside the image). Pixel (y, x) of file k is written to out[origins[k] + y *
    pitches[k] + x * channels[k]:]. Files with 1 channel give 1, or 3 (RGB, or BGR); 16-bit samples are rounded to 8
    bits."""
    for k in range(len(rows)):
        step, n = rows[k, STEP], windows[k, 3] - windows[k, 1]
        source = raw.ctypes.data + offsets[k] + rows[k, FIRST] + windows[k, 1] * step
        target = out.ctypes.data + origins[k] + windows[k, 1] * channels[k]
        for y in range(windows[k, 0], windows[k, 2]):
            line, to = source + y * rows[k, PITCH], target + y * pitches[k]
            if step == 2 or step == 6:
                _rounded_line(line, to, n, step >> 1, channels[k], bgr)
            elif step == channels[k] and (step == 1 or (rows[k, BACKWARDS] != 0) == bgr):
                _same(line, to, n * step)
            else:
                to_three(line, to, n, step, (rows[k, BACKWARDS] != 0) != bgr)
    _keep(raw, out)


@njit(nogil=True, cache=True)
def _keep(raw: Any, out: Any) -> Any:
    """Do nothing; a call after the last use of the addresses of ``raw`` and ``out`` keeps Numba from freeing these
    arrays earlier."""
    return len(raw) + len(out)
