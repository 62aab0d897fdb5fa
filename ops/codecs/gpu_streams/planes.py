"""From rows of samples to pixels, on a GPU (cuda/planes.cu).

A plane is rows that belong together: a picture, a pass of an interlaced PNG, or a strip or tile of a TIFF. A stream
holds the rows of one plane or of several; each stream is of one picture. Rows of BMP and PNM lie in the files.
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
"""A plane, as the kernels read it. Decoders make it with ``rows`` from its stream's first row on, and y and x in the
picture; `place` fills in what depends on where the pixels go."""
FILTERED, PREDICTED = 1, 2
"""``undo``: a filter for each row, whose number stands before it (PNG), or each sample less the one before (TIFF)."""
_SOURCE = "planes.cu"
_BLOCKS = 8192
"""Blocks that make pixels at once, at least, where there are fewer planes; up to `_EACH` of a plane."""
_EACH = 16


@dataclass(slots=True)
class Packed:
    """Pictures of a batch, whose rows the GPU makes pixels of."""

    planes: npt.NDArray[Any]
    """[P] `PLANE`; ``stream`` and ``colours`` are places in what is here."""
    owner: I64
    """[S] The image of each stream."""
    room: I64
    """[S] Bytes of each stream's rows."""
    coding: I64
    """[S] How each stream is packed, as `streams` calls it."""
    colours: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty((0, 256), np.uint32))
    """[C, 256] Palettes, as `png.decoder_cpu` has them."""
    lengths: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[S] Bytes of each stream, where the GPU unpacks it."""
    pieces: I64 = field(default_factory=lambda: np.empty((0, 5), np.int64))
    """Where the streams are, as `streams.plan` takes it."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where pixels go."""

    offsets: I64
    """[N] of the output."""
    shapes: I32
    """[N, 3] of its images: height, width, channels."""
    corners: I64 | None
    """[N, 2] (y, x): where each image's window begins, if not at its corner."""
    bgr: bool
    """Blue comes first."""


def place(packed: Packed, starts: I64, where: Where) -> None:
    """Fill in what the planes of ``packed`` lack, whose streams' rows begin at ``starts``."""
    planes, of = packed.planes, packed.owner[packed.planes["stream"]]
    planes["rows"] += starts[planes["stream"]]
    planes["destination"], planes["channels"] = where.offsets[of], where.shapes[of, 2]
    planes["shown_rows"], planes["shown_columns"] = where.shapes[of, 0], where.shapes[of, 1]
    planes["bgr"] = where.bgr
    if where.corners is not None:
        planes["y"] -= where.corners[of, 0].astype(np.int32)
        planes["x"] -= where.corners[of, 1].astype(np.int32)


def unpacking(packed: Packed, where: Where) -> streams.Unpacking:
    """Plan how the streams of ``packed`` are unpacked; its planes know then where their rows are, and where pixels
    go."""
    found = streams.plan(packed.coding, packed.lengths, packed.room, packed.pieces)
    place(packed, found.starts, where)
    return found


Plans: TypeAlias = list[tuple[Packed, streams.Unpacking]]


def unpacker(job: DecodeJob, decoder: str) -> Callable[[Lane, Batch, Batch, Plans], None]:
    """A function of the lane, the files, the output and plans, one at most, that enqueues the work of ``decoder``."""

    def enqueue(lane: Lane, files: Batch, out: Batch, plans: Plans) -> None:
        for packed, planned in plans:
            if len(packed.owner):
                rows, bad = streams.unpack(lane, files, planned)
                restore(job.ctx, lane, packed, rows, out, decoder, bad)

    return enqueue


def restore(
    ctx: Context, lane: Lane, packed: Packed, rows: Any, out: Batch, decoder: str, bad: Any = None
) -> None:  # fmt: skip
    """Enqueue what makes pixels of ``rows`` on the device, in their places in ``out``: of the pictures ``packed``,
    whose planes know these places.

    Images with a filter or a colour that does not exist, and those with a stream that is ``bad`` already (int32[S] on
    the device, not 0 for those), run again, on the CPU, which says so; ``decoder``, the name in reports that they were
    counted under, did not decode them."""
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
    marks = lane.copy_out(lane.address(bad), bad.nbytes).view(np.int32)  # nothing is allocated for it

    def wrong() -> I64:
        found = np.unique(packed.owner[np.flatnonzero(marks)])
        ctx.decoded_by(decoder, -len(found))
        return found

    ctx.check_later(wrong)


def make_pixels(lane: Lane, rows: Any, planes: Any, n: int, colours: Any, out: Batch, bad: Any) -> None:
    """Enqueue what makes pixels, in ``out``, of ``n`` ``planes`` of ``rows``, all on the device. ``bad`` as of
    `restore`; only a plane with a palette of ``colours`` can be."""
    lane.launch(_SOURCE, "planes_pixels", (n, _blocks(n)), 256, rows, planes, colours, out.data, bad)


def _blocks(planes: int) -> int:
    """Blocks for each plane, a warp of which takes a row at a time."""
    return min(max(_BLOCKS // planes, 1), _EACH)
