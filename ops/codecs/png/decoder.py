"""Decoder for PNGs on the CPU: compiled loops (`decoder_cpu`) write directly into an output, or return the stored
pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I32, I64
from ...compiled.background import awaited
from ...kernels import Kernels
from ...types import DALIImageType
from .. import libdeflate, native_loops
from ..decoder_table import DecodeJob, Decoder, Outcome, Target
from ..format import BITS, CHANNELS, FORMAT, HEIGHT, WIDTH, Header
from ..headers import row_of
from ..pixels import Pixels
from .format import CODE

_decoder: Any = Kernels(".decoder_cpu", __package__)


def available() -> bool:
    """Return whether libdeflate, which the built-in PNG decoder needs, is installed."""
    return libdeflate.functions() is not None


def writes_directly(rows: I64, sizes: I32 | I64, output_type: DALIImageType) -> npt.NDArray[np.bool_]:
    """Return for each image whether the built-in PNG decoder can produce ``output_type`` directly. ``rows`` [M, 6]:
    headers; ``sizes``: bytes of the files."""
    taken: npt.NDArray[np.bool_] = (rows[:, FORMAT] == CODE) & _hold(rows, sizes)
    taken &= native_loops.keeps_channels(rows, output_type)
    if output_type is DALIImageType.ANY_DATA:  # if such a file is damaged, Pillow makes four channels of it
        taken &= (rows[:, BITS] <= 8) | (rows[:, CHANNELS] != 2)
    return taken


def _hold(rows: I64, sizes: I32 | I64) -> npt.NDArray[np.bool_]:
    """Return for each file whether its ``sizes`` bytes can contain the pixels that its header announces. For others, no
    memory is allocated."""
    palette = (rows[:, BITS] <= 8) & (rows[:, CHANNELS] == 3)  # a palette image is possible, of 1 bit at least
    stored = np.where(palette, 1, rows[:, CHANNELS])
    row = (rows[:, WIDTH].astype(np.float64) * stored + 7) // 8  # sides have 31 bits: products must not overflow
    held: npt.NDArray[np.bool_] = rows[:, HEIGHT] * row <= _MAX_RATIO * np.asarray(sizes, np.float64)
    return held


_MAX_RATIO = 1032
"""Maximum output bytes per input byte of deflate (RFC 1951: 258 bytes from two bits)."""


class NativePng(Decoder):
    """Decoder for PNGs that need no conversion after decoding, by compiled loops on the CPU."""

    name = "png"
    sure = True

    @property
    def ready(self) -> bool:
        return not awaited("ops.codecs.png.decoder_cpu")

    def takes(self, job: DecodeJob, indices: I64) -> npt.NDArray[np.bool_]:
        if job.rules.dtype != np.uint8 or not job.in_process or not available():
            return np.zeros(len(indices), np.bool_)
        headers = job.headers
        taken = writes_directly(headers.rows[indices], job.batch.shapes[indices, 0], job.rules.output_type)
        taken &= headers.orientation[indices] == 1
        return taken

    def decode(self, job: DecodeJob, indices: I64, target: Target, outcome: Outcome) -> I64:
        status = native_loops.decode_into(_decoder.decode_images, job.batch, indices, *target.regions(job, indices))
        left: I64 = indices[status != 0]
        return left


def stored(data: memoryview, header: Header) -> Pixels | None:
    """Return the stored pixels of one PNG, or None if the compiled loop does not support it; see
    `native_loops.stored`."""
    if not ROWS[0].ready:
        return None
    row, size = np.array([row_of(header)], np.int64), np.array([len(data)], np.int64)
    return native_loops.stored(_decoder.decode_images, data, header) if _hold(row, size)[0] else None


ROWS = (NativePng(),)
