"""Row of the decoder table for uncompressed images: binary PGM and PPM, and BMP of 24 and 32 bits. Pixels are copied,
or rounded from 16 bits per channel to 8.

Incomplete files and other variants are left to Pillow, whose pixels are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...kernels import Kernels
from ...types import DALIImageType
from .. import native_loops
from ..decoder_table import NO_IMAGES, DecodeJob, Decoder, Outcome, Target
from ..format import FORMAT, Header
from ..headers import readonly
from ..pixels import Pixels
from .format import BMP, PNM

_loops: Any = Kernels(".decoder_cpu", __package__)

FORMATS = ("bmp", "pnm")
FIRST, PITCH, STEP, BACKWARDS = range(4)
"""Columns of the rows that `find` returns, which say where pixels are in a file: offset of the first pixel shown; bytes
from a line to the next one below (negative if the last line is stored first); bytes per pixel (0 for an unsupported
file); whether blue is stored before red."""


def view(data: memoryview, header: Header) -> Pixels | None:
    """Return the pixels of a BMP or PNM file (H, W, C), uint8 or uint16, if possible as a view of ``data``; None if the
    file is of another kind."""
    if header.format not in FORMATS:
        return None
    encoded, one = np.frombuffer(data, np.uint8), np.zeros(1, np.int64)
    extents = np.array([[header.height, header.width]], np.int64)
    first, pitch, step, backwards = _found(encoded, one, one + len(encoded), extents)[0].tolist()
    if not step:
        return None
    if step in (2, 6):
        deep: Pixels = np.ndarray((header.height, header.width, step // 2), ">u2", encoded, first)
        return deep.astype(np.uint16)
    shape = (header.height, header.width, min(step, 3))
    stored: Pixels = np.ndarray(shape, np.uint8, encoded, first, (pitch, step, 1))
    if not backwards:
        return stored
    pixels = np.empty(shape, np.uint8)
    for k in range(3):  # channel by channel, because NumPy is slow if the innermost axis is short
        pixels[..., k] = stored[..., 2 - k]
    return pixels


def makes(rows: I64, output_type: DALIImageType) -> npt.NDArray[np.bool_]:
    """Return, for each image, whether copying or rounding its stored pixels gives an image of ``output_type``, provided
    that the file is supported. ``rows`` [M, 6]: headers of the images."""
    format = rows[:, FORMAT]
    plain: npt.NDArray[np.bool_] = (format == BMP) | (format == PNM)
    return plain & native_loops.keeps_channels(rows, output_type)


def find(batch: Batch, which: I64, extents: I64) -> I64:
    """Find where the files of the images with indices ``which`` in ``batch`` store their pixels. Return a row per
    image, with the columns `FIRST` to `BACKWARDS`. ``extents`` [M, 2]: heights and widths, as the headers say."""
    return _found(batch.data, batch.offsets[which], batch.shapes[which, 0].astype(np.int64), extents)


def _found(encoded: Any, offsets: I64, sizes: I64, extents: I64) -> I64:
    rows = np.zeros((len(sizes), 4), np.int64)
    _loops.find(readonly(encoded), offsets, sizes, np.ascontiguousarray(extents), rows)
    return rows


def copy_into(
    batch: Batch, which: I64, rows: I64, windows: I64, channels: I64, bgr: bool, out: Any, origins: I64, pitches: I64
) -> None:
    """Copy the pixels of the images with indices ``which`` in ``batch`` to ``out``. The other arrays have one row per
    image; see `decoder_cpu.copy_images`."""
    encoded, places = readonly(batch.data), (windows, channels, bgr, out, origins, pitches)
    _loops.copy_images(encoded, batch.offsets[which], rows, *places)


def places(job: DecodeJob, indices: I64) -> tuple[npt.NDArray[np.bool_], I64]:
    """Return whether each of the images ``indices`` is supported, and the rows of `find` for their pixels'
    positions."""
    rows, taken = np.zeros((len(indices), 4), np.int64), np.zeros(len(indices), np.bool_)
    if job.rules.dtype == np.uint8 and job.in_process:
        taken = makes(job.headers.rows[indices], job.rules.output_type)
        if taken.any():
            some = indices[taken]
            rows[taken] = find(job.batch, some, job.headers.extents[some])
            taken = rows[:, STEP] > 0
    return taken, rows


class NativeCopy(Decoder):
    """Decoder for BMP and PNM files whose stored pixels are the output; compiled loops copy these on the CPU."""

    name = "plain"
    sure = True

    def takes(self, job: DecodeJob, indices: I64) -> npt.NDArray[np.bool_]:
        return places(job, indices)[0]

    def decode(self, job: DecodeJob, indices: I64, target: Target, outcome: Outcome) -> I64:
        copy_into(job.batch, indices, places(job, indices)[1], *target.regions(job, indices))
        return NO_IMAGES


ROWS = (NativeCopy(),)
