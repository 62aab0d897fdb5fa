"""Admission: what all steps share - plan, options, statistics - and the accounts of memory by which batches are let in,
whole or in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ops.batch import Batch
from ...ops.codecs.isolation.processes import TIMEOUT, Mode, isolated
from ...ops.errors import JobError
from ...ops.gpu.readable_by_gpu import in_device_memory
from ...readers.fetch.gpu_reads import Upload
from ..compile.plan import Plan
from ..compile.schedule import Step
from ..graph.nodes import Edge, Node
from ..limits import Memory
from ..wording import size
from .in_flight import Feed, Iteration
from .memory.budget import Ledger
from .memory.estimate import Foresight, foresee, runs
from .nodes import MORE_MEMORY, Dropped, Run, bytes_of, drop
from .stats import Stats

FOR_WORK = 0.25
"""Part of the host's budget that is kept free for chunks while workers are busy with them."""

FEWER = "out of memory: fewer samples at a time"
IN_PARTS = "over the memory budget: batch in parts"


LANES = 4
"""Batches in flight on a GPU, at the usual prefetch_queue_depth of 2. Two that are computed at once fill each other's
gaps, while another is uploaded and one is planned; more keep each other's uploads waiting (one H200, 1,024 images a
launch: 255k images/s with 2, 275k with 3, 290k with 4, 208k with 6; docs/performance.md has the command)."""


def lanes_for(depth: int) -> int:
    """Batches in flight on a GPU where ``depth`` finished ones may wait behind it: a shallow queue holds less."""
    return min(depth + 2, LANES)


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a plan; nothing here changes results."""

    num_threads: int = 2
    cpu_queue: int = 2
    gpu_queue: int = 2
    lanes: int = LANES
    """Batches in flight on each GPU."""
    to_host: bool = True
    """Bring the outputs of GPU nodes back to the host (writers need them there)."""
    policy: str = "skip"
    """What a sample that fails costs: ``skip`` itself, ``fail`` the run, ``replace`` takes a neighbour's place."""
    rng: str = "philox"
    isolation: Mode = "auto"
    """Which decoders run in processes of their own."""
    decode_timeout: float = TIMEOUT
    """Seconds of CPU time that one of those may take for an image."""
    memory: Memory = field(default_factory=Memory)
    """What the run may hold."""
    upload: Upload = "auto"
    """How records of containers come to a GPU: ``auto`` copied where many threads read, else registered if possible."""
    whole_batches: bool = True
    """Batches are handed out as they were asked for; else one that is too large for the memory comes in parts."""
    together: bool = False
    """Small batches may go onto a device together: results do not depend on who else is in a batch. They are handed
    out together, too, or, as ``whole_batches``, one by one."""
    inline: bool = False
    """Compute batches that take next to nothing in the thread that asks: it takes less than handing them to another."""


class Admission:
    """Takes a batch from step to step: what it holds, what it drops, and how it is cut where it is too large."""

    def __init__(self, plan: Plan, feed: Feed, options: Options, stats: Stats | None) -> None:
        self.plan = plan
        self.feed = feed
        self.options = options
        self.stats = stats or Stats()
        self.host = Ledger(options.memory.host_bytes(), for_work=FOR_WORK)
        """The account of host memory."""
        self.device: Ledger | None = None
        """The account of the GPUs' memory, once there are any."""
        self.isolation = isolated(options.isolation, options.decode_timeout, self._fell_back)
        self.inline = options.inline and all(s.kind != "device" for s in plan.steps)
        """Batches are computed in the caller's thread, so far."""
        self._names = {id(s): f"{i:02d}:{s.name}" for i, s in enumerate(plan.steps)}
        self._named = [(self.name_of(s), s) for s in plan.steps]
        self._wanted: dict[str, set[Edge]] = {}
        """What is needed after every step."""
        wanted = set(plan.graph.outputs.values())
        for step in reversed(plan.steps):
            self._wanted[self.name_of(step)] = wanted
            wanted = wanted | set(step.needs)
        self._divisible: list[Step] = []
        """Steps before which a batch can be cut: nothing needs all of it from there on."""
        for step in reversed(plan.steps):
            if any(n.op.per_batch for n in step.nodes):
                break
            self._divisible.append(step)

    def name_of(self, step: Step) -> str:
        """What a step is called in statistics."""
        return self._names[id(step)]

    @property
    def ledgers(self) -> Mapping[str, Ledger]:
        """The accounts of memory, by name."""
        return {"host": self.host} if self.device is None else {"host": self.host, "gpu": self.device}

    def _run(self, iteration: Iteration, **extra: Any) -> Run:
        return Run(
            samples=extra.pop("samples", iteration.samples),
            seeds=self.plan.seeds,
            rng=self.options.rng,
            states=self.feed.states,
            isolation=self.isolation,
            count=self._fell_back,
            decoders=self._decoded,
            reader_samples=iteration.reader_samples,
            emulate=self.plan.target.device == "null",
            **extra,
        )

    def _observer(self, track: str, number: int) -> Callable[[Node, int, int, int, float, float], None]:
        def observe(node: Node, samples: int, taken: int, given: int, began: float, ended: float) -> None:
            self.stats.called(node, samples, taken, given, ended - began)
            self.stats.span(node.name, track, began, ended, number)

        return observe

    def _fell_back(self, reason: str, samples: int = 1) -> None:
        self.stats.count(self.stats.fallbacks, reason, samples)

    def _decoded(self, decoder: str, images: int) -> None:
        self.stats.count(self.stats.decoders, decoder, images)

    def _raised(self, problem: Exception, samples: int) -> Exception | None:
        if self.options.policy == "fail" and samples <= 1:
            return JobError(f"{type(problem).__name__}: {problem}")
        if isinstance(problem, MemoryError) and samples > 1:
            self._fell_back(FEWER, samples)
        return None

    # -- memory -------------------------------------------------------------------------------------------------

    def _foresee(self, it: Iteration, step: Step) -> Foresight:
        env = {e: it.env[e] for e in step.needs}
        return foresee(step.nodes, step.gives, env, it.samples, self.plan.target.device == "null")

    def _parts(self, it: Iteration, step: Step) -> Iterator[tuple[Iteration, Foresight]]:
        """The batch, less the samples that alone are over the budget, and what the step will hold for it; in parts
        where it is too large and may come so."""
        ahead, it.ahead = it.ahead or self._foresee(it, step), None
        ledger = self.host if step.kind == "chunk" or self.device is None else self.device
        if ledger is self.host and (over := np.flatnonzero(ahead.sure > ledger.limit)).size:
            for slot, nbytes in zip(it.samples.slot[over].tolist(), ahead.sure[over].tolist(), strict=True):
                message = (f"it takes {size(nbytes)} of memory, the budget is {size(ledger.limit)} "
                           f"(pipeline.memory.host); {MORE_MEMORY}")  # fmt: skip
                it.dropped.append(Dropped(slot, ahead.greediest, "too_large", message))
            self._drop(it)
            ahead = self._foresee(it, step)
        cuts: list[tuple[int, int]] = []
        room, share = max(1, self.host.limit // 4), 0.0 if ledger is self.host else self.host.limit / ledger.limit
        divisible = not self.options.whole_batches and step in self._divisible
        if divisible and 2 * ahead.held + share * ahead.at_once > room:
            sizes = np.maximum(2 * ahead.kept, (ahead.peak * share).astype(np.int64))
            cuts = list(runs(sizes, room, max(1, len(sizes))))
        if len(cuts) <= 1:
            yield it, ahead
            return
        self._fell_back(IN_PARTS, len(it.samples))
        slots = it.samples.slot
        borders = [int(it.everyone.slot[0]), *(int(slots[a]) for a, _ in cuts[1:]), int(it.everyone.slot[-1]) + 1]
        parts = [it.part(k, borders[k], borders[k + 1]) for k in range(len(cuts))]
        for part in parts:
            self._holds(part)
        self._release(it.order)
        for part, (a, b) in zip(parts, cuts, strict=True):
            yield part, ahead.part(a, b)

    def _holds(self, it: Iteration) -> int:
        """Put what the batch holds on the account; bytes on the host."""
        places: tuple[list[Batch], list[Batch]] = [], []
        for batch in it.env.values():
            places[in_device_memory(batch.data)].append(batch)
        on_host, on_device = map(bytes_of, places)
        self.host.hold(it.order, on_host, wait=False)
        if self.device is not None:
            self.device.hold(it.order, on_device, wait=False)
        return on_host

    def _release(self, order: tuple[int, ...]) -> None:
        for ledger in self.ledgers.values():
            ledger.release(order)

    def _forget(self, it: Iteration, step: Step) -> None:
        """Drop the samples that failed from all batches, and the batches that nobody will read again."""
        if it.dropped:
            self._drop(it)
        wanted = self._wanted[self.name_of(step)]
        for edge in [e for e in it.env if e not in wanted]:
            del it.env[edge]

    @staticmethod
    def _drop(it: Iteration) -> None:
        gone = {d.slot for d in it.dropped}
        drop(it.env, gone)
        it.samples = it.samples.take(~np.isin(it.samples.slot, list(gone)))
