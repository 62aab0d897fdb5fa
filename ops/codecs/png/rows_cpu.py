"""Compiled loop that parses PNGs up to their zlib streams, a whole batch without the GIL; a GPU does the rest
(`gpu_streams.streams`, `gpu_streams.planes`).

It checks everything about a file that `decoder_cpu` checks, except what only the GPU sees: the stream, and the numbers
of filters and of colours. Rows on the GPU have exactly the size that the file's header says.
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
    """Read the palette of a PNG, if it has one, to row ``place`` of ``colours``. ``place`` is -1 for an image that was
    expected to have no palette. Return whether the expectation is right."""
    if place >= 0 and parts[_KIND] == 3:
        _read_colours(parts[_PALETTE], parts[_COLOURS], bgr, colours[place])
    return (place >= 0) == (parts[_KIND] == 3)


@njit(nogil=True, cache=True)
def find_streams(
    functions: Any, raw: Any, offsets: Any, sizes: Any, sure: Any, palettes: Any, bgr: Any, colours: Any, room: Any,
    pieces: Any, counts: Any, lengths: Any,
) -> None:  # fmt: skip
    """Find the zlib streams of N PNGs, the bytes raw[offset : offset + size], and read their palettes.

    The palette of image i is written to row ``palettes[i]`` of ``colours``, unless that is -1. ``functions``: addresses
    of libdeflate's functions, see `decoder_cpu.decode_images`. ``sure`` [N]: files whose IDAT chunks are known to have
    right CRCs; for these, the CRCs are not computed.

    ``pieces`` gets one row per IDAT chunk: byte offset in the file, byte offset in the stream, bytes. Image i has
    ``counts[i]`` rows, after those of earlier images. ``lengths[i]`` becomes the bytes of its stream. It is 0 if a
    check fails, if the image has another size than expected or is of an unsupported kind, if its stream is longer than
    any encoder makes it, or if ``pieces`` has too few rows left."""
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
