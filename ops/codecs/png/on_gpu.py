"""PNGs whose filters a GPU undoes (cuda/png.cu), after threads of the CPU have inflated them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...context import Context
from ...gpu.lane import Lane
from ...kernels import Kernels
from . import libdeflate

_rows: Any = Kernels(".rows_cpu", __package__)

PICTURE = np.dtype(
    [("rows", np.int64), ("destination", np.int64)]
    + [(n, np.int32) for n in ("width", "height", "stored", "channels", "y", "x", "shown_rows", "shown_columns")]
    + [("bgr", np.int32), ("unused", np.int32)]
)
"""A picture, as the kernels read it."""
_SOURCE = "png.cu"
_IHDR = 33
"""Bytes up to the end of the first chunk."""


def takes(batch: Batch, which: I64, room: I64) -> npt.NDArray[np.bool_]:
    """Those of the PNGs ``which`` that have 8 bits a channel, no palette, and are not interlaced, by their headers, and
    less than 2^31 bytes of filtered rows (``room``)."""
    if len(which) == 0:
        return np.zeros(0, np.bool_)
    long = batch.shapes[which, 0] >= _IHDR
    at = np.where(long, batch.offsets[which], 0)
    bits, kind, interlaced = (batch.data[np.minimum(at + k, len(batch.data) - 1)] for k in (24, 25, 28))
    taken: npt.NDArray[np.bool_] = (
        long & (room < 1 << 31) & (bits == 8) & np.isin(kind, (0, 2, 4, 6)) & (interlaced == 0)
    )
    return taken


def room(heights: I64, widths: I64, channels: I64) -> I64:
    """Bytes of the filtered rows of pictures."""
    return heights * (1 + widths * channels)


def inflate(batch: Batch, which: I64, rows: Any, places: I64, sizes: I64) -> npt.NDArray[np.bool_]:
    """The filtered rows of the pictures ``which`` of ``batch``, of ``sizes`` bytes, at ``places`` of ``rows``. Which of
    them the decoder did not take, bool[len(which)]."""
    encoded = batch.data.view()
    encoded.flags.writeable = False  # one type for Numba, whether the bytes are mapped read-only or not
    status = np.empty(len(which), np.int32)
    nbytes = batch.shapes[which, 0].astype(np.int64)
    _rows.inflate_images(libdeflate.functions(), encoded, batch.offsets[which], nbytes, rows, places, sizes, status)
    refused: npt.NDArray[np.bool_] = status != 0
    return refused


def restore(
    ctx: Context, lane: Lane, rows: Any, pictures: npt.NDArray[Any], out: Batch, which: I64, decoder: str
) -> None:
    """Enqueue what makes pixels of filtered ``rows`` on the device, in their places in ``out``: of ``pictures``, which
    are the samples ``which``. Those with a filter that does not exist run again, on the CPU, which says so;
    ``decoder``, the name in reports that they were counted under, did not decode them."""
    if len(which) == 0:
        return
    table, bad = lane.upload(pictures.view(np.uint8), np.zeros(len(which), np.int32))
    lane.launch(_SOURCE, "png_unfilter", len(which), 32, rows, table, bad)
    lane.launch(_SOURCE, "png_pixels", (16, len(which)), 256, rows, table, out.data)
    lane.keep(rows, table)
    marks = lane.download(bad)

    def wrong() -> I64:
        found = which[np.flatnonzero(marks)]
        ctx.decoded_by(decoder, -len(found))
        return found

    ctx.check_later(wrong)
