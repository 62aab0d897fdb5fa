"""PNG up to its filtered rows, a whole batch without the GIL: a GPU undoes the filters (cuda/png.cu).

Everything about a file is checked here, as `decoder_cpu` does, but for the numbers of the filters, which the GPU sees.
What lies on the GPU has exactly the size that the file's header says.
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
    counts, parts = np.zeros(2, np.int64), np.zeros(_N_PARTS, np.int64)
    for i in range(len(sizes)):
        status[i] = OTHER
        if machine == 0 or not _walk(functions, machine, raw.ctypes.data + offsets[i], sizes[i], parts, packed,
                                     scratch, counts):  # fmt: skip
            continue
        width, height, bits, kind = parts[_WIDTH], parts[_HEIGHT], parts[_BITS], parts[_KIND]
        if width <= 0 or height <= 0 or bits != 8 or kind == 3 or not _is_pair(bits, kind) or parts[_INTERLACED]:
            continue
        whole = height * (1 + width * _channels(kind))
        if whole != room[i] or whole > _MOST * parts[_PACKED]:
            continue
        target = rows.ctypes.data + places[i]
        if _inflate(functions, machine, parts[_DATA], parts[_PACKED], target, whole, counts) == whole:
            status[i] = DONE
    if machine:
        call_1(functions[2], (machine,))
    _keep(packed, scratch, rows, rows, raw, rows, counts)
