"""Checks on a machine with a GPU after changes that were made without one: tests, rates, and what was expected.

    python benchmarks/jobs/confirm_gpu.py FOLDER [--steps tests,host,reading,rates,containers,several]
        [--gigabytes 4] [--sources tfrecord,tar] [--batches 1024] [--scratch /dev/shm] [--json out.json]

    tests       everything marked gpu, which must pass
    host        what the launching thread could launch (benchmarks/data/host_planning.py), on this machine's idle cores
    reading     files into page-locked memory by 1 to 14 threads, and the same with everything done for a batch but what
                the GPU does (both on a stand-in for it)
    rates       images a second at small and large batches, from single files
    containers  the same from TFRecord, tar, LMDB and RecordIO: copied by the host, gathered by the GPU out of
                registered files, and whichever of these `upload: auto` decides for
    several     the same on all GPUs of the machine, against one: by one process, and by a process each

FOLDER holds JPEGs. Each step takes one to three minutes. Ends with a table of what was found and what was expected;
the exit code is 1 where a test fails or a figure is more than a tenth below.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.data import host_planning
from benchmarks.data.different import data_files
from benchmarks.jobs.shards import DECODE, STEPS, linked
from dali_run.ops.gpu.lane import gpu_count
from dali_run.pipelines.bench.measure import Measurement
from dali_run.pipelines.bench.run import run_apart
from dali_run.pipelines.engine.engine import Engine, Options, Request
from dali_run.pipelines.engine.inputs import EndlessFeed, Sources

ROOT = Path(__file__).parents[2]
TESTS = ("tests/ops/codecs/jpeg/test_gpu.py", "tests/ops/fused/test_fused.py", "tests/ops/images/test_resize_gpu.py",
         "tests/ops/test_gpu_equals_cpu.py", "tests/pipelines/compile/test_fuse.py",
         "tests/pipelines/engine/test_gpu_engine.py",
         "tests/pipelines/python/test_gpu.py", "tests/ops/gpu/test_gather.py", "tests/pipelines/engine/test_uploads.py",
         "tests/readers/fetch/test_direct_storage.py", "tests/ops/codecs/jpeg/test_nvjpeg.py",
         "tests/pipelines/engine/test_which_decoder.py")  # fmt: skip
BEFORE = {("val", 256): 85_000, ("val", 512): 125_000, ("val", 1024): 195_000, ("train", 1024): 125_000}
"""Images a second of one H200 with 16 cores on 2026-11-21, before several batches were read at once."""
How = Literal["alone", "program", "job"]
"""Batches are launched one by one; small ones together while the program waits for them; always together."""
EXPECTED: dict[tuple[str, int, How], float] = {
    ("val", 256, "alone"): 150_000, ("val", 512, "alone"): 190_000, ("val", 1024, "alone"): 210_000,
    ("val", 64, "program"): 150_000, ("val", 256, "program"): 190_000, ("val", 512, "program"): 200_000,
    ("val", 64, "job"): 200_000, ("val", 256, "job"): 210_000, ("train", 1024, "job"): 205_000,
}  # fmt: skip
"""Small batches alone are bound by the launching thread, large ones by kernels."""
CEILING = 250_000
"""Images a second that one launching thread could launch at batch 256."""
READING = {1: 55_000, 2: 105_000, 4: 190_000, 8: 250_000, 14: 280_000}
"""Files a second that so many threads read, of 104 KB each, which one reads at 7 GB/s."""
PLANNED = {256: 160_000, 512: 240_000, 1024: 280_000}
"""Images a second for which all is read and planned, whose kernels take no time: bound by the GIL."""
SOURCES = ("tfrecord", host_planning.UNCHECKED, "tar", "lmdb", "recordio")
UPLOADS = ("copy", "registered", "pieces", "auto")


@dataclass
class Finding:
    """One line of the table."""

    what: str
    found: float
    expected: float
    unit: str = "images/s"
    before: float | None = None

    @property
    def verdict(self) -> str:
        return "ok" if self.found >= 0.9 * self.expected else "BELOW"


def rate(
    plan: Any, batch: int, seconds: float, lanes: int = 8, threads: int = 8, upload: Any = "auto",
    ways: dict[str, int] | None = None, how: How = "program",
) -> float:  # fmt: skip
    """Images a second of ``plan``, results staying on the GPUs; ``ways`` is told how the bytes came there."""
    options = Options(num_threads=threads, gpu_queue=2, cpu_queue=3, lanes=lanes, to_host=False, upload=upload,
                      whole_batches=how != "job", together=how != "alone")  # fmt: skip
    requests = (Request(k * batch, batch) for k in itertools.count())
    with Sources(plan, batch) as sources, Engine(plan, EndlessFeed(sources), requests, options) as engine:
        for _ in range(3 * lanes * len(plan.target.indices)):
            next(engine)
        engine.stats.uploads.clear()
        began, images = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            images += len(next(engine).samples)
        taken = time.perf_counter() - began
        if ways is not None:
            ways |= engine.stats.uploads
        return images / taken


def tests() -> Iterator[Finding]:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *TESTS]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "DALI_RUN_DEMAND_GPU": "1"}, check=False)
    yield Finding("tests marked gpu", float(done.returncode == 0), 1, "passed")


def host(folder: Path, scratch: Path, seconds: float) -> Iterator[Finding]:
    """In a process of its own, which never meets a real GPU."""
    out = scratch / "host.json"
    command = [sys.executable, str(ROOT / "benchmarks/data/host_planning.py"), str(folder), "--batches", "256"]
    subprocess.run([*command, "--seconds", str(seconds), "--json", str(out)], cwd=ROOT, check=True)
    for name, found in json.loads(out.read_text()).items():
        yield Finding(f"ceiling of the launching thread, {name}", found["ceiling"], CEILING)


def reading(folder: Path, scratch: Path, seconds: float) -> Iterator[Finding]:
    """In a process of its own, which never meets a real GPU."""
    out = scratch / "reading.json"
    command = [sys.executable, str(ROOT / "benchmarks/data/host_planning.py"), str(folder), "--jobs", "read,val",
               "--lanes", "8", "--batches", "256,512,1024", "--threads", ",".join(map(str, READING)),
               "--json", str(out)]  # fmt: skip
    subprocess.run([*command, "--seconds", str(min(seconds, 1))], cwd=ROOT, check=True)
    found = json.loads(out.read_text())
    for (threads, alone), batch in itertools.product(READING.items(), PLANNED):
        for job, expected in (("read", alone), ("val", min(alone, PLANNED[batch]))):
            rate = found[f"{job} files, {threads} threads {batch}"]["images_per_second"]
            what = "read" if job == "read" else "read and planned"
            yield Finding(f"{what} by {threads} threads, batch {batch}", rate, expected)


def rates(root: str, seconds: float) -> Iterator[Finding]:
    for (job, batch, how), expected in EXPECTED.items():
        found = max(rate(host_planning.build(job, "files", root), batch, seconds, how=how) for _ in range(2))
        yield Finding(f"{job} from files, batch {batch}, {how}", found, expected, before=BEFORE.get((job, batch)))


def containers(
    files: list[Path], copies: int, scratch: Path, root: str, seconds: float, sources: Sequence[str],
    batches: Sequence[int],
) -> Iterator[Finding]:  # fmt: skip
    """Registered, a container is to be no slower than copied, and that no slower than single files; what is decided
    for, no slower than the better one."""
    seconds = min(seconds, 1.5)  # many measurements
    alone = {batch: rate(host_planning.build("val", "files", root), batch, seconds) for batch in batches}
    for source in sources:
        place = scratch / source.split()[0]
        if not place.exists():
            place.mkdir()
            host_planning.data_set(place.name, files, copies, place)
        plan = host_planning.build("val", source, str(place))
        for batch in batches:
            expected, best = alone[batch], 0.0
            for upload in UPLOADS:
                ways: dict[str, int] = {}
                found = rate(plan, batch, seconds, upload=upload, ways=ways)
                for why in ways.keys() - {upload}:
                    print(f"    {ways[why] / sum(ways.values()):.0%} of the bytes were {why}")
                wanted = 0.9 * best if upload == "auto" else expected
                yield Finding(f"{source}, batch {batch}, {upload}", found, wanted, before=alone[batch])
                expected, best = found, max(best, found)


def several(
    files: list[Path], copies: int, scratch: Path, root: str, seconds: float, sources: Sequence[str],
    batches: Sequence[int],
) -> Iterator[Finding]:  # fmt: skip
    """By one process, whose host part feeds all of them, two GPUs are to give half as much again at least; by a process
    each, as `bench` and `run` have it, 1.95 times as much."""
    everything = tuple(range(gpu_count()))
    many = f"{len(everything)} GPUs"
    for batch in batches:
        one = rate(host_planning.build("val", "files", root), batch, seconds)
        found = rate(host_planning.build("val", "files", root, everything), batch, seconds)
        yield Finding(f"files, batch {batch}, {many}, one process", found, 1.5 * one, before=one)
    for source in ("files", *sources):
        place = Path(root) if source == "files" else scratch / source.split()[0]
        if not place.exists():
            place.mkdir()
            host_planning.data_set(place.name, files, copies, place)
        for batch in batches:
            graph = [linked(source, place, 1) | {"random_shuffle": True}, DECODE, *STEPS["mean"][:2]]
            spec = scratch / "several.json"
            spec.write_text(json.dumps({"version": 1, "name": "several", "pipeline": {"batch_size": batch, "seed": 1},
                                        "graph": graph, "outputs": {"x": "x"}}))  # fmt: skip
            rates = []
            for device in ("gpu:0", "gpu:all"):
                result = run_apart(Measurement(str(spec), {"pipeline.device": device}, seconds, 24), "measure")
                if "error" in result:
                    print(f"    {source}, {device}: {result['error']}")
                rates.append(result.get("samples_per_second", 0.0))
            one, found = rates
            goal = 0.975 * len(everything) * one
            yield Finding(f"{source}, batch {batch}, {many}, a process each", found, goal, before=one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", default="tests,host,reading,rates,containers,several")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--gigabytes", type=float, default=0, help="of different files, instead of eight copies")
    parser.add_argument("--sources", default=",".join(SOURCES), help="of containers")
    parser.add_argument("--batches", default="512,1024", help="of containers and several")
    parser.add_argument("--scratch", help="where data is made, such as /dev/shm; the system's place by default")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not gpu_count():
        sys.exit("there is no GPU that can be used; `dali-run doctor` says why")
    steps = args.steps.split(",")
    findings: list[Finding] = []
    sources, batches = args.sources.split(","), [int(b) for b in args.batches.split(",")]
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        scratch = Path(name)
        root = scratch / "files"
        root.mkdir()
        files = data_files(args.folder, scratch / "different", args.gigabytes)
        copies = 1 if args.gigabytes else 8
        host_planning.data_set("files", files, copies, root)
        todo = {
            "tests": tests,
            "host": lambda: host(args.folder, scratch, args.seconds),
            "reading": lambda: reading(args.folder, scratch, args.seconds),
            "rates": lambda: rates(str(root), args.seconds),
            "containers": lambda: containers(files, copies, scratch, str(root), args.seconds, sources, batches),
            "several": lambda: (
                several(files, copies, scratch, str(root), args.seconds, sources, batches)
                if gpu_count() > 1
                else iter(())
            ),
        }
        for step in steps:
            for finding in todo[step]():
                findings.append(finding)
                print(_row(finding), flush=True)
    print(f"\n{'':52}{'found':>12}{'expected':>12}{'before':>12}")
    for finding in findings:
        print(_row(finding))
    if args.json:
        args.json.write_text(json.dumps([asdict(f) | {"verdict": f.verdict} for f in findings], indent=1))
    sys.exit(any(f.verdict != "ok" for f in findings))


def _row(f: Finding) -> str:
    before = "" if f.before is None else f"{f.before:,.0f}"
    return f"{f.what:52}{f.found:12,.0f}{f.expected:12,.0f}{before:>12}  {f.unit:9} {f.verdict}"


if __name__ == "__main__":
    main()
