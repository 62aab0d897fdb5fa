"""How far the workers of a job are: now, a line for each, and over time, for the report's plots."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_ROWS = 240
"""Rows that are kept for a report; when there are more, every second one goes, and rows come half as often."""
_FIRST_INTERVAL = 0.1
_BETWEEN = 0.5
"""Seconds between rows that current rates are taken from."""
_WINDOW = 5.0
"""Seconds over which current rates are taken."""
_EACH = 0.001
"""Seconds between two looks for each worker."""
MOST_LINES = 64
"""Workers with numbers of their own over time; of more, their machines have some."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One worker at one moment, by what it and the driver said."""

    name: str
    node: str
    samples: int
    """It has read them in this run."""
    rejected: int
    part: int | None
    """The part that it runs."""
    parts: int
    """Those that it has finished."""


@dataclass(frozen=True, slots=True)
class _Row:
    at: float
    read: int
    rejected: int
    workers: Mapping[str, int]
    """Samples of each worker, by its label."""
    nodes: Mapping[str, int]


class Watch:
    """Rows of what the driver knows, thinned out as a run gets longer. Times are seconds since the job began."""

    def __init__(self) -> None:
        self._interval = _FIRST_INTERVAL
        self._rows: list[_Row] = []
        self._recent: deque[_Row] = deque(maxlen=64)
        self._standings: Sequence[Standing] = ()

    def due(self, at: float, workers: int) -> bool:
        """It is time to `look` at so many ``workers`` again: that takes a share of the driver's time that does not grow
        with them."""
        if not self._rows:
            return True
        passed = at - self._last.at
        return passed >= workers * _EACH and (at - self._rows[-1].at >= self._interval or passed >= _BETWEEN)

    def look(self, at: float, read: int, rejected: int, standings: Sequence[Standing]) -> None:
        """The job, ``at`` seconds: samples read and rejected by all, and every worker that there was."""
        workers: dict[str, int] = {}
        nodes: dict[str, int] = {}
        for s in standings:
            workers[_label(s)] = workers.get(_label(s), 0) + s.samples
            nodes[s.node] = nodes.get(s.node, 0) + s.samples
        row = _Row(at, read, rejected, workers if len(workers) <= MOST_LINES else {}, nodes)
        self._standings = standings
        if not self._recent or at - self._recent[-1].at >= _BETWEEN or len(self._recent) < 8:
            self._recent.append(row)
        if not self._rows or at - self._rows[-1].at >= self._interval:
            self._rows.append(row)
            if len(self._rows) > MOST_ROWS:
                self._rows = self._rows[::2]
                self._interval *= 2
        self._last = row

    def over_time(self) -> dict[str, Any]:
        """The rows as columns for a report. Counts add up from the start; a worker that came later has none before."""
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
        """All that is known now; rates are over the last seconds."""
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
                for s in self._standings
            ],
        }  # fmt: skip


def _label(s: Standing) -> str:
    return f"{s.name} on {s.node}" if s.node else s.name
