"""JPEG encoding by our own CUDA kernels: what the host plans for a batch, the launches, and the files' way back.

Everything is done for the whole batch at once, by one upload and six launches (eight with optimised tables). How long
the files are is known on the device alone, so the output is finished once the device is done (`Context.finish_later`).
The kernels are in ops/cuda/jpeg_encode.cu.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..batch import I32, I64, Batch
from ..context import Context
from .jpeg import tables as jpeg_standard

if TYPE_CHECKING:
    from .encoders import EncodeImage

SOURCE = "jpeg_encode.cu"
SAMPLING = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2)}
"""Sampling factors of brightness, horizontally and vertically."""

# Sizes the kernels are compiled with.
TILE = 48
CODED = 128
STUFF_THREADS = 512
STUFF_CHUNK = 16 * STUFF_THREADS
HEADER_ROOM = 1024

ROOM = ((90, 64), (100, 128))
"""Bytes that a block of coefficients may take on average, up to each quality. Noise takes 40 at quality 90 and 90 at
100, photographs a tenth of that; what takes more is encoded on the CPU."""
MOST_BLOCKS = 1 << 21
"""Of a picture (90 megapixels in 4:2:0): its bits are counted in 32 bits. Larger ones are encoded on the CPU."""

PICTURE = np.dtype(
    [(name, np.int64) for name in ("pixels", "stream")]
    + [(name, np.int32) for name in ("first_block", "blocks", "width", "height", "components", "h", "v", "mcus_x",
                                     "mcus", "in_mcu", "capacity", "header", "codes", "unused")]
)  # fmt: skip
"""The record of jpeg_encode.cu, field by field."""


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """The plan for encoding a batch. Each ``..._first`` is an exclusive sum over the pictures, then the total."""

    pictures: npt.NDArray[Any]
    """PICTURE; those that are left to others have no blocks."""
    tile_first: I32
    chunk_first: I32
    stuff_first: I32
    blocks: int
    streams: int
    """Bytes of all slots for coded bits."""
    room: int
    """Bytes for all files."""


def plan_encode(
    shapes: I32, offsets: I64, which: npt.NDArray[np.bool_], subsampling: str, quality: int, optimize: bool = False
) -> EncodePlan:
    """Plan the pictures ``which`` (H, W, 1 or 3 channels) of ``shapes`` int32[N, 3], at byte ``offsets``."""
    n = len(shapes)
    height, width, channels = (np.where(which, column, 1).astype(np.int64) for column in shapes.T)
    colour = channels == 3
    h, v = (np.where(colour, factor, 1) for factor in SAMPLING[subsampling])
    mcus_x, mcus_y = -(-width // (8 * h)), -(-height // (8 * v))
    in_mcu = np.where(colour, h * v + 2, 1)
    taken = which & (mcus_x * mcus_y * in_mcu < MOST_BLOCKS)
    mcus = np.where(taken, mcus_x * mcus_y, 0)
    blocks = mcus * in_mcu
    capacity = -(-blocks * next(room for limit, room in ROOM if quality <= limit) // 16) * 16
    pictures = np.zeros(n, PICTURE)
    for name, value in {
        "pixels": offsets, "stream": _starts(capacity), "first_block": _starts(blocks), "blocks": blocks,
        "width": width, "height": height, "components": channels, "h": h, "v": v, "mcus_x": mcus_x, "mcus": mcus,
        "in_mcu": in_mcu, "capacity": capacity,
        "header": np.arange(n) if optimize else ~colour, "codes": np.arange(n) if optimize else 0,
    }.items():  # fmt: skip
        pictures[name] = value
    return EncodePlan(
        pictures=pictures,
        tile_first=_firsts(-(-blocks // TILE)),
        chunk_first=_firsts(-(-blocks // CODED)),
        stuff_first=_firsts(-(-capacity // STUFF_CHUNK)),
        blocks=int(blocks.sum()),
        streams=int(capacity.sum()),
        room=int(capacity.sum()) + n * HEADER_ROOM,
    )


def _starts(counts: I64) -> I64:
    return np.asarray(np.cumsum(counts) - counts, np.int64)


def _firsts(counts: I64) -> I32:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Constants:
    """Arrays that are the same for all batches of an operator. Headers have a row for colour, then one for gray."""

    quantisation: npt.NDArray[np.uint32]
    """uint32[2, 64, 2], by 8 * row + column: 2**32 / divisor, rounded up; half the divisor << 8 | zig-zag index. The
    divisor is the table's entry times eight, by which the transform's results are too large."""
    codes: npt.NDArray[np.uint32]
    """uint32[4, 256], see `jpeg_standard.huffman_codes`."""
    headers: npt.NDArray[np.uint8]
    """uint8[2, HEADER_ROOM]: the segments before the coded bits, with ``optimize`` those before the Huffman tables."""
    header_sizes: I32
    dimensions: I32
    """Where height and width are in each header."""


@cache
def constants(quality: int, subsampling: str, optimize: bool) -> Constants:
    """The tables and headers of files of ``quality`` (1..100)."""
    divisor = 8 * jpeg_standard.quantisation(quality)
    rows = np.stack([-(-(1 << 32) // divisor), divisor // 2 << 8 | np.arange(64)], axis=2)
    natural = np.empty_like(rows)
    natural[:, jpeg_standard.ZIGZAG] = rows
    h, v = SAMPLING[subsampling]  # of gray pictures too: it means nothing there, and libjpeg says so
    parts = [jpeg_standard.before_huffman(quality, components, h, v) for components in (3, 1)]
    dimensions = [len(part) - 5 - 3 * components for part, components in zip(parts, (3, 1), strict=True)]
    if not optimize:
        for k, components in enumerate((3, 1)):
            parts[k] += jpeg_standard.standard_huffman(components) + jpeg_standard.scan_header(components)
    text = np.stack([np.frombuffer(part.ljust(HEADER_ROOM, b"\0"), np.uint8) for part in parts])
    return Constants(
        natural.astype(np.uint32), jpeg_standard.huffman_codes(), text, np.array(list(map(len, parts)), np.int32),
        np.array(dimensions, np.int32),
    )  # fmt: skip


def _tables(lane: Any, op: EncodeImage, pictures: npt.NDArray[Any]) -> tuple[Any, ...]:
    """The constants on the device, in their order; with optimised tables a header for each picture."""
    known = constants(op.quality, op.subsampling, op.optimize)
    if op.optimize:
        kind = (pictures["components"] == 1).astype(np.intp)
        return tuple(lane.upload(known.quantisation, known.codes, known.headers[kind], known.header_sizes[kind],
                                 known.dimensions[kind]))  # fmt: skip
    key = f"jpeg_encode {op.quality} {op.subsampling}"
    if key not in lane.cache:
        lane.cache[key] = lane.upload(known.quantisation, known.codes, known.headers, known.header_sizes,
                                      known.dimensions)  # fmt: skip
    return tuple(lane.cache[key])


def encode(op: EncodeImage, ctx: Context, images: Batch) -> Batch:
    """Launch the encoding of a batch on the device (HWC, uint8); the files are finished later."""
    shapes = images.shapes
    fit = (shapes[:, :2] > 0).all(axis=1) & (shapes[:, :2] <= 65500).all(axis=1) & np.isin(shapes[:, 2], (1, 3))
    for i in np.flatnonzero(~fit).tolist():
        ctx.reject(i, "encode_failed", op.unfit(tuple(shapes[i].tolist())) or "cannot be encoded")
    plan = plan_encode(shapes, images.offsets, fit, op.subsampling, op.quality, op.optimize)
    out, sizes = launch(ctx.device, images.data, plan, op)
    sizes = ctx.device.download(sizes)
    return ctx.finish_later(lambda: _collect(op, ctx, images, fit, out, sizes))


def launch(lane: Any, pixels: Any, plan: EncodePlan, op: EncodeImage) -> tuple[Any, Any]:
    """Enqueue all kernels. Returns device arrays: the files one after the other, and their sizes (uint32[N]), 0 for
    those that are left to the CPU. Files that would end after the first array are left out as well."""
    n = len(plan.pictures)
    quant, codes, headers, header_sizes, dimensions = _tables(lane, op, plan.pictures)
    pictures, tile_first, chunk_first, stuff_first = lane.upload(
        plan.pictures.view(np.uint8), plan.tile_first, plan.chunk_first, plan.stuff_first
    )
    tiles, chunks, stuffs = int(plan.tile_first[-1]), int(plan.chunk_first[-1]), int(plan.stuff_first[-1])
    count = np.int32(n)
    coefficients, masks = lane.empty(64 * plan.blocks, np.int16), lane.empty(plan.blocks, np.uint64)
    places, chunk_bits, chunk_start = (lane.empty(k, np.uint32) for k in (plan.blocks, chunks, chunks))
    streams, stream_bytes = lane.empty(plan.streams, np.uint8), lane.empty(n, np.uint32)
    stuffed_before, sizes, out = (
        lane.empty(stuffs, np.uint32),
        lane.empty(n, np.uint32),
        lane.empty(plan.room, np.uint8),
    )

    lane.launch(SOURCE, "jpeg_encode_dct", tiles, 8 * TILE,
                pixels, pictures, tile_first, count, quant, coefficients, masks)  # fmt: skip
    if op.optimize:
        codes, frequencies = lane.empty(n * 1024, np.uint32), lane.empty(n * 1024, np.uint32)
        frequencies.fill(0)
        lane.launch(SOURCE, "jpeg_encode_histogram", chunks, CODED,
                    pictures, chunk_first, count, coefficients, masks, frequencies)  # fmt: skip
        lane.launch(SOURCE, "jpeg_encode_tables", n, 128, pictures, frequencies, codes, headers, header_sizes)
    lane.launch(SOURCE, "jpeg_encode_count", chunks, CODED,
                pictures, chunk_first, count, codes, coefficients, masks, places, chunk_bits)  # fmt: skip
    lane.launch(SOURCE, "jpeg_encode_scan", n, 256,
                pictures, chunk_first, chunk_bits, chunk_start, streams, stream_bytes)  # fmt: skip
    lane.launch(SOURCE, "jpeg_encode_pack", chunks, CODED, pictures, chunk_first, count, codes, coefficients, masks,
                places, chunk_bits, chunk_start, stream_bytes, streams)  # fmt: skip
    lane.launch(SOURCE, "jpeg_encode_measure", n, STUFF_THREADS,
                pictures, stuff_first, stream_bytes, streams, header_sizes, stuffed_before, sizes)  # fmt: skip
    lane.launch(SOURCE, "jpeg_encode_stuff", stuffs, STUFF_THREADS, pictures, stuff_first, count, stream_bytes, streams,
                headers, header_sizes, dimensions, stuffed_before, sizes, out, np.int64(plan.room))  # fmt: skip
    return out, sizes


def _collect(
    op: EncodeImage, ctx: Context, images: Batch, fit: npt.NDArray[np.bool_], out: Any, sizes: npt.NDArray[np.uint32]
) -> Batch:
    """The files on the host, once the device is done; the copy of what the device made is only begun."""
    lane = ctx.device
    lengths = sizes.astype(np.int64)
    starts = _starts(lengths)
    made = (lengths > 0) & (starts + lengths <= len(out))
    shapes = np.where(made, lengths, 0).astype(np.int32)[:, None]
    files: Batch = lane.to_host(Batch(out, np.where(made, starts, 0), shapes, "", images.samples))
    left = np.flatnonzero(fit & ~made)
    return files if len(left) == 0 else _with_host_files(op, lane, images, files, left)


def _with_host_files(op: EncodeImage, lane: Any, images: Batch, files: Batch, left: I64) -> Batch:
    """``files`` with those of the pictures ``left`` encoded on the CPU."""
    from .encoders_cpu import ENCODERS

    pictures = lane.to_host(images.take(left))
    lane.synchronize()
    exact = replace(op, fast_dct=False)
    more = [np.frombuffer(ENCODERS["jpeg"](exact, picture), np.uint8) for picture in pictures]
    sizes = np.array([len(m) for m in more], np.int64)
    offsets, shapes = files.offsets.copy(), files.shapes.copy()
    offsets[left] = len(files.data) + _starts(sizes)
    shapes[left, 0] = sizes
    return files.replace(data=np.concatenate([files.data, *more]), offsets=offsets, shapes=shapes)
