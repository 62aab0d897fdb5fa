"""The long version of the fault tests: `make torture`, or `python -m tests.torture --quick`. Prints a table, whose sums
docs/reliability.md has, and ends with 1 if anything was lost, doubled, distorted or left behind.

Writers are tortured at every file operation; then the command itself is, from outside, on sample data.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests import torture_curate, torture_flips, torture_growth, torture_isolation, torture_memory, torture_neighbours
from tests.kit.jobs.small_spec import small_spec
from tests.torture_isolation import Row

ROOT = Path(__file__).parents[1]
FAMILIES = (
    "tfrecord",
    "tfrecord_bytes",
    "tfrecord_both",
    "lmdb",
    "lmdb_keys",
    "webdataset",
    "numpy",
    "files",
    "recordio",
    "parquet",
    "parquet_bytes",
)
BEHIND = ("tfrecord_both", "lmdb_keys", "webdataset", "recordio", "parquet")
"""Jobs that are also killed with every write left to another thread."""
COMMAND = (sys.executable, "-m", "dali_run.cli.main")


# -- the shard protocol -----------------------------------------------------------------------------------------------


def kills(work: Path, points: int, double: int) -> Iterator[Row]:
    """Every operation of a job killed in turn, by a process and by a power failure."""

    def one(name: str) -> tuple[str, subprocess.CompletedProcess[str]]:
        kind, _, behind = name.partition(", ")
        place = work / f"kills-{kind}{'-behind' * bool(behind)}"
        place.mkdir()
        command = [sys.executable, "-m", "tests.writers.shards.crash", kind, str(place), *["--behind"] * bool(behind)]
        return name, subprocess.run(
            [*command, "--points", str(points), "--double", str(double)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, done in pool.map(one, [*FAMILIES, *(f"{n}, written by other threads" for n in BEHIND)]):
            told = json.loads(done.stdout) if done.returncode == 0 else {"kills": 0, "operations": 0}
            yield Row(f"{name}: killed or without power at each of {told['operations']} file operations (cuts inside "
                      f"writes included), {2 * double} times again while resuming",
                      told["kills"], [done.stderr[-500:]] if done.returncode else [])  # fmt: skip


def faults(work: Path, step: int) -> Iterator[Row]:
    """ENOSPC, EIO, EROFS, EDQUOT at the i-th operation, once or from then on, until the job runs through."""
    from tests.kit.jobs.faults import inject

    real, os.fsync = os.fsync, lambda fd: None
    for name in FAMILIES:
        tried, bad = 0, []
        for code in (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT):
            for lasting in (False, True):
                path = work / f"faults-{name}-{code}-{lasting}"
                try:
                    tried += inject(name, path, code, lasting, step if name != "files" else 4 * step)
                except AssertionError as e:
                    bad.append(str(e))
                shutil.rmtree(path, ignore_errors=True)
        yield Row(f"{name}: ENOSPC, EIO, EROFS, EDQUOT at the i-th file operation", tried, bad)
    os.fsync = real


FULL = """
import shutil, sys
from pathlib import Path
from dali_run.ops.errors import JobError
from tests.kit.writers import JOBS, digest, walk
from dataclasses import replace
name, small, roomy, share = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
job = replace(JOBS[name], total=600)
job.run(roomy)
needed = sum(path.stat().st_size for path in walk(roomy))
filler = small / "filler"
filler.write_bytes(bytes(shutil.disk_usage(small).free - int(share * needed)))
try:
    job.run(small / "out")
except JobError as e:
    assert "ENOSPC" in str(e) and str(small) in str(e), e
else:
    raise AssertionError("the disk was not full")
filler.unlink()
job.run(small / "out")
assert digest(small / "out") == digest(roomy), "the resumed output differs"
"""


def full_disk(
    work: Path, times: int, names: tuple[str, ...] = ("tfrecord", "lmdb", "webdataset", "files", "parquet")
) -> Iterator[Row]:  # fmt: skip
    """A file system that is really full, in a mount namespace of its own: with room for a part of the output."""
    probe = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, check=False, capture_output=True).returncode:
        yield Row("a really full file system (skipped: needs unshare)", 0, [])
        return
    bad, tried = [], 0
    for name in names:
        for k in range(times):
            place = work / f"full-{name}-{k}"
            (place / "small").mkdir(parents=True)
            script = (
                f"mount -t tmpfs -o size=16m none {place}/small && "
                f"{sys.executable} -c '{FULL}' {name} {place}/small {place}/roomy {(k + 1) / (times + 1)}"
            )
            done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], cwd=ROOT,
                                  capture_output=True, text=True, check=False)  # fmt: skip
            tried += 1
            if done.returncode:
                bad.append(done.stderr[-500:])
            shutil.rmtree(place, ignore_errors=True)
    yield Row("a really full file system (16 MB, room for a part of the output), then room again", tried, bad)


def damage(
    work: Path, flips: int, cuts: int,
    names: tuple[str, ...] = ("tfrecord", "webdataset", "lmdb", "recordio", "numpy", "files", "parquet"),
) -> Iterator[Row]:  # fmt: skip
    """Flipped bits and cuts anywhere in the finished files: `verify` has to find each."""
    from dali_run.writers.shards.verify import verify
    from tests.kit.writers import JOBS, walk

    rng = np.random.default_rng(1)
    for name in names:
        path = work / f"damage-{name}"
        JOBS[name].run(path)
        files = [p for p in walk(path) if p.name != "report.json" and p.stat().st_size]
        bad = []
        for k in range(flips + cuts):
            victim = files[int(rng.integers(len(files)))]
            good = victim.read_bytes()
            changed = bytearray(good)
            at = int(rng.integers(len(changed)))
            if k < flips:
                changed[at] ^= 1 << int(rng.integers(8))
            else:
                del changed[at:]
            victim.write_bytes(changed)
            if verify(path).sound:
                bad.append(f"{victim.name}: byte {at}")
            victim.write_bytes(good)
        if not verify(path).sound:
            bad.append("the repaired output is not sound")
        yield Row(f"{name}: flipped bits and cuts that verify must find", flips + cuts, bad)


def journals(work: Path, times: int) -> Iterator[Row]:
    """Damaged journals are refused or read as far as they are whole; never believed, never a traceback."""
    from dali_run.ops.errors import JobError
    from dali_run.writers.shards.journal import read_journal
    from tests.kit.writers import JOBS

    path = work / "journals"
    JOBS["tfrecord"].run(path)
    journal = path / "journal.jsonl"
    good = journal.read_bytes()
    whole = read_journal(journal)
    assert whole is not None
    rng = random.Random(1)
    bad = []
    for k in range(times):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 5))):
            kind, at = rng.randrange(4), rng.randrange(len(data)) if data else 0
            if kind == 0 and data:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del data[at:]
            elif kind == 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 40))
            else:
                del data[at : at + rng.randrange(1, 200)]
        journal.write_bytes(data)
        try:
            found = read_journal(journal)
        except JobError:
            continue
        except Exception as e:
            bad.append(f"change {k}: {e!r}")
            continue
        if found is not None and found.entries != whole.entries[: len(found.entries)]:
            known = [e for e in found.entries if e not in whole.entries]
            if known:
                bad.append(f"change {k}: believed {known[0]}")
    yield Row("journals with bits flipped, cut, spliced", times, bad)


def specs(work: Path, times: int) -> Iterator[Row]:
    """Accidents in valid specs: each is a spec or refused, line by line, within 2 s, and nothing of it is executed."""
    from dali_run.pipelines.problems import SpecErrors
    from dali_run.pipelines.spec.build import load_spec
    from tests.kit.jobs.hostile_specs import mutated, note_event, watched
    from tests.kit.specs import VALID, load

    load(VALID, work)
    texts = [VALID, *(p.read_text() for p in sorted((ROOT / "configs").glob("*.yaml")))]
    file, rng, bad = work / "mutated.yaml", random.Random(4), []
    sys.addaudithook(note_event)
    for k in range(times + 200):  # the first load what is imported late
        content = mutated(texts[k % len(texts)], rng)
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        watched.update(on=k >= 200, events=[])
        began = time.monotonic()
        try:
            load_spec(file)
        except SpecErrors as e:
            if not all(line.startswith(f"{file}:") for line in str(e).splitlines()):
                bad.append(f"mutation {k}: {e}")
        except Exception as e:
            bad.append(f"mutation {k}: {e!r}")
        finally:
            watched["on"] = False
        if time.monotonic() - began > 2:
            bad.append(f"mutation {k}: {time.monotonic() - began:.1f} s")
        # Expressions are parsed by Python; `exec` would tell that what it compiled was run.
        if events := [e for e in watched["events"] if e != f"open {file}" and not e.startswith("compile ")]:
            bad.append(f"mutation {k}: {events}")
    yield Row("accidents in valid specs: specs or refused, in words, within 2 s; nothing is executed", times, bad)


# -- the command ------------------------------------------------------------------------------------------------------


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*"))
            if p.is_file() and not p.name.startswith("report")}  # fmt: skip


def sample_data(work: Path, bad: int) -> Path:
    """Pictures, ``bad`` of them cut short."""
    from dali_run.pipelines.tools.sample_data import make_sample_data

    folder = work / "data"
    make_sample_data(folder, 80)
    for path in sorted((folder / "train").rglob("*.jpg"))[:: max(1, 60 // bad)]:
        path.write_bytes(path.read_bytes()[:200])
    return folder / "train"


def run(spec: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "run", str(spec), "--quiet", *more], cwd=spec.parent, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def from_outside(work: Path, times: int) -> Iterator[Row]:
    """`dali-run run` killed, terminated and interrupted at random times, then run again with nothing done by hand."""
    data = sample_data(work, 6)
    rng = random.Random(2)
    for writer, encode in (
        ("tfrecord", "raw"),
        ("lmdb", "jpeg"),
        ("webdataset", "png"),
        ("numpy", "raw"),
        ("files", "jpeg"),
    ):
        place = work / f"outside-{writer}"
        place.mkdir()
        spec = place / "spec.yaml"
        spec.write_text(small_spec(data, writer=writer, encode=encode))
        began = time.monotonic()
        with run(spec) as first:
            if first.wait() != 3:
                yield Row(f"{writer}: the uninterrupted run", 1, [first.communicate()[1]])
                continue
        took = time.monotonic() - began
        expected = content(place / "out")
        for kind, n in (
            (signal.SIGKILL, times),
            (signal.SIGTERM, max(2, times // 5)),
            (signal.SIGINT, max(2, times // 5)),
        ):
            bad = []
            for k in range(n):
                shutil.rmtree(place / "out")
                for _ in range(1 + (k % 5 == 0)):  # some twice
                    with run(spec) as process:
                        time.sleep(rng.uniform(took * 0.4, took))
                        process.send_signal(kind)
                        stopping = time.monotonic()
                        code = process.wait()
                        if time.monotonic() - stopping > 10:
                            bad.append("it took more than 10 s to stop")
                        if code not in (3, -kind, 130):
                            bad.append(f"exit code {code}: {process.communicate()[1][-300:]}")
                with run(spec) as process:
                    text = process.communicate()[1]
                if process.returncode != 3 or content(place / "out") != expected:
                    bad.append(f"after a kill: exit code {process.returncode}, {text[-300:]}")
            yield Row(f"dali-run run ({writer}, {encode}), {kind.name} at random times, then again", n, bad)


LAYOUT_SPEC = """\
version: 1
name: small
pipeline: {{batch_size: 5, num_threads: 2, device: cpu, seed: 3}}
graph:
  - {{op: readers.file, name: Reader, file_root: "{data}", random_shuffle: true, out: [jpegs, labels]}}
  - {{op: decoders.image_random_crop, in: jpegs, out: images}}
  - {{op: random.uniform, range: [20.0, 60.0], out: size}}
  - {{op: resize, in: images, resize_x: $size, resize_y: $size, out: images}}
  - {{op: random.coin_flip, out: mirror}}
  - {{op: flip, in: images, horizontal: $mirror, out: images}}
outputs: {{image: images, label: labels}}
write: {{writer: tfrecord, path: ./out, shard: {{samples: 6}}, fields: {{image: {{encode: png}}, label: {{}}}}}}
on_error: {{policy: skip}}
"""


@dataclass(frozen=True)
class Layout:
    """One way to cut the work."""

    batch: int = 5
    threads: int = 2
    depth: int = 2
    parts: int = 1
    restarts: int = 0

    def __str__(self) -> str:
        return (f"batches of {self.batch}, {self.threads} threads, queues of {self.depth}, {self.parts} parts, "
                f"{self.restarts} restarts")  # fmt: skip


def grid() -> list[Layout]:
    """{1, 4, 7, 8, 32, 256} samples a batch x {1, 2, 8} threads x {1, 4} queued x {1, 2, 3, 8} parts, and with 1 and 5
    restarts."""
    plain = [Layout(b, t, q) for b in (1, 4, 7, 8, 32, 256) for t in (1, 2, 8) for q in (1, 4)]
    return [replace(one, parts=n) for one in plain for n in (1, 2, 3, 8)] + [
        replace(one, restarts=r) for one in plain for r in (1, 5)
    ]


def layouts(work: Path, quick: bool) -> Iterator[Row]:
    """The same bytes for any cut of the work; random operators and bad files in."""
    from dali_run.pipelines.job.run import JobResult, Progress, run_job

    data = sample_data(work, 6)
    spec = work / "layouts.yaml"
    spec.write_text(LAYOUT_SPEC.format(data=data))
    bad: list[str] = []

    def run_part(out: Path, layout: Layout, part: tuple[int, int] | None, stop_at: int | None = None) -> JobResult:
        def stop(state: Progress) -> None:
            if stop_at is not None and state.done >= stop_at:
                raise KeyboardInterrupt

        changes = {"write.path": str(out), "pipeline.batch_size": layout.batch, "pipeline.num_threads": layout.threads,
                   "pipeline.prefetch_queue_depth": layout.depth}  # fmt: skip
        return run_job(spec, changes, part=part, progress=stop)

    def outcome(layout: Layout) -> dict[str, bytes]:
        out = work / "layout"
        shutil.rmtree(out, ignore_errors=True)
        for k in range(layout.restarts):  # each gets a little further
            run_part(out, layout, None, 1 + 9 * k)
        for i in range(layout.parts):
            result = run_part(out, layout, (i, layout.parts) if layout.parts > 1 else None)
            if result.exit_code not in (0, 3):
                bad.append(f"{layout}: {result.message}")
        return content(out)

    expected = outcome(Layout())
    assert len(expected) > 10
    assert expected["rejects.jsonl"]
    told = {k: v for k, v in expected.items() if k not in ("journal.jsonl", "manifest.json")}
    chosen = grid()[:: 17 if quick else 1]
    for layout in chosen:
        found = outcome(layout)
        if layout.parts > 1:  # each part has a journal of its own, and the manifest says so
            found = {k: found[k] for k in told if k in found}
        if found != (told if layout.parts > 1 else expected):
            bad.append(str(layout))
    yield Row("batch sizes x threads x prefetch depths x machines (--num-shards) x restarts, random operators: the "
              "same bytes", len(chosen), bad)  # fmt: skip


def restarts(work: Path, times: int) -> Iterator[Row]:
    """SIGKILL, and the same command at once: before anyone has waited for the dead process, or tidied anything."""
    spec = work / "spec.yaml"
    spec.write_text(small_spec(sample_data(work, 6), writer="tfrecord", encode="jpeg"))
    began = time.monotonic()
    with run(spec) as first:
        first.wait()
    took = time.monotonic() - began
    expected = content(work / "out")
    rng = random.Random(3)
    bad = []
    for k in range(times):
        shutil.rmtree(work / "out")
        with run(spec) as process:
            time.sleep(rng.uniform(took * 0.4, took * 0.95))
            process.kill()
            with run(spec) as again:
                text = again.communicate()[1]
        if again.returncode != 3 or content(work / "out") != expected:
            bad.append(f"restart {k}: exit code {again.returncode}, {text[-300:]}")
    yield Row("SIGKILL and the same command again at once", times, bad)


def second_jobs(work: Path, times: int) -> Iterator[Row]:
    """A second job on the same output is refused in two seconds after its start-up; the first is not disturbed."""
    from tests.kit.jobs.slow import start_slow
    from tests.kit.writers import JOBS, digest

    JOBS["tfrecord"].run(work / "lock-expected")
    bad = []
    for k in range(times):
        path = work / f"lock-{k}"
        with start_slow("tfrecord", path) as first:
            while not (path / "journal.jsonl").exists():
                time.sleep(0.001)
            began = time.monotonic()
            try:
                JOBS["tfrecord"].run(path)
                bad.append("the second job ran")
            except Exception as e:
                if "is being written by process" not in str(e) or time.monotonic() - began > 2:
                    bad.append(f"{time.monotonic() - began:.1f} s: {e}")
            first.wait()
        if digest(path) != digest(work / "lock-expected"):
            bad.append("the first job's output differs")
        shutil.rmtree(path)
    yield Row("second jobs on a directory that is being written", times, bad)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--only", default="", help="names of parts, with commas")
    args = parser.parse_args()
    quick = args.quick
    parts: dict[str, Callable[[Path], Iterator[Row]]] = {
        "kills": lambda w: kills(w, 20 if quick else 1000, 2 if quick else 10),
        "faults": lambda w: faults(w, 11 if quick else 1),
        "full_disk": lambda w: full_disk(w, 1 if quick else 5),
        "damage": lambda w: damage(w, *((100, 20) if quick else (1000, 200))),
        "journals": lambda w: journals(w, 1000 if quick else 100_000),
        "specs": lambda w: specs(w, 1000 if quick else 10_000),
        "layouts": lambda w: layouts(w, quick),
        "growth": lambda w: torture_growth.rows(w, quick),
        "curate": lambda w: torture_curate.rows(w, quick),
        "restarts": lambda w: restarts(w, 3 if quick else 50),
        "second_jobs": lambda w: second_jobs(w, 3 if quick else 50),
        "flips": lambda w: torture_flips.rows(w, *((100, 1, 5) if quick else (2000, 1, 40))),
        "neighbours": lambda w: torture_neighbours.rows(w, quick),
        "isolation": lambda w: torture_isolation.rows(w, quick),
        "memory": lambda w: torture_memory.rows(w, quick),
        "from_outside": lambda w: from_outside(w, 2 if quick else 20),
    }
    chosen = args.only.split(",") if args.only else list(parts)
    failed = False
    print("| what | tried | failed |\n|---|---|---|", flush=True)
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="torture-") as work:
            for row in parts[name](Path(work)):
                print(row, flush=True)
                for problem in row.bad[:3]:
                    print(f"    {problem}", flush=True)
                failed |= bool(row.bad)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
