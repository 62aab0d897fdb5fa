"""Live: what a job does while it does it. A thread looks at the engine's counters now and then: for the report's plots
over time, and for a status in the user's own folder that other terminals can show."""

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
from .known_jobs import forget_oldest, keep, key_of, state_folder
from .report import bottleneck, loads_of, operator_seconds, overlap, step_seconds

SCHEMA_VERSION = 1
MOST_ROWS = 240
"""Rows that are kept for a report; when there are more, every second one goes, and rows come half as often."""
_FIRST_INTERVAL = 0.05
"""Seconds between the first rows: a job of a few seconds has a curve, too."""
_TICK = 1.0
"""Seconds between two looks at most."""
_SHARE = 0.01
"""Part of the time that writing the status may take: on a slow file system it is written less often."""
_WINDOW = 5.0
"""Seconds over which current rates are taken."""
_SILENT = 60.0
"""Seconds after which a job on another machine that has written nothing counts as lost."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a job is, by its own thread."""

    read: int
    rejected: int
    left_out: int
    sink_seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """The engine at one moment. Counts and seconds are those since the start."""

    at: float
    counts: Counts
    fills: tuple[int, ...]
    operators: tuple[tuple[float, float], ...]
    """CPU and GPU seconds."""
    steps: tuple[float, ...]
    host: int
    device: int
    process: int
    """Bytes: on the accounts of host and GPU memory, and of the process."""


class Recorder:
    """Takes rows. Only one thread takes them; any may read."""

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
        """It is time for another row."""
        return time.perf_counter() - self.began - self.rows[-1].at >= self.interval

    def take(self) -> None:
        """Look now."""
        row = self._row()
        if row.at - self.recent[-1].at >= _TICK / 2 or len(self.recent) < 8:
            self.recent.append(row)
        if row.at - self.rows[-1].at >= self.interval * 0.9:
            self.rows.append(row)
            if len(self.rows) > MOST_ROWS:
                self.rows = self.rows[::2]
                self.interval *= 2

    def end(self) -> None:
        """The run is over; its counts stay as they are, and it is let go of."""
        counts = self._counts()
        self._counts = lambda: counts

    def over_time(self) -> dict[str, Any]:
        """The rows as columns for a report. Counts and seconds add up from the start."""
        rows = [*self.rows, self._row()]
        engine = self.engine
        names = [c.name for c in engine.channels]
        operators = operator_seconds(engine)
        found: dict[str, Any] = {
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
            found["gpu_busy_seconds"] = [round(self._gpu(r), 4) for r in rows]
            found["memory"]["gpu"] = [r.device for r in rows]
        return found

    def _gpu(self, row: Row) -> float:
        return sum(gpu for _, gpu in row.operators) / overlap(self.engine)

    def now(self) -> dict[str, Any]:
        """The state of the run as plain data: rates and loads are over the last seconds."""
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
        top = bottleneck(loads, passed)
        budgets = engine.budgets
        found: dict[str, Any] = {
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
            "bottleneck": {"what": top.name, "share": round(top.share, 4), "sentence": top.sentence,
                           "advice": top.advice},
            "memory": {"process": last.process, "host": last.host, "host_limit": budgets["host"].limit},
        }  # fmt: skip
        if "gpu" in budgets:
            found["memory"] |= {"gpu": last.device, "gpu_limit": budgets["gpu"].limit}
        if engine.plan.target.device != "cpu":
            found["gpu_busy"] = round((self._gpu(last) - self._gpu(first)) / seconds, 4)
        return found


def _at(values: Sequence[int], i: int) -> int:
    return values[i] if i < len(values) else 0  # the channel was not open yet


def _rates(rows: Sequence[Row]) -> list[float]:
    pairs = itertools.pairwise(rows)
    return [round((b.counts.read - a.counts.read) / max(b.at - a.at, 1e-9), 1) for a, b in pairs]


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


# -- the status of a job ----------------------------------------------------------------------------------------------


class Live:
    """The status of one job: `of` says it, a thread publishes it while the job runs."""

    def __init__(self, out: Path | str, part: tuple[int, int] | None, facts: Mapping[str, Any]) -> None:
        """``facts`` stay as they are: name, total, device, threads."""
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
        """From here on the status follows ``recorder``."""
        self._recorder = recorder
        self._ending = {"state": "running"}
        thread = threading.Thread(target=self._watch, args=(recorder,), name="live", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread to be had: the job goes on without
            thread.start()
            self._thread = thread

    def end(self, state: str, message: str) -> None:
        """The job is over; the status stays to be read."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._ending = {"state": state, "message": message}
        with contextlib.suppress(OSError):
            self._publish()

    def of(self) -> dict[str, Any]:
        """The status as plain data."""
        now = self._recorder.now() if self._recorder is not None else {}
        return {**self._facts, **now, **self._ending, "written": time.time()}

    def _publish(self) -> None:
        keep(self._file, self.of())

    def _watch(self, recorder: Recorder) -> None:
        due = 0.0
        while not self._stop.wait(min(recorder.interval, _TICK)):
            recorder.take()
            began = time.perf_counter()
            if began >= due:
                with contextlib.suppress(OSError):  # a full disk: the job itself may be elsewhere
                    self._publish()
                took = time.perf_counter() - began
                due = began + max(_TICK, took / _SHARE)


def statuses(out: Path | str | None = None) -> list[dict[str, Any]]:
    """The statuses of this user's jobs, the newest last; of those that write ``out``, part by part."""
    folder = state_folder("live")
    wanted = f"{key_of(out)}*.json" if out is not None else "*.json"
    found = []
    for path in sorted(folder.glob(wanted)) if folder.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, JobError):  # just replaced, or of another version
            status = sidecar.read_json(path, sidecar.REPORT)
            if status.get("schema_version") == SCHEMA_VERSION:
                found.append({**status, "state": _state(status)})
    if out is None:
        return sorted(found, key=lambda s: s["started"])
    newest = max(found, key=lambda s: s["started"], default={"part": None})["part"]
    found = [s for s in found if (s["part"] or [0])[1:] == (newest or [0])[1:]]  # of this many parts, or the whole
    return sorted(found, key=lambda s: s["part"] or [0])


def _state(status: Mapping[str, Any]) -> str:
    """The state as the status says it; ``lost`` where its process is gone without a word."""
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
