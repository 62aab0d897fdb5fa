"""PNG up to its filtered rows, or up to its zlib stream, a whole batch without the GIL: a GPU does the rest
(`gpu_streams.planes`, `gpu_streams.streams`).

Everything about a file is checked here, as `decoder_cpu` does, but for what only the GPU sees: the numbers of the
filters and of colours, and the stream where it is not inflated here. Rows on the GPU have exactly the size that the
file's header says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .decoder_cpu import (
    _COLOURS,
    _DATA,
    _KIND,
    _N_PARTS,
    _PACKED,
    _PALETTE,
    _PIECES,
    _TEXTS,
    DONE,
    OTHER,
    _inflate,
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
def inflate_images(
    functions: Any, raw: Any, offsets: Any, sizes: Any, palettes: Any, bgr: Any, colours: Any, rows: Any, places: Any,
    room: Any, status: Any,
) -> None:  # fmt: skip
    """Inflate N images, the bytes raw[offset : offset + size]. ``functions`` as of `decoder_cpu.decode_images`. The
    rows of image i, of all passes, each after the number of its filter, go to rows[places[i] :], ``room[i]`` bytes.
    Where ``palettes[i]`` is not -1, its palette becomes that row of ``colours``, as `decoder_cpu` has it. ``status[i]``
    becomes DONE, or OTHER where the file is not in order, of another kind or size; then some bytes may have been
    written."""
    most: Any = np.int64(0)
    for i in range(len(sizes)):
        most = max(most, sizes[i])
    machine = call_1(functions[0], (0,))
    packed, scratch = np.empty(most + 16, np.uint8), np.empty(_TEXTS, np.uint8)
    counts, parts, pieces = np.zeros(2, np.int64), np.zeros(_N_PARTS, np.int64), np.empty((0, 3), np.int64)
    for i in range(len(sizes)):
        status[i] = OTHER
        if machine == 0 or not _walk(functions, machine, raw.ctypes.data + offsets[i], sizes[i], parts, packed,
                                     pieces, scratch, counts, False):  # fmt: skip
            continue
        whole = _rows_of(parts)
        if whole == 0 or whole != room[i] or not _take_palette(parts, palettes[i], bgr, colours):
            continue
        target = rows.ctypes.data + places[i]
        if _inflate(functions, machine, parts[_DATA], parts[_PACKED], target, whole, counts) == whole:
            status[i] = DONE
    if machine:
        call_1(functions[2], (machine,))
    _keep(packed, scratch, rows, rows, raw, rows, counts)


@njit(nogil=True, cache=True)
def find_streams(
    functions: Any, raw: Any, offsets: Any, sizes: Any, sure: Any, palettes: Any, bgr: Any, colours: Any, room: Any,
    pieces: Any, counts: Any, lengths: Any,
) -> None:  # fmt: skip
    """Find the zlib streams of N images, which `inflate_images` would take, and read their palettes as it does. Bodies
    of IDATs are not looked at where their CRCs are ``sure`` [N] to be right. The streams of image i are ``counts[i]``
    rows of ``pieces``, after those of the images before it: where bytes begin in the file and in the stream, and how
    many they are. ``lengths[i]`` becomes the stream's bytes, or 0 where the file is not in
    order as far as this can be seen, of another kind or size, its stream longer than any encoder makes it, or in more
    pieces than there are rows left."""
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
