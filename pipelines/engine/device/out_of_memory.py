"""Run one batch through the nodes of a device step, and fall back if GPU memory does not suffice.

First all unused memory is freed and the batch is halved, repeatedly. A sample that does not fit even alone is decoded
on the CPU; if that is not enough, all its kernels run there. Each of these fallbacks is counted. Used by
`DeviceExecutor`.
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

AGAIN = "out of GPU memory: tried again once the GPU was idle"
HALVED = "out of GPU memory: batch halved"
CPU_DECODER = "out of GPU memory: decoded on the CPU"
CPU_KERNELS = "out of GPU memory: computed on the CPU"
JOINED = "out of GPU memory: joined on the host"


@dataclass(frozen=True, slots=True)
class OnDevice:
    """The launch of a step on one CUDA stream of a device. If GPU memory is exhausted, it frees memory or computes
    fewer samples at a time. Created by `DeviceExecutor` for each launch; used by the launching or the completing
    thread."""

    nodes: Sequence[Node]
    gives: Sequence[Edge]
    to_host: Collection[Edge]
    """Outputs of the step (edges of the graph) that are needed on the host."""
    lane: Copies
    lanes: Sequence[Copies]
    """All lanes (CUDA streams with memory) of the device, whose unused memory is freed if memory runs out."""
    on_error: ErrorHook
    count: Callable[[str, int], None]
    """Called for each fallback, with the reason and the number of samples."""

    def run(self, env: Env, run: NodePass) -> Env:
        """Run the nodes and return the outputs that are needed afterwards (``gives``). Raises DeviceError if the device
        cannot hold even these."""
        results = self._fitted(env, run)
        for edge in self.gives:
            if edge not in self.to_host and self._belongs_there(edge):
                results[edge] = self.retried(lambda edge=edge: self.lane.to_device(results[edge]))  # type: ignore[misc]
        return results

    def run_cut(self, env: Env, run: NodePass, cuts: Sequence[tuple[int, int]], estimates: Outputs = ()) -> Env:
        """Like `run`, but run the nodes for one range of samples [a, b) in ``cuts`` after the other. If the results
        have the sizes that ``estimates`` predicts, all ranges write into one array, so that joining them copies
        nothing."""
        if len(cuts) <= 1:
            return self.run(env, run)
        slots = run.samples.slot
        borders = [int(slots[0]), *(int(slots[a]) for a, _ in cuts[1:]), int(slots[-1]) + 1]
        placed = all(node.stage != "cpu" for node in self.nodes) or run.emulate
        whole = self.retried(lambda: whole_outputs(estimates, self.lane.empty)) if placed else []
        on_device, allocate, parts = replace(self, to_host=()), run.allocate, []
        try:
            for (a, b), part in zip(cuts, pieces(env, run, borders), strict=True):
                run.allocate = partial(self._placed, OutputSlice(whole, a, b)) if whole else allocate
                parts.append(on_device.run(part, run))
        finally:
            run.allocate = allocate
        results: Env = {}
        for edge in self.gives:
            batches = [p[edge] for p in parts]
            in_one_array = in_place(batches, whole)
            results[edge] = self.joined(batches) if in_one_array is None else in_one_array
        return results | {e: self.retried(lambda e=e: self.lane.to_host(results[e])) for e in self.to_host}  # type: ignore[misc]

    def _placed(self, output: OutputSlice, n: int, dtype: Any) -> Any:
        placed = output.take(n, dtype)
        return self.lane.empty(n, dtype) if placed is None else placed

    def retried(self, allocate: Callable[[], Any]) -> Any:
        """Return the result of ``allocate()``. If GPU memory does not suffice, free all unused memory and call it
        again. Raises DeviceError if the second call fails, too."""
        try:
            return allocate()
        except Exception as e:
            if not out_of_memory(e):
                raise
        self.free_unused()
        try:
            return allocate()
        except Exception as e:
            if out_of_memory(e):
                raise DeviceError(f"the results of one batch do not fit into GPU memory: {e}; {REMEDY}") from None
            raise

    def joined(self, batches: Sequence[Batch]) -> Batch:
        """Join batches of different samples into one, ordered by the samples' indices (slots). The result is in device
        memory, unless there is no room or one of the batches is already on the host."""
        live = [b for b in batches if len(b)]
        if all(self.lane.holds(b) for b in live):
            try:
                return merge(batches, self.lane.empty if live else None)
            except Exception as e:
                if not out_of_memory(e):
                    raise
            self.count(JOINED, sum(map(len, batches)))
            self.free_unused()
        on_host = [self.retried(lambda b=b: self.lane.to_host(b)) for b in batches]  # type: ignore[misc]
        if any(self.lane.holds(b) for b in live):
            self.lane.wait()
        return merge(on_host)

    def free_unused(self) -> None:
        """Wait until the device is idle, and free the memory that none of its CUDA streams uses."""
        for lane in self.lanes:
            lane.release_memory(launching=lane is self.lane)

    # -- the fallbacks -------------------------------------------------------------------------------------------

    def _fitted(self, env: Env, run: NodePass, retry: bool = True) -> Env:
        results = self._tried(env, run)
        if results is None:
            self.free_unused()
            results = self._tried(env, run) if retry else None  # the unused memory that was freed may suffice
            if results is not None:
                self.count(AGAIN, len(run.samples))
        return self._smaller(env, run) if results is None else results

    def _smaller(self, env: Env, run: NodePass) -> Env:
        n = len(run.samples)
        if n > 1:
            self.count(HALVED, n)
            return self._joined([self._fitted(half, run, retry=False) for half in pieces(env, run, middle(run))])
        if run.attempt == 0 and any(node.stage == "mixed" for node in self.nodes):
            self.count(CPU_DECODER, n)
            run.attempt += 1
            results = self._tried(env, run)
            run.attempt -= 1
            if results is not None:
                return results
            self.free_unused()
        self.count(CPU_KERNELS, n)
        return self._on_host(env, run)

    def _tried(self, env: Env, run: NodePass) -> Env | None:
        """Run the nodes and return their results; None if GPU memory does not suffice."""
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
        on_host = {e: self.retried(lambda b=b: self.lane.to_host(b)) for e, b in env.items()}  # type: ignore[misc]
        self.lane.wait()
        host = replace(
            run, device=None, emulate=True, allocate=None, mark_device=None, dropped=[], checks=[], late_outputs=[],
            attempt=0,
        )  # fmt: skip
        results = guarded(self.nodes, on_host, host, self.gives, self.on_error)
        run.dropped += host.dropped
        by_id = {n.id: n for n in self.nodes}
        for edge in self.gives:
            if is_late(by_id[edge.node]):  # the other samples' results also exist only when the device is done
                run.late_outputs.append((edge, lambda batch=results[edge]: batch))  # type: ignore[misc]
                results[edge] = stand_in(results[edge].samples)
        return results

    def _joined(self, parts: Sequence[Env]) -> Env:
        return {e: self.joined([p[e] for p in parts]) for e in self.gives}

    def _belongs_there(self, edge: Edge) -> bool:
        node = next(n for n in self.nodes if n.id == edge.node)
        return node.stage != "cpu" and not is_late(node)
