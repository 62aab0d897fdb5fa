"""Track the progress of a job's workers: now, one row per worker, and over time, for the report's plots.

Used by `Driver`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_ROWS = 240
"""Maximum number of rows of the progress curve in a report. Above it, every second row is removed, and rows are added
half as often."""
_FIRST_INTERVAL = 0.1
"""Seconds between two rows of the progress curve at the start of a job."""
_RECENT_INTERVAL = 0.5
"""Seconds between two of the measurements from which current rates are computed."""
_WINDOW = 5.0
"""Seconds over which the current rates are averaged."""
_SECONDS_PER_WORKER = 0.001
"""Seconds between two records of the progress of all workers, per worker: with 1,000 workers, they are recorded once
per second."""
MAX_LINES = 64
"""Maximum number of workers that have one curve each in a report. With more workers, only machines have curves."""


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """The progress of one worker at one moment. Created by `Driver`."""

    name: str
    node: str
    samples: int
    """Number of samples that the worker has read in this run."""
    rejected: int
    part: int | None
    """Number of the job part that the worker runs; None if the worker has none."""
    parts: int
    """Number of job parts that the worker has finished."""


@dataclass(frozen=True, slots=True)
class _Row:
    at: float
    read: int
    rejected: int
    workers: Mapping[str, int]
    """Number of samples that each worker has read so far, by the worker's label."""
    nodes: Mapping[str, int]


class ProgressLog:
    """The progress of a job over time, in rows that become rarer as the job gets longer. Times are seconds since the
    job began. Created by `Driver`; used by the driver's thread."""

    def __init__(self) -> None:
        self._interval = _FIRST_INTERVAL
        self._rows: list[_Row] = []
        self._recent: deque[_Row] = deque(maxlen=64)
        self._workers: Sequence[WorkerProgress] = ()

    def due(self, at: float, workers: int) -> bool:
        """Return whether it is time to `record` the progress of ``workers`` workers. The more workers there are, the
        rarer this is, so that recording takes the same share of the driver's time."""
        if not self._rows:
            return True
        elapsed = at - self._last.at
        return elapsed >= workers * _SECONDS_PER_WORKER and (
            at - self._rows[-1].at >= self._interval or elapsed >= _RECENT_INTERVAL
        )

    def record(self, at: float, read: int, rejected: int, workers_now: Sequence[WorkerProgress]) -> None:
        """Record the progress at time ``at`` (seconds): the numbers of samples read and rejected by all workers, and
        the progress of each worker that has taken part so far."""
        workers: dict[str, int] = {}
        nodes: dict[str, int] = {}
        for s in workers_now:
            workers[_label(s)] = workers.get(_label(s), 0) + s.samples
            nodes[s.node] = nodes.get(s.node, 0) + s.samples
        row = _Row(at, read, rejected, workers if len(workers) <= MAX_LINES else {}, nodes)
        self._workers = workers_now
        if not self._recent or at - self._recent[-1].at >= _RECENT_INTERVAL or len(self._recent) < 8:
            self._recent.append(row)
        if not self._rows or at - self._rows[-1].at >= self._interval:
            self._rows.append(row)
            if len(self._rows) > MAX_ROWS:
                self._rows = self._rows[::2]
                self._interval *= 2
        self._last = row

    def over_time(self) -> dict[str, Any]:
        """Return the recorded rows as columns for a report. Counts add up from the start. A worker that came later has
        0 in the rows before."""
        if not self._rows:
            return {}
        rows = self._rows if self._rows[-1] is self._last else [*self._rows, self._last]
        by_node = not self._last.workers
        last = self._last.nodes if by_node else self._last.workers
        return {
            "seconds": [round(r.at, 3) for r in rows],
            "samples": [r.read for r in rows],
            "rejected": [r.rejected for r in rows],
            "queues": {},
            "operators": {},
            "memory": {},
            "workers": {name: [(r.nodes if by_node else r.workers).get(name, 0) for r in rows] for name in last},
        }

    def now(self) -> dict[str, Any]:
        """Return the current state of the job; rates are averages over the last `_WINDOW` seconds."""
        if not self._recent:
            return {}
        last = self._last
        first = next((r for r in reversed(self._recent) if last.at - r.at >= _WINDOW), self._recent[0])
        seconds = max(last.at - first.at, 1e-9)
        return {
            "seconds": round(last.at, 3),
            "done": last.read,
            "rejected": last.rejected,
            "samples_per_second": round((last.read - first.read) / seconds, 1),
            "recent_samples_per_second": [
                round((b.read - a.read) / max(b.at - a.at, 1e-9), 1) for a, b in itertools.pairwise(self._recent)
            ],
            "nodes": len(last.nodes),
            "workers": [
                {"name": s.name, "node": s.node, "part": s.part, "parts": s.parts, "done": s.samples,
                 "rejected": s.rejected, "samples_per_second": round(
                     max(0, last.workers.get(_label(s), 0) - first.workers.get(_label(s), 0)) / seconds, 1)}
                for s in self._workers
            ],
        }  # fmt: skip


def _label(s: WorkerProgress) -> str:
    return f"{s.name} on {s.node}" if s.node else s.name
