"""JPEGs into shards by `dali-run run`, start to end: rates of whole jobs, by source, writer and number of GPUs.

    python benchmarks/jobs/shards.py FOLDER [--gigabytes 4] [--times 8] [--jobs jpeg,mean] [--sources files,tfrecord]
        [--writers tfrecord,webdataset] [--devices gpu:0 gpu:all apart:2] [--gpus 2] [--variants "KEY=VALUE ..." ...]
        [--json out.json]

``jpeg``: decode, shorter side 256, JPEG of quality 90. ``mean``: decode, shorter side 256, crop 224, normalise, and of
each picture one number is written, so that nothing but reading and the GPUs counts. The data set has --gigabytes of
different files, made of those in FOLDER, and --times as many names for each GPU: each name is read once, as in a real
job, and what is read is never in a processor's cache. It lies in --scratch, in memory by default, and so does the
output, which is emptied a second after each shard is finished: memory that a virtual machine has never used costs it
more than to write there. Every job is a process of its own. ``whole`` is the rate that its report tells, ``middle`` the
one between a fifth and nine tenths of its samples, without the start and the end.

Devices are those of `dali-run run`; ``gpu:0@16`` is held to 16 cores; ``gpu:0/2`` is one GPU and two processes;
``apart:2`` are two jobs at the same time that know nothing of each other, each with a GPU, half of the cores and half
of the data: what one job on both can reach at most (rates are by one clock, ``middle`` while both are in theirs;
``apart:2:cpu`` tries it without GPUs). ``gpu:all`` stands for --gpus GPUs. Every job runs with each of the
--variants, which are settings; where one has the word ``trace``, it is told for which part of the time between a fifth
and nine tenths of the batches each thread and each lane of the GPU worked; the last trace lies beside --json.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data import host_planning
from benchmarks.data.different import data_files

ROOT = Path(__file__).parents[2]
SUFFIX = {"tfrecord": "tfrecord", "tar": "tar", "lmdb": "lmdb", "recordio": "rec"}
DECODE = {"op": "decoders.image", "in": "x", "out": "x"}
STEPS: dict[str, list[dict[str, Any]]] = {
    "jpeg": [{"op": "resize", "in": "x", "resize_shorter": 256, "out": "x"}],
    "mean": [
        {"op": "resize", "in": "x", "resize_shorter": 256, "out": "x"},
        {"op": "crop_mirror_normalize", "in": "x", "mean": host_planning.MEAN, "std": host_planning.STD,
         "crop": [224, 224], "out": "x"},
        {"op": "reductions.mean", "in": "x", "out": "x"},
    ],
}  # fmt: skip


def linked(source: str, root: Path, times: int) -> dict[str, Any]:
    """The reader's step for the data set at ``root``, with ``times`` names for each file."""
    if source == "files":
        for path in [p for p in root.glob("*/*") if times > 1]:
            for k in range(1, times):
                os.link(path, path.with_name(f"{k}-{path.name}"))
        return {"op": "readers.file", "file_root": str(root), "out": ["x", "label"]}
    first = root / f"images.{SUFFIX[source.split()[0]]}"
    names = [first]
    for k in range(1, times):
        other = root / f"images-{k}.{SUFFIX[source.split()[0]]}"
        if first.is_dir():
            other.mkdir()
            os.link(first / "data.mdb", other / "data.mdb")
        else:
            os.link(first, other)
        if source == "recordio":
            os.link(first.with_suffix(".idx"), other.with_suffix(".idx"))
        names.append(other)
    path = [str(n) for n in names]
    out = ["x", "label"]
    if source in ("tfrecord", host_planning.UNCHECKED):
        checked = {"features": {"image": "string", "label": "int64"}, "check_crc": source == "tfrecord"}
        return {"op": "readers.tfrecord", "path": path, **checked, "out": out}
    if source == "tar":
        return {"op": "readers.webdataset", "paths": path, "ext": ["jpg", "cls"], "out": out}
    if source == "lmdb":
        return {"op": "readers.lmdb", "path": path, "out": ["x"]}
    return {"op": "readers.mxnet", "path": path, "index_path": [str(n.with_suffix(".idx")) for n in names], "out": out}


def spec(job: str, reader: dict[str, Any], writer: str, batch: int, shard: int, out: Path) -> dict[str, Any]:
    """The job as a spec."""
    field: dict[str, Any] = {"encode": "jpeg", "quality": 90} if job == "jpeg" else {}
    return {
        "version": 1, "name": "shards", "pipeline": {"batch_size": batch, "seed": 1},
        "graph": [reader, DECODE, *STEPS[job]],
        "outputs": {"x": "x"},
        "write": {"writer": writer, "path": str(out), "shard": {"samples": shard}, "fields": {"x": field}},
    }  # fmt: skip


def middle(over_time: dict[str, Any]) -> float | None:
    """Samples a second between a fifth and nine tenths of all; None where rows are too few."""
    rows = list(zip(over_time["seconds"], over_time["samples"], strict=True))
    total = rows[-1][1] if rows else 0
    inside = [(at, n) for at, n in rows if 0.2 * total <= n <= 0.9 * total]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
        return None
    return float((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]))


def together(jobs: list[dict[str, Any]]) -> float | None:
    """Samples a second of several jobs, while all of them are between a fifth and nine tenths of their samples; None
    where they never are. Each has ``over_time`` and ``began``, the time at which that starts."""
    courses = []
    for job in jobs:
        at = np.array(job["over_time"]["seconds"]) + job["began"]
        samples = np.array(job["over_time"]["samples"], float)
        inside = at[(samples >= 0.2 * samples[-1]) & (samples <= 0.9 * samples[-1])] if len(at) else at
        if len(inside) < 2:
            return None
        courses.append((at, samples, inside[0], inside[-1]))
    low, high = max(c[2] for c in courses), min(c[3] for c in courses)
    if high <= low:
        return None
    return sum(float(np.diff(np.interp([low, high], at, n))[0]) for at, n, _, _ in courses) / float(high - low)


def start(text: dict[str, Any], folder: Path, device: str, more: list[str]) -> subprocess.Popen[str]:
    """One job, in a process of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(text))
    (folder / "told.json").unlink(missing_ok=True)
    where, _, processes = device.partition("/")
    where, _, cores = where.partition("@")
    command = [sys.executable, "-m", "dali_run.cli.main", "run", "spec.json", "--device", where, "--quiet",
               "--report", "told.json", *more, *(["--on", f"processes:{processes}"] if processes else [])]  # fmt: skip
    if cores:
        command = ["taskset", "-c", _cores(*map(int, cores.split("+"))), *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _cores(count: int, first: int = 0) -> str:
    return ",".join(str(c) for c in sorted(os.sched_getaffinity(0))[first : first + count])


@contextlib.contextmanager
def drained(out: Path) -> Iterator[None]:
    """Empty shards some time after they are finished, as if somebody had moved them on."""
    over = threading.Event()

    def drain() -> None:
        while not over.wait(0.2):
            for path in [*out.rglob("*.tfrecord"), *out.rglob("*.tar")]:
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > 1 and path.stat().st_size:
                        os.truncate(path, 0)

    drainer = threading.Thread(target=drain, daemon=True)
    drainer.start()
    try:
        yield
    finally:
        over.set()
        drainer.join()


def told(process: subprocess.Popen[str], folder: Path, began: float) -> dict[str, Any]:
    """How the job went; ``error`` for one that failed."""
    said, _ = process.communicate()
    wall = time.perf_counter() - began
    if process.returncode or not (folder / "told.json").exists():
        return {"error": said.strip()[-2000:], "code": process.returncode}
    report = json.loads((folder / "told.json").read_text())
    kept = ("start_seconds", "uploads", "decoders", "fallbacks", "workers", "memory", "bottleneck", "compiling_seconds",
            "stages", "queues", "over_time")  # fmt: skip
    return {
        "whole": report["samples_per_second"], "middle": middle(report["over_time"]), "wall": wall,
        "samples": report["samples"], "seconds": report["seconds"], **{k: report[k] for k in kept if k in report},
        "began": (folder / "told.json").stat().st_mtime - report["seconds"],
    }  # fmt: skip


def run(
    text: dict[str, Any], scratch: Path, device: str, variant: str, each: int, gpus: int, kept: Path | None
) -> dict[str, Any]:
    """One job, of ``each`` samples for a GPU, or several ``apart`` at the same time; the output is removed, a trace
    kept beside ``kept``."""
    words = variant.split()
    more = [w for s in words if s != "trace" for w in ("--set", s)]
    began = time.perf_counter()
    out = Path(text["write"]["path"])
    if not device.startswith("apart:"):
        more += ["--limit", str(each * (gpus if device == "gpu:all" else 1))]
        process = start(text, scratch / "job", device, more + ["--trace", "trace.json"] * ("trace" in words))
        found = told(process, scratch / "job", began)
        if "trace" in words and "error" not in found:
            trace = (scratch / "job" / "trace.json").read_bytes()
            found["busy"] = busy(json.loads(trace)["traceEvents"])
            if kept:
                kept.with_suffix(".trace.json.gz").write_bytes(gzip.compress(trace, 6))
        shutil.rmtree(out, ignore_errors=True)
        return found
    number, _, kind = device.removeprefix("apart:").partition(":")
    n = int(number)
    share = len(os.sched_getaffinity(0)) // n
    jobs = []
    for i in range(n):
        own = json.loads(json.dumps(text))
        own["graph"][0] |= {"shard_id": i, "num_shards": n}
        own["write"]["path"] = str(out / str(i))
        at = f"{kind or f'gpu:{i}'}@{share}+{i * share}"
        jobs.append(start(own, scratch / f"job{i}", at, [*more, "--limit", str(each)]))
    ended = [told(process, scratch / f"job{i}", began) for i, process in enumerate(jobs)]
    shutil.rmtree(out, ignore_errors=True)
    wrong = [e["error"] for e in ended if "error" in e]
    if wrong:
        return {"error": wrong[0]}
    took = max(e["began"] + e["seconds"] for e in ended) - min(e["began"] for e in ended)
    return {
        "whole": sum(e["samples"]["read"] for e in ended) / took, "middle": together(ended), "each": ended,
        "wall": max(e["wall"] for e in ended), "bottleneck": {},
    }  # fmt: skip


def busy(events: list[dict[str, Any]]) -> dict[str, float]:
    """Of the time between a fifth and nine tenths of the batches: the part in which each thread did each of its works,
    each GPU any, and how many lanes of it were at work at once on average."""
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [(tracks[e["tid"]], e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    written = sorted(end for track, _, _, end in spans if track == "write")
    if len(written) < 10:
        return {}
    low, high = written[len(written) // 5], written[len(written) * 9 // 10]
    found: dict[str, float] = {}
    lanes: dict[str, list[tuple[float, float]]] = {}
    for track, name, begin, end in spans:
        begin, end = max(begin, low), min(end, high)
        if end <= begin:
            continue
        gpu, _, lane = track.partition(", lane")
        who = gpu if lane else "workers" if track.startswith("worker") else track
        found[f"{who}: {name}"] = found.get(f"{who}: {name}", 0) + (end - begin) / (high - low)
        if lane:
            lanes.setdefault(gpu, []).append((begin, end))
    for gpu, parts in lanes.items():
        covered, at = 0.0, 0.0
        for begin, end in sorted(parts):
            covered += max(0.0, end - max(begin, at))
            at = max(at, end)
        found[f"{gpu}: any"] = covered / (high - low)
        found[f"{gpu}: lanes"] = sum(end - begin for begin, end in parts) / (high - low)
    return {name: round(part, 3) for name, part in sorted(found.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=4, help="of different files; 0: those of FOLDER")
    parser.add_argument("--times", type=int, default=8, help="names of each file for each GPU")
    parser.add_argument("--gpus", type=int, default=1, help="that gpu:all has")
    parser.add_argument("--jobs", default="jpeg,mean")
    parser.add_argument("--sources", default="files,tfrecord")
    parser.add_argument("--writers", default="tfrecord,webdataset", help="of jpeg; mean is written as TFRecord")
    parser.add_argument("--devices", nargs="+", default=["gpu:0", "gpu:all"])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--shard", type=int, default=10000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--variants", nargs="+", default=[""], metavar="SETTINGS")
    parser.add_argument("--seconds", type=float, default=1e9, help="no job is begun after them")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began = time.perf_counter()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        scratch = Path(name)
        files = data_files(args.folder, scratch / "different", args.gigabytes)
        readers = {}
        for source in args.sources.split(","):
            (scratch / source).mkdir()
            host_planning.data_set(source, files, 1, scratch / source)
            readers[source] = linked(source, scratch / source, args.times * args.gpus)
        print(f"{len(files):,} different files, ready after {time.perf_counter() - began:.1f} s", flush=True)
        print(f"{'job, source, writer, device':52}{'whole':>10}{'middle':>10}{'wall':>7}", flush=True)
        for _, job, source in itertools.product(range(args.repeats), args.jobs.split(","), readers):
            writers = args.writers.split(",") if job == "jpeg" else ["tfrecord"]
            for writer, device, variant in itertools.product(writers, args.devices, args.variants):
                if time.perf_counter() - began > args.seconds:
                    continue
                what = ", ".join(filter(None, (job, source, writer, device, variant)))
                text = spec(job, readers[source], writer, args.batch, args.shard, scratch / "out")
                with drained(scratch / "out"):
                    found = run(text, scratch, device, variant, len(files) * args.times, args.gpus, args.json)
                how = {"job": job, "source": source, "writer": writer, "device": device, "variant": variant}
                results.append({"what": what, **how, **found})
                if "error" in found:
                    print(f"{what:52} failed: {found['error'][-300:]}", flush=True)
                else:
                    between = found["middle"] or 0
                    print(f"{what:52}{found['whole']:10,.0f}{between:10,.0f}{found['wall']:7.1f}  "
                          f"{found['bottleneck'].get('sentence', '')}", flush=True)  # fmt: skip
                    for name, part in found.get("busy", {}).items():
                        print(f"    {name}: {part:.0%}" if not name.endswith("lanes") else f"    {name}: {part:.2f}")
                if args.json:
                    args.json.write_text(json.dumps(results, indent=1))
    sys.exit(any("error" in r for r in results))


if __name__ == "__main__":
    main()
