"""Compiled loops that plan the encoding of a batch of JPEGs on a GPU; NumPy would need a hundred calls.

The loops keep the GIL: acquiring it again would take longer than they do. Called by `encoders_gpu`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

BLOCKS, STREAMS, TOTALS = range(3)
"""Indices in the array of totals that `plan_pictures` computes: number of 8 x 8 blocks, and bytes of the buffers for
the coded bits of all images."""


@numba.njit(cache=True)
def plan_pictures(
    shapes: Any, offsets: Any, subsampling: Any, sizes: Any, each: Any, pictures: Any, firsts: Any, fit: Any,
    totals: Any,
) -> None:  # fmt: skip
    """Plan JPEG encoding on a GPU, of images of ``shapes`` int32[N, 3] at byte ``offsets``. Fill one record of
    ``pictures`` per image; ``fit``: whether a JPEG can hold the image; ``firsts`` int32[3, N + 1]: for each of three
    kernels, the number of CUDA thread blocks before each image; and ``totals``.

    ``subsampling``: sampling factors of luminance (horizontal, vertical) in colour images. ``sizes``: longest side,
    maximum blocks per image, bytes per block; then, for each row of ``firsts``, the blocks or bytes per thread block.
    ``each``: whether every image has its own Huffman tables."""
    longest, most_blocks, room, tile, coded, stuffed = sizes
    blocks_before = streams_before = np.int64(0)
    firsts[:, 0] = 0
    for i in range(len(shapes)):
        height, width, channels = np.int64(shapes[i, 0]), np.int64(shapes[i, 1]), shapes[i, 2]
        fit[i] = 0 < height <= longest and 0 < width <= longest and (channels == 1 or channels == 3)
        if not fit[i]:
            height = width = np.int64(1)
            channels = 1
        colour = channels == 3
        h, v = subsampling if colour else (1, 1)
        mcus_x, mcus_y = -(-width // (8 * h)), -(-height // (8 * v))
        in_mcu = h * v + 2 if colour else 1
        mcus = mcus_x * mcus_y
        if not fit[i] or mcus * in_mcu >= most_blocks:
            mcus = np.int64(0)
        blocks = mcus * in_mcu
        capacity = -(-blocks * room // 16) * 16
        p = pictures[i]
        p.pixels, p.stream, p.first_block, p.blocks = offsets[i], streams_before, blocks_before, blocks
        p.width, p.height, p.components, p.h, p.v = width, height, channels, h, v
        p.mcus_x, p.mcus, p.in_mcu, p.capacity = mcus_x, mcus, in_mcu, capacity
        p.header, p.codes, p.unused = i if each else np.int64(not colour), i if each else 0, 0
        firsts[0, i + 1] = firsts[0, i] - (-blocks // tile)
        firsts[1, i + 1] = firsts[1, i] - (-blocks // coded)
        firsts[2, i + 1] = firsts[2, i] - (-capacity // stuffed)
        blocks_before += blocks
        streams_before += capacity
    totals[BLOCKS], totals[STREAMS] = blocks_before, streams_before


@numba.njit(cache=True)
def place_files(sizes: Any, fit: Any, room: Any, offsets: Any, shapes: Any) -> Any:
    """Compute the offsets of encoded files that follow each other in an output of ``room`` bytes. ``sizes`` uint32[N]:
    bytes of each file. Fill ``offsets``, and ``shapes`` int32[N, 1] with the sizes, 0 for files that were not encoded.
    Return the end of the last file in bytes, and the number of ``fit`` images that were not encoded."""
    at, end, left = np.int64(0), np.int64(0), 0
    for i in range(len(sizes)):
        size = np.int64(sizes[i])
        made = size > 0 and at + size <= room
        offsets[i] = at if made else 0
        shapes[i, 0] = size if made else 0
        at += size
        if made:
            end = at
        elif fit[i]:
            left += 1
    return end, left
