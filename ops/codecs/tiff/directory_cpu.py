"""Compiled loops that read the first directory of a TIFF: whether the file is of a kind that `decoder_cpu` supports,
and its facts.

TIFF 6.0, section 2 (structure), 3 to 6, 8 (tags), 15 (tiles). A file with anything invalid, or with a tag that is not
known here to be without influence on the pixels, counts as unsupported.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..jpeg.simd_cpu import u8_at

FACTS = 16
(
    WIDTH, HEIGHT, SAMPLES, INVERTED, CODING, PREDICTOR, TILED, WIDE, HIGH, OFFSETS, OFFSET_BYTES, SIZES, SIZE_BYTES,
    BIG, BITS, ORIENTATION,
) = range(FACTS)  # fmt: skip
"""Indices in the array of facts that `read` finds about a TIFF file: width and height; samples per pixel; whether 0 is
white; compression and predictor; whether the file has tiles; width and height of a tile (a strip counts as a tile as
wide as the image); offset of the array of tile offsets in the file, and bytes per number in it; offset of the array of
tile sizes, and bytes per number in it; whether numbers are big-endian; bits per sample, 8 or 16; orientation (Exif, 1
to 8)."""

NONE, LZW, DEFLATE, OLD_DEFLATE, PACK_BITS = 1, 5, 8, 32946, 32773
"""Values of the TIFF tag Compression."""
MOST = 1400
"""Maximum number of bytes to which one compressed byte can be unpacked: 1,280 for LZW, whose strings grow by a byte
with each code up to 3,837 bytes until its string table is cleared; 1,032 for deflate, 64 for PackBits."""

_SHORT, _LONG = 3, 4
_ORIENTATION, _XMP = 274, 700
_HARMLESS = (
    254, 269, 270, 271, 272, 280, 281, 282, 283, 285, 296, 297, 305, 306, 315, 316, 33432, 33550, 33922, 34264, 34675,
    34735, 34736, 34737, 42112, 42113,
)  # fmt: skip
"""TIFF tags that do not influence pixels: texts, resolutions, page numbers, the range of values, colour profiles,
GeoTIFF and GDAL."""


@njit(nogil=True, cache=True)
def number(address: Any, size: Any, big: Any) -> Any:
    """Return the number of ``size`` bytes, 2 or 4, stored at ``address``. ``big``: whether it is big-endian."""
    value = np.int64(0)
    for k in range(size):
        byte = np.int64(u8_at(np.uint64(address + k)))
        value |= byte << (8 * (size - 1 - k if big else k))
    return value


@njit(nogil=True, cache=True)
def bytes_of(kind: Any) -> Any:
    """Return the size in bytes of a value of the TIFF field type ``kind`` (section 2); 0 if there is no such type."""
    if kind == 1 or kind == 2 or kind == 6 or kind == 7:
        return 1
    if kind == 3 or kind == 8:
        return 2
    if kind == 4 or kind == 9 or kind == 11:
        return 4
    return 8 if kind == 5 or kind == 10 or kind == 12 else 0


@njit(nogil=True, cache=True)
def read(start: Any, size: Any, facts: Any) -> Any:
    """Read the directory of the TIFF file of ``size`` bytes at the address ``start``, and fill ``facts``. Return
    whether the file is of a supported kind. If so: it has as many strips or tiles as its pixels need; the arrays of
    their offsets and sizes are inside the file, but their values are not checked; and the unpacked image has at most
    `MOST` times the file's bytes."""
    if size < 8:
        return False
    mark = number(start, 4, True)
    big = mark == 0x4D4D002A
    at = number(start + 4, 4, big)
    if (not big and mark != 0x49492A00) or at < 8 or at > size - 6:
        return False
    entries = number(start + at, 2, big)
    at += 2
    if at + 12 * entries + 4 > size:
        return False
    for k in range(FACTS):
        facts[k] = 0
    facts[BIG], facts[SAMPLES], facts[PREDICTOR], facts[ORIENTATION] = big, 1, 1, 1
    light, bits, formats, extra, turned, last = -1, 0, 0, -1, False, -1
    offsets, sizes, tiled, striped, each = 0, 0, False, False, -1
    for _ in range(entries):
        tag, kind = number(start + at, 2, big), number(start + at + 2, 2, big)
        count, width = number(start + at + 4, 4, big), bytes_of(kind)
        place = at + 8 if width * count <= 4 else number(start + at + 8, 4, big)
        at += 12
        if tag <= last or width == 0 or count == 0 or place < 8 or place + width * count > size:
            return False
        last = tag
        if tag in _HARMLESS or (tag == _XMP and turned):  # XMP may contain an orientation too
            continue
        if kind != _SHORT and kind != _LONG:
            return False
        value = number(start + place, width, big)
        if tag == 273 or tag == 324:
            tiled, striped = tiled or tag == 324, striped or tag == 273
            offsets, facts[OFFSETS], facts[OFFSET_BYTES] = count, place, width
        elif tag == 279 or tag == 325:
            tiled, striped = tiled or tag == 325, striped or tag == 279
            sizes, facts[SIZES], facts[SIZE_BYTES] = count, place, width
        elif tag == 258 or tag == 339:  # bits and formats of all samples
            for k in range(count):
                if number(start + place + k * width, width, big) != (value if tag == 258 else 1):
                    return False
            if tag == 258:
                facts[BITS] = value
            bits, formats = (count, formats) if tag == 258 else (bits, count)
        elif count != 1:
            return False
        elif tag == 256:
            facts[WIDTH] = value
        elif tag == 257:
            facts[HEIGHT] = value
        elif tag == 278:
            each, striped = value, True
        elif tag == 322:
            facts[WIDE], tiled = value, True
        elif tag == 323:
            facts[HIGH], tiled = value, True
        elif kind != _SHORT:
            return False
        elif tag == 259:
            facts[CODING] = value
        elif tag == 262:
            light = value
        elif tag == 277:
            facts[SAMPLES] = value
        elif tag == 317:
            facts[PREDICTOR] = value
        elif tag == 338:
            extra = value
        elif tag == _ORIENTATION:
            turned, facts[ORIENTATION] = True, value if 1 <= value <= 8 else 1
        elif (tag != 266 and tag != 284) or value != 1:  # order of bits, planes
            return False
    samples, coding = facts[SAMPLES], facts[CODING]
    facts[INVERTED], facts[TILED] = light == 0, tiled
    if light == 2:
        sound = (samples == 3 and extra < 0) or (samples == 4 and (extra < 0 or extra == 2))
    else:
        sound = light in (0, 1) and ((samples == 1 and extra < 0) or (samples == 2 and extra == 2 and light == 1))
    if facts[BITS] == 16:  # Pillow supports only some of these
        sound = sound and light != 0 and (samples == 1 or samples == 3 or (samples == 4 and extra == 2))
    elif facts[BITS] != 8:
        return False
    if (
        not sound
        or bits != samples
        or (formats and formats != samples)
        or facts[WIDTH] == 0
        or facts[HEIGHT] == 0
        or offsets != sizes
    ):
        return False
    if coding not in (NONE, LZW, DEFLATE, OLD_DEFLATE, PACK_BITS):
        return False
    if facts[PREDICTOR] != 1 and (facts[PREDICTOR] != 2 or coding in (NONE, PACK_BITS)):
        return False
    if tiled:
        if striped or facts[WIDE] == 0 or facts[HIGH] == 0 or facts[WIDE] % 16 or facts[HIGH] % 16:
            return False
    elif each == 0:
        return False
    else:
        facts[WIDE], facts[HIGH] = facts[WIDTH], facts[HEIGHT] if each < 0 else min(each, facts[HEIGHT])
    if max(facts[WIDTH], facts[HEIGHT], facts[WIDE], facts[HIGH]) > 1 << 24:
        return False
    across, down = _ceil(facts[WIDTH], facts[WIDE]), _ceil(facts[HEIGHT], facts[HIGH])
    if across * down != offsets:
        return False
    lines = down * facts[HIGH] if tiled else facts[HEIGHT]
    return across * facts[WIDE] * samples * lines * (facts[BITS] >> 3) <= MOST * size


@njit(nogil=True, cache=True)
def _ceil(a: Any, b: Any) -> Any:
    return (a + b - 1) // b


@njit(nogil=True, cache=True)
def are_plain(raw: Any, offsets: Any, sizes: Any, plain: Any) -> None:
    """Set ``plain`` [N]: whether the built-in decoder supports each of N TIFF files, the bytes raw[offset : offset +
    size]."""
    facts = np.zeros(FACTS, np.int64)
    for i in range(len(sizes)):
        plain[i] = read(raw.ctypes.data + offsets[i], sizes[i], facts)
    _keep(raw)


@njit(nogil=True, cache=True)
def _keep(raw: Any) -> Any:
    """Do nothing; a call after the last use of the array's address keeps Numba from freeing the array earlier."""
    return len(raw)
