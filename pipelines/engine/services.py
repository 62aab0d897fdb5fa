"""Resources that all batches of a run share: the plan, its options, statistics, decoder processes.

Used by all parts of an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.codecs.isolation.processes import isolated
from ...ops.context import Helpers, KernelServices
from ...ops.errors import SampleFailedError
from ...ops.interfaces import FactCache, Lender
from ..compile.plan import Plan
from ..compile.schedule import Step
from ..graph.nodes import Node
from .in_flight import Feed, InFlightBatch
from .nodes.guarded import described
from .nodes.node_pass import DeferredReports, NodePass
from .options import Options
from .stats import Stats

FEWER = "out of memory: fewer samples at a time"
"""Text under which reports count samples that were computed in smaller groups because memory was exhausted."""


class Services:
    """Objects that all parts of an engine use, such as the plan, the options and the statistics. Created by `Engine`;
    threads only read it, and `Stats` has locks of its own."""

    def __init__(self, plan: Plan, feed: Feed, options: Options, stats: Stats | None) -> None:
        self.plan = plan
        self.feed = feed
        self.options = options
        self.stats = stats or Stats()
        # A method of self would be a reference cycle.
        self.isolation = isolated(options.isolation, options.decode_timeout, partial(_fell_back, self.stats))
        # With several readers, each with epochs of its own, a record's number does not identify it.
        not_remembered = not (options.repeats and options.remember) or len(plan.readers) != 1
        self.remembered = None if not_remembered else FactCache(options.memory.host_bytes() // 32)
        self._names = {id(s): f"{i:02d}:{s.name}" for i, s in enumerate(plan.steps)}

    def name_of(self, step: Step) -> str:
        """Return the name under which statistics list a step."""
        return self._names[id(step)]

    def node_pass(
        self, iteration: InFlightBatch, *, staging: Callable[[int], npt.NDArray[np.uint8]] | None = None,
        lender: Lender | None = None, pool: Helpers | None = None, **extra: Any,
    ) -> NodePass:  # fmt: skip
        """Return a new `NodePass` for the samples of the batch ``iteration``. ``staging``, ``lender`` and ``pool``: see
        `KernelServices`. ``extra`` are further fields of `NodePass`."""
        reports = DeferredReports()
        services = KernelServices(
            staging, lender, pool, self.isolation, partial(reports.add, self.fell_back),
            partial(reports.add, self.decoded), partial(reports.add, self.waited_for), self.remembered,
        )  # fmt: skip
        return NodePass(
            samples=extra.pop("samples", iteration.samples),
            seeds=self.plan.seeds,
            rng=self.options.rng,
            draws=iteration.draws,
            states=self.feed.states,
            kinds=self.feed.kinds,
            services=services,
            reports=reports,
            reader_samples=iteration.reader_samples,
            emulate=self.plan.target.device == "null",
            **extra,
        )

    def observer(self, track: str, number: int) -> Callable[[Node, int, int, int, float, float], None]:
        """Return a callback that records the time of each kernel, and also adds it to the trace of batch ``number`` as
        an entry of ``track``."""

        def observe(node: Node, samples: int, taken: int, written: int, began: float, ended: float) -> None:
            self.stats.called(node, samples, taken, written, ended - began)
            self.stats.span(node.name, track, began, ended, number)

        return observe

    def fell_back(self, reason: str, samples: int = 1) -> None:
        """Record that ``samples`` samples took a slower path, and the ``reason``."""
        _fell_back(self.stats, reason, samples)

    def decoded(self, decoder: str, images: int, seconds: float) -> None:
        """Record that ``decoder`` decoded ``images`` images, which took ``seconds`` of CPU threads."""
        self.stats.count(self.stats.decoders, decoder, images)
        if seconds:
            self.stats.count(self.stats.decoder_busy, decoder, seconds)

    def waited_for(self, decoder: str, seconds: float) -> None:
        """Record that a batch for a device waited ``seconds`` for the CPU work of ``decoder``."""
        self.stats.count(self.stats.decoder_waits, decoder, seconds)

    @property
    def waited(self) -> float:
        """Seconds for which batches for a device waited for decoders' CPU work, added over decoders."""
        return sum(list(self.stats.decoder_waits.values()))

    def raised(self, problem: Exception, samples: int) -> Exception | None:
        """Return the error to raise if an exception of a kernel ends the run. Return None if the sample that causes the
        exception is to be isolated. An `ErrorHook`."""
        if self.options.policy == "fail" and samples <= 1:
            return SampleFailedError(described(problem))
        if isinstance(problem, MemoryError) and samples > 1:
            self.fell_back(FEWER, samples)
        return None


def _fell_back(stats: Stats, reason: str, samples: int = 1) -> None:
    stats.count(stats.fallbacks, reason, samples)
