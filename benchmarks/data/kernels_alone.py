"""Shared by programs that run the kernels of a decoder alone, and compare them with the decoder of the CPU."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from dali_run.ops.batch import I32, I64, Batch, Samples
from dali_run.ops.codecs import native_loops
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.gpu_streams import streams
from dali_run.ops.codecs.gpu_streams.planes import Packed, Where, restore, unpacking

Differences = Callable[[Any, list[bytes], int], tuple[int, Sequence[int]]]
"""Of a lane, files, and how many make a batch: how many are accepted, and which are otherwise than on the CPU."""


def arguments(
    doc: str | None, codings: Iterable[str] = (), coding: str = "", pictures: str = "64,256,1024"
) -> argparse.Namespace:
    """The arguments of a program that saves pictures, in one of ``codings`` where there are several, and decodes so
    many at once."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", default=pictures)
    if coding:
        parser.add_argument("--coding", choices=codings, default=coding)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--mutate", type=int, default=0)
    parser.add_argument("--apart", action="store_true")
    return parser.parse_args()


def to_time(
    args: argparse.Namespace, most: int, small_files: Callable[[list[Path], int], list[bytes]], differences: Differences
) -> list[Path]:
    """The pictures to time kernels with, ``most`` at most, none where no kernel is to be timed. Before that, with
    ``--mutate``, so many ``small_files`` are compared."""
    paths = sorted(p for p in args.folder.iterdir() if p.is_file())[:most]
    if args.apart:
        allocate_apart()
    if args.mutate:
        compare(small_files(paths, args.mutate), differences, 1 if args.apart else 256)
    return paths if args.pictures else []


def picture(path: Path) -> Image.Image:
    """The picture of a file as RGB, of 0.2 megapixels."""
    with Image.open(path) as opened:
        scale = (PIXELS / (opened.width * opened.height)) ** 0.5
        size = max(1, round(opened.width * scale)), max(1, round(opened.height * scale))
        return opened.convert("RGB").resize(size)


PIXELS = 200_000
"""Pixels of every picture."""


def by_count(files: list[bytes], pictures: str, kernels: Any, refused: str) -> dict[str, Any]:
    """Results of ``kernels`` for each number of ``pictures`` at once, which are printed, too; ``refused``: the word for
    those that are not decoded."""
    from dali_run.ops.gpu.lane import Lane

    results: dict[str, Any] = {}
    with Lane() as lane:
        for count in map(int, pictures.split(",")):
            row = results[str(count)] = kernels(lane, files, count)
            told = "  ".join(f"{name} {1e3 * s:.2f} ms" for name, s in row["seconds"].items())
            rate = f"{row['pictures_per_second']:,.0f}/s"
            print(f"{count:5} pictures  {told}  {rate}  {refused} {row['refused']}", flush=True)
        lane.close()
    return results


def by_host(work: Callable[[], object], count: int) -> float:
    """How many pictures a second one thread makes ready, ``count`` by each call of ``work``."""
    done, began = 0, time.perf_counter()
    while time.perf_counter() < began + 0.5:
        work()
        done += count
    rate = done / (time.perf_counter() - began)
    print(f"host, one thread: {rate:,.0f} pictures/s", flush=True)
    return rate


def allocate_apart() -> None:
    """Every buffer an allocation of its own: memcheck does not see what runs over from one part of CuPy's pool, which
    rounds sizes up, too, into the next."""
    import cupy

    cupy.cuda.set_allocator(None)


def batch_of(files: list[bytes]) -> Batch:
    """The files as a batch."""
    return Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))


def shapes_of(files: list[bytes]) -> I32:
    """[N, 3] of the pictures in files, with the channels that are stored."""
    return np.array([(h.height, h.width, h.channels) for h in (probe(memoryview(f)) for f in files)], np.int32)


def whole(out: Batch) -> Where:
    """Of pictures that are made whole, as RGB."""
    return Where(out.offsets, out.shapes, None, False)


def pixels_by_gpu(lane: Any, batch: Batch, shapes: I32, packed: Packed) -> list[Any]:
    """The pixels that the kernels make of what is ``packed`` in a batch of files, 8 bits of each channel that is
    stored; None for the others, and those that the kernels refuse."""
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
    """The same of a file by the ``decoder`` of the CPU."""
    (height, width, channels), one = shapes_of([data])[0].tolist(), np.zeros(1, np.int64)
    pixels, window = np.empty((height, width, channels), np.uint8), np.array([[0, 0, height, width]], np.int64)
    wanted = window, one + channels, False, pixels.reshape(-1), one, one + width * channels
    status = native_loops.decode_into(decoder._decoder.decode_images, batch_of([data]), one, *wanted)
    return None if status[0] else pixels


def compare(files: list[bytes], differences: Differences, each: int) -> None:
    """Tell how many of the small ``files`` are accepted. Ends with 1 where one is otherwise than on the CPU."""
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:
        accepted, wrong = differences(lane, files, each)
        lane.close()
    print(f"{len(files)} small files: {accepted} accepted, otherwise than on the CPU: {list(wrong)}", flush=True)
    if wrong:
        sys.exit(1)
