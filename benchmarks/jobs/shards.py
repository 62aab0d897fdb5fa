"""JPEGs into shards by `dali-run run`, start to end: rates of whole jobs, by source, writer and number of GPUs.

    python benchmarks/jobs/shards.py FOLDER [--gigabytes 4] [--times 8] [--jobs jpeg,mean] [--sources files,tfrecord]
        [--writers tfrecord,webdataset] [--devices gpu:0 gpu:all] [--set KEY=VALUE ...] [--json out.json]

``jpeg``: decode, shorter side 256, JPEG of quality 90. ``mean``: decode, shorter side 256, crop 224, normalise, and of
each picture one number is written, so that nothing but reading and the GPUs counts. The data set has --gigabytes of
different files, made of those in FOLDER, and --times as many names: each name is read once, as in a real job, and what
is read is never in a processor's cache. It lies in --scratch, in memory by default, and so does the output. Every job
is a process of its own. ``whole`` is the rate that its report tells, ``middle`` the one between a fifth and nine tenths
of its samples, without the start and the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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


def run(text: dict[str, Any], scratch: Path, device: str, settings: list[str]) -> dict[str, Any]:
    """One job, in a process of its own; its output is removed."""
    file, told = scratch / "spec.json", scratch / "told.json"
    file.write_text(json.dumps(text))
    told.unlink(missing_ok=True)
    where, _, processes = device.partition("/")
    command = [sys.executable, "-m", "dali_run.cli.main", "run", str(file), "--device", where, "--quiet",
               "--report", str(told), *(w for s in settings for w in ("--set", s)),
               *(["--on", f"processes:{processes}"] if processes else [])]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - began
    shutil.rmtree(text["write"]["path"], ignore_errors=True)
    if done.returncode or not told.exists():
        return {"error": (done.stderr or done.stdout).strip()[-2000:], "code": done.returncode}
    report = json.loads(told.read_text())
    kept = ("start_seconds", "uploads", "decoders", "fallbacks", "workers", "memory", "bottleneck", "compiling_seconds",
            "stages", "queues")  # fmt: skip
    return {
        "whole": report["samples_per_second"], "middle": middle(report["over_time"]), "wall": wall,
        "samples": report["samples"], "seconds": report["seconds"], **{k: report[k] for k in kept if k in report},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=4, help="of different files; 0: those of FOLDER")
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--jobs", default="jpeg,mean")
    parser.add_argument("--sources", default="files,tfrecord")
    parser.add_argument("--writers", default="tfrecord,webdataset", help="of jpeg; mean is written as TFRecord")
    parser.add_argument("--devices", nargs="+", default=["gpu:0", "gpu:all"], help="gpu:0/2: by two processes")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--shard", type=int, default=10000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
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
            readers[source] = linked(source, scratch / source, args.times)
        print(f"{len(files):,} different files, ready after {time.perf_counter() - began:.1f} s", flush=True)
        print(f"{'job, source, writer, device':52}{'whole':>10}{'middle':>10}{'wall':>7}", flush=True)
        for _, job, source in itertools.product(range(args.repeats), args.jobs.split(","), readers):
            writers = args.writers.split(",") if job == "jpeg" else ["tfrecord"]
            for writer, device in itertools.product(writers, args.devices):
                if time.perf_counter() - began > args.seconds:
                    continue
                what = f"{job}, {source}, {writer}, {device}"
                text = spec(job, readers[source], writer, args.batch, args.shard, scratch / "out")
                found = run(text, scratch, device, args.settings)
                results.append(
                    {"what": what, "job": job, "source": source, "writer": writer, "device": device, **found}
                )
                if "error" in found:
                    print(f"{what:52} failed: {found['error'][-300:]}", flush=True)
                else:
                    between = found["middle"] or 0
                    print(f"{what:52}{found['whole']:10,.0f}{between:10,.0f}{found['wall']:7.1f}  "
                          f"{found['bottleneck'].get('sentence', '')}", flush=True)  # fmt: skip
                if args.json:
                    args.json.write_text(json.dumps(results, indent=1))
    sys.exit(any("error" in r for r in results))


if __name__ == "__main__":
    main()
