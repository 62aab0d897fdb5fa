"""Convert rows of samples to pixels on a GPU (cuda/planes.cu).

A plane is a set of rows that belong together: an image, a pass of an interlaced PNG, or a strip or tile of a TIFF. A
stream contains the rows of one or several planes of one image. Rows of BMP and PNM are in the files themselves. Used by
the GPU rows of PNG, TIFF, BMP and PNM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...batch import I32, I64, Batch
from ...context import Context
from ...gpu.lane import Lane
from ..decoder_table import DecodeJob
from . import streams

PLANE = np.dtype(
    [(n, np.int64) for n in ("rows", "pitch", "destination")]
    + [(n, np.int32) for n in ("width", "height", "y", "x", "down", "across", "shown_rows", "shown_columns", "bits")]
    + [(n, np.int32) for n in ("samples", "channels", "bgr", "little", "inverted", "colours", "stream", "undo")]
    + [("unused", np.int32)]
)
"""Structure that describes one plane to the kernels. Decoders fill ``rows`` with the offset in its stream's rows, and y
and x with its place in the image; `place` adds the fields that depend on the output."""
FILTERED, PREDICTED = 1, 2
"""Values of ``undo``: each row begins with the number of its filter (PNG), or each sample is stored as its difference
to the previous one (TIFF)."""
_SOURCE = "planes.cu"
_BLOCKS = 8192
"""Minimum number of thread blocks that write pixels, if there are fewer planes; up to `_EACH` per plane."""
_EACH = 16


@dataclass(slots=True)
class Packed:
    """Images of a batch whose rows the GPU unpacks and converts to pixels. Created on the host by one task."""

    planes: npt.NDArray[Any]
    """[P] `PLANE`; ``stream`` and ``colours`` are indices in the arrays of this object."""
    owner: I64
    """[S] Index in the batch of the image to which each stream belongs."""
    room: I64
    """[S] Bytes of the unpacked rows of each stream."""
    coding: I64
    """[S] Coding of each stream, such as `streams.DEFLATE`."""
    colours: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty((0, 256), np.uint32))
    """[C, 256] Palettes, in the form of `png.decoder_cpu`."""
    lengths: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[S] Bytes of each stream that the GPU unpacks."""
    pieces: I64 = field(default_factory=lambda: np.empty((0, 5), np.int64))
    """Byte ranges of files that make up the streams; see ``pieces`` of `streams.plan`."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where the kernels write the pixels of a batch."""

    offsets: I64
    """[N] First element of each image in the output."""
    shapes: I32
    """[N, 3] Height, width and channels of each image."""
    corners: I64 | None
    """[N, 2] Corner (y, x) of each image's window; None if it is (0, 0)."""
    bgr: bool
    """Whether the output is BGR."""


def place(packed: Packed, starts: I64, where: Where) -> None:
    """Fill in the fields of the planes of ``packed`` that depend on the output; the rows of each stream begin at
    ``starts``."""
    planes, of = packed.planes, packed.owner[packed.planes["stream"]]
    planes["rows"] += starts[planes["stream"]]
    planes["destination"], planes["channels"] = where.offsets[of], where.shapes[of, 2]
    planes["shown_rows"], planes["shown_columns"] = where.shapes[of, 0], where.shapes[of, 1]
    planes["bgr"] = where.bgr
    if where.corners is not None:
        planes["y"] -= where.corners[of, 0].astype(np.int32)
        planes["x"] -= where.corners[of, 1].astype(np.int32)


def unpacking(packed: Packed, where: Where) -> streams.Unpacking:
    """Plan the unpacking of the streams of ``packed``, and complete its planes with their rows and their output."""
    found = streams.plan(packed.coding, packed.lengths, packed.room, packed.pieces)
    place(packed, found.starts, where)
    return found


Plans: TypeAlias = list[tuple[Packed, streams.Unpacking]]


def unpacker(job: DecodeJob, decoder: str) -> Callable[[Lane, Batch, Batch, Plans], None]:
    """Return a function of the lane, the files, the output and at most one plan, which enqueues the work of
    ``decoder``."""

    def enqueue(lane: Lane, files: Batch, out: Batch, plans: Plans) -> None:
        for packed, planned in plans:
            if len(packed.owner):
                rows, bad = streams.unpack(lane, files, planned)
                restore(job.ctx, lane, packed, rows, out, decoder, bad)

    return enqueue


def restore(
    ctx: Context, lane: Lane, packed: Packed, rows: Any, out: Batch, decoder: str, bad: Any = None
) -> None:  # fmt: skip
    """Enqueue the conversion of ``rows`` on the device to pixels in ``out``, for the images ``packed`` with complete
    planes.

    Images with a filter or a colour that does not exist, and images with a stream that is ``bad`` already (int32[S] on
    the device, not 0 for those), are run again on the CPU, which reports the error; they are subtracted from the count
    of ``decoder``, the name in reports."""
    planes = packed.planes
    if len(planes) == 0:
        return
    fine = np.zeros(len(packed.owner) if bad is None else 0, np.int32)
    table, colours, fine = lane.upload(planes.view(np.uint8), packed.colours.reshape(-1), fine)
    bad, n = fine if bad is None else bad, len(planes)
    if (planes["undo"] == FILTERED).any():
        lane.launch(_SOURCE, "planes_unfilter", n, 32, rows, table, bad)
    if (planes["undo"] == PREDICTED).any():
        lane.launch(_SOURCE, "planes_add_up", (n, _blocks(n)), 256, rows, table)
    make_pixels(lane, rows, table, n, colours, out, bad)
    lane.keep(rows, table, colours, bad)
    marks = lane.copy_out(lane.address(bad), bad.nbytes).view(np.int32)  # this copy allocates no memory

    def wrong() -> I64:
        found = np.unique(packed.owner[np.flatnonzero(marks)])
        ctx.decoded_by(decoder, -len(found))
        return found

    ctx.check_later(wrong)


def make_pixels(lane: Lane, rows: Any, planes: Any, n: int, colours: Any, out: Batch, bad: Any) -> None:
    """Enqueue the kernel that writes pixels, in ``out``, of ``n`` ``planes`` of ``rows``, all on the device. ``bad``:
    see `restore`; only a plane with a palette of ``colours`` can fail."""
    lane.launch(_SOURCE, "planes_pixels", (n, _blocks(n)), 256, rows, planes, colours, out.data, bad)


def _blocks(planes: int) -> int:
    """Return the number of thread blocks per plane; each warp converts one row at a time."""
    return min(max(_BLOCKS // planes, 1), _EACH)
