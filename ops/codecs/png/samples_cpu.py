"""Samples of 16 bits, of either order of bytes, rounded to 8: what the decoders' loops share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..jpeg.simd_cpu import put_u8, put_u32, u16_at, u64_at

_LOW, _EVEN = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_HALF = np.uint64(0x0000807F0000807F)
_BYTES = np.uint64(0x000000FF000000FF)


@njit(nogil=True, cache=True)
def rounded(value: Any) -> Any:
    """16 bits to 8: v / 257, to which (255 v + 32895) / 65536 is nearest for every v."""
    return ((value << np.uint64(8)) - value + np.uint64(32895)) >> np.uint64(16)


@njit(nogil=True, cache=True)
def sample(address: Any, big: Any) -> Any:
    """16 bits, with their high byte first where they are ``big``."""
    value = u16_at(np.uint64(address))
    return value >> np.uint64(8) | (value & np.uint64(255)) << np.uint64(8) if big else value


@njit(nogil=True, cache=True)
def narrow(source: Any, n: Any, big: Any, target: Any) -> None:
    """``n`` samples `rounded`, four in two numbers."""
    s8, s16 = np.uint64(8), np.uint64(16)
    for k in range(0, n - 3, 4):
        four = u64_at(np.uint64(source + 2 * k))
        if big:
            four = four >> s8 & _LOW | (four & _LOW) << s8
        even, odd = four & _EVEN, four >> s16 & _EVEN
        even = ((even << s8) - even + _HALF) >> s16 & _BYTES
        odd = ((odd << s8) - odd + _HALF) >> s16 & _BYTES
        pairs = even | odd << s8
        put_u32(np.uint64(target + k), pairs | pairs >> s16)
    for k in range(n & ~3, n):
        put_u8(np.uint64(target + k), rounded(sample(source + 2 * k, big)))
