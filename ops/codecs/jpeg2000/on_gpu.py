"""Decoder for JPEG 2000 on a GPU (cuda/jpeg2000.cu), bit-identical to OpenJPEG.

CPU threads read the headers of files and of packets; the GPU decodes the code blocks, undoes the wavelet transform and
writes pixels. One GPU thread decodes a code block; an image of 0.2 megapixels has some 200.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...gpu.lane import Lane
from ...kernels import Kernels
from .. import native_loops
from ..decoder_table import DecodeJob
from ..format import BITS, CHANNELS, FORMAT, HEIGHT, WIDTH
from ..gpu_streams.streams import PIECE, before
from ..gpu_table import GpuDecoder
from ..headers import readonly
from ..threaded_decode import TaskResult, ThreadedDecode
from .format import CODE

_codestream: Any = Kernels(".codestream_cpu", __package__)
_packets: Any = Kernels(".packets_cpu", __package__)

BLOCK = np.dtype(
    [("source", np.int64), ("place", np.int64)]
    + [(n, np.int32) for n in ("pitch", "size", "width", "height", "kind", "planes", "passes")]
    + [("step", np.float32)]
)
"""Record that describes one JPEG 2000 code block to the kernels."""
TILE = np.dtype(
    [("place", np.int64)]
    + [(n, np.int32) for n in ("pitch", "left", "top", "right", "bottom", "levels", "reversible", "unused")]
)
"""Record that describes one component of a JPEG 2000 tile to the kernels."""
PICTURE = np.dtype(
    [("place", np.int64), ("destination", np.int64)]
    + [(n, np.int32) for n in ("width", "height", "components", "y", "x", "shown_rows", "shown_columns")]
    + [(n, np.int32) for n in ("channels", "bgr", "mixed", "reversible", "unused")]
)
"""Record that describes one image to the kernels."""
SAMPLES = 1 << 28
"""Number of samples after which no further image joins those that are decoded together."""
MOST = 1 << 25
"""Maximum number of pixels of an image that the GPU decodes."""
_SOURCE = "jpeg2000.cu"
_LANES = 8
"""Number of code blocks that a warp decodes at a time, as in the kernel."""
_BITS = 8
"""Bits per sample of the images that the GPU supports."""
_KINDS = np.array([0] + [1, 2, 3] * 12)
"""Kind of each wavelet band, as the kernels number them, by index of the band."""
_LARGEST = (1 << 16) - 1
"""Size in bytes up to which code blocks are sorted by size; all larger ones count as equal."""
_THREADS, _EACH, _MANY = 256, 16, 1 << 14
"""Threads per CUDA block; pairs of coefficients, or pixels, per thread; maximum number of CUDA blocks per tile or
image."""


@dataclass(slots=True)
class Coded:
    """Code blocks of JPEG 2000 images of a batch, for decoding on the GPU. Created on the host by one task. In each
    array, the rows of one image follow those of the previous one."""

    owner: I64
    """Index in the batch of each image, [N]."""
    pictures: npt.NDArray[Any]
    """One `PICTURE` record per image, [N], without the fields that depend on the output."""
    tiles: npt.NDArray[Any]
    """One `TILE` record for each component of each tile."""
    blocks: npt.NDArray[Any]
    """One `BLOCK` record for each code block."""
    chunks: npt.NDArray[Any]
    """One `PIECE` record for each byte range of a file that belongs to a code block: its place in the file, and its
    place on the GPU."""
    of: I64
    """Index in the batch of the image of each record of ``chunks``."""
    samples: int
    """Total number of samples (pixels times channels) of the images."""
    nbytes: int
    """Total compressed bytes of the code blocks."""


def takes(rows: I64) -> npt.NDArray[np.bool_]:
    """Return for each image whether its header allows decoding on the GPU; `read` may still exclude it. ``rows`` [N,
    6]: headers."""
    taken: npt.NDArray[np.bool_] = (rows[:, FORMAT] == CODE) & (rows[:, BITS] == _BITS)
    taken &= (rows[:, CHANNELS] == 1) | (rows[:, CHANNELS] == 3)
    return taken & (rows[:, WIDTH].astype(np.float64) * rows[:, HEIGHT] <= MOST)


class CudaJpeg2000(GpuDecoder):
    """CUDA decoder for JPEG 2000 of 8 bits, gray or RGB, without conversion. CPU threads read the headers of the code
    blocks."""

    name = "cuda jpeg2000"

    def takes(self, job: DecodeJob, indices: I64) -> npt.NDArray[np.bool_]:
        headers = job.headers
        if not headers.unusual or job.rules.dtype != np.uint8 or not job.in_process:
            return np.zeros(len(indices), np.bool_)
        rows = headers.rows[indices]
        shown = native_loops.keeps_channels(rows, job.rules.output_type) & (headers.orientation[indices] == 1)
        taken: npt.NDArray[np.bool_] = takes(rows) & shown
        return taken

    def start(self, job: DecodeJob, indices: I64, threads: ThreadedDecode) -> None:
        def task(host: ThreadedDecode, some: I64) -> TaskResult:
            headers = host.job.headers
            coded, taken = read(host.job.batch, some, headers.height[some], headers.width[some])
            done = host.by_host(some[~taken])
            done.prepared, done.count = coded, len(coded.owner)
            return done

        def enqueue(lane: Lane, files: Batch, out: Batch, coded: list[Coded]) -> None:
            decode(lane, files, coded, out, anchors, bgr)

        anchors, bgr = job.anchors, job.bgr
        threads.submit(self.name, indices, task, enqueue=enqueue)


ROWS = (CudaJpeg2000(),)


def read(batch: Batch, which: I64, heights: I64, widths: I64) -> tuple[Coded, npt.NDArray[np.bool_]]:
    """Read the images ``which`` of ``batch``, which have these sizes. Return the code blocks of the images that the GPU
    supports, and which images these are, bool[len(which)]."""
    c, p, n = _codestream, _packets, len(which)
    facts, steps = np.zeros((n, c.FACTS), np.int64), np.zeros((n, c.BANDS, 2), np.int64)
    taken, sizes = np.zeros(n, np.bool_), batch.shapes[which, 0].astype(np.int64)
    files = readonly(batch.data), batch.offsets[which], sizes
    blocks, chunks, tiles = p.read_files(*files, heights, widths, facts, steps, taken)
    samples = np.where(taken, heights * widths * facts[:, c.COMPONENTS], 0)
    places = before(samples)
    pictures = np.zeros(n, PICTURE)
    pictures["place"], pictures["width"], pictures["height"] = places, widths, heights
    for name, column in (("components", c.COMPONENTS), ("mixed", c.MIXED), ("reversible", c.REVERSIBLE)):
        pictures[name] = facts[:, column]
    starts = before(blocks[:, p.SIZE])
    pieces, number = np.empty(len(chunks), PIECE), chunks[:, p.CHUNK_BLOCK]
    pieces["source"], pieces["size"] = chunks[:, p.CHUNK_AT], chunks[:, p.CHUNK_SIZE]
    pieces["destination"] = starts[number] + chunks[:, p.CHUNK_TO]
    some = _tiles(facts, tiles, places), _blocks(facts, steps, blocks, starts, places)
    sums = int(samples.sum()), int(blocks[:, p.SIZE].sum())
    return Coded(which[taken], pictures[taken], *some, pieces, which[blocks[number, p.FILE]], *sums), taken


def _blocks(facts: I64, steps: I64, rows: I64, starts: I64, places: I64) -> npt.NDArray[Any]:
    """Convert code blocks, ``rows`` of `packets_cpu`, to `BLOCK` records. ``starts``: offset on the GPU of each block's
    bytes. ``facts``, ``steps``: main headers, one row per file. ``places``: index of each file's first coefficient."""
    c, p = _codestream, _packets
    file, band, blocks = rows[:, p.FILE], rows[:, p.BAND], np.empty(len(rows), BLOCK)
    blocks["source"], blocks["place"] = starts, places[file] + rows[:, p.PLACE]
    blocks["pitch"] = (facts[:, c.X1] - facts[:, c.X0])[file]
    for name, column in (("size", p.SIZE), ("width", p.WIDTH), ("height", p.HEIGHT), ("planes", p.PLANES)):
        blocks[name] = rows[:, column]
    blocks["passes"], blocks["kind"] = rows[:, p.PASSES], _KINDS[band]
    step = (1.0 + steps[:, :, 1] / 2048.0) * np.exp2(_BITS - steps[:, :, 0])
    halved = np.where(facts[:, c.REVERSIBLE, None] == 1, 0, step).astype(np.float32) * np.float32(0.5)
    blocks["step"] = halved[file, band]
    return blocks


def _tiles(facts: I64, rows: I64, places: I64) -> npt.NDArray[Any]:
    """Convert components of tiles, ``rows`` of `packets_cpu`, to `TILE` records. ``facts``: main headers, one row per
    file. ``places``: index of each file's first coefficient."""
    c, p = _codestream, _packets
    file, tiles = rows[:, p.TILE_FILE], np.zeros(len(rows), TILE)
    tiles["place"], tiles["pitch"] = places[file] + rows[:, p.TILE_PLACE], (facts[:, c.X1] - facts[:, c.X0])[file]
    for k, name in enumerate(("left", "top", "right", "bottom")):
        tiles[name] = rows[:, p.TILE_LEFT + k]
    tiles["levels"], tiles["reversible"] = facts[file, c.LEVELS], facts[file, c.REVERSIBLE]
    return tiles


def decode(
    lane: Lane, files: Batch, coded: Sequence[Coded], out: Batch, corners: I64 | None, bgr: bool
) -> None:  # fmt: skip
    """Enqueue the decoding of the ``coded`` images of ``files``, which are on the device, into ``out``. ``corners`` [N,
    2]: upper left corner (y, x) of each image's window, or None for whole images."""
    parts = [part for part in coded if len(part.owner)]
    if not parts:
        return
    samples = np.array([part.samples for part in parts])
    groups = before(samples) // SAMPLES
    cuts = [*np.flatnonzero(np.diff(groups, prepend=-1)).tolist(), len(parts)]
    most = max(int(samples[a:b].sum()) for a, b in pairwise(cuts))
    room = lane.empty(most, np.int32), lane.empty(most, np.int32)
    for a, b in pairwise(cuts):
        _decode(lane, files, _joined(parts[a:b]), room, out, corners, bgr)
    lane.keep(*room)


def _joined(parts: Sequence[Coded]) -> Coded:
    """Join the images of several tasks to one group, which the GPU decodes together."""
    samples, sizes = np.array([part.samples for part in parts]), np.array([part.nbytes for part in parts])

    def tables(name: str, **fields: I64) -> npt.NDArray[Any]:
        found = [getattr(part, name) for part in parts]
        rows: npt.NDArray[Any] = np.concatenate([_words(table) for table in found]).view(found[0].dtype)[:, 0]
        for field, first in fields.items():
            rows[field] += first.repeat([len(table) for table in found])
        return rows

    places = before(samples)
    return Coded(
        tables("owner"), tables("pictures", place=places), tables("tiles", place=places),
        tables("blocks", place=places, source=before(sizes)), tables("chunks", destination=before(sizes)),
        tables("of"), int(samples.sum()), int(sizes.sum()),
    )  # fmt: skip


def _words(table: npt.NDArray[Any]) -> I64:
    """Return a view of records as int64[N, M], because NumPy copies arrays of records field by field, which takes
    longer."""
    return table.view(np.int64).reshape(len(table), table.itemsize // 8)


def _decode(
    lane: Lane, files: Batch, coded: Coded, room: tuple[Any, Any], out: Batch, corners: I64 | None, bgr: bool
) -> None:
    """Enqueue the decoding of one group of images; see `decode`. ``room``: two device arrays, each with space for the
    wavelet coefficients of all images."""
    pictures, tiles, owner = coded.pictures, coded.tiles, coded.owner
    pictures["destination"], pictures["bgr"] = out.offsets[owner], bgr
    if corners is not None:
        pictures["y"], pictures["x"] = corners[owner].T
    pictures["shown_rows"], pictures["shown_columns"], pictures["channels"] = out.shapes[owner].T
    # Blocks of one warp should take about equally long, and those that take long begin first.
    fewest = np.maximum(_LARGEST - coded.blocks["size"], 0).astype(np.uint16)
    blocks = _words(coded.blocks)[np.argsort(fewest, kind="stable")]
    packed, count = lane.empty(coded.nbytes, np.uint8), len(blocks)
    coded.chunks["source"] += files.offsets[coded.of]
    there = lane.upload(*(table.view(np.uint8) for table in (blocks, tiles, pictures, coded.chunks)))
    lane.launch("png_inflate.cu", "gather_pieces", len(coded.chunks), _THREADS, files.data, there[3], packed)
    lane.launch(_SOURCE, "jpeg2000_blocks", -(-count // _LANES), 32, packed, there[0], np.int32(count), room[0])
    sizes = tiles["right"] - tiles["left"], tiles["bottom"] - tiles["top"]
    largest, levels = int((sizes[0].astype(np.int64) * sizes[1]).max()), int(tiles["levels"].max())
    for level in range(levels):
        grid = len(tiles), _teams(largest >> 2 * (levels - 1 - level))
        for down in range(2):
            ways = room[down], room[1 - down]
            lane.launch(_SOURCE, "jpeg2000_wavelet", grid, _THREADS, there[1], np.int32(level), np.int32(down), *ways)
    shown = out.shapes[owner, 0].astype(np.int64) * out.shapes[owner, 1]
    grid = len(pictures), _teams(int(shown.max()))
    lane.launch(_SOURCE, "jpeg2000_pixels", grid, _THREADS, there[2], room[0], out.data)
    lane.keep(files.data, packed, *there)


def _teams(items: int) -> int:
    """Return the number of CUDA blocks for processing ``items`` coefficients or pixels."""
    return min(max(-(-items // (_THREADS * _EACH)), 1), _MANY)
