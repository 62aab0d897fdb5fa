"""Scaling over the cores of a machine without a GPU: dali-run, DALI and Pillow with 1, 2, 4, 8 and 16 threads.

    python benchmarks/jobs/cores.py [--threads 1,2,4,8,16] [--jobs val,run-jpeg] [--gigabytes 1] [--json out.json]

Jobs: the validation and training preprocessing of ImageNet, `dali-run run` from JPEG, PNG and WebP files to images of
the same format, WAV to log-mel features, `dali-run convert` from TFRecord to tar, and thumbnails. Jobs of the Python
API also run in DALI, if it is installed; jobs from images to images also in Pillow, with as many processes as threads.
"cores" is processor time per second of the measurement (of the command, including its start), "efficiency" is the rate
per thread, relative to one thread. `convert` and Pillow are bound to as many cores as threads. All are measured in
turns, `--repeats` times; the best counts.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gate import audio, images, run_job, thumbnails
from benchmarks.measuring import MEAN, STD, Side, answer, busy, dali_is_installed, measure, versions
from benchmarks.natural import ROOT, DataSets, add_data_arguments, dali_run, data_sets, save


def convert(d: Side) -> dict[str, Any]:
    """Measure `dali-run convert` from TFRecord to tar, without decoding records, on as many cores as threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: d.threads])
    start_busy, began = busy(), time.perf_counter()
    dali_run(d.package)("convert", f"{d.data}/images.tfrecord", d.scratch / "out", "--to", "webdataset", "--quiet",
                        "--samples", 10000)  # fmt: skip
    wall, used = time.perf_counter() - began, busy() - start_busy
    report = json.loads((d.scratch / "out" / "report.json").read_text())
    shutil.rmtree(d.scratch / "out")
    read = report["samples"]["read"]
    return {"rate": read / report["seconds"], "cpu_ms": 1e3 * used / read, "wall_s": wall, "samples": read}


def by_pillow(path: str, job: str) -> None:
    """Process one image as ``job`` does, with Pillow and NumPy; the result is dropped."""
    image = Image.open(path).convert("RGB")
    if job == "thumbnails":
        np.asarray(ImageOps.mirror(image))
        return
    scale = 256 / min(image.size)
    if job == "train":
        side = max(1, min(image.size) * 2 // 3)
        image = image.crop((0, 0, side, side)).resize((224, 224), Image.Resampling.BILINEAR)
        scale = 0
    else:
        size = (round(image.width * scale), round(image.height * scale))
        image = image.resize(size, Image.Resampling.BILINEAR)
    if job in ("val", "train"):
        image = ImageOps.fit(image, (224, 224)) if scale else ImageOps.mirror(image)
        pixels = (np.asarray(image, np.float32) - np.float32(MEAN)) / np.float32(STD)
        np.ascontiguousarray(pixels.transpose(2, 0, 1))
        return
    kind = job.removeprefix("run-")
    image.save(io.BytesIO(), kind.upper(), **({"quality": 90} if kind == "jpeg" else {}))


def pillow(d: Side, job: str) -> dict[str, Any]:
    """Measure ``job`` in Pillow, with as many processes as threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: d.threads])
    files = sorted(str(p) for p in Path(d.data).rglob("*.*") if p.is_file())
    with get_context("fork").Pool(d.threads) as pool:
        pool.map(partial(by_pillow, job=job), files[: 4 * d.threads], 1)
        start_busy, began, done = busy(), time.perf_counter(), 0
        while time.perf_counter() - began < d.seconds:
            some = [files[(done + k) % len(files)] for k in range(32 * d.threads)]
            pool.map(partial(by_pillow, job=job), some, 8)
            done += len(some)
        wall, used = time.perf_counter() - began, busy() - start_busy
    return {"rate": done / wall, "cpu_ms": 1e3 * used / done}


JOBS: dict[str, tuple[Callable[[Side], dict[str, Any]], str, bool, bool]] = {
    "val": (images, "val", True, True),
    "train": (partial(images, program="train"), "val", True, True),
    "run-jpeg": (run_job, "val", False, True),
    "run-png": (partial(run_job, encode="png"), "png", False, True),
    "run-webp": (partial(run_job, encode="webp"), "webp", False, True),
    "log-mel": (audio, "wav", True, False),
    "convert": (convert, "val.tfrecord", False, False),
    "thumbnails": (thumbnails, "thumbnails.tfrecord", True, True),
}
"""Job -> the program, its data set, whether DALI runs it, and whether Pillow does."""
ROWS = {job: row[0] for job, row in JOBS.items()} | {f"pillow-{job}": partial(pillow, job=job) for job in JOBS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", default=",".join(str(n) for n in (1, 2, 4, 8, 16) if n <= cores))
    parser.add_argument("--jobs", default=",".join(JOBS), help=f"of {', '.join(JOBS)}")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--no-peers", action="store_true", help="measure dali-run only")
    add_data_arguments(parser, 1)
    args = parser.parse_args()
    if args.child:
        answer(args.child, ROWS)
    counts = [int(n) for n in args.threads.split(",")]
    result: dict[str, Any] = {"cores": cores, "versions": versions(ROOT), "load": os.getloadavg(),
                              "gigabytes": args.gigabytes, "jobs": {}}  # fmt: skip
    with data_sets(args) as (scratch, data):
        for job in args.jobs.split(","):
            _, name, has_dali, has_pillow = JOBS[job]
            sides = ["dali-run"]
            sides += ["DALI"] if has_dali and not args.no_peers and dali_is_installed() else []
            sides += ["Pillow"] if has_pillow and not args.no_peers else []
            best: dict[str, dict[int, dict[str, Any]]] = {side: {} for side in sides}
            result["jobs"][job] = best
            for _ in range(args.repeats):
                for threads in counts:
                    for side in sides:
                        found = _measured(args, scratch, data, job, name, side, threads)
                        if found.get("rate", 0) >= best[side].get(threads, {}).get("rate", 0):
                            best[side][threads] = found
            for side in sides:
                one = best[side][counts[0]].get("rate", 0) / counts[0]
                for threads, found in best[side].items():
                    if "rate" not in found:
                        print(f"{job:11} {side:9} {threads:3} threads  {found}", flush=True)
                        continue
                    seconds = found.get("wall_s", found.get("samples", 1) / found["rate"])
                    found["cores"] = found["cpu_ms"] * found.get("samples", 1) / 1e3 / seconds
                    found["efficiency"] = found["rate"] / threads / one if one else 0
                    line = (
                        f"{job:11} {side:9} {threads:3} threads {found['rate']:10,.0f}/s  {found['cpu_ms']:7.3f} ms of"
                    )
                    line += f" processors  {found['cores']:5.1f} cores  efficiency {found['efficiency']:.2f}"
                    print(line, flush=True)
            save(args.json, result)


def _measured(
    args: argparse.Namespace, scratch: Path, data: DataSets, job: str, name: str, side: str, threads: int
) -> dict[str, Any]:
    source = name.removesuffix(".tfrecord") if side == "Pillow" else name
    with tempfile.TemporaryDirectory(dir=scratch) as work:
        return measure(__file__, f"pillow-{job}" if side == "Pillow" else job, device="cpu", package=str(ROOT),
                       library="nvidia.dali" if side == "DALI" else "dali_run", data=str(data.path(source)),
                       threads=threads, seconds=args.seconds, scratch=work)  # fmt: skip


if __name__ == "__main__":
    main()
