"""Compare the GPU kernels of a decoder with its CPU decoder on small files, most of them corrupt.

The programs next to this module call `main`; sanitize.py runs them under compute-sanitizer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dali_run.ops.batch import I32, I64, Batch, Samples
from dali_run.ops.codecs import native_loops
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.gpu_streams import streams
from dali_run.ops.codecs.gpu_streams.planes import Packed, Where, restore, unpacking


def main(
    doc: str | None, small_files: Callable[[list[Path], int], list[bytes]],
    by_gpu: Callable[[Any, list[bytes]], list[Any]], by_cpu: Callable[[bytes], Any], *,
    same_files: bool = False, images: int = 120,
) -> None:  # fmt: skip
    """Make small files from up to ``images`` images of a folder, and compare what GPU and CPU decode from them.
    ``by_gpu`` (a function of a lane and files) and ``by_cpu`` return pixels, or None for a file that they reject. Exit
    with status 1 if a file that the kernels accept differs or, with ``same_files``, if they reject one that the CPU
    decodes. ``doc``: help text of the program."""
    from dali_run.ops.gpu.lane import Lane

    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="images that the small files are made from")
    parser.add_argument("--mutate", type=int, default=1000, metavar="N", help="number of small files")
    parser.add_argument("--apart", action="store_true", help="one batch per file and one allocation per buffer")
    args = parser.parse_args()
    if args.apart:
        allocate_apart()
    paths = sorted(p for p in args.folder.iterdir() if p.is_file())[:images]
    files = small_files(paths, args.mutate)
    with Lane() as lane:
        accepted, wrong = differences(lane, files, 1 if args.apart else 256, by_gpu, by_cpu, same_files)
        lane.close()
    print(f"{len(files)} small files: {accepted} accepted, different from the CPU: {wrong}", flush=True)
    if wrong:
        sys.exit(1)


def differences(
    lane: Any, files: list[bytes], each: int, by_gpu: Callable[[Any, list[bytes]], list[Any]],
    by_cpu: Callable[[bytes], Any], same_files: bool = False,
) -> tuple[int, list[int]]:  # fmt: skip
    """Return the number of ``files`` that the kernels accept, in batches of ``each``, and the indices of the files for
    which they differ from the CPU."""
    accepted, wrong = 0, list[int]()
    for begin in range(0, len(files), each):
        for i, pixels in enumerate(by_gpu(lane, files[begin : begin + each]), begin):
            accepted += pixels is not None
            expected = by_cpu(files[i]) if same_files or pixels is not None else None
            if (pixels is None) != (expected is None) or not (pixels is None or np.array_equal(pixels, expected)):
                wrong.append(i)
    return accepted, wrong


def allocate_apart() -> None:
    """Give every buffer of CuPy an allocation of its own. Otherwise memcheck would not see overruns from one part of
    CuPy's pool into the next, and the pool rounds sizes up."""
    import cupy

    cupy.cuda.set_allocator(None)


def batch_of(files: list[bytes]) -> Batch:
    """Return the files as one batch of bytes."""
    return Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))


def shapes_of(files: list[bytes]) -> I32:
    """Return the shapes of the files' images, with the stored channels, [N, 3]."""
    return np.array([(h.height, h.width, h.channels) for h in (probe(memoryview(f)) for f in files)], np.int32)


def whole(out: Batch) -> Where:
    """Return the place in ``out`` for images that are decoded whole, as RGB."""
    return Where(out.offsets, out.shapes, None, False)


def pixels_by_gpu(lane: Any, batch: Batch, shapes: I32, packed: Packed) -> list[Any]:
    """Return the pixels that the GPU kernels decode from the ``packed`` streams of a batch of files, 8 bits per stored
    channel; None for other files, and for files that the kernels reject."""
    found: list[Any] = [None] * len(batch)
    if not len(packed.owner):
        return found
    out = Batch.allocate(lane.empty, shapes, np.uint8, "HWC", batch.samples)
    rows, bad = streams.unpack(lane, lane.to_device(batch), unpacking(packed, whole(out)))
    checks: list[Callable[[], I64]] = []
    ctx: Any = SimpleNamespace(decoded_by=lambda *_: None, check_later=checks.append)
    restore(ctx, lane, packed, rows, out, "", bad)
    pixels = lane.to_host(out)
    lane.synchronize()
    for i in np.setdiff1d(packed.owner, checks[0]()).tolist():
        found[i] = pixels.sample(i).copy()
    return found


def pixels_by_cpu(decoder: Any, data: bytes) -> Any:
    """Return the pixels of a file as the CPU ``decoder`` decodes it, 8 bits per stored channel; None if it rejects the
    file."""
    (height, width, channels), one = shapes_of([data])[0].tolist(), np.zeros(1, np.int64)
    pixels, window = np.empty((height, width, channels), np.uint8), np.array([[0, 0, height, width]], np.int64)
    wanted = window, one + channels, False, pixels.reshape(-1), one, one + width * channels
    status = native_loops.decode_into(decoder._decoder.decode_images, batch_of([data]), one, *wanted)
    return None if status[0] else pixels
