"""Compiled decoder of tiles of compressed FITS images: Rice's code (FITS Standard 4.0, section 10.4.1)."""

# Functions that Numba compiles have no type hints.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np


@numba.njit(nogil=True, cache=True)
def rice(data, width, block, out):
    """Decode a Rice-compressed tile of pixels: len(out) integers of ``width`` bytes, coded as differences in blocks of
    ``block`` pixels. Return False if the tile is truncated or corrupt."""
    bits = 3 if width == 1 else 4 if width == 2 else 5
    raw, most = 8 * width, (6 if width == 1 else 14 if width == 2 else 25)
    n = len(data)
    if n < width:
        return False
    last = np.int64(0)
    for k in range(width):
        last = (last << 8) | np.int64(data[k])
    at, held, left = width, np.int64(0), 0  # the lowest `left` bits of `held` are still to be read
    modulus, half = np.int64(1) << raw, np.int64(1) << (raw - 1)
    i = 0
    while i < len(out):
        while left < bits:
            if at >= n:
                return False
            held, left, at = ((held << 8) | np.int64(data[at])) & 0xFFFFFFFFFFFF, left + 8, at + 1
        split = ((held >> (left - bits)) & ((1 << bits) - 1)) - 1
        left -= bits
        for _ in range(min(block, len(out) - i)):
            value = np.int64(0)
            if split >= 0:
                zeros, need = np.int64(0), raw
                if split < most:
                    while True:  # count zeros up to the next one
                        if left == 0:
                            if at >= n:
                                return False
                            held, left, at = np.int64(data[at]), 8, at + 1
                        left -= 1
                        if (held >> left) & 1:
                            break
                        zeros += 1
                        if zeros > modulus:
                            return False
                    need = split
                while left < need:
                    if at >= n:
                        return False
                    held, left, at = ((held << 8) | np.int64(data[at])) & 0xFFFFFFFFFFFF, left + 8, at + 1
                value = (zeros << need) | ((held >> (left - need)) & ((np.int64(1) << need) - 1))
                left -= need
            change = -((value + 1) >> 1) if value & 1 else value >> 1
            last = (last + change) & (modulus - 1)
            out[i] = last - modulus if width > 1 and last >= half else last
            i += 1
    return True
