"""Admit batches by their estimated memory, whole or cut into parts.

Used by the executors and by `BatchMerger`; the budgets themselves are in `memory.budget`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...ops.base import Operator, Spec
from ...ops.batch import Batch, Samples
from ...ops.errors import DaliRunError
from ...ops.gpu.readable_by_gpu import in_device_memory, in_host_memory, lease_of
from ..compile.schedule import Step
from ..graph.nodes import Edge
from ..wording import size
from .cost import runs
from .in_flight import InFlightBatch
from .memory.budget import FOR_WORK, MemoryBudget
from .memory.estimate import Facts, MemoryEstimate, estimate_memory, facts_of, inferred
from .nodes.envs import bytes_of, cut, drop, gone, within
from .nodes.guarded import MORE_MEMORY, described
from .nodes.node_pass import Dropped
from .services import Services

_MAX_COMPARED = 1024
"""Maximum number of samples of batches whose shapes are compared, to reuse the last batch's memory estimate."""

_SMALL_SAMPLES = 8
"""Maximum number of samples of a batch that one worker thread computes uncut. No results are joined then, so that their
sizes need not be known in advance."""

_LARGE_SAMPLE = 1 << 20
"""Mean size in bytes of a batch's samples from which the copies that the batch's consumer makes count as memory."""

_MAX_CACHED = 64
"""Maximum number of entries of `BatchBudget._specs`, the cache of the inferred specs of outputs."""

IN_PARTS = "over the memory budget: batch in parts"
"""Text under which reports count batches that were cut because they exceeded the memory budget."""


class _EstimateError(Exception):
    """The memory of a step cannot be estimated because an operator raised the exception ``problem``."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(str(problem))
        self.problem = problem


class BatchBudget:
    """Estimates the memory that batches need, drops samples for which that is impossible, and cuts batches that are too
    large. Created by `Engine`; any thread may call it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        limit, resources = services.options.memory.host_bytes(), services.options.resources
        self.host = (
            MemoryBudget(limit, FOR_WORK)
            if resources is None
            else resources.budgets.of(services.plan, "host", limit, FOR_WORK)
        )
        """The memory budget of the host."""
        self.device: MemoryBudget | None = None
        """One memory budget for all GPUs. None until `OpenLanes` sets it, and if there is no GPU."""
        plan = services.plan
        self._needed_after: dict[str, set[Edge]] = {}
        """For each step of the plan, by its name: the node outputs that are still needed after the step."""
        needed = set(plan.graph.outputs.values())
        for step in reversed(plan.steps):
            self._needed_after[services.name_of(step)] = needed
            needed = needed | set(step.needs)
        self._by_shapes = {
            services.name_of(s): all(type(n.op).estimate_memory is Operator.estimate_memory for n in s.nodes)
            for s in plan.steps
        }
        self._last: dict[str, tuple[Any, MemoryEstimate]] = {}
        """Cache for steps whose memory depends on shapes alone: by the step's name, the shapes of its last batch and
        the memory estimate for them. Any thread may replace an entry."""
        self._specs: dict[tuple[str, Facts], Mapping[Edge, Spec]] = {}
        """Cache of inferred specs (dtype, shape, layout) of outputs, by the step's name and facts about inputs."""
        self._divisible: list[Step] = []
        """Steps before which a batch can be cut into parts, because neither the step nor a later one has an operator
        that needs whole batches."""
        for step in reversed(plan.steps):
            if any(n.op.per_batch for n in step.nodes):
                break
            self._divisible.append(step)

    @property
    def budgets(self) -> Mapping[str, MemoryBudget]:
        """The memory budgets by name: the host's and, if there are GPUs, theirs."""
        return {"host": self.host} if self.device is None else {"host": self.host, "gpu": self.device}

    def estimate(self, it: InFlightBatch, step: Step) -> MemoryEstimate:
        """Estimate the memory that ``step`` needs for the batch. Drop samples whose memory cannot be estimated, such as
        images with a damaged header."""
        with contextlib.suppress(_EstimateError):
            return self._estimated(it.env, it.samples, step)
        for slot in it.samples.slot.tolist():
            one_sample = cut({e: it.env[e] for e in step.needs}, slot, slot + 1)
            try:
                self._estimated(one_sample, within(it.samples, slot, slot + 1, {})[1], step)
            except _EstimateError as e:
                fatal = self._services.raised(e.problem, 1)
                if fatal is not None:
                    raise fatal from e.problem
                where = " > ".join(n.name for n in step.nodes)
                it.dropped.append(Dropped(slot, where, "internal", described(e.problem)))
        self.drop(it)
        with contextlib.suppress(_EstimateError):
            return self._estimated(it.env, it.samples, step)
        nothing = np.zeros(len(it.samples), np.int64)  # no estimate: what kernels allocate is counted anyway
        return MemoryEstimate(nothing, nothing, nothing, "", 0, 0)

    def _estimated(self, env: Mapping[Edge, Batch], samples: Samples, step: Step) -> MemoryEstimate:
        needed = {e: env[e] for e in step.needs}
        key = self._shapes(needed, samples, step)
        last = self._last.get(self._services.name_of(step))
        if last is not None and key is not None and last[0] == key:
            return last[1]
        try:
            specs = self._inferred(step, facts_of(needed)) if len(samples) > _SMALL_SAMPLES else None
            result = estimate_memory(
                step.nodes, step.gives, needed, samples, self._services.plan.target.device == "null", specs
            )
        except DaliRunError:
            raise
        except Exception as e:
            raise _EstimateError(e) from e
        if key is not None:
            self._last[self._services.name_of(step)] = key, result
        return result

    def _inferred(self, step: Step, facts: Facts) -> Mapping[Edge, Spec]:
        """Return the specs (dtype, shape, layout) of the outputs of ``step``. They are inferred once for inputs of
        equal types and shapes (``facts``), and then cached."""
        key = self._services.name_of(step), facts
        result = self._specs.get(key)
        if result is None:
            if len(self._specs) >= _MAX_CACHED:  # every batch has other shapes
                self._specs.clear()
            result = self._specs[key] = inferred(step.nodes, facts)
        return result

    def _shapes(self, needed: Mapping[Edge, Batch], samples: Samples, step: Step) -> Any:
        """Return a key of the shapes and types of the batches ``needed``: batches with equal keys need equal memory.
        Return None if the estimate also depends on something else."""
        if len(samples) > _MAX_COMPARED or not self._by_shapes[self._services.name_of(step)]:
            return None
        if any(len(b) != len(samples) for b in needed.values()):
            return None
        return len(samples), tuple((b.dtype, b.shapes.tobytes()) for b in needed.values())

    def unsplit_need(self, it: InFlightBatch, step: Step) -> tuple[int, int] | None:
        """Return the bytes of device memory and of host memory that the batch needs in all if ``step`` computes it
        uncut on the device. Return None if the batch is so large that it must be cut, or if the memory of some samples
        cannot be estimated."""
        assert self.device is not None
        try:
            ahead = self._estimated(it.env, it.samples, step)
        except _EstimateError:  # `estimate` drops those samples
            return None
        devices = len(self._services.plan.target.indices)
        if 2 * ahead.kept_total > self.host.limit // 4 or 2 * ahead.peak_total > self.device.limit // devices:
            return None
        on_host, on_device = self.held_bytes(it)
        return on_device + ahead.peak_total, on_host + ahead.kept_total

    def parts(self, it: InFlightBatch, step: Step) -> Iterator[tuple[InFlightBatch, MemoryEstimate]]:
        """Yield the batch with an estimate of the memory that ``step`` needs for it. If the batch is too large and may
        be cut, yield its parts instead, each with an estimate. Samples that alone exceed the budget are dropped
        first."""
        ahead, it.next_estimate = it.next_estimate or self.estimate(it, step), None
        budget = self.host if step.kind == "chunk" or self.device is None else self.device
        if budget is self.host and (too_large := np.flatnonzero(ahead.certain > budget.limit)).size:
            for slot, nbytes in zip(
                it.samples.slot[too_large].tolist(), ahead.certain[too_large].tolist(), strict=True
            ):
                message = (f"it takes {size(nbytes)} of memory, the budget is {size(budget.limit)} "
                           f"(pipeline.memory.host); {MORE_MEMORY}")  # fmt: skip
                it.dropped.append(Dropped(slot, ahead.largest_operator, "too_large", message))
            self.drop(it)
            ahead = self.estimate(it, step)
        cuts: list[tuple[int, int]] = []
        room = max(1, self.host.limit // 4)
        may_cut = not self._services.options.whole_batches and step in self._divisible
        if may_cut and 2 * ahead.kept_total > room:
            cuts = list(runs(2 * ahead.kept, room))
        if len(cuts) <= 1:
            yield it, ahead
            return
        self._services.fell_back(IN_PARTS, len(it.samples))
        slots = it.samples.slot
        borders = [int(it.all_samples.slot[0]), *(int(slots[a]) for a, _ in cuts[1:]), int(it.all_samples.slot[-1]) + 1]
        parts = [it.part(k, borders[k], borders[k + 1]) for k in range(len(cuts))]
        it.started = {}  # the started work is for the whole batch
        for part in parts:
            self.update_reservation(part)
        self.release(it.order)
        for part, (a, b) in zip(parts, cuts, strict=True):
            yield part, ahead.part(a, b)

    def update_reservation(self, it: InFlightBatch) -> int:
        """Set the batch's memory reservations to the bytes that it holds now, plus the copies of large samples that its
        consumer will make. Return the bytes that are reserved on the host."""
        on_host, on_device = self.held_bytes(it)
        if self._services.options.copies:
            outputs = [it.env[e] for e in set(self._services.plan.graph.outputs.values()) if e in it.env]
            large = (b for b in outputs if b.nbytes >= _LARGE_SAMPLE * max(1, len(b)))
            on_host += self._services.options.copies * bytes_of(large)
        self.host.reserve(it.order, on_host, wait=False)
        if self.device is not None:
            self.device.reserve(it.order, on_device, wait=False)
        return on_host

    @staticmethod
    def held_bytes(it: InFlightBatch) -> tuple[int, int]:
        """Return the bytes that the batch holds on the host and on the device. Host bytes include results of work that
        host threads started before the launch."""
        on_host, on_device = (
            bytes_of(b for b in it.env.values() if is_there(b.data)) for is_there in (in_host_memory, in_device_memory)
        )
        return on_host + sum(begun.nbytes for begun in it.started.values()), on_device

    @staticmethod
    def copied_bytes(it: InFlightBatch) -> int:
        """Return the bytes of the batch that lie in ordinary host arrays, which are copied to a device in one piece."""
        return bytes_of(b for b in it.env.values() if isinstance(b.data, np.ndarray) and lease_of(b.data) is None)

    def release(self, order: tuple[int, ...]) -> None:
        """Release the memory reservations of the batch with the number ``order``, which has left the engine."""
        for budget in self.budgets.values():
            budget.release(order)

    def release_all(self, order: tuple[int, ...]) -> None:
        """Release the memory reservations of batch number ``order``, and of all parts into which it was cut."""
        for budget in self.budgets.values():
            budget.release_all(order)

    def drop_unneeded(self, it: InFlightBatch, step: Step) -> None:
        """Remove samples that failed from the batch, and outputs of nodes that no step after ``step`` reads."""
        if it.dropped:
            self.drop(it)
        needed = self._needed_after[self._services.name_of(step)]
        for edge in [e for e in it.env if e not in needed]:
            del it.env[edge]

    @staticmethod
    def drop(it: InFlightBatch) -> None:
        """Remove the samples that failed from every batch in ``it.env``."""
        lost = gone(it.dropped)
        drop(it.env, lost)
        it.samples = it.samples.take(~np.isin(it.samples.slot, list(lost)))
