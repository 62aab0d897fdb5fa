"""Run mixed data for an hour (--seconds 3600) on a GPU, or on the CPU, and check that rate and memory stay constant.

    python benchmarks/jobs/soak.py --seconds 3600 --device gpu --out soak.json

One job after the other in one process, on images of all formats, some of them damaged. Every job's rate, resident
memory and GPU memory are recorded; the last third is compared with the first third after the warm-up. Prints one line
per minute, and a JSON with everything. Ends with status 1 if memory grew by over 5 %, or if the rate fell by over 10 %
while a sample took over 5 % more CPU time: the rate alone may fall because others use the machine. (CPU time is this
process's, without decoder processes.)

Memory is the process's own and the GPU's. Page-locked memory (``shared``) is a pool that frees idle blocks after 4 GB
of new ones were made (`ops.gpu.lane.PINNED_SPARE`): it grows until batches of all sizes have occurred. Rows tell where
the memory is (`process_memory`); at the end, what remains after all pools were emptied, and which types of objects
increased. --tracemalloc adds the lines that allocated what grew; jobs take longer.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

RESIDENT = {"resident": "VmRSS", "anonymous": "RssAnon", "shared": "RssShmem"}

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.jobs import process_memory  # noqa: E402, it needs the path

SPEC = """\
version: 1
name: soak
pipeline: {{batch_size: 64, device: {device}, seed: {seed}}}
graph:
  - {{op: readers.file, file_root: "{data}", file_filters: ["*"], random_shuffle: true, out: [encoded, label]}}
  - {{op: decoders.image_random_crop, in: encoded, out: images}}
  - {{op: resize, in: images, size: [224, 224], out: images}}
outputs: {{image: images, label: label}}
write: {{writer: tfrecord, path: "{out}", fields: {{image: {{encode: jpeg}}, label: {{}}}}}}
"""


WARM = 5
"""Number of jobs before objects are counted for the first time."""


def make(folder: Path, count: int) -> None:
    """Write images of every format, one in twenty damaged."""
    from tests.fuzz.jobs import IMAGES, mutated

    rng = random.Random(1)
    for i in range(count):
        name, how = list(IMAGES.items())[i % len(IMAGES)]
        data = how(rng)
        place = folder / f"{i % 10:02d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:06d}-{name}").write_bytes(mutated(data, rng) if i % 20 == 7 else data)


def resident() -> dict[str, int]:
    """Return the resident bytes of this process: all, its own (``anonymous``), and shared or page-locked
    (``shared``)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kilobytes = {key: int(lines[name].split()[0]) for key, name in RESIDENT.items()}
    return {key: 1024 * value for key, value in kilobytes.items()}


def on_gpu(device: str) -> int:
    """Return the bytes of the GPU's memory that all processes use."""
    if not device.startswith("gpu"):
        return 0
    import cupy

    free, whole = cupy.cuda.runtime.memGetInfo()
    return int(whole - free)


def one_job(place: Path, device: str, seed: int) -> dict[str, Any]:
    """Run a job. Return its costs, and the memory of the process after it."""
    from dali_run.pipelines.job.run import run_job

    spec, out = place / "spec.yaml", place / "out"
    spec.write_text(SPEC.format(device=device, data=place / "data", out=out, seed=seed))
    began, worked = time.monotonic(), time.process_time()
    result = run_job(spec)
    seconds, worked = time.monotonic() - began, time.process_time() - worked
    if result.exit_code not in (0, 3):
        raise RuntimeError(result.message)
    shutil.rmtree(out)
    samples = result.report["samples"]
    return {
        "per_second": round(samples["read"] / seconds, 1), "cpu_ms_each": round(1e3 * worked / samples["read"], 3),
        "host_peak": result.report["memory"]["host_peak_bytes"], "rejected": samples["rejected"],
        **resident(), "gpu": on_gpu(device), **process_memory.now(),
    }  # fmt: skip


def compared(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the ratio of the median of the last third to that of the first third after the warm-up, for each number in
    ``rows``."""
    steady = rows[max(1, len(rows) // 10) :]
    third = max(1, len(steady) // 3)
    return {
        key: median(r[key] for r in steady[-third:]) / (median(r[key] for r in steady[:third]) or 1)
        for key in ("per_second", "cpu_ms_each", "resident", "anonymous", "gpu")
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    parser.add_argument("--tracemalloc", action="store_true", help="which lines allocated what grew")
    asked = parser.parse_args()
    if asked.tracemalloc:
        tracemalloc.start()
    rows: list[dict[str, Any]] = []
    kinds: Counter[str] = Counter()
    lines: tracemalloc.Snapshot | None = None
    with tempfile.TemporaryDirectory() as there:
        make(Path(there) / "data", asked.images)
        began, told = time.monotonic(), 0.0
        while time.monotonic() - began < asked.seconds:
            rows.append({"at": round(time.monotonic() - began, 1), **one_job(Path(there), asked.device, len(rows))})
            if len(rows) == WARM:
                kinds = process_memory.kinds()
                lines = tracemalloc.take_snapshot() if asked.tracemalloc else None
            # a soak that is stopped has results so far
            asked.out.write_text(json.dumps({"jobs": len(rows), "rows": rows}))
            if time.monotonic() - told > 60:
                told = time.monotonic()
                sys.stdout.write(json.dumps(rows[-1]) + "\n")
                sys.stdout.flush()
    if len(rows) <= WARM:
        sys.stderr.write(f"{len(rows)} jobs tell nothing: it takes {WARM + 1} and more (--seconds, --images)\n")
        return 1
    more = dict((process_memory.kinds() - kinds).most_common(20))
    by_line = tracemalloc.take_snapshot().compare_to(lines, "lineno")[:30] if lines is not None else []
    process_memory.give_back()
    held = {**resident(), "gpu": on_gpu(asked.device), **process_memory.now()}
    ratio = compared(rows)
    slower = ratio["per_second"] < 0.9 and ratio["cpu_ms_each"] > 1.05
    flat = not slower and ratio["anonymous"] < 1.05 and ratio["gpu"] < 1.05
    equal = len({r["rejected"] for r in rows}) == 1
    found = {"held": held, "more_objects": more, "more_by_line": [str(line) for line in by_line]}
    whole = {"jobs": len(rows), "last_to_first_third": ratio, "flat": flat, **found, "rows": rows}
    asked.out.write_text(json.dumps(whole))
    sys.stdout.write(f"{len(rows)} jobs, last third to first: {ratio}; flat: {flat}, the same rejects: {equal}\n")
    return 0 if flat and equal else 1


if __name__ == "__main__":
    sys.exit(main())
