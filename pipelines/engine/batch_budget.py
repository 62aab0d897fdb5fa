"""BatchBudget: the accounts of memory by which batches are let in, whole or in parts."""

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

_MANY = 1024
"""Samples of which shapes are compared with those of the batch before."""

_FEW = 8
"""Samples that one worker computes: what they become need not be joined, and so its place need not be foreseen."""

_KEPT = 64
"""Kinds of batches for which is kept what operators make of them."""

IN_PARTS = "over the memory budget: batch in parts"


class _EstimateError(Exception):
    """The memory of a step cannot be estimated, because of ``problem``."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(str(problem))
        self.problem = problem


class BatchBudget:
    """Estimates the memory of batches, drops samples that cannot be estimated, and cuts batches that are too large.
    Any thread may call it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        limit, resources = services.options.memory.host_bytes(), services.options.resources
        self.host = (
            MemoryBudget(limit, FOR_WORK)
            if resources is None
            else resources.budgets.of(services.plan, "host", limit, FOR_WORK)
        )
        """The account of host memory."""
        self.device: MemoryBudget | None = None
        """The account of the GPUs' memory, once there are any."""
        plan = services.plan
        self._wanted: dict[str, set[Edge]] = {}
        """The edges that are needed after each step."""
        wanted = set(plan.graph.outputs.values())
        for step in reversed(plan.steps):
            self._wanted[services.name_of(step)] = wanted
            wanted = wanted | set(step.needs)
        self._by_shapes = {
            services.name_of(s): all(type(n.op).estimate_memory is Operator.estimate_memory for n in s.nodes)
            for s in plan.steps
        }
        self._last: dict[str, tuple[Any, MemoryEstimate]] = {}
        """The last estimate of each step that goes by shapes, and what it went by; any thread replaces it whole."""
        self._specs: dict[tuple[str, Facts], Mapping[Edge, Spec]] = {}
        """The specs of outputs by step and facts."""
        self._divisible: list[Step] = []
        """Steps before which a batch can be cut: nothing needs all of it from there on."""
        for step in reversed(plan.steps):
            if any(n.op.per_batch for n in step.nodes):
                break
            self._divisible.append(step)

    @property
    def budgets(self) -> Mapping[str, MemoryBudget]:
        """The accounts of memory, by name."""
        return {"host": self.host} if self.device is None else {"host": self.host, "gpu": self.device}

    def estimate(self, it: InFlightBatch, step: Step) -> MemoryEstimate:
        """The memory that ``step`` will hold for the batch. A sample for which it cannot be estimated, whatever the
        code that looks at its header raised, is dropped."""
        with contextlib.suppress(_EstimateError):
            return self._estimated(it.env, it.samples, step)
        for slot in it.samples.slot.tolist():
            one = cut({e: it.env[e] for e in step.needs}, slot, slot + 1)
            try:
                self._estimated(one, within(it.samples, slot, slot + 1, {})[1], step)
            except _EstimateError as e:
                fatal = self._services.raised(e.problem, 1)
                if fatal is not None:
                    raise fatal from e.problem
                where = " > ".join(n.name for n in step.nodes)
                it.dropped.append(Dropped(slot, where, "internal", described(e.problem)))
        self.drop(it)
        with contextlib.suppress(_EstimateError):
            return self._estimated(it.env, it.samples, step)
        nothing = np.zeros(len(it.samples), np.int64)  # an estimate less: what kernels allocate is counted all the same
        return MemoryEstimate(nothing, nothing, nothing, "", 0, 0)

    def _estimated(self, env: Mapping[Edge, Batch], samples: Samples, step: Step) -> MemoryEstimate:
        needed = {e: env[e] for e in step.needs}
        key = self._shapes(needed, samples, step)
        known = self._last.get(self._services.name_of(step))
        if known is not None and key is not None and known[0] == key:
            return known[1]
        try:
            specs = self._inferred(step, facts_of(needed)) if len(samples) > _FEW else None
            found = estimate_memory(
                step.nodes, step.gives, needed, samples, self._services.plan.target.device == "null", specs
            )
        except DaliRunError:
            raise
        except Exception as e:
            raise _EstimateError(e) from e
        if key is not None:
            self._last[self._services.name_of(step)] = key, found
        return found

    def _inferred(self, step: Step, facts: Facts) -> Mapping[Edge, Spec]:
        """The specs of the outputs of ``step``; operators are asked once for equal facts."""
        key = self._services.name_of(step), facts
        found = self._specs.get(key)
        if found is None:
            if len(self._specs) >= _KEPT:  # of batches that all have other shapes
                self._specs.clear()
            found = self._specs[key] = inferred(step.nodes, facts)
        return found

    def _shapes(self, needed: Mapping[Edge, Batch], samples: Samples, step: Step) -> Any:
        """All that the estimate goes by, where that is shapes and types alone: the next batch may have the same."""
        if len(samples) > _MANY or not self._by_shapes[self._services.name_of(step)]:
            return None
        if any(len(b) != len(samples) for b in needed.values()):
            return None
        return len(samples), tuple((b.dtype, b.shapes.tobytes()) for b in needed.values())

    def unsplit_need(self, it: InFlightBatch, step: Step) -> tuple[int, int] | None:
        """Bytes that a device ``step`` will hold for the batch on the device and on the host; None where that is so
        much that the batch goes in parts, or where it cannot be told of all samples."""
        assert self.device is not None
        try:
            ahead = self._estimated(it.env, it.samples, step)
        except _EstimateError:  # `estimate` drops the samples
            return None
        devices = len(self._services.plan.target.indices)
        if 2 * ahead.kept_total > self.host.limit // 4 or 2 * ahead.peak_total > self.device.limit // devices:
            return None
        on_host, on_device = self.held(it)
        return on_device + ahead.peak_total, on_host + ahead.kept_total

    def parts(self, it: InFlightBatch, step: Step) -> Iterator[tuple[InFlightBatch, MemoryEstimate]]:
        """The batch, less the samples that alone are over the budget, and what the step will hold for it; in parts
        where it is too large and may come so."""
        ahead, it.next_estimate = it.next_estimate or self.estimate(it, step), None
        budget = self.host if step.kind == "chunk" or self.device is None else self.device
        if budget is self.host and (over := np.flatnonzero(ahead.certain > budget.limit)).size:
            for slot, nbytes in zip(it.samples.slot[over].tolist(), ahead.certain[over].tolist(), strict=True):
                message = (f"it takes {size(nbytes)} of memory, the budget is {size(budget.limit)} "
                           f"(pipeline.memory.host); {MORE_MEMORY}")  # fmt: skip
                it.dropped.append(Dropped(slot, ahead.largest_operator, "too_large", message))
            self.drop(it)
            ahead = self.estimate(it, step)
        cuts: list[tuple[int, int]] = []
        room = max(1, self.host.limit // 4)
        divisible = not self._services.options.whole_batches and step in self._divisible
        if divisible and 2 * ahead.kept_total > room:
            cuts = list(runs(2 * ahead.kept, room))
        if len(cuts) <= 1:
            yield it, ahead
            return
        self._services.fell_back(IN_PARTS, len(it.samples))
        slots = it.samples.slot
        borders = [int(it.everyone.slot[0]), *(int(slots[a]) for a, _ in cuts[1:]), int(it.everyone.slot[-1]) + 1]
        parts = [it.part(k, borders[k], borders[k + 1]) for k in range(len(cuts))]
        it.started = {}  # for all of it at once
        for part in parts:
            self.holds(part)
        self.release(it.order)
        for part, (a, b) in zip(parts, cuts, strict=True):
            yield part, ahead.part(a, b)

    def holds(self, it: InFlightBatch) -> int:
        """Put what the batch holds on the account; bytes on the host."""
        on_host, on_device = self.held(it)
        self.host.reserve(it.order, on_host, wait=False)
        if self.device is not None:
            self.device.reserve(it.order, on_device, wait=False)
        return on_host

    @staticmethod
    def held(it: InFlightBatch) -> tuple[int, int]:
        """Bytes that the batch holds on the host, with what was begun ahead, and on the device."""
        on_host, on_device = (
            bytes_of(b for b in it.env.values() if there(b.data)) for there in (in_host_memory, in_device_memory)
        )
        return on_host + sum(begun.nbytes for begun in it.started.values()), on_device

    @staticmethod
    def copied(it: InFlightBatch) -> int:
        """Bytes of the batch in arrays of the host that are its own: they go to a device as a whole."""
        return bytes_of(b for b in it.env.values() if isinstance(b.data, np.ndarray) and lease_of(b.data) is None)

    def release(self, order: tuple[int, ...]) -> None:
        """The batch ``order`` is gone."""
        for budget in self.budgets.values():
            budget.release(order)

    def release_all(self, order: tuple[int, ...]) -> None:
        """The batch ``order`` is gone with its parts."""
        for budget in self.budgets.values():
            budget.release_all(order)

    def forget(self, it: InFlightBatch, step: Step) -> None:
        """Drop the samples that failed from all batches, and the batches that no later step reads."""
        if it.dropped:
            self.drop(it)
        wanted = self._wanted[self._services.name_of(step)]
        for edge in [e for e in it.env if e not in wanted]:
            del it.env[edge]

    @staticmethod
    def drop(it: InFlightBatch) -> None:
        """Drop the samples that failed from all batches."""
        lost = gone(it.dropped)
        drop(it.env, lost)
        it.samples = it.samples.take(~np.isin(it.samples.slot, list(lost)))
