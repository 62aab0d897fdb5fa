"""PNG up to its filtered rows, or up to its zlib stream, a whole batch without the GIL: a GPU does the rest
(cuda/png.cu, cuda/png_inflate.cu).

Everything about a file is checked here, as `decoder_cpu` does, but for what only the GPU sees: the numbers of the
filters, and the stream where it is not inflated here. Rows on the GPU have exactly the size that the file's header
says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .decoder_cpu import (
    _BITS,
    _DATA,
    _HEIGHT,
    _INTERLACED,
    _KIND,
    _N_PARTS,
    _PACKED,
    _PIECES,
    _TEXTS,
    _WIDTH,
    DONE,
    OTHER,
    _channels,
    _inflate,
    _is_pair,
    _keep,
    _walk,
)  # fmt: skip
from .simd_cpu import call_1

_MOST = 1032
"""Bytes that deflate makes of one, at most (RFC 1951: 258 of two bits)."""


@njit(nogil=True, cache=True)
def _rows_of(parts: Any) -> Any:
    """Bytes of a picture's filtered rows; 0 where it is one of another kind, or its stream too short to hold them."""
    width, height, bits, kind = parts[_WIDTH], parts[_HEIGHT], parts[_BITS], parts[_KIND]
    if width <= 0 or height <= 0 or bits != 8 or kind == 3 or not _is_pair(bits, kind) or parts[_INTERLACED]:
        return np.int64(0)
    whole = height * (1 + width * _channels(kind))
    return whole if whole <= _MOST * parts[_PACKED] else np.int64(0)


@njit(nogil=True, cache=True)
def inflate_images(
    functions: Any, raw: Any, offsets: Any, sizes: Any, rows: Any, places: Any, room: Any, status: Any
) -> None:
    """Inflate N images, the bytes raw[offset : offset + size], of 8 bits a channel, without a palette and not
    interlaced. ``functions`` as of `decoder_cpu.decode_images`. The rows of image i, each after the number of its
    filter, go to rows[places[i] :], ``room[i]`` bytes. ``status[i]`` becomes DONE, or OTHER where the file is not in
    order, another kind, or of another size; then some bytes may have been written."""
    most: Any = np.int64(0)
    for i in range(len(sizes)):
        most = max(most, sizes[i])
    machine = call_1(functions[0], (0,))
    packed, scratch = np.empty(most + 16, np.uint8), np.empty(_TEXTS, np.uint8)
    counts, parts, pieces = np.zeros(2, np.int64), np.zeros(_N_PARTS, np.int64), np.empty((0, 3), np.int64)
    for i in range(len(sizes)):
        status[i] = OTHER
        if machine == 0 or not _walk(functions, machine, raw.ctypes.data + offsets[i], sizes[i], parts, packed,
                                     pieces, scratch, counts):  # fmt: skip
            continue
        whole = _rows_of(parts)
        if whole == 0 or whole != room[i]:
            continue
        target = rows.ctypes.data + places[i]
        if _inflate(functions, machine, parts[_DATA], parts[_PACKED], target, whole, counts) == whole:
            status[i] = DONE
    if machine:
        call_1(functions[2], (machine,))
    _keep(packed, scratch, rows, rows, raw, rows, counts)


@njit(nogil=True, cache=True)
def find_streams(
    functions: Any, raw: Any, offsets: Any, sizes: Any, room: Any, pieces: Any, counts: Any, lengths: Any
) -> None:
    """Find the zlib streams of N images, which `inflate_images` would take. Those of image i are ``counts[i]`` rows of
    ``pieces``, after those of the images before it: where bytes begin in the file and in the stream, and how many they
    are. ``lengths[i]`` becomes the stream's bytes, or 0 where the file is not in order as far as this can be seen, is
    another kind, of another size, its stream longer than any encoder makes it, or in more pieces than there are rows
    left."""
    machine = call_1(functions[0], (0,))
    packed, scratch = np.empty(0, np.uint8), np.empty(_TEXTS, np.uint8)
    pair, parts, done = np.zeros(2, np.int64), np.zeros(_N_PARTS, np.int64), 0
    for i in range(len(sizes)):
        counts[i] = lengths[i] = 0
        if (
            machine == 0
            or done == len(pieces)
            or not _walk(
                functions, machine, raw.ctypes.data + offsets[i], sizes[i], parts, packed, pieces[done:], scratch, pair
            )
        ):
            continue
        whole, size = _rows_of(parts), parts[_PACKED]
        if whole == 0 or whole != room[i] or size > whole + whole // 16 + 1024:
            continue
        counts[i], lengths[i] = parts[_PIECES], size
        done += parts[_PIECES]
    if machine:
        call_1(functions[2], (machine,))
    _keep(packed, scratch, raw, raw, raw, raw, pair)
