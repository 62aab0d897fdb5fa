"""Inline: batches for the host that take next to nothing, computed by the program's own thread; threads take over where
they turn out to take longer.

Every hand-over to another thread costs 10 to 50 us, estimating memory more, and with the GIL so short a task gains
nothing from another thread.
"""

from __future__ import annotations

import math
import time

from ....readers.base import Reader
from ...compile.plan import Plan
from ..batch_merger import BatchMerger
from ..host_executor import HostExecutor
from ..in_flight import InFlightBatch
from ..nodes.envs import bytes_of
from ..services import Services
from .fast_path import FastHostStep

_QUICK, _PROMPT = 2e-3, 8e-3
"""Seconds of CPU time, and seconds in all, that a batch may take."""

_FEW = 8
"""Samples of a batch that is small even if it is read and decoded."""

_MUCH = 32 << 20
"""Bytes that a batch of several chunks may have."""

_FIRST = 2
"""Batches that may take any time: they compile loops."""

_PATIENCE = 16
"""Batches that may take longer (first ones compile kernels, files are not in the page cache) before threads start."""


def is_light(plan: Plan) -> bool:
    """Nothing in the plan reads, decodes or runs code of the user's: all of it is arithmetic on a few numbers."""
    light = all(s.kind == "whole" for s in plan.steps)
    return light and all(not n.op.per_batch or n.op.is_trivial for n in plan.graph.nodes)


class InlineHost:
    """The program's thread owns it. Its batches are on no account: there is one at a time."""

    def __init__(self, services: Services, merger: BatchMerger, host_executor: HostExecutor) -> None:
        plan = services.plan
        self._merger, self._host_executor = merger, host_executor
        self._steps = [(services.name_of(s), s, FastHostStep(services, services.name_of(s), s)) for s in plan.steps]
        reads = any(n.op.decodes or isinstance(n.op, Reader) for n in plan.graph.nodes)
        self._most = _FEW if reads and not is_light(plan) else None
        """Samples of a batch that may be computed so."""
        self._slow = 0.0
        """Batches that took too long, less those that did not."""
        self._doubtful = True
        """The last batch took so long that the next one's work is timed."""

    def take(self) -> InFlightBatch | None:
        """The next batch; None where threads should make it, and all that follow. Raises what made it fail, and
        StopIteration."""
        began, at_work = time.perf_counter(), time.thread_time() if self._doubtful else None
        it = self._merger.one(0 if self._slow > _PATIENCE else self._most)
        if it is None:
            return None
        for name, step, plain in self._steps:
            if plain.is_applicable and plain.run(it):
                continue
            if step.kind == "whole":
                self._host_executor.whole(it, name, step, None, self._host_executor.pool)
                continue
            env = {e: it.env[e] for e in step.needs}
            reads = not all(n.op.metadata_only for n in step.nodes)
            if reads and len(it.samples) > _FEW and bytes_of(env.values()) > _MUCH:
                self._slow = math.inf
                self._host_executor.with_threads(name, step, it)
                continue
            self._host_executor.alone(name, step, it, env)
        self._judge(it, time.perf_counter() - began, at_work)
        return it

    def _judge(self, it: InFlightBatch, took: float, at_work: float | None) -> None:
        """Whether the next batches are computed here follows from how long this one ``took``; ``at_work`` is the
        thread's time before it."""
        self._doubtful = took > _QUICK  # asking for the thread's time is a call of the system
        if not self._doubtful:
            worked = took
        elif at_work is None:
            return
        else:
            worked = time.thread_time() - at_work
        if worked <= _QUICK and took <= _PROMPT:
            self._slow -= self._slow > 0
        else:  # a large batch that takes long soon goes to the threads
            large = len(it.samples) > _FEW and it.number >= _FIRST
            self._slow += max(1.0, worked / _PROMPT) if large else 1
