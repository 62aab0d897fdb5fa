"""Record what a job does while it runs: for the report's plots over time, and for a status in a folder of the user that
other terminals can show.

A thread reads the engine's counters from time to time. Used by `JobRun`; `statuses` is called by `dali-run top`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...ops.errors import JobError
from ...writers.bytes import sidecar
from ..engine.engine import Engine
from .known_jobs import forget_oldest, key_of, state_folder, write_atomically
from .report import bottleneck, loads_of, operator_seconds, overlap, step_seconds

SCHEMA_VERSION = 1
MAX_ROWS = 240
"""Maximum number of rows of the progress curve in a report. Above it, every second row is removed, and rows are added
half as often."""
_FIRST_INTERVAL = 0.05
"""Seconds between the first rows of the progress curve, so that a job of a few seconds also has one."""
_MAX_INTERVAL = 1.0
"""Maximum seconds between two rows of the progress curve."""
_SHARE = 0.01
"""Maximum share of the time that may be spent on writing the status file. On a slow file system, the file is written
less often."""
_WINDOW = 5.0
"""Seconds over which the current rates are averaged."""
_SILENT = 60.0
"""Seconds without a new status after which a job on another machine counts as lost."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The progress of a job: counts of samples that the job's own thread keeps. Created by `JobRun`."""

    read: int
    rejected: int
    left_out: int
    sink_seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """Values of an engine's counters at one moment: a row of the progress curve. Counts and seconds are totals since
    the start. Created by `Recorder`."""

    at: float
    counts: Counts
    fills: tuple[int, ...]
    operators: tuple[tuple[float, float], ...]
    """For each operator, its CPU and GPU seconds so far."""
    steps: tuple[float, ...]
    host: int
    device: int
    process: int
    """Bytes of memory in use by the process. (`host` and `device` are the bytes reserved in the memory budgets.)"""


class Recorder:
    """Records an engine's counters from time to time, for curves and current rates. Created by `JobRun`; one thread
    records, any thread may read."""

    def __init__(self, engine: Engine, counts: Callable[[], Counts]) -> None:
        self.engine = engine
        self._counts = counts
        self.began = time.perf_counter()
        self.interval = _FIRST_INTERVAL
        self.rows: list[Row] = [self._row()]
        self.recent: deque[Row] = deque(self.rows, maxlen=64)

    def _row(self) -> Row:
        engine = self.engine
        budgets = engine.budgets
        return Row(
            time.perf_counter() - self.began, self._counts(), tuple(c.fill for c in engine.channels),
            tuple((o["cpu_seconds"], o["gpu_seconds"]) for o in operator_seconds(engine)), tuple(step_seconds(engine)),
            budgets["host"].used, budgets["gpu"].used if "gpu" in budgets else 0, _resident(),
        )  # fmt: skip

    def due(self) -> bool:
        """Return whether it is time to record another row."""
        return time.perf_counter() - self.began - self.rows[-1].at >= self.interval

    def record(self) -> None:
        """Record the present values of the counters as a row."""
        row = self._row()
        if row.at - self.recent[-1].at >= _MAX_INTERVAL / 2 or len(self.recent) < 8:
            self.recent.append(row)
        if row.at - self.rows[-1].at >= self.interval * 0.9:
            self.rows.append(row)
            if len(self.rows) > MAX_ROWS:
                self.rows = self.rows[::2]
                self.interval *= 2

    def end(self) -> None:
        """Stop recording: keep the last values, and drop the reference to the run."""
        counts = self._counts()
        self._counts = lambda: counts

    def over_time(self) -> dict[str, Any]:
        """Return the recorded rows as columns for a report. Counts and seconds are totals since the start."""
        rows = [*self.rows, self._row()]
        engine = self.engine
        names = [c.name for c in engine.channels]
        operators = operator_seconds(engine)
        columns: dict[str, Any] = {
            "seconds": [round(r.at, 3) for r in rows],
            "samples": [r.counts.read for r in rows],
            "rejected": [r.counts.rejected for r in rows],
            "left_out": [r.counts.left_out for r in rows],
            "queues": {name: {"depth": engine.channels[i].depth, "fill": [_at(r.fills, i) for r in rows]}
                       for i, name in enumerate(names)},
            "operators": {o["name"]: [round(max(r.operators[i]), 4) for r in rows] for i, o in enumerate(operators)},
            "memory": {"process": [r.process for r in rows], "host": [r.host for r in rows]},
        }  # fmt: skip
        if engine.plan.target.device != "cpu":
            columns["gpu_busy_seconds"] = [round(self._gpu(r), 4) for r in rows]
            columns["memory"]["gpu"] = [r.device for r in rows]
        return columns

    def _gpu(self, row: Row) -> float:
        return sum(gpu for _, gpu in row.operators) / overlap(self.engine)

    def now(self) -> dict[str, Any]:
        """Return the current state of the run as plain data; rates and loads are averages over the last `_WINDOW`
        seconds."""
        engine, recent = self.engine, list(self.recent)
        last = self._row()
        first = next((r for r in reversed(recent) if last.at - r.at >= _WINDOW), recent[0])
        seconds = max(last.at - first.at, 1e-9)
        names = operator_seconds(engine)
        operators = [
            {**o, "cpu_seconds": b[0] - a[0], "gpu_seconds": b[1] - a[1]}
            for o, a, b in zip(names, first.operators, last.operators, strict=True)
        ]
        steps = [b - a for a, b in zip(first.steps, last.steps, strict=True)]
        loads = loads_of(engine, operators, seconds, last.counts.sink_seconds - first.counts.sink_seconds, "write",
                         steps)  # fmt: skip
        passed = engine.channels[0].passed if engine.channels else 0
        slowest = bottleneck(loads, passed)
        budgets = engine.budgets
        state: dict[str, Any] = {
            "seconds": round(last.at, 3),
            "done": last.counts.read,
            "rejected": last.counts.rejected,
            "left_out": last.counts.left_out,
            "samples_per_second": round((last.counts.read - first.counts.read) / seconds, 1),
            "recent_samples_per_second": _rates(recent),
            "operators": [
                {"name": o["name"], "runs_on": o["runs_on"],
                 "busy": round((o["gpu_seconds"] or o["cpu_seconds"]) / seconds, 4)} for o in operators
            ],
            "queues": [{"name": c.name, "depth": c.depth, "fill": _at(last.fills, i)}
                       for i, c in enumerate(engine.channels)],
            "loads": {x.name: round(x.share, 4) for x in loads},
            "bottleneck": {"what": slowest.name, "share": round(slowest.share, 4), "sentence": slowest.sentence,
                           "advice": slowest.advice},
            "memory": {"process": last.process, "host": last.host, "host_limit": budgets["host"].limit},
        }  # fmt: skip
        if "gpu" in budgets:
            state["memory"] |= {"gpu": last.device, "gpu_limit": budgets["gpu"].limit}
        if engine.plan.target.device != "cpu":
            state["gpu_busy"] = round((self._gpu(last) - self._gpu(first)) / seconds, 4)
        return state


def _at(values: Sequence[int], i: int) -> int:
    return values[i] if i < len(values) else 0  # the channel did not exist yet


def _rates(rows: Sequence[Row]) -> list[float]:
    pairs = itertools.pairwise(rows)
    return [round((b.counts.read - a.counts.read) / max(b.at - a.at, 1e-9), 1) for a, b in pairs]


def _resident() -> int:
    """Return the bytes of physical memory that this process uses; 0 if the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


# -- the status of a job ----------------------------------------------------------------------------------------------


class Live:
    """The status of one job, which a thread publishes as a file while the job runs. Created by `JobRun`."""

    def __init__(self, out: Path | str, part: tuple[int, int] | None, facts: Mapping[str, Any]) -> None:
        """``facts``: name, total number of samples, device and threads of the job, which do not change."""
        number = "" if part is None else f"-{part[0]}-of-{part[1]}"
        self._file = state_folder("live") / f"{key_of(out)}{number}.json"
        self._facts = {
            "schema_version": SCHEMA_VERSION, "output": str(out), "part": None if part is None else list(part),
            "pid": os.getpid(), "host": socket.gethostname(), "started": time.time(), **facts,
        }  # fmt: skip
        self._ending: dict[str, Any] = {"state": "preparing"}
        self._recorder: Recorder | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        with contextlib.suppress(OSError):
            self._publish()
            forget_oldest(self._file.parent)

    def start(self, recorder: Recorder) -> None:
        """Start a thread that publishes the state in ``recorder`` from now on."""
        self._recorder = recorder
        self._ending = {"state": "running"}
        thread = threading.Thread(target=self._watch, args=(recorder,), name="live", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread could be started: the job continues without a status
            thread.start()
            self._thread = thread

    def end(self, state: str, message: str) -> None:
        """Publish the final status, which remains readable after the job has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._ending = {"state": state, "message": message}
        with contextlib.suppress(OSError):
            self._publish()

    def of(self) -> dict[str, Any]:
        """Return the current status of the job as plain data."""
        now = self._recorder.now() if self._recorder is not None else {}
        return {**self._facts, **now, **self._ending, "written": time.time()}

    def _publish(self) -> None:
        write_atomically(self._file, self.of())

    def _watch(self, recorder: Recorder) -> None:
        due = 0.0
        while not self._stop.wait(min(recorder.interval, _MAX_INTERVAL)):
            recorder.record()
            began = time.perf_counter()
            if began >= due:
                with contextlib.suppress(OSError):  # the disk may be full, while the job writes elsewhere
                    self._publish()
                took = time.perf_counter() - began
                due = began + max(_MAX_INTERVAL, took / _SHARE)


def statuses(out: Path | str | None = None) -> list[dict[str, Any]]:
    """Return the statuses of this user's jobs, the newest last. With ``out``, return those of the job that writes
    there, one per part of the job."""
    folder = state_folder("live")
    pattern = f"{key_of(out)}*.json" if out is not None else "*.json"
    statuses_found = []
    for path in sorted(folder.glob(pattern)) if folder.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, JobError):  # the file was just replaced, or is of another version
            status = sidecar.read_json(path, sidecar.REPORT)
            if status.get("schema_version") == SCHEMA_VERSION:
                statuses_found.append({**status, "state": _state(status)})
    if out is None:
        return sorted(statuses_found, key=lambda s: s["started"])
    newest = max(statuses_found, key=lambda s: s["started"], default={"part": None})["part"]
    statuses_found = [
        s for s in statuses_found if (s["part"] or [0])[1:] == (newest or [0])[1:]
    ]  # with the same number of parts, or without parts
    return sorted(statuses_found, key=lambda s: s["part"] or [0])


def _state(status: Mapping[str, Any]) -> str:
    """Return the state of a job, such as ``running``. It is ``lost`` if the job's process has ended without a final
    status."""
    state = str(status["state"])
    if state not in ("preparing", "running"):
        return state
    if status["host"] != socket.gethostname():
        return "lost" if state == "running" and time.time() - status["written"] > _SILENT else state
    try:
        os.kill(int(status["pid"]), 0)
    except ProcessLookupError:
        return "lost"
    except OSError:
        pass
    return state
