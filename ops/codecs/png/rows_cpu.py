"""PNG up to its zlib stream, a whole batch without the GIL: a GPU does the rest (`gpu_streams.streams`,
`gpu_streams.planes`).

Everything about a file is checked here, as `decoder_cpu` does, but for what only the GPU sees: the stream, and the
numbers of filters and of colours. Rows on the GPU have exactly the size that the file's header says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .decoder_cpu import (
    _COLOURS,
    _KIND,
    _N_PARTS,
    _PACKED,
    _PALETTE,
    _PIECES,
    _TEXTS,
    _keep,
    _read_colours,
    _rows_of,
    _walk,
)  # fmt: skip
from .simd_cpu import call_1


@njit(nogil=True, cache=True)
def _take_palette(parts: Any, place: Any, bgr: Any, colours: Any) -> Any:
    """Read the palette, where the picture has one, to row ``place`` of ``colours``. Returns whether it has one where
    that is 0 or more, and none where it is -1."""
    if place >= 0 and parts[_KIND] == 3:
        _read_colours(parts[_PALETTE], parts[_COLOURS], bgr, colours[place])
    return (place >= 0) == (parts[_KIND] == 3)


@njit(nogil=True, cache=True)
def find_streams(
    functions: Any, raw: Any, offsets: Any, sizes: Any, sure: Any, palettes: Any, bgr: Any, colours: Any, room: Any,
    pieces: Any, counts: Any, lengths: Any,
) -> None:  # fmt: skip
    """Find the zlib streams of N images, the bytes raw[offset : offset + size], and read their palettes: that of image
    i to row ``palettes[i]`` of ``colours``, if it is not -1. ``functions`` as of `decoder_cpu.decode_images`. Bodies of
    IDATs are not looked at if their CRCs are ``sure`` [N] to be right. The streams of image i are ``counts[i]`` rows of
    ``pieces``, after those of the images before it: where bytes begin in the file and in the stream, and how many they
    are. ``lengths[i]`` becomes the stream's bytes, or 0 if the file is not in order as far as this can be seen, of
    another kind or size, its stream longer than any encoder makes it, or in more pieces than there are rows left."""
    machine = call_1(functions[0], (0,))
    packed, scratch = np.empty(0, np.uint8), np.empty(_TEXTS, np.uint8)
    pair, parts, done = np.zeros(2, np.int64), np.zeros(_N_PARTS, np.int64), 0
    for i in range(len(sizes)):
        counts[i] = lengths[i] = 0
        if (
            machine == 0
            or done == len(pieces)
            or not _walk(
                functions,
                machine,
                raw.ctypes.data + offsets[i],
                sizes[i],
                parts,
                packed,
                pieces[done:],
                scratch,
                pair,
                sure[i],
            )
        ):
            continue
        whole, size = _rows_of(parts), parts[_PACKED]
        if whole == 0 or whole != room[i] or size > whole + whole // 16 + 1024:
            continue
        if not _take_palette(parts, palettes[i], bgr, colours):
            continue
        counts[i], lengths[i] = parts[_PIECES], size
        done += parts[_PIECES]
    if machine:
        call_1(functions[2], (machine,))
    _keep(packed, scratch, raw, raw, raw, raw, pair)
