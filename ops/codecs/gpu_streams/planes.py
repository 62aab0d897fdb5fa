"""Convert rows of samples to pixels on a GPU (cuda/planes.cu).

A plane is a set of rows that belong together: an image, a pass of an interlaced PNG, or a strip or tile of a TIFF. A
stream contains the rows of one or several planes of one image. Rows of BMP and PNM are in the files themselves. Used by
the GPU decoders of PNG, TIFF, BMP and PNM.
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
"""Record that describes one plane of an image, such as a strip of a TIFF, to the kernels. Decoders fill in ``rows``
(offset in the rows of the plane's stream) and ``y`` and ``x`` (position in the image). `place` fills in the fields that
depend on the output."""
FILTERED, PREDICTED = 1, 2
"""Values of a plane's field ``undo``, the transformation that the kernels undo. FILTERED: each row begins with the
number of its filter (PNG). PREDICTED: each sample is stored as the difference to the one before (TIFF)."""
_SOURCE = "planes.cu"
_BLOCKS = 8192
"""Minimum number of thread blocks to launch for writing pixels. If there are few planes, each gets several thread
blocks, up to `_EACH`."""
_EACH = 16


@dataclass(slots=True)
class Packed:
    """Compressed images of a batch that the GPU decompresses and converts to pixels: S compressed streams, and P planes
    of pixels. Created on the host by one task."""

    planes: npt.NDArray[Any]
    """One `PLANE` record per plane (rectangle of pixels), [P]. Its field ``stream`` is the index of the compressed
    stream with the plane's rows, ``colours`` the index of its palette in the array `colours`."""
    owner: I64
    """Index in the batch of each compressed stream's image, [S]."""
    room: I64
    """Decompressed bytes of each compressed stream, which are rows of pixels, [S]."""
    coding: I64
    """Compression of each compressed stream, such as `streams.DEFLATE`, [S]."""
    colours: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty((0, 256), np.uint32))
    """Palettes of the images that have one, [C, 256], each colour as in `png.decoder_cpu`."""
    lengths: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Compressed bytes of each stream, [S]."""
    pieces: I64 = field(default_factory=lambda: np.empty((0, 5), np.int64))
    """Byte ranges of the files from which compressed streams are joined; see the argument ``pieces`` of
    `streams.plan`."""


@dataclass(frozen=True, slots=True)
class Where:
    """Output into which the kernels write the images of a batch: where each image is stored, and in which form."""

    offsets: I64
    """Index of each image's first element in the output, [N]."""
    shapes: I32
    """Height, width and channels of each image, or of its window, [N, 3]."""
    corners: I64 | None
    """Upper left corner (y, x) of each image's window, [N, 2]; None if all are (0, 0)."""
    bgr: bool
    """Whether the output's channels are in the order blue, green, red."""


def place(packed: Packed, starts: I64, where: Where) -> None:
    """Fill in those fields of the planes of ``packed`` that depend on the output ``where``. ``starts``: byte offset of
    each stream's decompressed rows."""
    planes, of = packed.planes, packed.owner[packed.planes["stream"]]
    planes["rows"] += starts[planes["stream"]]
    planes["destination"], planes["channels"] = where.offsets[of], where.shapes[of, 2]
    planes["shown_rows"], planes["shown_columns"] = where.shapes[of, 0], where.shapes[of, 1]
    planes["bgr"] = where.bgr
    if where.corners is not None:
        planes["y"] -= where.corners[of, 0].astype(np.int32)
        planes["x"] -= where.corners[of, 1].astype(np.int32)


def unpacking(packed: Packed, where: Where) -> streams.Unpacking:
    """Plan the decompression of the streams of ``packed``, and fill in the fields of its planes that depend on the
    output ``where``."""
    found = streams.plan(packed.coding, packed.lengths, packed.room, packed.pieces)
    place(packed, found.starts, where)
    return found


Plans: TypeAlias = list[tuple[Packed, streams.Unpacking]]


def unpacker(job: DecodeJob, decoder: str) -> Callable[[Lane, Batch, Batch, Plans], None]:
    """Return a function that enqueues decompressing images and writing their pixels. The function's arguments are lane
    (CUDA stream), files, output, and a list of at most one plan. ``decoder``: name in reports."""

    def enqueue(lane: Lane, files: Batch, out: Batch, plans: Plans) -> None:
        for packed, planned in plans:
            if len(packed.owner):
                rows, bad = streams.unpack(lane, files, planned)
                restore(job.ctx, lane, packed, rows, out, decoder, bad)

    return enqueue


def restore(
    ctx: Context, lane: Lane, packed: Packed, rows: Any, out: Batch, decoder: str, bad: Any = None
) -> None:  # fmt: skip
    """Enqueue the conversion of decompressed ``rows`` to pixels in ``out``, both on the device, for the images
    ``packed``, whose planes must be complete.

    The CPU decodes invalid images again, to report their errors: those with an invalid filter number or palette index,
    and those with a stream whose entry in ``bad`` (int32[S], on the device) is not 0. ``decoder``: name in reports,
    which does not count for these images."""
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
    """Enqueue the kernel that writes ``n`` ``planes`` of decompressed ``rows`` as pixels into ``out``, all on the
    device. The kernel marks planes with an invalid palette index in ``bad``, as in `restore`."""
    lane.launch(_SOURCE, "planes_pixels", (n, _blocks(n)), 256, rows, planes, colours, out.data, bad)


def _blocks(planes: int) -> int:
    """Return the number of CUDA thread blocks to launch for each of ``planes`` planes. A warp converts one row at a
    time."""
    return min(max(_BLOCKS // planes, 1), _EACH)
