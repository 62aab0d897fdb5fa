"""Compare the PNG kernels with the CPU decoder on small files, most of them corrupt.

    python benchmarks/data/png_on_gpu.py FOLDER [--mutate 1000] [--apart]

Images of FOLDER become PNGs of all kinds, most of them with valid checksums. Each file that the kernels accept must
have the CPU decoder's pixels.
"""

from __future__ import annotations

import contextlib
import random
import struct
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.compare_kernels import batch_of, main, pixels_by_cpu, pixels_by_gpu, shapes_of
from dali_run.ops.batch import I64, Batch
from dali_run.ops.codecs.gpu_streams.planes import Packed
from dali_run.ops.codecs.png import decoder, on_gpu
from dali_run.ops.gpu.lane import Lane


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


KINDS = [(bits, kind) for kind, depths in ((0, (1, 2, 4, 8, 16)), (2, (8, 16)), (3, (1, 2, 4, 8)), (4, (8, 16)),
                                           (6, (8, 16))) for bits in depths]  # fmt: skip
"""Bit depths and colour types of PNGs (clause 11.2.1)."""
PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""Passes of interlaced PNGs: first row, first column, row step, column step."""


def small_files(paths: list[Path], count: int) -> list[bytes]:
    """Return small PNGs of up to 90 x 70 pixels, of all kinds, interlaced or not, compressed in all ways. A fifth are
    valid. Others have changed bytes in their streams (some with a correct checksum), a filter that does not exist, or a
    changed bit anywhere. Some palettes have too few colours."""
    draw, found = random.Random(11), list[bytes]()
    for k in range(count):
        bits, kind = KINDS[k % len(KINDS)]
        mode = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}[kind]
        fault = k % 5  # 0: no fault
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
    """Return the streams of PNGs (of these heights and widths) that the kernels can unpack, and which PNGs have such
    streams."""
    found = on_gpu.Streams(batch, np.arange(len(batch)), *sizes.T, False)
    found.look(0, len(batch))
    return found.found()


def by_gpu(lane: Lane, files: list[bytes]) -> list[Any]:
    """Return the pixels that the GPU kernels decode from PNGs, 8 bits per stored channel; None for files that they
    reject."""
    batch, shapes = batch_of(files), shapes_of(files)
    return pixels_by_gpu(lane, batch, shapes, packed_of(batch, shapes[:, :2].astype(np.int64))[0])


if __name__ == "__main__":
    main(__doc__, small_files, by_gpu, partial(pixels_by_cpu, decoder))
