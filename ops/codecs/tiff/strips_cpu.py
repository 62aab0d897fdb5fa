"""TIFF up to its strips and tiles, a whole batch without the GIL: a GPU unpacks them (`gpu_streams.streams`).

Everything about a file is checked here as `decoder_cpu` does, but for what only the GPU sees: what is packed. Rows on
the GPU have exactly the size that the directory says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .directory_cpu import (
    BIG,
    BITS,
    CODING,
    FACTS,
    HEIGHT,
    HIGH,
    NONE,
    OFFSET_BYTES,
    OFFSETS,
    SAMPLES,
    SIZE_BYTES,
    SIZES,
    TILED,
    WIDE,
    WIDTH,
    number,
    read,
)

FILE, AT, SIZE, ROOM, TOP, LEFT = range(6)
"""Columns of a strip or tile: the file, where it begins there, its bytes, those of its rows, and its place in the
picture."""


@njit(nogil=True, cache=True)
def _chunks(facts: Any) -> Any:
    """Strips or tiles of a file."""
    across = (facts[WIDTH] + facts[WIDE] - 1) // facts[WIDE]
    return across * ((facts[HEIGHT] + facts[HIGH] - 1) // facts[HIGH])


@njit(nogil=True, cache=True)
def measure(raw: Any, offsets: Any, sizes: Any, largest: Any, whole: Any, shown: Any, counts: Any) -> None:
    """Of N files, the bytes raw[offset : offset + size]: those of the rows of the largest strip or tile that is packed,
    of all of them, and of what is shown of them, and how many there are; zeros for one that is of no plain kind."""
    facts = np.zeros(FACTS, np.int64)
    for i in range(len(sizes)):
        largest[i] = whole[i] = shown[i] = counts[i] = 0
        if read(raw.ctypes.data + offsets[i], sizes[i], facts):
            counts[i] = _chunks(facts)
            pixel = facts[SAMPLES] * (facts[BITS] >> 3)
            each, shown[i] = facts[WIDE] * facts[HIGH] * pixel, facts[WIDTH] * facts[HEIGHT] * pixel
            largest[i], whole[i] = 0 if facts[CODING] == NONE else each, each * counts[i]
    _keep(raw)


@njit(nogil=True, cache=True)
def find_strips(raw: Any, offsets: Any, sizes: Any, facts: Any, strips: Any, counts: Any) -> None:
    """Fill in the ``facts`` [N, FACTS] of N files, as `directory_cpu.read` does, and a row of ``strips`` [M, 6] for
    each strip or tile, one file's after the other's. ``counts[i]`` becomes how many there are; 0 for a file that is of
    no plain kind, where one reaches out of the file or is longer than any encoder makes it, or where there are no rows
    left."""
    done = 0
    for i in range(len(sizes)):
        start, size, fact = raw.ctypes.data + offsets[i], sizes[i], facts[i]
        counts[i] = 0
        if not read(start, size, fact):
            continue
        n, big = _chunks(fact), fact[BIG]
        if n > len(strips) - done:
            continue
        across, row = (fact[WIDTH] + fact[WIDE] - 1) // fact[WIDE], fact[WIDE] * fact[SAMPLES] * (fact[BITS] >> 3)
        sound = True
        for c in range(n):
            strip = strips[done + c]
            top, left = c // across * fact[HIGH], c % across * fact[WIDE]
            at = number(start + fact[OFFSETS] + c * fact[OFFSET_BYTES], fact[OFFSET_BYTES], big)
            length = number(start + fact[SIZES] + c * fact[SIZE_BYTES], fact[SIZE_BYTES], big)
            room = row * (fact[HIGH] if fact[TILED] else min(fact[HIGH], fact[HEIGHT] - top))
            if at < 8 or length == 0 or length > size - at:
                sound = False
                break
            if fact[CODING] == NONE and length >= room:
                length = room
            elif fact[CODING] == NONE or length > 2 * room + 1024:
                sound = False
                break
            strip[FILE], strip[AT], strip[SIZE], strip[ROOM] = i, at, length, room
            strip[TOP], strip[LEFT] = top, left
        if sound:
            counts[i] = n
            done += n
    _keep(raw)


@njit(nogil=True, cache=True)
def _keep(raw: Any) -> Any:
    """Name an array that was used by address, so that it lives until here."""
    return len(raw)
