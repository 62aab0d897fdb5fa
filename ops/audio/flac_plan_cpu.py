"""Compiled loop that selects the files of a batch that the GPU's FLAC decoder supports, by their headers."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .flac_cpu import BITS, CHANNELS, FIRST, FRAMES, LONGEST, RATE, header, jit
from .flac_cpu import FIELDS as OF_HEADER
from .wav_cpu import CHANNELS as FILE_CHANNELS
from .wav_cpu import FRAMES as FILE_FRAMES
from .wav_cpu import KIND
from .wav_cpu import RATE as FILE_RATE

BASE, SIZE, START, TOTAL, WIDTH, DEPTH, BLOCK, SLOT, WORK, OUT, WIDE, FIELDS = range(12)
"""Columns of the row that describes a FLAC file to the GPU decoder; flac.cu has the same columns."""
_SMALLEST = 10
"""Minimum size of a FLAC frame in bytes."""
_LARGEST = 1 << 27
"""Maximum size in bytes of a FLAC file for the GPU: it counts bits in 32 bits."""


@jit
def plain(data, base, sizes, found, files):
    """Describe FLAC files that a GPU supports: all frames have the same block size, and the file is large enough for
    the declared number of frames. Fill their rows of ``files`` [N, FIELDS], up to column BLOCK, and frames, channels
    and rates in ``found`` (see `wav_cpu.walk`)."""
    fields = np.zeros(OF_HEADER, np.int64)
    for i in range(len(base)):
        files[i] = 0
        start, size = base[i], sizes[i]
        if found[i, KIND] or size < 42 or size > _LARGEST or data[start] != 102:
            continue
        file = data[start : start + size]
        if not header(file, fields):
            continue
        block = np.int64(file[8]) << 8 | np.int64(file[9])
        if block != fields[LONGEST] or block < 16:
            continue
        frames = (fields[FRAMES] + block - 1) // block
        if frames * _SMALLEST > size:
            continue
        files[i, BASE], files[i, SIZE], files[i, START] = start, size, fields[FIRST]
        files[i, TOTAL], files[i, WIDTH], files[i, DEPTH] = fields[FRAMES], fields[CHANNELS], fields[BITS]
        files[i, BLOCK] = block
        found[i, FILE_FRAMES], found[i, FILE_CHANNELS] = fields[FRAMES], fields[CHANNELS]
        found[i, FILE_RATE] = fields[RATE]
