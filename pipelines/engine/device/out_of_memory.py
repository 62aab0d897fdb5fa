"""Runs one batch through the nodes of a step on a device, and finds another way where its memory does not suffice.

First everything idle is given back and the batch is halved, again and again; a sample that does not even fit alone is
decoded on the CPU; if that is not enough, all its kernels run there. Each of these is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ....ops.batch import Batch
from ....ops.context import stand_in
from ....ops.errors import DeviceError
from ....ops.interfaces import Copies
from ...compile.place import is_late
from ...graph.nodes import Edge, Node
from ..errors import REMEDY, out_of_memory
from ..memory.estimate import Outputs
from ..memory.output_slices import OutputSlice, in_place, whole_outputs
from ..nodes.envs import merge, middle, pieces
from ..nodes.guarded import ErrorHook, guarded
from ..nodes.node_pass import Env, NodePass

AGAIN = "out of GPU memory: tried again once it was idle"
HALVED = "out of GPU memory: batch halved"
CPU_DECODER = "out of GPU memory: decoded on the CPU"
CPU_KERNELS = "out of GPU memory: computed on the CPU"
JOINED = "out of GPU memory: joined on the host"


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A device step on its lane."""

    nodes: Sequence[Node]
    gives: Sequence[Edge]
    to_host: Collection[Edge]
    """Of ``gives``, those that are wanted on the host."""
    lane: Copies
    lanes: Sequence[Copies]
    """All that use the device."""
    on_error: ErrorHook
    count: Callable[[str, int], None]
    """Told of every fallback, and of how many samples."""

    def run(self, env: Env, run: NodePass) -> Env:
        """The batches of ``gives``. Raises DeviceError where the device cannot even hold the results."""
        results = self._fitted(env, run)
        for edge in self.gives:
            if edge not in self.to_host and self._belongs_there(edge):
                results[edge] = self.retried(lambda edge=edge: self.lane.to_device(results[edge]))  # type: ignore[misc]
        return results

    def run_cut(self, env: Env, run: NodePass, cuts: Sequence[tuple[int, int]], made: Outputs = ()) -> Env:
        """As `run`, with the samples at ``cuts`` [a, b) one after the other. Results that are as ``made`` estimates
        them are put into their places of one array each."""
        if len(cuts) <= 1:
            return self.run(env, run)
        slots = run.samples.slot
        borders = [int(slots[0]), *(int(slots[a]) for a, _ in cuts[1:]), int(slots[-1]) + 1]
        placed = all(node.stage != "cpu" for node in self.nodes) or run.emulate
        whole = self.retried(lambda: whole_outputs(made, self.lane.empty)) if placed else []
        on_device, allocate, parts = replace(self, to_host=()), run.allocate, []
        try:
            for (a, b), part in zip(cuts, pieces(env, run, borders), strict=True):
                run.allocate = partial(self._placed, OutputSlice(whole, a, b)) if whole else allocate
                parts.append(on_device.run(part, run))
        finally:
            run.allocate = allocate
        found: Env = {}
        for edge in self.gives:
            of_it = [p[edge] for p in parts]
            together = in_place(of_it, whole)
            found[edge] = self.joined(of_it) if together is None else together
        return found | {e: self.retried(lambda e=e: self.lane.to_host(found[e])) for e in self.to_host}  # type: ignore[misc]

    def _placed(self, output: OutputSlice, n: int, dtype: Any) -> Any:
        found = output.take(n, dtype)
        return self.lane.empty(n, dtype) if found is None else found

    def retried(self, allocate: Callable[[], Any]) -> Any:
        """The result of ``allocate``, tried again after all idle memory was given back. Raises DeviceError."""
        try:
            return allocate()
        except Exception as e:
            if not out_of_memory(e):
                raise
        self.relieve()
        try:
            return allocate()
        except Exception as e:
            if out_of_memory(e):
                raise DeviceError(f"the results of one batch do not fit into GPU memory: {e}; {REMEDY}") from None
            raise

    def joined(self, batches: Sequence[Batch]) -> Batch:
        """Batches of different samples as one, by slot: on the device, or on the host where it does not fit there or
        one of them is there already."""
        live = [b for b in batches if len(b)]
        if all(self.lane.holds(b) for b in live):
            try:
                return merge(batches, self.lane.empty if live else None)
            except Exception as e:
                if not out_of_memory(e):
                    raise
            self.count(JOINED, sum(map(len, batches)))
            self.relieve()
        here = [self.retried(lambda b=b: self.lane.to_host(b)) for b in batches]  # type: ignore[misc]
        if any(self.lane.holds(b) for b in live):
            self.lane.wait()
        return merge(here)

    def relieve(self) -> None:
        """Wait until the device is idle and give back unused memory."""
        for lane in self.lanes:
            lane.release_memory(launching=lane is self.lane)

    # -- the steps down ------------------------------------------------------------------------------------------

    def _fitted(self, env: Env, run: NodePass, again: bool = True) -> Env:
        results = self._tried(env, run)
        if results is None:
            self.relieve()
            results = self._tried(env, run) if again else None  # what lay idle may have been enough
            if results is not None:
                self.count(AGAIN, len(run.samples))
        return self._smaller(env, run) if results is None else results

    def _smaller(self, env: Env, run: NodePass) -> Env:
        n = len(run.samples)
        if n > 1:
            self.count(HALVED, n)
            return self._joined([self._fitted(half, run, again=False) for half in pieces(env, run, middle(run))])
        if run.attempt == 0 and any(node.stage == "mixed" for node in self.nodes):
            self.count(CPU_DECODER, n)
            run.attempt += 1
            results = self._tried(env, run)
            run.attempt -= 1
            if results is not None:
                return results
            self.relieve()
        self.count(CPU_KERNELS, n)
        return self._on_host(env, run)

    def _tried(self, env: Env, run: NodePass) -> Env | None:
        """Their results; None where memory does not suffice."""
        before = run.state()
        try:
            results = guarded(self.nodes, env, run, self.gives, self._error)
            return results | {e: self.lane.to_host(results[e]) for e in self.to_host}
        except Exception as e:
            if not out_of_memory(e):
                raise
        run.undo(before)
        return None

    def _error(self, problem: Exception, samples: int) -> Exception | None:
        if out_of_memory(problem):
            return problem
        return self.on_error(problem, samples)

    def _on_host(self, env: Env, run: NodePass) -> Env:
        for node in self.nodes:
            if "cpu" not in node.op.stages:
                raise DeviceError(
                    f"one sample does not fit into GPU memory, and {node.name} runs nowhere else; {REMEDY}"
                )
        here = {e: self.retried(lambda b=b: self.lane.to_host(b)) for e, b in env.items()}  # type: ignore[misc]
        self.lane.wait()
        host = replace(
            run, device=None, emulate=True, allocate=None, mark_device=None, dropped=[], checks=[], late_outputs=[],
            attempt=0,
        )  # fmt: skip
        results = guarded(self.nodes, here, host, self.gives, self.on_error)
        run.dropped += host.dropped
        by_id = {n.id: n for n in self.nodes}
        for edge in self.gives:
            if is_late(by_id[edge.node]):  # as the other samples' results, which come when the device is done
                run.late_outputs.append((edge, lambda batch=results[edge]: batch))  # type: ignore[misc]
                results[edge] = stand_in(results[edge].samples)
        return results

    def _joined(self, parts: Sequence[Env]) -> Env:
        return {e: self.joined([p[e] for p in parts]) for e in self.gives}

    def _belongs_there(self, edge: Edge) -> bool:
        node = next(n for n in self.nodes if n.id == edge.node)
        return node.stage != "cpu" and not is_late(node)
