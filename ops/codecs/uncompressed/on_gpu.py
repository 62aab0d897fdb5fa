"""BMP and PNM on a GPU: the files are there, and a kernel (`gpu_streams.planes`) makes the pixels out of them."""

from __future__ import annotations

import numpy as np

from ...batch import I64, Batch
from ...context import Context
from ...gpu.lane import Lane
from ...types import DALIImageType
from ..gpu_streams import planes
from ..on_host import Rules
from .decoder import BACKWARDS, FIRST, PITCH, STEP

NAME = "cuda plain"
"""In reports."""
_DEEP = (2, 6)
"""Bytes of a pixel of 16 bits a channel."""


def copy(
    ctx: Context, lane: Lane, files: Batch, rules: Rules, which: I64, rows: I64, corners: I64 | None, out: Batch
) -> None:
    """Enqueue the copies of the pictures ``which`` of ``files``, on the device, into ``out``: ``rows`` tell where their
    pixels are (`decoder.find`). ``corners`` [N, 2] (y, x): where each window begins; its size is that of the output."""
    if len(which) == 0:
        return
    shown, step, deep = np.zeros(len(which), planes.PLANE), rows[:, STEP], np.isin(rows[:, STEP], _DEEP)
    shown["rows"] = files.offsets[which] + rows[:, FIRST]
    if corners is not None:
        shown["rows"] += corners[which, 0] * rows[:, PITCH] + corners[which, 1] * step
    shown["pitch"], shown["destination"] = rows[:, PITCH], out.offsets[which]
    shown["height"] = shown["shown_rows"] = out.shapes[which, 0]
    shown["width"] = shown["shown_columns"] = out.shapes[which, 1]
    shown["down"], shown["across"], shown["colours"] = 1, 1, -1
    shown["bits"], shown["samples"] = np.where(deep, 16, 8), np.where(deep, step // 2, step)
    shown["channels"] = out.shapes[which, 2]
    shown["bgr"] = rows[:, BACKWARDS] != (rules.output_type is DALIImageType.BGR)
    table, colours, bad = lane.upload(shown.view(np.uint8), np.zeros(1, np.uint32), np.zeros(1, np.int32))
    planes.make_pixels(lane, files.data, table, len(which), colours, out, bad)
    lane.keep(files.data, table, colours, bad)
    ctx.decoded_by(NAME, len(which))
