"""Waits of each thread of a job, by the functions that it calls and by the system calls in which it is found.

    python benchmarks/jobs/job_threads.py FOLDER [--times 6] [--sources tfrecord] [--variants "KEY=VALUE ..." ...]
        [--devices gpu:0] [--hertz 100] [--json out.json]

Jobs are those of shards.py (``jpeg``), in processes of their own, which time some functions of the engine, of the lanes
and of the readers between a fifth and nine tenths of the batches: for each thread and function the wall time and the
processor time, ms a batch, without what other such functions inside took; wall time without processor time is waiting,
for the driver, for a lock or for the GIL. Meanwhile this process looks at the threads from outside: in which state each
is, in which system call, and of locks, at which address. Most threads wait for the GIL at the same address and with a
time limit, so the address at which the most threads were seen with one is called ``GIL``. Words of a variant with
capitals at the front (``NAME=VALUE``) are environment variables, all others settings.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, os.environ.get("DALI_RUN_CHECKOUT") or str(Path(__file__).parents[2]))

from benchmarks.data import host_planning
from benchmarks.data.different import data_files
from benchmarks.jobs import shards

_ENGINE, _GPU = "dali_run.pipelines.engine.", "dali_run.ops.gpu."
CALLS = (
    (_ENGINE + "engine", "Engine.__next__"),
    (_ENGINE + "device.part", "DevicePart._launch_whole"),
    (_ENGINE + "device.part", "DevicePart._make_room"),
    (_ENGINE + "device.part", "DevicePart.finish"),
    (_ENGINE + "device.open_lanes", "OpenLanes.take"),
    (_ENGINE + "device.timer", "DeviceTimer.read"),
    (_ENGINE + "batch_budget", "BatchBudget.foresee"),
    (_ENGINE + "batch_budget", "BatchBudget.holds"),
    (_ENGINE + "threads.channel", "Channel.get"),
    (_ENGINE + "threads.channel", "Channel.put"),
    (_ENGINE + "threads.latch", "Latch.wait"),
    (_ENGINE + "memory.budget", "Ledger.hold"),
    (_ENGINE + "host", "HostPart._read"),
    (_ENGINE + "host", "HostPart._begin"),
    (_GPU + "lane", "Lane.to_device"),
    (_GPU + "lane", "Lane.copy_in"),
    (_GPU + "lane", "Lane.empty"),
    (_GPU + "lane", "Lane.scratch"),
    (_GPU + "lane", "Lane.launch_all"),
    (_GPU + "lane", "Lane.mark"),
    (_GPU + "lane", "Lane.wait"),
    (_GPU + "lane", "Lane.forget"),
    (_GPU + "lane", "Lane.download"),
    (_GPU + "lane", "Lane.__enter__"),
    (_GPU + "lane", "Lane.__exit__"),
    (_GPU + "driver_calls", "Work.submit"),
    (_GPU + "page_locked", "Blocks.empty"),
    (_GPU + "page_locked", "Blocks._made"),
    (_GPU + "page_locked", "Blocks._awaited"),
    ("dali_run.ops.codecs.jpeg.cuda", "Decoder.decode"),
    ("dali_run.ops.codecs.encoders_gpu", "encode"),
    ("dali_run.ops.codecs.encoders_gpu", "launch"),
    ("dali_run.ops.codecs.encoders_gpu", "_collect"),
    ("dali_run.readers.tfrecord", "_TFRecords.fetch"),
    ("dali_run.readers.tfrecord", "spread"),
    ("dali_run.readers.fetch.extents", "Mapped.will_need"),
    ("dali_run.readers.fetch.extents", "Mapped.truncated"),
    ("dali_run.readers.fetch.extents", "spread"),
    ("dali_run.readers.records.example", "RecordParser.take"),
    ("dali_run.pipelines.job.run", "JobRun._write"),
    ("dali_run.writers.shards.output", "Output.add"),
    ("dali_run.writers.bytes.background", "Line.put"),
    ("dali_run.writers.bytes.background", "Line._run"),
)
"""The functions that are timed: their modules, and their names there."""


class Calls:
    """Wall and processor time of functions, by thread."""

    def __init__(self, batches: int) -> None:
        self.found: dict[str, dict[str, list[int]]] = {}
        self.window: dict[str, Any] = {}
        self._here = threading.local()
        self._batches, self._launched = batches, 0

    def install(self, calls: Sequence[tuple[str, str]]) -> list[str]:
        """Time these functions; those that are not there. The first one tells batches."""
        missing = []
        for module, path in calls:
            try:
                owner: Any = importlib.import_module(module)
                *outer, name = path.split(".")
                for part in outer:
                    owner = getattr(owner, part)
                setattr(owner, name, self._timed(path, getattr(owner, name)))
            except (ImportError, AttributeError):
                missing.append(f"{module}.{path}")
        return missing

    def _timed(self, name: str, function: Any) -> Any:
        clock, own, here = time.perf_counter_ns, time.thread_time_ns, self._here

        @functools.wraps(function)
        def timed(*args: Any, **more: Any) -> Any:
            inside = getattr(here, "inside", None)
            if inside is None:
                inside = here.inside = []
                here.rows = self.found.setdefault(threading.current_thread().name, {})
            spent = [0, 0]
            inside.append(spent)
            wall, cpu = clock(), own()
            try:
                return function(*args, **more)
            finally:
                cpu, wall = own() - cpu, clock() - wall
                inside.pop()
                if inside:
                    inside[-1][0] += wall
                    inside[-1][1] += cpu
                row = here.rows.get(name)
                if row is None:
                    row = here.rows[name] = [0, 0, 0]
                row[0] += 1
                row[1] += wall - spent[0]
                row[2] += cpu - spent[1]
                if name == "Engine.__next__":
                    self._launch()

        return timed

    def _launch(self) -> None:
        self._launched += 1
        if self._launched == self._batches // 5:
            self._look("begin")
        elif self._launched == self._batches * 9 // 10:
            self._look("end")

    def _look(self, when: str) -> None:
        rows = {t: {n: list(r) for n, r in list(by.items())} for t, by in list(self.found.items())}
        self.window[when] = time.perf_counter(), self._launched, rows

    def told(self) -> dict[str, Any]:
        """Between the two looks, by kind of thread and function: calls, wall and processor ms, a batch."""
        if "end" not in self.window:
            return {}
        (since, first, before), (until, last, after) = self.window["begin"], self.window["end"]
        n, kinds = last - first, defaultdict(lambda: defaultdict(lambda: [0.0, 0.0, 0.0]))  # type: ignore[var-annotated]
        for thread, by in after.items():
            for name, row in by.items():
                old = before.get(thread, {}).get(name, [0, 0, 0])
                found = kinds[kind(thread)][name]
                for k, unit in enumerate((1, 1e6, 1e6)):
                    found[k] += (row[k] - old[k]) / unit / n
        return {"begin": since, "end": until, "batches": n, "ms_batch": 1e3 * (until - since) / n, "calls": kinds}


def kind(thread: str) -> str:
    """Threads of a kind, by one's name."""
    return thread.rstrip("0123456789 -_")


def child(told: Path, batches: int, arguments: list[str]) -> None:
    """`dali-run` with ``arguments``, watched."""
    names: dict[int, str] = {}

    def look() -> None:
        while True:
            for thread in threading.enumerate():
                if thread.native_id:
                    names[thread.native_id] = thread.name
            time.sleep(0.05)

    calls = Calls(batches)
    missing = calls.install(CALLS if os.environ.get("JOB_THREADS_CALLS", "1") == "1" else CALLS[:1])
    threading.Thread(target=look, name="names", daemon=True).start()
    from dali_run.cli import main

    code: Any = 1
    try:
        code = main.main(arguments)
    except SystemExit as e:
        code = e.code
    finally:
        told.write_text(json.dumps({"names": names, "missing": missing, **calls.told()}))
    sys.exit(code)


class Watched:
    """Looks at the threads of a process: a thread of its own."""

    def __init__(self, pid: int, hertz: float) -> None:
        self.seen: list[tuple[float, list[tuple[int, str, str]]]] = []
        self._pid, self._pause = pid, 1 / hertz
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        root = Path(f"/proc/{self._pid}/task")
        while not self._over.wait(self._pause):
            now, rows = time.perf_counter(), []
            with contextlib.suppress(OSError):
                for task in os.listdir(root):
                    with contextlib.suppress(OSError, IndexError):
                        state = (root / task / "stat").read_text().rsplit(")", 1)[1].split()[0]
                        call = (root / task / "syscall").read_text().strip() if state != "R" else "running"
                        rows.append((int(task), state, call))
            self.seen.append((now, rows))

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def told(self, begin: float, end: float, names: dict[str, str]) -> dict[str, dict[str, float]]:
        """Between two times, by kind of thread: how many threads of it were in each state, on average."""
        seen = [rows for at, rows in self.seen if begin <= at <= end]
        if not seen:
            return {}
        limited: dict[str, set[int]] = defaultdict(set)
        for rows in seen:
            for task, _, call in rows:
                words = call.split()
                if words[0] == "202" and words[4] != "0x0":
                    limited[words[1]].add(task)
        gil = max(limited, key=lambda a: len(limited[a]), default="")
        users: dict[str, set[str]] = defaultdict(set)
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for rows in seen:
            for task, state, call in rows:
                who, words = kind(names.get(str(task), "other")), call.split()
                what = "running" if words[0] == "running" else f"call {words[0]} {state}"
                if words[0] == "202":
                    near = gil and abs(int(words[1], 16) - int(gil, 16)) < 128
                    what = "GIL" if near else f"lock {words[1]}" + (" limited" if words[4] != "0x0" else "")
                    users[what].add(who)
                counts[who][what] += 1
        told: dict[str, dict[str, float]] = {}
        for who, by in counts.items():
            row: Counter[str] = Counter()
            for what, n in by.items():
                others = sorted(users[what] - {who}) if what.startswith("lock") else []
                name = (
                    what if not what.startswith("lock") else "lock" + (" limited" if what.endswith("limited") else "")
                )
                row[name + (f" with {', '.join(others)[:60]}" if others else "")] += n
            told[who] = {w: round(n / len(seen), 3) for w, n in row.most_common(8) if n / len(seen) >= 0.004}
        return told


def one(text: dict[str, Any], scratch: Path, device: str, variant: str, limit: int, args: Any) -> dict[str, Any]:
    """One job."""
    words = variant.split()
    named = [w.partition("=") for w in words if w[0].isupper()]
    more = [w for s in words if not s[0].isupper() for w in ("--set", s)]
    folder = scratch / "job"
    folder.mkdir(exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(text))
    for name in ("told.json", "calls.json"):
        (folder / name).unlink(missing_ok=True)
    where, _, processes = device.partition("/")
    command = [sys.executable, __file__, "--child", str(folder / "calls.json"), str(limit // args.batch), "--", "run",
               "spec.json", "--device", where, "--quiet", "--report", "told.json", "--limit", str(limit), *more,
               *(["--on", f"processes:{processes}"] if processes else [])]  # fmt: skip
    path = os.pathsep.join([str(shards.ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **{n: v for n, _, v in named}, "PYTHONPATH": path}
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    watched = Watched(process.pid, args.hertz)
    found = shards.told(process, folder, began)
    watched.end()
    if "error" not in found and (folder / "calls.json").exists():
        calls = json.loads((folder / "calls.json").read_text())
        found |= {k: calls[k] for k in ("ms_batch", "calls", "batches", "missing") if k in calls}
        if "begin" in calls:
            found["states"] = watched.told(calls["begin"], calls["end"], calls["names"])
    return found


def show(what: str, found: dict[str, Any], *, least: float) -> None:
    """Print what was found of one job."""
    if "error" in found:
        print(f"{what:60} failed: {found['error'][-600:]}", flush=True)
        return
    print(f"{what:60}{found['whole']:10,.0f}{found['middle'] or 0:10,.0f}{found['wall']:7.1f}"
          f"{found.get('ms_batch', 0):8.2f} ms a batch  {found['bottleneck'].get('sentence', '')}")  # fmt: skip
    for who, by in sorted(found.get("calls", {}).items()):
        rows = [(n, r) for n, r in sorted(by.items(), key=lambda row: -row[1][1]) if r[1] >= least]
        if rows:
            print(f"    {who}: " + "; ".join(f"{n} {r[1]:.2f} ({r[2]:.2f}) x{r[0]:.1f}" for n, r in rows))
    for who, row in sorted(found.get("states", {}).items()):
        if max(row.values(), default=0) >= 0.02:
            print(f"    {who} is in: " + "; ".join(f"{w} {n:.2f}" for w, n in row.items()))
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--times", type=int, default=6)
    parser.add_argument("--sources", default="tfrecord")
    parser.add_argument("--writer", default="tfrecord")
    parser.add_argument("--devices", nargs="+", default=["gpu:0"])
    parser.add_argument("--variants", nargs="+", default=[""])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--shard", type=int, default=10000)
    parser.add_argument("--hertz", type=float, default=100)
    parser.add_argument("--least", type=float, default=0.03, help="ms a batch that are told")
    parser.add_argument("--seconds", type=float, default=1e9, help="no job is begun after them")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began, results = time.perf_counter(), []
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        scratch = Path(name)
        files = data_files(args.folder, scratch / "different", args.gigabytes)
        for source in args.sources.split(","):
            (scratch / source).mkdir()
            host_planning.data_set(source, files, 1, scratch / source)
            reader = shards.linked(source, scratch / source, args.times)
            print(f"{source}: {len(files):,} files, ready after {time.perf_counter() - began:.1f} s", flush=True)
            for device in args.devices:
                for variant in args.variants:
                    if time.perf_counter() - began > args.seconds:
                        continue
                    text = shards.spec("jpeg", reader, args.writer, args.batch, args.shard, scratch / "out")
                    with shards.drained(scratch / "out"):
                        found = one(text, scratch, device, variant, len(files) * args.times, args)
                    shutil.rmtree(scratch / "out", ignore_errors=True)
                    what = ", ".join(filter(None, (source, device, variant)))
                    show(what, found, least=args.least)
                    results.append({"what": what, **found})
                    if args.json:
                        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[5:])
    else:
        main()
