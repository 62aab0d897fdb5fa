"""Compiled loops that convert pixels for decoders: 16-bit samples rounded to 8 bits, and pixels of three bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..jpeg.simd_cpu import put_u8, put_u32, u8_at, u16_at, u64_at
from .simd_cpu import five_gray, five_gray_alpha, five_turned, four_rgba, four_rgba_turned

_LOW, _EVEN = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_HALF = np.uint64(0x0000807F0000807F)
_BYTES = np.uint64(0x000000FF000000FF)


@njit(nogil=True, cache=True)
def rounded(value: Any) -> Any:
    """Round a 16-bit sample v to 8 bits. For every v, (255 v + 32895) >> 16 is the integer nearest to v / 257."""
    return ((value << np.uint64(8)) - value + np.uint64(32895)) >> np.uint64(16)


@njit(nogil=True, cache=True)
def sample(address: Any, big: Any) -> Any:
    """Return the 16-bit sample at an address. ``big``: whether its high byte is stored first."""
    value = u16_at(np.uint64(address))
    return value >> np.uint64(8) | (value & np.uint64(255)) << np.uint64(8) if big else value


@njit(nogil=True, cache=True)
def narrow(source: Any, n: Any, big: Any, target: Any) -> None:
    """Round ``n`` 16-bit samples at the address ``source`` to 8 bits, four at a time in two integers; see `rounded`."""
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


@njit(nogil=True, cache=True)
def to_three(source: Any, target: Any, n: Any, size: Any, turned: Any) -> None:
    """Convert ``n`` pixels of ``size`` bytes (gray, gray and alpha, RGB, or RGBA) to three bytes each. Gray is
    repeated. Colours are written in reverse order (BGR) if ``turned``, which must be true for pixels of three bytes."""
    x: Any = np.int64(0)
    safe = min((n * size - 16) // size, (3 * n - 16) // 3)  # 16 bytes are read and written
    if size == 1:
        for x in range(0, safe + 1, 5):
            five_gray(source + x, target + 3 * x)
        x = max(safe // 5 + 1, 0) * 5
    elif size == 2:
        for x in range(0, safe + 1, 5):
            five_gray_alpha(source + 2 * x, target + 3 * x)
        x = max(safe // 5 + 1, 0) * 5
    elif size == 3:
        for x in range(0, safe + 1, 5):
            five_turned(source + 3 * x, target + 3 * x)
        x = max(safe // 5 + 1, 0) * 5
    elif turned:
        for x in range(0, safe + 1, 4):
            four_rgba_turned(source + 4 * x, target + 3 * x)
        x = max(safe // 4 + 1, 0) * 4
    else:
        for x in range(0, safe + 1, 4):
            four_rgba(source + 4 * x, target + 3 * x)
        x = max(safe // 4 + 1, 0) * 4
    a, b, c = (0, 0, 0) if size < 3 else (2, 1, 0) if turned else (0, 1, 2)
    source += x * size
    target += x * 3
    for _ in range(x, n):
        put_u8(np.uint64(target), u8_at(np.uint64(source + a)))
        put_u8(np.uint64(target + 1), u8_at(np.uint64(source + b)))
        put_u8(np.uint64(target + 2), u8_at(np.uint64(source + c)))
        source += size
        target += 3
