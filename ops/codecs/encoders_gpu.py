"""JPEG encoding with built-in CUDA kernels: the host's plan for a batch, the launches, and the download of the files.

The whole batch is encoded at once, with one upload and six launches (eight with optimised tables). The files' sizes are
known only on the device, so the output is completed when the device is done (`Context.finish_later`). The kernels are
in ops/cuda/jpeg_encode.cu. Called by `encoders.EncodeImage`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..batch import I32, I64, Batch, host_empty
from ..context import Context
from ..gpu.lane import Launch
from ..kernels import Kernels
from .jpeg import tables as jpeg_standard

if TYPE_CHECKING:
    from .encoders import EncodeImage

_loops: Any = Kernels(".encoders_plan_cpu", __package__)

U8 = npt.NDArray[np.uint8]

SOURCE = "jpeg_encode.cu"
# Sizes with which the kernels are compiled.
TILE = 48
CODED = 128
STUFF_THREADS = 512
STUFF_CHUNK = 16 * STUFF_THREADS

ROOM = ((90, 64), (100, 128))
"""Memory to reserve on the GPU for an image's coded bits, as (highest quality, average bytes per 8 x 8 block). Noise
needs 40 at quality 90 and 90 at 100, photographs a tenth of that; the CPU encodes images that need more."""
MAX_BLOCKS = 1 << 21
"""Maximum number of 8 x 8 blocks per image (90 megapixels in 4:2:0), because kernels count bits in 32-bit numbers. The
CPU encodes larger images."""

PICTURE = np.dtype(
    [(name, np.int64) for name in ("pixels", "stream")]
    + [(name, np.int32) for name in ("first_block", "blocks", "width", "height", "components", "h", "v", "mcus_x",
                                     "mcus", "in_mcu", "capacity", "header", "codes", "unused")]
)  # fmt: skip
"""Record that describes one image to the kernels; the fields are those of jpeg_encode.cu."""


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """Plan for encoding a batch on a GPU. Created by `plan_encode`, used by the thread that launches kernels."""

    table: U8
    """All bytes to upload. ``pictures`` and then ``firsts`` are views of this array."""
    pictures: npt.NDArray[Any]
    """One `PICTURE` record per image, [N]; 0 blocks for images that the CPU encodes."""
    firsts: I32
    """First CUDA thread block of each image, then the total, int32[3, N + 1]. One row per kernel: DCT, Huffman coding,
    byte stuffing."""
    fit: npt.NDArray[np.bool_]
    """Whether JPEG can hold each image, bool[N]."""
    blocks: int
    """Total number of 8 x 8 blocks of all images."""
    streams: int
    """Total bytes of the buffers on the device for the coded bits of all images."""
    room: int
    """Bytes to allocate on the device for all encoded files."""


def _plain(nbytes: int) -> U8:
    return np.empty(nbytes, np.uint8)


def plan_encode(
    shapes: I32, offsets: I64, subsampling: str, quality: int, optimize: bool = False,
    stage: Callable[[int], U8] = _plain,
) -> EncodePlan:  # fmt: skip
    """Plan the encoding of a batch on a GPU. ``shapes``: int32[N, 3]. ``offsets``: byte offset of each image. ``stage``
    allocates the host memory for data to upload. Images that are too large, or do not have 1 or 3 channels, get no
    blocks."""
    n = len(shapes)
    table = stage(n * PICTURE.itemsize + 12 * (n + 1))
    pictures = table[: n * PICTURE.itemsize].view(PICTURE)
    firsts = table[n * PICTURE.itemsize :].view(np.int32).reshape(3, n + 1)
    fit, totals = np.empty(n, np.bool_), np.empty(_loops.TOTALS, np.int64)
    block = next(room for limit, room in ROOM if quality <= limit)
    sizes = (jpeg_standard.LONGEST_SIDE, MAX_BLOCKS, block, TILE, CODED, STUFF_CHUNK)
    _loops.plan_pictures(
        np.ascontiguousarray(shapes, np.int32), np.ascontiguousarray(offsets, np.int64),
        jpeg_standard.SAMPLING[subsampling], sizes, optimize, pictures, firsts, fit, totals,
    )  # fmt: skip
    blocks, streams = totals.tolist()
    return EncodePlan(table, pictures, firsts, fit, blocks, streams, streams + n * jpeg_standard.HEADER_ROOM)


@dataclass(frozen=True, slots=True)
class Constants:
    """Tables of the encoder, equal for all batches of an operator. ``headers``, ``header_sizes`` and ``dimensions``
    have two rows: for colour and for gray images."""

    quantisation: npt.NDArray[np.uint32]
    """Factors for quantising, by 8 * row + column, uint32[2, 64, 2]: 2**32 / divisor, rounded up; then half the divisor
    << 8 | zig-zag index. The divisor is eight times the entry of the JPEG table, because the transform's results are
    eight times too large."""
    codes: npt.NDArray[np.uint32]
    """Huffman code of each symbol, as length << 16 | code, uint32[4, 256]; see `jpeg_standard.huffman_codes`."""
    headers: npt.NDArray[np.uint8]
    """Bytes of a file before the coded bits, uint8[2, HEADER_ROOM]; see `jpeg_standard.file_headers`."""
    header_sizes: I32
    dimensions: I32
    """Byte offset in each header at which height and width are stored."""


@cache
def constants(quality: int, subsampling: str, optimize: bool) -> Constants:
    """Return the encoder's tables and file headers for a ``quality`` of 1 to 100."""
    divisor = 8 * jpeg_standard.quantisation(quality)
    rows = np.stack([-(-(1 << 32) // divisor), divisor // 2 << 8 | np.arange(64)], axis=2)
    natural = np.empty_like(rows)
    natural[:, jpeg_standard.ZIGZAG] = rows
    headers = jpeg_standard.file_headers(quality, subsampling, optimize)
    return Constants(natural.astype(np.uint32), jpeg_standard.huffman_codes(), *headers)


def _tables(lane: Any, op: EncodeImage, pictures: npt.NDArray[Any]) -> tuple[Any, list[int]]:
    """Return the encoder's tables on the device: the arrays, and their addresses in the order of `Constants`. With
    optimised Huffman tables, each image has its own file header."""
    key = f"jpeg_encode {op.quality} {op.subsampling}"
    if not op.optimize and key in lane.cache:
        found: tuple[Any, list[int]] = lane.cache[key]
        return found
    known = constants(op.quality, op.subsampling, op.optimize)
    headers = known.headers, known.header_sizes, known.dimensions
    if op.optimize:
        kind = (pictures["components"] == 1).astype(np.intp)
        headers = known.headers[kind], known.header_sizes[kind], known.dimensions[kind]
    arrays = lane.upload(known.quantisation, known.codes, *headers)
    tables = arrays, [lane.address(a) for a in arrays]
    if not op.optimize:
        lane.cache[key] = tables
    return tables


def encode(op: EncodeImage, ctx: Context, images: Batch) -> Batch:
    """Start encoding images that are on the device (HWC, uint8). Return the batch of files, whose contents are complete
    when the device has finished."""
    lane: Any = ctx.device
    plan = plan_encode(images.shapes, images.offsets, op.subsampling, op.quality, op.optimize, lane.pinned)
    if b"\0" in plan.fit.tobytes():  # NumPy would release the GIL
        for i in np.flatnonzero(~plan.fit).tolist():
            ctx.reject(i, "encode_failed", op.unfit(tuple(images.shapes[i].tolist())) or "cannot be encoded")
    out, sizes = launch(lane, images.data, plan, op)
    return ctx.finish_later(lambda: _collect(op, ctx, images, plan.fit, out, sizes))


def launch(lane: Any, pixels: Any, plan: EncodePlan, op: EncodeImage) -> tuple[Any, npt.NDArray[np.uint32]]:
    """Enqueue all kernels that encode a batch. Return a device array with the files one after the other, and their
    sizes (uint32[N], in page-locked host memory, valid after `Lane.synchronize`). Size 0 means that the CPU has to
    encode the image, also if no space was left for its file."""
    n = len(plan.pictures)
    tables, (quant, codes, headers, header_sizes, dimensions) = _tables(lane, op, plan.pictures)
    tiles, chunks, stuffs = plan.firsts[:, -1].tolist()
    # One allocation, and addresses as arguments: creating CuPy arrays takes longer than launching kernels.
    owner, places = lane.scratch(
        plan.table.nbytes, 128 * plan.blocks, 8 * plan.blocks, 4 * plan.blocks, 4 * chunks, 4 * chunks, plan.streams,
        4 * n, 4 * stuffs, 4 * n,
    )  # fmt: skip
    pictures, coefficients, masks, bits, chunk_bits, chunk_start, streams, stream_bytes, stuffed_before, sizes = places
    tile_first, chunk_first, stuff_first = (pictures + n * PICTURE.itemsize + 4 * (n + 1) * k for k in range(3))
    out, count, here = lane.empty(plan.room, np.uint8), np.int32(n), lane.pinned(4 * n)

    launches: list[Launch] = [
        (SOURCE, "jpeg_encode_dct", tiles, 8 * TILE,
         (pixels, pictures, tile_first, count, quant, coefficients, masks)),
    ]  # fmt: skip
    if op.optimize:
        each, frequencies = lane.empty(n * 1024, np.uint32), lane.empty(n * 1024, np.uint32)
        frequencies.fill(0)
        codes = lane.address(each)
        launches += [
            (SOURCE, "jpeg_encode_histogram", chunks, CODED,
             (pictures, chunk_first, count, coefficients, masks, frequencies)),
            (SOURCE, "jpeg_encode_tables", n, 128, (pictures, frequencies, codes, headers, header_sizes)),
        ]  # fmt: skip
    launches += [
        (SOURCE, "jpeg_encode_count", chunks, CODED,
         (pictures, chunk_first, count, codes, coefficients, masks, bits, chunk_bits)),
        (SOURCE, "jpeg_encode_scan", n, 256, (pictures, chunk_first, chunk_bits, chunk_start, streams, stream_bytes)),
        (SOURCE, "jpeg_encode_pack", chunks, CODED,
         (pictures, chunk_first, count, codes, coefficients, masks, bits, chunk_bits, chunk_start, stream_bytes,
          streams)),
        (SOURCE, "jpeg_encode_measure", n, STUFF_THREADS,
         (pictures, stuff_first, stream_bytes, streams, header_sizes, stuffed_before, sizes)),
        (SOURCE, "jpeg_encode_stuff", stuffs, STUFF_THREADS,
         (pictures, stuff_first, count, stream_bytes, streams, headers, header_sizes, dimensions, stuffed_before, sizes,
          out, plan.room)),
    ]  # fmt: skip
    lane.launch_all(launches, [(pictures, plan.table)], [(here, sizes)])
    del owner, tables  # kept until here; later work of this lane may reuse the memory
    return out, here.view(np.uint32)


def _collect(
    op: EncodeImage, ctx: Context, images: Batch, fit: npt.NDArray[np.bool_], out: Any, sizes: npt.NDArray[np.uint32]
) -> Batch:
    """Copy the encoded files to host memory. Called when the device has encoded them, because their sizes are known
    only then."""
    lane, n = ctx.device, len(sizes)
    offsets, shapes = np.empty(n, np.int64), np.empty((n, 1), np.int32)
    end, left = _loops.place_files(sizes, fit, len(out), offsets, shapes)
    files = Batch(lane.download(out[:end]), offsets, shapes, "", images.samples)
    if not left:
        return files
    return _with_host_files(op, lane, images, files, np.flatnonzero(fit & (shapes[:, 0] == 0)))


def _with_host_files(op: EncodeImage, lane: Any, images: Batch, files: Batch, left: I64) -> Batch:
    """Encode on the CPU the images ``left`` (indices), which the GPU could not encode. Return ``files`` with these
    files inserted."""
    from .encoders_cpu import jpeg_files

    pictures = lane.to_host(images.take(left))
    lane.wait()
    more = jpeg_files(op, host_empty, pictures, np.ones(len(left), np.bool_))
    offsets, shapes = files.offsets.copy(), files.shapes.copy()
    offsets[left] = len(files.data) + more.offsets
    shapes[left] = more.shapes
    return files.replace(data=np.concatenate([files.data, more.data]), offsets=offsets, shapes=shapes)
