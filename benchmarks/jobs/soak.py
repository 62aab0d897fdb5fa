"""An hour (--seconds 3600) of mixed data on a GPU, or on the CPU: is the rate flat, and the memory?

    python benchmarks/jobs/soak.py --seconds 3600 --device gpu --out soak.json

One job after the other in one process, on images of all formats, damaged ones among them. Every job's rate, resident
memory and GPU memory are written down; the last third is compared with the first third after the warm-up. Prints one
line a minute, and a JSON with everything. Ends with 1 where memory grew by over 5 %, or the rate fell by over 10 %.
Memory is the process's own and the GPU's. Page-locked memory (``shared``) is a pool that gives idle blocks back when 4
GB of new ones were made (`ops.gpu.lane.PINNED_SPARE`): it grows until batches of all sizes have come.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

RESIDENT = {"resident": "VmRSS", "anonymous": "RssAnon", "shared": "RssShmem"}

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

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


def make(folder: Path, count: int) -> None:
    """Images of every format, one in twenty damaged."""
    from tests.fuzz.jobs import IMAGES, mutated

    rng = random.Random(1)
    for i in range(count):
        name, how = list(IMAGES.items())[i % len(IMAGES)]
        data = how(rng)
        place = folder / f"{i % 10:02d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:06d}-{name}").write_bytes(mutated(data, rng) if i % 20 == 7 else data)


def resident() -> dict[str, int]:
    """Bytes of this process in memory: all, its own (``anonymous``), and shared or page-locked (``shared``)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kilobytes = {key: int(lines[name].split()[0]) for key, name in RESIDENT.items()}
    return {key: 1024 * value for key, value in kilobytes.items()}


def on_gpu(device: str) -> int:
    """Bytes of the GPU that are in use, by anybody."""
    if not device.startswith("gpu"):
        return 0
    import cupy

    free, whole = cupy.cuda.runtime.memGetInfo()
    return int(whole - free)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    asked = parser.parse_args()
    from dali_run.pipelines.job.run import run_job

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as there:
        place = Path(there)
        make(place / "data", asked.images)
        began, told, seed = time.monotonic(), 0.0, 0
        while time.monotonic() - began < asked.seconds:
            spec, out = place / "spec.yaml", place / "out"
            spec.write_text(SPEC.format(device=asked.device, data=place / "data", out=out, seed=seed))
            started = time.monotonic()
            result = run_job(spec)
            seconds = time.monotonic() - started
            if result.exit_code not in (0, 3):
                sys.stderr.write(result.message + "\n")
                return 1
            samples = result.report["samples"]
            rows.append(
                {"at": round(started - began, 1), "per_second": round(samples["read"] / seconds, 1),
                 "rejected": samples["rejected"], **resident(), "gpu": on_gpu(asked.device)}
            )  # fmt: skip
            # A soak that is stopped has told so far.
            asked.out.write_text(json.dumps({"jobs": len(rows), "rows": rows}))
            shutil.rmtree(out)
            seed += 1
            if time.monotonic() - told > 60:
                told = time.monotonic()
                sys.stdout.write(json.dumps(rows[-1]) + "\n")
                sys.stdout.flush()
    steady = rows[max(1, len(rows) // 10) :]
    if len(steady) < 3:
        sys.stderr.write(f"{len(rows)} jobs tell nothing: it takes four and more (--seconds, --images)\n")
        return 1
    third = max(1, len(steady) // 3)
    ratio = {
        key: median(r[key] for r in steady[-third:]) / max(1, median(r[key] for r in steady[:third]))
        for key in ("per_second", "resident", "anonymous", "gpu")
    }
    flat = ratio["per_second"] > 0.9 and ratio["anonymous"] < 1.05 and ratio["gpu"] < 1.05
    equal = len({r["rejected"] for r in rows}) == 1
    asked.out.write_text(
        json.dumps({"jobs": len(rows), "last_to_first_third": ratio, "flat": flat, "rows": rows}, indent=1)
    )
    sys.stdout.write(f"{len(rows)} jobs, last third to first: {ratio}; flat: {flat}, the same rejects: {equal}\n")
    return 0 if flat and equal else 1


if __name__ == "__main__":
    sys.exit(main())
