"""Record times and counts of a run, by hooks around nodes and queues. Operators do not know of them.

Written by all parts of the engine; read by the job's report and by `Pipeline`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...ops.compiled.times import times
from ..graph.nodes import Node

_MAX_DURATIONS = 4096
"""Maximum number of durations that are kept per operator for percentiles; above it, every second one is removed."""

_MAX_NOTES = 32
"""Maximum number of calls that `Stats.note` defers. The references of more calls would live until Python's garbage
collector examines all new objects (every 700), and be counted as long-lived: it then examines all objects, which takes
a quarter of a second in a process with large libraries."""


@dataclass(slots=True)
class NodeStats:
    """Times and counts of one operator in one run. Created by `Stats`."""

    name: str
    op: str
    runs_on: str
    calls: int = 0
    samples: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    cpu_seconds: float = 0.0
    """Elapsed seconds inside the kernel, added over threads."""
    gpu_seconds: float = 0.0
    """Seconds of device time between the CUDA events around the kernel, added over lanes (CUDA streams)."""
    durations: list[float] = field(default_factory=list)
    """Durations of single calls of the kernel in seconds (device time for GPU kernels), for percentiles."""
    stride: int = 1

    def add_call(self, samples: int, taken: int, written: int, seconds: float, *, device: bool) -> None:
        """Record one call of the kernel, which reads ``taken`` and writes ``written`` bytes."""
        self.calls += 1
        self.samples += samples
        self.bytes_in += taken
        self.bytes_out += written
        if device:
            self.gpu_seconds += seconds
        else:
            self.cpu_seconds += seconds
        if self.calls % self.stride == 0:
            self.durations.append(seconds)
            if len(self.durations) > _MAX_DURATIONS:
                self.durations = self.durations[::2]
                self.stride *= 2


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on one thread or lane (CUDA stream), as a trace shows it. Times are in seconds of perf_counter.
    Created by `Stats.span`."""

    name: str
    track: str
    begin: float
    end: float
    iteration: int


@dataclass(slots=True)
class Work:
    """Seconds that worker threads spent on one step of the plan, added over threads. Created by `Stats.work`."""

    passed: float = 0.0
    """Elapsed seconds, without those for which the work waited for memory."""
    processor: float = 0.0
    """Seconds of processor time that the threads used."""
    no_core: float = 0.0
    """Seconds for which threads were ready to run, but all cores were busy with other threads."""


Count = TypeVar("Count", int, float)


class Stats:
    """All times and counts of one run of an engine. Created by `Services` or its caller; any thread may call it."""

    def __init__(self, *, trace: bool = False) -> None:
        self._nodes: dict[str, NodeStats] = {}
        self._stages: dict[str, float] = {}
        self._notes: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.worked: dict[str, Work] = {}
        """Times that worker threads spent, by stage."""
        self._processor_began = time.process_time()
        self.idled: dict[str, float] = {}
        """Seconds for which the worker threads had nothing to do in a stage, by stage."""
        self.spans: list[Span] | None = [] if trace else None
        self.rejected: dict[str, int] = {}
        self.left_out: dict[str, int] = {}
        """Number of samples that operators left out on purpose (`keep_if`), by operator."""
        self.fallbacks: dict[str, int] = {}
        """Number of samples that took a fallback (a slower path), by the reason."""
        self.decoders: dict[str, int] = {}
        """Number of images that each decoder decoded."""
        self.decoder_busy: dict[str, float] = {}
        """Seconds that CPU threads spent in each decoder."""
        self.decoder_waits: dict[str, float] = {}
        """Seconds for which batches for a device waited for each decoder's work on the CPU, by decoder."""
        self.uploads: dict[str, int] = {}
        """Bytes that were uploaded to GPUs, by method: ``registered``, ``in pieces`` or ``copied``, each followed by
        the reason."""
        self._compiled_before = times.seconds
        self._tracks: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def compiling(self) -> float:
        """Seconds for which threads of this process have waited for compilers since the run began."""
        return times.seconds - self._compiled_before

    @property
    def nodes(self) -> dict[str, NodeStats]:
        """Times and counts of all operators that have run, by the operator's name."""
        self._add_up()
        return self._nodes

    @property
    def stages(self) -> dict[str, float]:
        """Seconds for which each stage's own thread was busy, by stage."""
        self._add_up()
        return self._stages

    def note(self, report: Callable[..., None], *facts: Any) -> None:
        """Call ``report(*facts)`` later, at the latest when the statistics are read. For a batch of a few numbers, an
        immediate call would take as long as computing the batch."""
        self._notes.append((report, facts))
        if len(self._notes) > _MAX_NOTES:
            self._add_up()

    def _add_up(self) -> None:
        notes = self._notes
        while notes:
            try:
                report, facts = notes.popleft()
            except IndexError:  # another thread took the last one
                return
            report(*facts)

    def node(self, node: Node) -> NodeStats:
        """Return the record of times and counts of ``node``."""
        record = self._nodes.get(node.name)
        if record is None:
            with self._lock:
                record = self._nodes.setdefault(node.name, NodeStats(node.name, node.op.name, node.stage))
        return record

    def called(
        self, node: Node, samples: int, taken: int, written: int, seconds: float, *, device: bool = False
    ) -> None:
        """Record a call of the kernel of ``node``, which read ``taken`` and wrote ``written`` bytes."""
        record = self.node(node)
        with self._lock:
            record.add_call(samples, taken, written, seconds, device=device)

    def busy(self, stage: str, seconds: float) -> None:
        """Record that the thread of ``stage``, a step of the plan, worked for ``seconds``."""
        with self._lock:
            self._stages[stage] = self._stages.get(stage, 0.0) + seconds

    def work(self, stage: str, passed: float, processor: float, no_core: float) -> None:
        """Record that a worker thread computed a chunk in a step (``stage`` is its name). The other arguments are the
        fields of `Work`."""
        with self._lock:
            total = self.worked.setdefault(stage, Work())
            total.passed += passed
            total.processor += processor
            total.no_core += no_core

    @property
    def processor_seconds(self) -> float:
        """Seconds of processor time that this process has used since the run began."""
        return time.process_time() - self._processor_began

    def idle(self, stage: str, seconds: float) -> None:
        """Record that the worker threads had nothing to do in ``stage`` for ``seconds``."""
        with self._lock:
            self.idled[stage] = self.idled.get(stage, 0.0) + seconds

    def span(self, name: str, track: str, begin: float, end: float, iteration: int) -> None:
        """Add a piece of work to the trace, if a trace is recorded."""
        if self.spans is not None:
            self.spans.append(Span(name, track, begin, end, iteration))

    def new_track(self, kind: str) -> str:
        """Return the name of a new track (row) in the trace: ``kind`` and a number."""
        with self._lock:
            self._tracks[kind] = number = self._tracks.get(kind, -1) + 1
        return f"{kind} {number}"

    def count(self, table: dict[str, Count], key: str, n: Count = 1) -> None:
        """Add ``n`` to the entry ``key`` of ``table``, which is one of the fields of this object, such as
        ``fallbacks``."""
        with self._lock:
            table[key] = table[key] + n if key in table else n

    def chrome_trace(self) -> dict[str, Any]:
        """Return the recorded pieces of work as a Chrome/Perfetto trace (https://ui.perfetto.dev opens it)."""
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
