"""Kernels that make pixels of PNGs on a GPU, by the number of pictures, and the host's part of the work.

    python benchmarks/data/png_on_gpu.py FOLDER OF PICTURES [--pictures 64,256,1024,4096] [--json out.json]
    python benchmarks/data/png_on_gpu.py FOLDER OF PICTURES --pictures "" --mutate 1000 [--apart]

Up to 120 pictures of FOLDER, of 0.2 megapixels, as PNG, copied to as many streams as are wanted. Seconds of each kernel
(the best of five turns), pictures a second of all of them one after the other, and whether all rows are zlib's. The
host's part, by one thread: files that are looked through (checksums of their chunks), a second.

``--mutate``: so many small files, most of them with faults, whose checksums are right for the most part. What the
kernels accept must be what the decoder of the CPU makes of it; ends with 1 where it is not. ``--apart``: each
file is a batch of its own, and each buffer an allocation of its own, for compute-sanitizer
(benchmarks/data/sanitize.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.kernels_alone import (
    arguments,
    batch_of,
    by_host,
    pixels_by_cpu,
    pixels_by_gpu,
    shapes_of,
    to_time,
)
from dali_run.ops.batch import I64, Batch
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.gpu_streams import streams as unpacking
from dali_run.ops.codecs.gpu_streams.planes import FILTERED, PLANE, Packed
from dali_run.ops.codecs.png import decoder, on_gpu
from dali_run.ops.gpu.lane import Lane
from dali_run.pipelines.bench.web_mix import encoded


def stream_of(data: bytes) -> bytes:
    """The zlib stream of a PNG."""
    found, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if data[at + 4 : at + 8] == b"IDAT":
            found += data[at + 8 : at + 8 + length]
        at += 12 + length
    return found


def kernels(
    lane: Lane, streams: list[bytes], raw: list[bytes], sizes: list[tuple[int, int]], count: int
) -> dict[str, Any]:
    """Seconds of the kernels on ``count`` streams, and how many came out wrong."""
    which = [k % len(streams) for k in range(count)]
    nbytes = np.array([len(streams[k]) for k in which], np.int64)
    starts = unpacking.before(unpacking.aligned(nbytes))
    packed = np.zeros(int(unpacking.aligned(nbytes).sum()), np.uint8)
    for start, k in zip(starts.tolist(), which, strict=True):
        packed[start : start + len(streams[k])] = np.frombuffer(streams[k], np.uint8)
    room = np.array([len(raw[k]) for k in which], np.int64)
    to = unpacking.before(unpacking.aligned(room))
    table, planes = np.zeros(count, unpacking.STREAM), np.zeros(count, PLANE)
    table["source"], table["rows"], table["size"], table["room"] = starts, to, nbytes, room
    table["number"] = np.arange(count)
    height, width = np.array([sizes[k] for k in which]).T
    planes["rows"], planes["pitch"], planes["destination"] = to + 1, 1 + width * 3, to
    planes["height"], planes["width"] = planes["shown_rows"], planes["shown_columns"] = height, width
    planes["bits"], planes["samples"], planes["channels"], planes["colours"] = 8, 3, 3, -1
    planes["down"], planes["across"], planes["stream"], planes["undo"] = 1, 1, np.arange(count), FILTERED
    there, jobs, shown = lane.upload(packed, table.view(np.uint8), planes.view(np.uint8))
    sums, bad, none = lane.upload(np.zeros(count, np.uint32), np.zeros(count, np.int32), np.zeros(1, np.uint32))
    rows, out = (lane.empty(int(unpacking.aligned(room).sum()), np.uint8) for _ in range(2))
    grid = count, 8
    steps: dict[str, Callable[[], None]] = {
        "inflate": lambda: lane.launch("png_inflate.cu", "inflate_streams", count, 32, there, jobs, rows, sums, bad),
        "sums": lambda: lane.launch("png_inflate.cu", "check_sums", count, 256, rows, jobs, sums, bad),
        "unfilter": lambda: lane.launch("planes.cu", "planes_unfilter", count, 32, rows, shown, bad),
        "pixels": lambda: lane.launch("planes.cu", "planes_pixels", grid, 256, rows, shown, none, out, bad),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    wrong = 0
    for turn in range(6):
        for name, step in steps.items():
            begin = lane.mark()
            step()
            end = lane.mark()
            lane.wait()
            times[name].append(lane.seconds_since(begin, end))
            if turn == 0 and name == "sums":
                marks, found = lane.download(bad), lane.download(rows)
                lane.wait()
                wrong = int(np.count_nonzero(marks))
                for a, k in zip(to.tolist(), which, strict=True):
                    wrong += found[a : a + len(raw[k])].tobytes() != raw[k]
    lane.synchronize()
    best = {name: min(found[1:]) for name, found in times.items()}
    return {"seconds": best, "pictures_per_second": count / sum(best.values()), "wrong": wrong}


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


KINDS = [(bits, kind) for kind, depths in ((0, (1, 2, 4, 8, 16)), (2, (8, 16)), (3, (1, 2, 4, 8)), (4, (8, 16)),
                                           (6, (8, 16))) for bits in depths]  # fmt: skip
"""Bits and kinds of PNGs (clause 11.2.1)."""
PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""Of interlaced ones: first row, first column, steps."""


def small_files(paths: list[Path], count: int) -> list[bytes]:
    """PNGs of up to 90 x 70 pixels, of all kinds, interlaced or not, compressed in all ways: a fifth as they should be,
    others with bytes changed in their streams, some of which have the right sum again, with a filter that does not
    exist, or with a bit changed anywhere. Some palettes have too few colours."""
    draw, found = random.Random(11), list[bytes]()
    for k in range(count):
        bits, kind = KINDS[k % len(KINDS)]
        mode = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}[kind]
        fault = k % 5  # 0: none
        with Image.open(paths[k % len(paths)]) as opened:
            image = opened.convert("RGB").resize((draw.randint(1, 90), draw.randint(1, 70))).convert(mode)
        samples, interlaced = len(image.getbands()), draw.randrange(3) == 0
        pixels = np.asarray(image).reshape(image.height, image.width, samples)
        rows = bytearray()
        for y, x, down, across in PASSES if interlaced else ((0, 0, 1, 1),):
            part = pixels[y::down, x::across]
            if part.size == 0:
                continue
            if bits == 16:
                packed = np.repeat(part, 2, axis=2).reshape(len(part), -1)
            else:
                single = np.unpackbits(part.reshape(len(part), -1, 1), axis=2)[..., :bits]
                packed = np.packbits(single.reshape(len(part), -1), axis=1)
            for row in packed:
                rows += bytes([draw.randrange(5)]) + row.tobytes()
        if fault == 1:
            rows[0] = draw.choice([5, 255])
        way = draw.choice([zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED])
        deflate = zlib.compressobj(draw.choice([0, 1, 6, 9]), zlib.DEFLATED, 15, draw.choice([1, 8, 9]), way)
        stream = bytearray(deflate.compress(rows) + deflate.flush())
        if fault in (2, 3):
            for _ in range(draw.choice([1, 1, 2, 8])):
                at = int(draw.random() ** draw.choice([0.5, 1, 4]) * len(stream))
                stream[at] = draw.choice([0, 255, draw.randrange(256), stream[at] ^ 1 << draw.randrange(8)])
        if fault == 3:
            with contextlib.suppress(zlib.error):
                stream[-4:] = struct.pack(">I", zlib.adler32(zlib.decompress(bytes(stream[2:-4]), -15)))
        cut = draw.randint(0, len(stream))
        header = struct.pack(">IIBBBBB", image.width, image.height, bits, kind, 0, 0, interlaced)
        parts = chunk(b"IDAT", bytes(stream[:cut])) + chunk(b"IDAT", bytes(stream[cut:]))
        if kind == 3:
            colours = draw.choice([1 << bits, 1 << bits, (1 << bits) - 1])
            parts = chunk(b"PLTE", draw.randbytes(3 * max(1, colours))) + parts
        data = bytearray(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + parts + chunk(b"IEND", b""))
        if fault == 4:
            data[draw.randrange(33, len(data))] ^= 1 << draw.randrange(8)
        found.append(bytes(data))
    return found


def packed_of(batch: Batch, sizes: I64) -> tuple[Packed, Any]:
    """The streams of PNGs of these heights and widths that the kernels unpack, and the PNGs that have them."""
    found = on_gpu.Streams(batch, np.arange(len(batch)), *sizes.T, False)
    found.look(0, len(batch))
    return found.found()


def by_gpu(lane: Lane, files: list[bytes]) -> list[Any]:
    """The pixels that the kernels make of PNGs, 8 bits of each channel that is stored; None for those they refuse."""
    batch, shapes = batch_of(files), shapes_of(files)
    return pixels_by_gpu(lane, batch, shapes, packed_of(batch, shapes[:, :2].astype(np.int64))[0])


def differences(lane: Lane, files: list[bytes], each: int) -> tuple[int, list[int]]:
    """How many of ``files`` the kernels accept, in batches of ``each``, and those of them that the decoder of the CPU
    refuses, or makes other pixels of."""
    accepted, wrong = 0, []
    for begin in range(0, len(files), each):
        for i, pixels in enumerate(by_gpu(lane, files[begin : begin + each]), begin):
            if pixels is not None:
                accepted += 1
                expected = pixels_by_cpu(decoder, files[i])
                if expected is None or not np.array_equal(pixels, expected):
                    wrong.append(i)
    return accepted, wrong


def main() -> None:
    args = arguments(__doc__, pictures="64,256,1024,4096")
    paths = to_time(args, 120, small_files, differences)
    if not paths:
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        files = list(pool.map(lambda p: encoded("png", p), paths))
    streams = [stream_of(f) for f in files]
    raw = [zlib.decompress(s) for s in streams]
    headers = [probe(memoryview(f)) for f in files]
    results: dict[str, Any] = {}
    with Lane() as lane:
        for count in map(int, args.pictures.split(",")):
            row = kernels(lane, streams, raw, [(h.height, h.width) for h in headers], count)
            results[str(count)] = row
            told = "  ".join(f"{name} {1e3 * s:.2f} ms" for name, s in row["seconds"].items())
            print(f"{count:5} streams  {told}  {row['pictures_per_second']:,.0f}/s  wrong {row['wrong']}", flush=True)
            if args.json:
                args.json.write_text(json.dumps(results, indent=1))
        lane.close()
    batch, sizes = batch_of(files), np.array([(h.height, h.width) for h in headers])
    assert packed_of(batch, sizes)[1].all()
    results["looked_through_per_second"] = by_host(lambda: packed_of(batch, sizes), len(files))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
