"""Compiled loop that reads the main header of a JPEG 2000 file, up to the tile parts (ITU-T T.800, annexes A and I).

Supported are images of one or three components of 8 bits, all of one size and coded alike: any tiles, transform,
progression, precincts and layers. A file with anything else, or anything invalid, is left to OpenJPEG.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

X0, Y0, X1, Y1, TILE_X, TILE_Y, TILE_WIDTH, TILE_HEIGHT, COMPONENTS = range(9)
"""Indices in the array of facts that `read` finds about a JPEG 2000 file: the image's corners, its tiles' origin and
size (all on the reference grid), and the number of components."""
LEVELS, BLOCK_WIDTH, BLOCK_HEIGHT, REVERSIBLE, MIXED, ORDER, LAYERS, SOP, EPH, GUARD, BODY, END = range(9, 21)
"""Further indices in the array of facts: how the file is coded. ``BLOCK_WIDTH``, ``BLOCK_HEIGHT``: base-2 logarithms.
``MIXED``: whether colours were transformed. ``BODY``, ``END``: offsets of the first tile part and the end marker."""
FACTS = 21
DEEPEST = 12
"""Maximum number of wavelet transform levels that are supported."""
BANDS = 3 * DEEPEST + 1
_LARGEST = 65535
"""Maximum coordinate on the reference grid that is supported."""

_SOC, _SIZ, _COD, _QCD, _COM, _EOC = 0xFF4F, 0xFF51, 0xFF52, 0xFF5C, 0xFF64, 0xFFD9
SOT, SOD, PLT = 0xFF90, 0xFF93, 0xFF58
_SIGNATURE, _FTYP, _JP2, _JP2H, _IHDR, _COLR, _JP2C = (
    0x6A502020, 0x66747970, 0x6A703220, 0x6A703268, 0x69686472, 0x636F6C72, 0x6A703263,
)  # fmt: skip


@njit(nogil=True, cache=True)
def two(data: Any, at: Any) -> Any:
    """Return the big-endian number in the two bytes at offset ``at`` of ``data``; -1 if they are beyond the end."""
    return (np.int64(data[at]) << 8) | data[at + 1] if at + 2 <= len(data) else np.int64(-1)


@njit(nogil=True, cache=True)
def four(data: Any, at: Any) -> Any:
    """Return the big-endian number in the four bytes at offset ``at`` of ``data``; -1 if they are beyond the end."""
    return (two(data, at) << 16) | two(data, at + 2) if at + 4 <= len(data) else np.int64(-1)


@njit(nogil=True, cache=True)
def _boxes(data: Any, shown: Any) -> Any:
    """Return the offset of the JPEG 2000 codestream in a JP2 file, which must extend to the end of the file. Return -1
    if the file has boxes that are not required. Write height, width, components and colour space to ``shown``."""
    if four(data, 0) != 12 or four(data, 4) != _SIGNATURE or four(data, 8) != 0x0D0A870A:
        return -1
    size = four(data, 12)
    if size < 16 or four(data, 16) != _FTYP or four(data, 20) != _JP2:
        return -1
    at = 12 + size
    if four(data, at) != 45 or four(data, at + 4) != _JP2H or at + 53 > len(data):
        return -1
    if four(data, at + 8) != 22 or four(data, at + 12) != _IHDR:
        return -1
    shown[0], shown[1], shown[2] = four(data, at + 16), four(data, at + 20), two(data, at + 24)
    if data[at + 26] != 7 or data[at + 27] != 7 or data[at + 28] != 0 or data[at + 29] > 1:
        return -1
    if four(data, at + 30) != 15 or four(data, at + 34) != _COLR or data[at + 38] != 1:
        return -1
    shown[3] = four(data, at + 41)
    at += 45
    size = four(data, at)
    if four(data, at + 4) != _JP2C or (size != 0 and at + size != len(data)):
        return -1
    return at + 8


@njit(nogil=True, cache=True)
def read(data: Any, facts: Any, exponents: Any, steps: Any) -> bool:
    """Read the main header of a JPEG 2000 file into three arrays. ``exponents`` int64[DEEPEST + 1, 2] are base-2
    logarithms of precinct sizes. ``steps`` int64[BANDS, 2] are exponents and mantissas of the quantisation steps.
    Return whether the file is supported."""
    shown = np.zeros(4, np.int64)
    raw = two(data, 0) == _SOC
    at = 0 if raw else _boxes(data, shown)
    if at < 0 or two(data, at) != _SOC or two(data, at + 2) != _SIZ or at + 49 > len(data):
        return False
    at += 4
    size = two(data, at)
    if two(data, at + 2) > 2:
        return False
    facts[X1], facts[Y1], facts[X0], facts[Y0] = (
        four(data, at + 4), four(data, at + 8), four(data, at + 12), four(data, at + 16),
    )  # fmt: skip
    facts[TILE_WIDTH], facts[TILE_HEIGHT], facts[TILE_X], facts[TILE_Y] = (
        four(data, at + 20), four(data, at + 24), four(data, at + 28), four(data, at + 32),
    )  # fmt: skip
    count = facts[COMPONENTS] = two(data, at + 36)
    if (count != 1 and count != 3) or size != 38 + 3 * count or at + size > len(data):
        return False
    for k in range(count):
        if data[at + 38 + 3 * k] != 7 or data[at + 39 + 3 * k] != 1 or data[at + 40 + 3 * k] != 1:
            return False
    for axis in range(2):
        begin, end, tile, length = facts[X0 + axis], facts[X1 + axis], facts[TILE_X + axis], facts[TILE_WIDTH + axis]
        if not (0 <= tile <= begin < end <= _LARGEST and length > 0 and begin < tile + length):
            return False
    if not raw:
        space = 16 if count == 3 else 17
        if shown[0] != facts[Y1] - facts[Y0] or shown[1] != facts[X1] - facts[X0]:
            return False
        if shown[2] != count or shown[3] != space:
            return False
    return _coding(data, at + size, facts, exponents, steps)


@njit(nogil=True, cache=True)
def _coding(data: Any, at: Any, facts: Any, exponents: Any, steps: Any) -> bool:
    """Read the main header from offset ``at`` on, which is after the image's size. Return whether the file is
    supported."""
    quantised = 0
    facts[LEVELS] = -1
    while two(data, at) != SOT:
        marker, size = two(data, at), two(data, at + 2)
        begin = at + 4
        at += 2 + size
        if marker < 0 or size < 2 or at > len(data):
            return False
        if marker == _COD and facts[LEVELS] < 0:
            if size < 12:
                return False
            style, levels = data[begin], np.int64(data[begin + 5])
            facts[SOP], facts[EPH] = style >> 1 & 1, style >> 2 & 1
            facts[ORDER], facts[LAYERS], facts[MIXED] = data[begin + 1], two(data, begin + 2), data[begin + 4]
            facts[LEVELS] = levels
            facts[BLOCK_WIDTH], facts[BLOCK_HEIGHT] = data[begin + 6] + 2, data[begin + 7] + 2
            facts[REVERSIBLE] = data[begin + 9]
            if style > 7 or facts[ORDER] > 4 or facts[LAYERS] == 0 or facts[MIXED] > 1 or levels > DEEPEST:
                return False
            if facts[BLOCK_WIDTH] > 10 or facts[BLOCK_HEIGHT] > 10 or facts[BLOCK_WIDTH] + facts[BLOCK_HEIGHT] > 12:
                return False
            if data[begin + 8] != 0 or facts[REVERSIBLE] > 1 or (facts[MIXED] and facts[COMPONENTS] < 3):
                return False
            if size != (12 + (levels + 1 if style & 1 else 0)):
                return False
            for k in range(levels + 1):
                both = data[begin + 10 + k] if style & 1 else 255
                exponents[k, 0], exponents[k, 1] = both & 15, both >> 4
                if k and (exponents[k, 0] == 0 or exponents[k, 1] == 0):
                    return False
        elif marker == _QCD and facts[LEVELS] >= 0 and not quantised:
            quantised = 1
            if not _quantisation(data, begin, size, facts, steps):
                return False
        elif marker != _COM:
            return False
    facts[BODY], facts[END] = at, len(data) - 2
    return quantised > 0 and two(data, len(data) - 2) == _EOC


@njit(nogil=True, cache=True)
def _quantisation(data: Any, begin: Any, size: Any, facts: Any, steps: Any) -> bool:
    """Read the quantisation marker segment QCD (A.6.4) of a JPEG 2000 file. Return whether it is supported."""
    if size < 3:
        return False
    kind, bands = data[begin] & 31, 3 * facts[LEVELS] + 1
    facts[GUARD] = data[begin] >> 5
    if (kind == 0) != (facts[REVERSIBLE] == 1) or kind > 2:
        return False
    if size != 3 + (bands if kind == 0 else 2 if kind == 1 else 2 * bands):
        return False
    for k in range(bands):
        if kind == 0:
            steps[k, 0], steps[k, 1] = data[begin + 1 + k] >> 3, 0
            if data[begin + 1 + k] & 7:
                return False
            continue
        both = two(data, begin + 1 + (2 * k if kind == 2 else 0))
        steps[k, 0], steps[k, 1] = both >> 11, both & 2047
        if kind == 1 and k:
            steps[k, 0] = max(steps[k, 0] - (k - 1) // 3, 0)
    return True
