"""Compiled loops that find the strips and tiles of TIFFs, a whole batch without the GIL; a GPU unpacks them
(`gpu_streams.streams`).

They check everything about a file that `decoder_cpu` checks, except what only the GPU sees: the packed data. Rows on
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
"""Columns of the array of strips, one row per strip or tile: index of the file, byte offset in the file, size in bytes,
bytes after unpacking, first row and first column in the image."""


@njit(nogil=True, cache=True)
def _chunks(facts: Any) -> Any:
    """Return the number of strips or tiles of a file, from the ``facts`` that `directory_cpu.read` found."""
    across = (facts[WIDTH] + facts[WIDE] - 1) // facts[WIDE]
    return across * ((facts[HEIGHT] + facts[HIGH] - 1) // facts[HIGH])


@njit(nogil=True, cache=True)
def measure(raw: Any, offsets: Any, sizes: Any, largest: Any, whole: Any, shown: Any, counts: Any) -> None:
    """Compute the memory that N TIFF files, the bytes raw[offset : offset + size], need for decoding. For each file:
    ``largest``, unpacked bytes of its largest compressed strip or tile; ``whole``, unpacked bytes of all strips;
    ``shown``, bytes of the image; ``counts``, number of strips. All are 0 for a file of an unsupported kind."""
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
    """Fill in ``facts`` [N, FACTS] for N TIFF files, as `directory_cpu.read` does, and ``strips`` [M, 6] with one row
    per strip or tile, file by file. ``counts[i]`` becomes the number of strips of file i. It is 0 if the file is of an
    unsupported kind, if a strip extends beyond it or is longer than any encoder makes it, or if ``strips`` is full."""
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
    """Do nothing; a call after the last use of the array's address keeps Numba from freeing the array earlier."""
    return len(raw)
