"""Compute small batches on the host in the caller's thread, until they take too long; then worker threads take over.

Passing a batch to another thread costs 10 to 50 us, estimating its memory costs more, and because of the GIL such a
short task gains nothing from another thread. Used by `Engine`.
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

_MAX_CPU_SECONDS, _MAX_SECONDS = 2e-3, 8e-3
"""Limits in seconds for computing one batch in the caller's thread: CPU time, and elapsed time."""

_SMALL_SAMPLES = 8
"""Number of samples up to which a batch is computed in the caller's thread even if its data are read and decoded."""

_MAX_BYTES = 32 << 20
"""Limit in bytes of a batch with more than `_SMALL_SAMPLES` samples whose data are read. Larger batches go to the
worker threads."""

_FREE_BATCHES = 2
"""Number of first batches to which the time limits do not apply, because native loops are compiled during them."""

_MAX_SLOW = 16
"""Number of slow batches after which worker threads take over. The first batches are often slow: kernels are compiled,
and files are not in the page cache yet."""


def is_light(plan: Plan) -> bool:
    """Return whether the plan is only arithmetic on a few numbers, without reading, decoding or user code."""
    light = all(s.kind == "whole" for s in plan.steps)
    return light and all(not n.op.per_batch or n.op.is_trivial for n in plan.graph.nodes)


class InlineHost:
    """Computes the first batches of an engine in the caller's thread, without worker threads. Created by `Engine`; used
    by the caller's thread only. As it computes one batch at a time, batches reserve no memory in the budget."""

    def __init__(self, services: Services, merger: BatchMerger, host_executor: HostExecutor) -> None:
        plan = services.plan
        self._merger, self._host_executor = merger, host_executor
        self._steps = [(services.name_of(s), s, FastHostStep(services, services.name_of(s), s)) for s in plan.steps]
        reads = any(n.op.decodes or isinstance(n.op, Reader) for n in plan.graph.nodes)
        self._max_samples = _SMALL_SAMPLES if reads and not is_light(plan) else None
        """Maximum number of samples of a batch that the caller's thread computes; None for any number."""
        self._slow = 0.0
        """Number of batches that took too long, minus the number of batches that did not."""
        self._measures_cpu = True
        """Whether the CPU time of the next batch is measured, because the last batch took long."""

    def take(self) -> InFlightBatch | None:
        """Compute and return the next batch. Return None if worker threads must compute this batch and all later ones.
        Raises the exception that made the batch fail, and StopIteration at the end."""
        began, at_work = time.perf_counter(), time.thread_time() if self._measures_cpu else None
        it = self._merger.one(0 if self._slow > _MAX_SLOW else self._max_samples)
        if it is None:
            return None
        for name, step, plain in self._steps:
            if plain.is_applicable and plain.run(it):
                continue
            if step.kind == "whole":
                self._host_executor.run_whole(it, name, step, None, self._host_executor.pool)
                continue
            env = {e: it.env[e] for e in step.needs}
            reads = not all(n.op.metadata_only for n in step.nodes)
            if reads and len(it.samples) > _SMALL_SAMPLES and bytes_of(env.values()) > _MAX_BYTES:
                self._slow = math.inf
                self._host_executor.with_threads(name, step, it)
                continue
            self._host_executor.compute_alone(name, step, it, env)
        self._judge(it, time.perf_counter() - began, at_work)
        return it

    def _judge(self, it: InFlightBatch, took: float, at_work: float | None) -> None:
        """Decide whether later batches are also computed in the caller's thread. ``took`` is the time of this batch in
        seconds. ``at_work`` is the thread's CPU time when the batch began, or None if it was not measured."""
        self._measures_cpu = took > _MAX_CPU_SECONDS  # reading the thread's CPU time is a system call
        if not self._measures_cpu:
            worked = took
        elif at_work is None:
            return
        else:
            worked = time.thread_time() - at_work
        if worked <= _MAX_CPU_SECONDS and took <= _MAX_SECONDS:
            self._slow -= self._slow > 0
        else:  # large batches that take long soon go to the threads
            large = len(it.samples) > _SMALL_SAMPLES and it.number >= _FREE_BATCHES
            self._slow += max(1.0, worked / _MAX_SECONDS) if large else 1
