"""Statistics: what hooks around nodes and queues record while a plan runs. Operators know nothing of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...ops.compiled.times import times
from ..graph.nodes import Node

_KEPT = 4096
"""Durations kept per operator for percentiles; beyond that every second one is thinned out."""

_NOTED = 32
"""Notes of batches that wait to be added up. More of them would live until Python's collector looks at all that is new
(every 700 objects), and be counted as lasting: it then looks at everything, for which a process with large libraries
takes a quarter of a second."""


@dataclass(slots=True)
class NodeStats:
    """Times and counts of one operator."""

    name: str
    op: str
    runs_on: str
    calls: int = 0
    samples: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    cpu_seconds: float = 0.0
    """Wall time inside the kernel, added over threads."""
    gpu_seconds: float = 0.0
    """Device time between the events around the kernel, added over lanes."""
    durations: list[float] = field(default_factory=list)
    """Seconds of single calls (device time where there is one), for percentiles."""
    stride: int = 1

    def add_call(self, samples: int, taken: int, given: int, seconds: float, *, device: bool) -> None:
        """Record one call."""
        self.calls += 1
        self.samples += samples
        self.bytes_in += taken
        self.bytes_out += given
        if device:
            self.gpu_seconds += seconds
        else:
            self.cpu_seconds += seconds
        if self.calls % self.stride == 0:
            self.durations.append(seconds)
            if len(self.durations) > _KEPT:
                self.durations = self.durations[::2]
                self.stride *= 2


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on one thread or lane, for traces. Seconds of perf_counter."""

    name: str
    track: str
    begin: float
    end: float
    iteration: int


@dataclass(slots=True)
class Work:
    """Seconds of worker threads in a stage's chunks, added over threads."""

    passed: float = 0.0
    """Seconds that passed, less those in which work waited for memory."""
    processor: float = 0.0
    """Seconds on a processor."""
    no_core: float = 0.0
    """Seconds ready to work, while all cores had other threads."""


Count = TypeVar("Count", int, float)


class Stats:
    """All that is recorded of one run; safe to call from any thread."""

    def __init__(self, *, trace: bool = False) -> None:
        self._nodes: dict[str, NodeStats] = {}
        self._stages: dict[str, float] = {}
        self._notes: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.worked: dict[str, Work] = {}
        """Times of worker threads, by stage."""
        self._processor_began = time.process_time()
        self.idled: dict[str, float] = {}
        """Seconds in which the workers had nothing of a stage to do."""
        self.spans: list[Span] | None = [] if trace else None
        self.rejected: dict[str, int] = {}
        self.left_out: dict[str, int] = {}
        """Samples that operators left out on purpose."""
        self.fallbacks: dict[str, int] = {}
        """Samples that another lane or device had to take over, by reason."""
        self.decoders: dict[str, int] = {}
        """Images that each decoder took."""
        self.decoder_busy: dict[str, float] = {}
        """Seconds of CPU threads in each decoder."""
        self.decoder_waits: dict[str, float] = {}
        """Seconds for which batches on their way to a device waited for each decoder."""
        self.uploads: dict[str, int] = {}
        """Bytes on their way to a GPU: ``registered``, ``in pieces`` or ``copied``, and why."""
        self._compiled_before = times.seconds
        self._tracks: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def compiling(self) -> float:
        """Seconds that threads of this process have waited for compilers since the run began."""
        return times.seconds - self._compiled_before

    @property
    def nodes(self) -> dict[str, NodeStats]:
        """The records of all operators that have run, by their names."""
        self._add_up()
        return self._nodes

    @property
    def stages(self) -> dict[str, float]:
        """Busy seconds of each stage's own thread."""
        self._add_up()
        return self._stages

    def note(self, take_down: Callable[..., None], *facts: Any) -> None:
        """Call ``take_down(*facts)`` later, at the latest when somebody looks: a batch of a few numbers takes no longer
        than to take its times down."""
        self._notes.append((take_down, facts))
        if len(self._notes) > _NOTED:
            self._add_up()

    def _add_up(self) -> None:
        notes = self._notes
        while notes:
            try:
                take_down, facts = notes.popleft()
            except IndexError:  # another thread was faster
                return
            take_down(*facts)

    def node(self, node: Node) -> NodeStats:
        """The record of ``node``."""
        found = self._nodes.get(node.name)
        if found is None:
            with self._lock:
                found = self._nodes.setdefault(node.name, NodeStats(node.name, node.op.name, node.stage))
        return found

    def called(self, node: Node, samples: int, taken: int, given: int, seconds: float, *, device: bool = False) -> None:
        """A kernel ran."""
        record = self.node(node)
        with self._lock:
            record.add_call(samples, taken, given, seconds, device=device)

    def busy(self, stage: str, seconds: float) -> None:
        """A stage's thread worked for ``seconds``."""
        with self._lock:
            self._stages[stage] = self._stages.get(stage, 0.0) + seconds

    def work(self, stage: str, passed: float, processor: float, no_core: float) -> None:
        """A worker took a chunk through a stage; see `Work`."""
        with self._lock:
            total = self.worked.setdefault(stage, Work())
            total.passed += passed
            total.processor += processor
            total.no_core += no_core

    @property
    def processor_seconds(self) -> float:
        """Seconds of processors that this process has taken since the run began."""
        return time.process_time() - self._processor_began

    def idle(self, stage: str, seconds: float) -> None:
        """The workers had nothing of a stage to do for ``seconds``."""
        with self._lock:
            self.idled[stage] = self.idled.get(stage, 0.0) + seconds

    def span(self, name: str, track: str, begin: float, end: float, iteration: int) -> None:
        """Record a piece of work for the trace, if there is one."""
        if self.spans is not None:
            self.spans.append(Span(name, track, begin, end, iteration))

    def new_track(self, kind: str) -> str:
        """A name for a track of its own in the trace: ``kind`` and a number."""
        with self._lock:
            self._tracks[kind] = number = self._tracks.get(kind, -1) + 1
        return f"{kind} {number}"

    def count(self, table: dict[str, Count], key: str, n: Count = 1) -> None:
        """Add to one of the tables of counts."""
        with self._lock:
            table[key] = table[key] + n if key in table else n

    def chrome_trace(self) -> dict[str, Any]:
        """The spans as a Chrome/Perfetto trace (https://ui.perfetto.dev opens it)."""
        spans = self.spans or []
        first = min((s.begin for s in spans), default=0.0)
        tracks = {t: i for i, t in enumerate(dict.fromkeys(s.track for s in spans))}
        names = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": t}} for t, i in tracks.items()]
        events = [
            {
                "ph": "X",
                "name": s.name,
                "pid": 0,
                "tid": tracks[s.track],
                "ts": round((s.begin - first) * 1e6, 1),
                "dur": round((s.end - s.begin) * 1e6, 1),
                "args": {"batch": s.iteration},
            }
            for s in spans
        ]
        return {"traceEvents": names + events, "displayTimeUnit": "ms"}
