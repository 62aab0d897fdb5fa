"""Decoder for TIFFs on the CPU: compiled loops (`decoder_cpu`) write directly into an output, or return the stored
pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...compiled.background import awaited
from ...kernels import Kernels
from ...types import DALIImageType
from .. import native_loops
from ..decoder_table import DecodeJob, Decoder, Outcome, Target
from ..format import BITS, CHANNELS, FORMAT, Header
from ..headers import readonly
from ..pixels import Pixels
from .format import CODE

_decoder: Any = Kernels(".decoder_cpu", __package__)
_directory: Any = Kernels(".directory_cpu", __package__)


def writes_directly(rows: I64, output_type: DALIImageType) -> npt.NDArray[np.bool_]:
    """Return for each image whether the built-in TIFF decoder may produce ``output_type`` without conversion, as far as
    headers show; `are_plain` checks the rest. ``rows`` [M, 6]: headers."""
    bits = rows[:, BITS]
    known: npt.NDArray[np.bool_] = (rows[:, FORMAT] == CODE) & ((bits == 8) | (bits == 16)) & (rows[:, CHANNELS] <= 4)
    return known & native_loops.keeps_channels(rows, output_type)


def are_plain(batch: Batch, which: I64) -> npt.NDArray[np.bool_]:
    """Return for each image whether the built-in decoder supports its TIFF directory. If so, every decoder returns
    pixels of the size and channels in the header, or fails."""
    return _plain(batch.data, batch.offsets[which], batch.shapes[which, 0].astype(np.int64))


def _plain(encoded: Any, offsets: I64, sizes: I64) -> npt.NDArray[np.bool_]:
    plain = np.empty(len(sizes), np.bool_)
    _directory.are_plain(readonly(encoded), offsets, sizes, plain)
    return plain


class NativeTiff(Decoder):
    """Decoder for TIFFs of common kinds that need no conversion after decoding, by compiled loops on the CPU."""

    name = "tiff"
    sure = True

    @property
    def ready(self) -> bool:
        return not awaited("ops.codecs.tiff.decoder_cpu")

    def takes(self, job: DecodeJob, indices: I64) -> npt.NDArray[np.bool_]:
        taken = np.zeros(len(indices), np.bool_)
        if job.rules.dtype != np.uint8 or not job.in_process:
            return taken
        headers = job.headers
        direct = writes_directly(headers.rows[indices], job.rules.output_type) & (headers.orientation[indices] == 1)
        if direct.any():
            taken[direct] = are_plain(job.batch, indices[direct])
        return taken

    def decode(self, job: DecodeJob, indices: I64, target: Target, outcome: Outcome) -> I64:
        status = native_loops.decode_into(_decoder.decode_images, job.batch, indices, *target.regions(job, indices))
        left: I64 = indices[status != 0]
        return left


def stored(data: memoryview, header: Header) -> Pixels | None:
    """Return the stored pixels of one TIFF, or None if the compiled loop does not support it; see
    `native_loops.stored`."""
    encoded, one = np.frombuffer(data, np.uint8), np.zeros(1, np.int64)
    known = ROWS[0].ready and header.format == "tiff" and header.bits in (8, 16) and header.channels <= 4
    if not known or not _plain(encoded, one, one + len(encoded))[0]:
        return None
    return native_loops.stored(_decoder.decode_images, data, header)


ROWS = (NativeTiff(),)
