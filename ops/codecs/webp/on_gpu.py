"""Lossy WebPs decoded by a GPU (cuda/vp8.cu): to the bit what libwebp makes of them.

The kernels check every file themselves. What they do not take, or what is damaged, is run again by the engine with
``attempt`` 1, on the CPU, which decides whether the file is to be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...context import Context
from ...gpu.lane import Lane
from ...types import DALIImageType
from ..format import CHANNELS, FORMAT, HEIGHT, WIDTH
from ..on_host import Headers, Rules
from ..others import encoded_bytes
from . import decoder
from .format import CODE

NAME = "cuda webp"
"""In reports."""
PICTURE = np.dtype(
    [(n, np.int64) for n in ("source", "size", "planes", "destination")]
    + [(n, np.int32) for n in ("width", "height", "y", "x", "shown_rows", "shown_columns", "bgr", "unused")]
)
"""A picture, as the kernels read it."""
LONGEST = 4096
"""Pixels of a side, at most: the kernel keeps a row of macroblocks in shared memory."""
LARGEST = 1 << 22
"""Pixels of a picture, at most: one warp reads it, and its batch waits."""
_SOURCE = "vp8.cu"
_FILTER, _PIXELS = 128, 256
_ALIGNED = 256


def takes(batch: Batch, headers: Headers, rules: Rules) -> npt.NDArray[np.bool_]:
    """The lossy WebPs without alpha that are shown as they are stored, by their headers."""
    taken: npt.NDArray[np.bool_] = np.zeros(len(batch), np.bool_)
    if rules.output_type not in (DALIImageType.RGB, DALIImageType.BGR) or rules.dtype != np.uint8:
        return taken
    rows = headers.rows
    taken = (rows[:, FORMAT] == CODE) & (rows[:, CHANNELS] == 3) & (headers.orientation == 1) & headers.good
    taken &= (rows[:, [WIDTH, HEIGHT]] <= LONGEST).all(axis=1) & (rows[:, WIDTH] * rows[:, HEIGHT] <= LARGEST)
    for i in np.flatnonzero(taken).tolist():
        taken[i] = decoder.is_lossy(encoded_bytes(batch, i))
    return taken


def decode(
    ctx: Context, lane: Lane, files: Batch, headers: Headers, rules: Rules, which: I64, corners: I64 | None, out: Batch
) -> Callable[[], None]:
    """Enqueue the pictures ``which`` of ``files``, on the device, into ``out``: beside the lane's other work, because
    a batch takes long and leaves most of the GPU idle. What is returned has later work wait for them. ``corners``
    [N, 2] (y, x): where each window begins; its size is that of the output."""
    if len(which) == 0:
        return _nothing
    pictures = np.zeros(len(which), PICTURE)
    pictures["source"], pictures["size"] = files.offsets[which], files.sizes[which]
    pictures["width"], pictures["height"] = headers.width[which], headers.height[which]
    if corners is not None:
        pictures["y"], pictures["x"] = corners[which, 0], corners[which, 1]
    pictures["shown_rows"], pictures["shown_columns"] = out.shapes[which, 0], out.shapes[which, 1]
    pictures["destination"] = out.offsets[which]
    pictures["bgr"] = rules.output_type is DALIImageType.BGR
    rest = launch(lane, files.data, pictures, out.data)

    def finish() -> None:
        marks = rest()

        def wrong() -> I64:
            found = which[np.flatnonzero(marks)]
            ctx.decoded_by(NAME, len(which) - len(found))
            return found

        ctx.check_later(wrong)

    return finish


def _nothing() -> None:
    """Where no picture is taken."""


def launch(lane: Lane, files: Any, pictures: npt.NDArray[Any], out: Any) -> Callable[[], npt.NDArray[np.int32]]:
    """Enqueue all kernels, beside the lane's other work; what is returned has later work wait for them. ``pictures``
    lack their place in scratch memory. It gives, once the lane is waited for: not 0 for those that are not decoded."""
    macroblocks = (pictures["width"].astype(np.int64) + 15 >> 4) * (pictures["height"].astype(np.int64) + 15 >> 4)
    room = -(-macroblocks * (256 + 64 + 64 + 4) // _ALIGNED) * _ALIGNED
    pictures["planes"] = np.cumsum(room) - room
    planes = lane.empty(int(room.sum()), np.uint8)
    count = len(pictures)
    table, bad = lane.upload(pictures.view(np.uint8), np.zeros(count, np.int32))
    lane.launch_beside(_SOURCE, "vp8_decode", count, 64, files, table, planes, bad)
    lane.launch_beside(_SOURCE, "vp8_filter", count, _FILTER, table, planes, bad)
    lane.launch_beside(_SOURCE, "vp8_pixels", (16, count), _PIXELS, table, planes, bad, out)

    def rest() -> npt.NDArray[np.int32]:
        lane.join()
        marks: npt.NDArray[np.int32] = lane.download(bad)
        return marks

    return rest
