"""BMP and PNM on a GPU: the files are there, and a kernel (cuda/plain.cu) copies the pixels out of them."""

from __future__ import annotations

import numpy as np

from ..batch import I64, Batch
from ..context import Context
from ..gpu.lane import Lane
from ..types import DALIImageType
from .on_host import Rules
from .plain import BACKWARDS, FIRST, PITCH, STEP

NAME = "cuda plain"
"""In reports."""
PICTURE = np.dtype(
    [(n, np.int64) for n in ("source", "destination", "pitch")]
    + [(n, np.int32) for n in ("step", "channels", "y", "x", "shown_rows", "shown_columns", "turned", "unused")]
)
"""A picture, as the kernel reads it."""
_SOURCE, _BLOCKS, _THREADS = "plain.cu", 32, 256


def copy(
    ctx: Context, lane: Lane, files: Batch, rules: Rules, which: I64, rows: I64, corners: I64 | None, out: Batch
) -> None:
    """Enqueue the copies of the pictures ``which`` of ``files``, on the device, into ``out``: ``rows`` tell where their
    pixels are (`plain.find`). ``corners`` [N, 2] (y, x): where each window begins; its size is that of the output."""
    if len(which) == 0:
        return
    pictures = np.zeros(len(which), PICTURE)
    pictures["source"], pictures["destination"] = files.offsets[which] + rows[:, FIRST], out.offsets[which]
    pictures["pitch"], pictures["step"], pictures["channels"] = rows[:, PITCH], rows[:, STEP], out.shapes[which, 2]
    if corners is not None:
        pictures["y"], pictures["x"] = corners[which, 0], corners[which, 1]
    pictures["shown_rows"], pictures["shown_columns"] = out.shapes[which, 0], out.shapes[which, 1]
    pictures["turned"] = (rows[:, STEP] > 1) & (rows[:, BACKWARDS] != (rules.output_type is DALIImageType.BGR))
    (table,) = lane.upload(pictures.view(np.uint8))
    lane.launch(_SOURCE, "plain_pixels", (_BLOCKS, len(which)), _THREADS, files.data, table, out.data)
    lane.keep(files.data, table)
    ctx.decoded_by(NAME, len(which))
