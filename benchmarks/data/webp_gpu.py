"""Compare the WebP kernels with libwebp on small files, most of them corrupt.

    python benchmarks/data/webp_gpu.py FOLDER [--mutate 1000] [--apart]

Images of FOLDER become lossy WebPs (quality 85) of 4,000 pixels, and copies of them with changed bytes. Each file that
the kernels accept must have libwebp's pixels.
"""

from __future__ import annotations

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.compare_kernels import main
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.webp import decoder as webp
from dali_run.ops.codecs.webp import on_gpu
from dali_run.ops.gpu.lane import Lane
from dali_run.pipelines.bench.web_mix import encoded


def small_files(paths: list[Path], count: int) -> list[bytes]:
    """Return valid WebPs of the images, and ``count`` copies of them with changed bytes."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        valid = list(pool.map(lambda path: encoded("webp", path, 0, 4000), paths))
    draw, corrupt = random.Random(5), []
    for k in range(count):
        data = bytearray(valid[k % len(valid)])
        for _ in range(draw.choice([1, 2, 5, 20])):
            at = 30 + int(draw.random() ** draw.choice([1, 3, 6]) * (len(data) - 30))
            data[at] = draw.choice([0, 255, draw.randrange(256), data[at] ^ 1 << draw.randrange(8)])
        corrupt.append(bytes(data))
    return valid + corrupt


def table(files: list[bytes]) -> np.ndarray:
    """Return one row (`on_gpu.PICTURE`) per file, for decoding whole images of files that are stored one after the
    other."""
    pictures, at, to = np.zeros(len(files), on_gpu.PICTURE), 0, 0
    for k, data in enumerate(files):
        header = probe(memoryview(data))
        h, w = header.height, header.width
        pictures[k] = (at, len(data), 0, to, w, h, 0, 0, h, w, 0, 0)
        at, to = at + len(data), to + 3 * h * w
    return pictures


def by_gpu(lane: Lane, files: list[bytes]) -> list[Any]:
    """Return the pixels that the kernels decode from WebPs; None for files that they reject."""
    pictures = table(files)
    (stored,) = lane.upload(np.frombuffer(b"".join(files), np.uint8))
    starts = pictures["destination"].astype(np.int64)
    ends = starts + 3 * pictures["width"].astype(np.int64) * pictures["height"]
    out = lane.empty(int(ends[-1]), np.uint8)
    marks, pixels = on_gpu.launch(lane, stored, pictures, out)(), lane.download(out)
    lane.synchronize()
    places = zip(marks, starts.tolist(), ends.tolist(), strict=True)
    return [None if mark else pixels[start:end] for mark, start, end in places]


def by_cpu(data: bytes) -> Any:
    """Return the pixels that libwebp decodes from a WebP; None for a file that it rejects."""
    pixels = webp.decode(memoryview(data), probe(memoryview(data)))
    return None if pixels is None else pixels.reshape(-1)


if __name__ == "__main__":
    main(__doc__, small_files, by_gpu, by_cpu, images=24)
