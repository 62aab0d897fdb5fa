"""Compare the TIFF kernels with the CPU decoder on small files, most of them corrupt.

    python benchmarks/data/tiff_on_gpu.py FOLDER [--mutate 1000] [--apart]

Images of FOLDER become TIFFs of all kinds. The kernels must decode exactly those that the CPU decodes, to equal pixels.
"""

from __future__ import annotations

import io
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.compare_kernels import batch_of, main, pixels_by_cpu, pixels_by_gpu, shapes_of
from dali_run.ops.codecs.format import Header
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.tiff import decoder, on_gpu
from dali_run.ops.errors import SampleError
from dali_run.ops.gpu.lane import Lane

CODINGS = ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate")
ROWS, PREDICTOR = 278, 317
"""Tags for the rows per strip, and for the predictor."""


def encoded(image: Image.Image, coding: str, tags: dict[int, int]) -> bytes:
    out = io.BytesIO()
    image.save(out, "TIFF", compression=coding, tiffinfo=tags)
    return out.getvalue()


def small_files(paths: list[Path], count: int) -> list[bytes]:
    """Return TIFFs of up to 90 x 70 pixels of all codings, in strips, with and without a predictor, of 8 and 16 bits. A
    fifth are valid; others have changed bytes or are truncated. The decoder supports the kinds of all of them."""
    draw, found, k = random.Random(7), list[bytes](), 0
    while len(found) < count:
        k += 1
        coding, mode = CODINGS[k % 4], ("RGB", "L", "RGBA", "I;16")[k // 4 % 4]
        with Image.open(paths[k % len(paths)]) as opened:
            image = opened.convert("RGB").resize((draw.randint(1, 90), draw.randint(1, 70)))
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
        else:
            image = image.convert(mode)
        tags = {ROWS: draw.choice([1, 7, 70])} if coding != "raw" else {}
        if coding in ("tiff_lzw", "tiff_adobe_deflate") and mode != "I;16":
            tags[PREDICTOR] = draw.choice([1, 2])
        data = bytearray(encoded(image, coding, tags))
        if k % 5:
            for _ in range(draw.choice([1, 1, 2, 8])):
                at = draw.randrange(8, len(data))
                data[at] = draw.choice([0, 255, draw.randrange(256), data[at] ^ 1 << draw.randrange(8)])
        if k % 15 == 4:
            del data[draw.randrange(8, len(data)) :]
        if header_of(bytes(data)) is not None:
            found.append(bytes(data))
    return found


def header_of(data: bytes) -> Header | None:
    """Return the header of a file that the decoder supports and that has up to a megapixel; None for other files."""
    try:
        header = probe(memoryview(data))
    except SampleError:
        return None
    small = header.width * header.height <= 1 << 20
    return header if small and decoder.are_plain(batch_of([data]), np.zeros(1, np.int64))[0] else None


def by_gpu(lane: Lane, files: list[bytes]) -> list[Any]:
    """Return the pixels that the GPU kernels decode from TIFFs, 8 bits per stored channel; None for files that they
    reject."""
    batch = batch_of(files)
    return pixels_by_gpu(lane, batch, shapes_of(files), on_gpu.strips(batch, np.arange(len(files)))[0])


if __name__ == "__main__":
    main(__doc__, small_files, by_gpu, partial(pixels_by_cpu, decoder), same_files=True)
