"""Kernels that make pixels of TIFFs on a GPU, by the number of pictures, and the host's part of the work.

    python benchmarks/data/tiff_on_gpu.py FOLDER OF PICTURES [--pictures 64,256,1024] [--coding tiff_lzw] [--json JSON]
    python benchmarks/data/tiff_on_gpu.py FOLDER OF PICTURES --pictures "" --mutate 1000 [--apart]

Up to 120 pictures of FOLDER, of 0.2 megapixels, as TIFF, copied to as many as are wanted. Seconds from the files on the
GPU to rows (pieces put together, and unpacked) and from these to pixels (the best of five turns), pictures a second of
both, and how many were refused. The host's part, by one thread: files whose directories are read, a second.

``--mutate``: so many small files, most of them with faults. The kernels must make of each what the decoder of the CPU
makes of it; ends with 1 where they do not. ``--apart``: each file is a batch of its own, and each buffer an allocation
of its own, for compute-sanitizer (benchmarks/data/sanitize.py).
"""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data.kernels_alone import (
    arguments,
    batch_of,
    by_count,
    by_host,
    picture,
    pixels_by_cpu,
    pixels_by_gpu,
    shapes_of,
    to_time,
    whole,
)
from dali_run.ops.batch import I64, Batch
from dali_run.ops.codecs.format import Header
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.gpu_streams import streams
from dali_run.ops.codecs.gpu_streams.planes import restore, unpacking
from dali_run.ops.codecs.tiff import decoder, on_gpu
from dali_run.ops.errors import SampleError
from dali_run.ops.gpu.lane import Lane

CODINGS = ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate")
ROWS, PREDICTOR = 278, 317
"""Tags of strips' rows, and of the predictor."""


def encoded(image: Image.Image, coding: str, tags: dict[int, int]) -> bytes:
    out = io.BytesIO()
    image.save(out, "TIFF", compression=coding, tiffinfo=tags)
    return out.getvalue()


def small_files(paths: list[Path], count: int) -> list[bytes]:
    """TIFFs of up to 90 x 70 pixels of all codings, in strips, with a predictor or without, of 8 and 16 bits: a fifth
    as they should be, others with bytes changed, some of them cut. All are of the kinds that the decoder takes."""
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
    """The header of a file of a kind that the decoder takes, up to a megapixel; None for others."""
    try:
        header = probe(memoryview(data))
    except SampleError:
        return None
    small = header.width * header.height <= 1 << 20
    return header if small and decoder.are_plain(batch_of([data]), np.zeros(1, np.int64))[0] else None


def by_gpu(lane: Lane, files: list[bytes]) -> list[Any]:
    """The pixels that the kernels make of TIFFs, 8 bits of each channel that is stored; None for those they refuse."""
    batch = batch_of(files)
    return pixels_by_gpu(lane, batch, shapes_of(files), on_gpu.strips(batch, np.arange(len(files)))[0])


def differences(lane: Lane, files: list[bytes], each: int) -> tuple[int, list[int]]:
    """How many of ``files`` the kernels accept, in batches of ``each``, and those of which the decoder of the CPU makes
    something else."""
    accepted, wrong = 0, []
    for begin in range(0, len(files), each):
        for i, pixels in enumerate(by_gpu(lane, files[begin : begin + each]), begin):
            expected = pixels_by_cpu(decoder, files[i])
            accepted += pixels is not None
            if not np.array_equal(pixels, expected) if pixels is not None else expected is not None:
                wrong.append(i)
    return accepted, wrong


def kernels(lane: Lane, files: list[bytes], count: int) -> dict[str, Any]:
    """Seconds of the work on ``count`` pictures that are on the GPU."""
    some = [files[k % len(files)] for k in range(count)]
    batch = batch_of(some)
    there, out = lane.to_device(batch), Batch.allocate(lane.empty, shapes_of(some), np.uint8, "HWC", batch.samples)
    packed, taken = on_gpu.strips(batch, np.arange(count))
    planned = unpacking(packed, whole(out))
    times: dict[str, list[float]] = {"rows": [], "pixels": []}
    wrong = 0
    for _ in range(6):
        checks: list[Callable[[], I64]] = []
        ctx: Any = SimpleNamespace(decoded_by=lambda *_: None, check_later=checks.append)
        marks = [lane.mark()]
        rows, bad = streams.unpack(lane, there, planned)
        marks.append(lane.mark())
        restore(ctx, lane, packed, rows, out, "", bad)
        marks.append(lane.mark())
        lane.synchronize()
        for name, begin, end in zip(times, marks[:-1], marks[1:], strict=True):
            times[name].append(lane.seconds_since(begin, end))
        wrong = count - int(np.count_nonzero(taken)) + len(checks[0]())
    best = {name: min(found[1:]) for name, found in times.items()}
    return {"seconds": best, "pictures_per_second": count / sum(best.values()), "refused": wrong}


def main() -> None:
    args = arguments(__doc__, CODINGS, "tiff_lzw")
    paths = to_time(args, 120, small_files, differences)
    if not paths:
        return
    files = [encoded(picture(path), args.coding, {}) for path in paths]
    results = by_count(files, args.pictures, kernels, "refused")
    batch, which = batch_of(files), np.arange(len(files))
    results["read_per_second"] = by_host(lambda: on_gpu.strips(batch, which), len(files))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
