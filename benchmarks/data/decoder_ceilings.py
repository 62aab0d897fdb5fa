"""Rates of the decoders of the CPU alone, by number of threads: what all cores of a machine can decode at most.

    python benchmarks/data/decoder_ceilings.py FOLDER OF PICTURES [--threads 1,8,16] [--seconds 1.2] [--json out.json]

48 pictures of FOLDER, of 0.2 megapixels, as WebP (quality 85) and PNG, again and again: WebP by libwebp in the process,
and in processes of its own (`isolation`), eight images or one a request; PNG whole, and up to its filtered rows, which
is what is left to the CPU on the way to a GPU. Images a second, and milliseconds of all processes an image.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.jobs.steady import processor_seconds
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.isolation.processes import Isolation
from dali_run.ops.codecs.png import decoder as png
from dali_run.ops.codecs.png import on_gpu
from dali_run.ops.codecs.webp import decoder as webp
from dali_run.pipelines.bench.web_mix import encoded

PICTURES, REQUEST = 48, 8


def rate(threads: int, seconds: float, images: int, work: Callable[[int], object]) -> dict[str, float]:
    """``work(k)``, which decodes so many ``images``, by ``threads`` threads for ``seconds``."""
    work(0)
    end = time.perf_counter() + seconds

    def repeat(k: int) -> int:
        done = 0
        while time.perf_counter() < end:
            work(k + done)
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        began, spent = time.perf_counter(), processor_seconds()
        done = sum(pool.map(repeat, range(threads))) * images
        took, spent = time.perf_counter() - began, processor_seconds() - spent
    return {"images_per_second": done / took, "cpu_ms_per_image": 1e3 * spent / done}


def works(pictures: list[Path], isolation: Isolation) -> dict[str, tuple[int, Callable[[int], object]]]:
    """The measured things, by name, and the images that a call decodes."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        webps, pngs = (
            [memoryview(data) for data in pool.map(lambda p, kind=kind: encoded(kind, p), pictures)]
            for kind in ("webp", "png")
        )
    asked = [(data, probe(data)) for data in webps]
    headers = [probe(data) for data in pngs]
    room = [np.array([h.height * (1 + h.width * h.channels)]) for h in headers]
    one = [Batch.from_list([np.frombuffer(data, np.uint8)], "", Samples.numbered(1)) for data in pngs]
    first = np.zeros(1, np.int64)

    def use(_: int, pixels: Any) -> int:
        return int(pixels[0, 0, 0])

    def rows(k: int) -> None:
        i = k % len(pngs)
        assert not on_gpu.inflate(one[i], first, np.empty(int(room[i][0]), np.uint8), first, room[i]).any()

    def several(k: int) -> None:
        isolation.lend_several([asked[(k + j) % len(asked)] for j in range(REQUEST)], True, 10**9, use)

    return {
        "webp, in the process": (1, lambda k: webp.decode(*asked[k % len(asked)])),
        "webp, isolated, eight a request": (REQUEST, several),
        "webp, isolated, one a request": (1, lambda k: isolation.lend(*asked[k % len(asked)], True, 10**9, len)),
        "png": (1, lambda k: png.stored(pngs[k % len(pngs)], headers[k % len(pngs)])),
        "png, filtered rows": (1, rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", default=",".join(str(n) for n in sorted({1, max(1, cores // 2), cores})))
    parser.add_argument("--seconds", type=float, default=1.2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    pictures = sorted(p for p in args.folder.iterdir() if p.is_file())[:PICTURES]
    found: dict[str, dict[str, float]] = {}
    with Isolation() as isolation:
        for name, (images, work) in works(pictures, isolation).items():
            for threads in map(int, args.threads.split(",")):
                key = f"{name}, {threads} threads"
                found[key] = rate(threads, args.seconds, images, work)
                line = f"{found[key]['images_per_second']:10,.0f} images/s {found[key]['cpu_ms_per_image']:7.2f} ms"
                print(f"{key:48}{line}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"cores": cores, "load": os.getloadavg(), "rates": found}, indent=1))


if __name__ == "__main__":
    main()
