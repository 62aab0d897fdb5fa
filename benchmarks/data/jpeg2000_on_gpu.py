"""Compare the JPEG 2000 kernels with OpenJPEG on small files, most of them corrupt.

    python benchmarks/data/jpeg2000_on_gpu.py FOLDER [--mutate 1000] [--apart]

Images of FOLDER become JPEG 2000 files of all kinds. Each file that the kernels accept must have OpenJPEG's pixels.
"""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.compare_kernels import batch_of, main
from dali_run.ops.batch import Batch
from dali_run.ops.codecs import pillow
from dali_run.ops.codecs.format import Header
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.headers import row_of
from dali_run.ops.codecs.jpeg2000 import on_gpu
from dali_run.ops.errors import SampleError

SMALL: tuple[dict[str, Any], ...] = (
    {}, {"irreversible": True}, {"quality_mode": "dB", "quality_layers": [42]}, {"no_jp2": True}, {"mct": 1},
    {"irreversible": True, "mct": 1, "quality_layers": [20, 10, 5]}, {"num_resolutions": 1, "codeblock_size": (4, 256)},
    {"tile_size": (32, 40), "tile_offset": (5, 3), "offset": (7, 9), "plt": True},
    *(
        {"progression": order, "precinct_size": (32, 32), "codeblock_size": (16, 16), "quality_layers": [40, 20, 10],
         "num_resolutions": 4, "mct": 1}
        for order in ("LRCP", "RLCP", "RPCL", "PCRL", "CPRL")
    ),
)  # fmt: skip
"""Options with which Pillow saves the small files, one entry per way."""


def encoded(image: Image.Image, how: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG2000", **how)
    return out.getvalue()


def small_files(paths: list[Path], count: int) -> list[bytes]:
    """Return small JPEG 2000 files of up to 70 x 70 pixels, saved in all ways of `SMALL`. A tenth are valid; in the
    others bytes are changed, mostly in parts that the CPU reads. The decoder accepts the headers of all of them."""
    draw, sound, found = random.Random(7), list[bytes](), list[bytes]()
    for k, how in enumerate(SMALL * 4):
        with Image.open(paths[k % len(paths)]) as opened:
            image = opened.convert("L" if k % 3 == 2 else "RGB").resize((draw.randint(32, 70), draw.randint(32, 70)))
        sound.append(encoded(image, {n: v for n, v in how.items() if n != "mct" or image.mode == "RGB"}))
    while len(found) < count:
        data = bytearray(draw.choice(sound))
        body = data.find(b"\xff\x93")
        for _ in range(draw.choice([0, 1, 1, 1, 1, 1, 1, 2, 2, 4])):
            at = draw.choice([draw.randrange(body), body + int(draw.random() ** 3 * (len(data) - body))])
            how_far = draw.choice([1 << draw.randrange(8), draw.randrange(1, 256)])
            data[at] = draw.choice([data[at] ^ how_far, draw.randrange(9)])
        if draw.random() < 0.05:
            del data[draw.randrange(body, len(data)) :]
        if header_of(bytes(data)) is not None:
            found.append(bytes(data))
    return found


def header_of(data: bytes) -> Header | None:
    """Return the header of a file that the decoder accepts and that has up to 2^16 pixels; None for other files."""
    try:
        header = probe(memoryview(data))
    except SampleError:
        return None
    small = header.width * header.height <= 1 << 16
    return header if small and on_gpu.takes(np.array([row_of(header)]))[0] else None


def by_gpu(lane: Any, files: list[bytes]) -> list[Any]:
    """Return the pixels that the kernels decode from JPEG 2000 files; None for files that they reject."""
    batch, headers = batch_of(files), [probe(memoryview(f)) for f in files]
    heights, widths, _ = shapes = np.array([(h.height, h.width, h.channels) for h in headers], np.int32).T
    coded, taken = on_gpu.read(batch, np.arange(len(files)), heights.astype(np.int64), widths.astype(np.int64))
    out = Batch.allocate(lane.empty, shapes.T, np.uint8, "HWC", batch.samples)
    on_gpu.decode(lane, lane.to_device(batch), [coded], out, None, False)
    pixels = lane.to_host(out)
    lane.synchronize()
    return [pixels.sample(i) if taken[i] else None for i in range(len(files))]


def by_cpu(data: bytes) -> Any:
    """Return the pixels that OpenJPEG decodes from a file; None for a file that it rejects."""
    try:
        return pillow.decode(memoryview(data), probe(memoryview(data)), True, 1 << 20)
    except SampleError:
        return None


if __name__ == "__main__":
    main(__doc__, small_files, by_gpu, by_cpu, images=60)
