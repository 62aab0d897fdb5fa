"""Measure the times of kernels on a lane of a GPU. Used by `DeviceExecutor`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ....ops.gpu.lane import Lane
from ...graph.nodes import Node
from ..stats import Stats

_CLOCK = "trace clock"
"""Key in the cache of a lane (CUDA stream) for its zero point in traces: a CUDA event, the event's time (perf_counter,
in seconds), and the name of the lane's track."""


class DeviceTimer:
    """Measures the kernels of one launch by CUDA events around each of them. Created by the thread that launches the
    kernels; another thread calls `read` after the launch is complete."""

    def __init__(self, lane: Lane, stats: Stats, iteration: int) -> None:
        self._lane, self._stats, self._iteration = lane, stats, iteration
        if stats.spans is not None and _CLOCK not in lane.cache:
            with lane:  # an event belongs to the current GPU
                mark = lane.mark()
            lane.wait()
            lane.cache[_CLOCK] = mark, time.perf_counter(), stats.new_track(f"GPU {lane.index}, lane")
        self._marks: list[tuple[Node, int, int, int, Any, Any, float]] = []
        self._open: Any = None
        self._events: list[Any] = []

    def __call__(self, node: Node, samples: int, taken: int, given: int, after: bool) -> None:
        """Record a CUDA event before or ``after`` a kernel of ``node``. ``taken``, ``given``: bytes read, written."""
        if after:
            began, self._open = self._open, self._mark()
            self._marks.append((node, samples, taken, given, began, self._open, 1.0))
        elif self._open is None:  # otherwise the end of one kernel is the beginning of the next
            self._open = self._mark()

    def whole(self, nodes: Sequence[Node], samples: int, sizes: Sequence[tuple[int, int]]) -> None:
        """Record a CUDA event after ``nodes``, which were launched together as one recorded program. The program's time
        is divided among the nodes in proportion to their times when they ran one by one. ``sizes``: bytes that each
        node reads and writes."""
        began, self._open = self._open, self._mark()
        alone = [self._stats.node(n).gpu_seconds for n in nodes]
        total = sum(alone)
        for node, (taken, given), own in zip(nodes, sizes, alone, strict=True):
            share = own / total if total else 1 / len(nodes)
            self._marks.append((node, samples, taken, given, began, self._open, share))

    def _mark(self) -> Any:
        event = self._lane.mark()
        self._events.append(event)
        return event

    def read(self) -> None:
        """Compute the times between the recorded events, and add them to the statistics."""
        start, at, track = self._lane.cache.get(_CLOCK, (None, 0.0, ""))
        pairs = [(begin, end) for *_, begin, end, _ in self._marks]
        if start is not None:
            pairs += [(start, mark) for pair in pairs for mark in pair]
        times = self._lane.seconds_between(pairs)
        since = times[len(self._marks) :]
        for k, (node, samples, taken, given, _, _, share) in enumerate(self._marks):
            if start is not None:
                self._stats.span(node.name, track, at + since[2 * k], at + since[2 * k + 1], self._iteration)
            self._stats.called(node, samples, taken, given, times[k] * share, device=True)
        self._marks.clear()
        self._lane.reuse_marks(self._events)
        self._events = []
