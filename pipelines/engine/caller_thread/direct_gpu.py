"""Launch and complete batches on one GPU in the caller's thread, if the program provides their data or the GPU
generates it.

Passing a batch to another thread costs 10 to 50 us, and as long again if the other thread holds the GIL; launching a
few kernels costs less than the four hand-overs of the regular path. The GPU still runs concurrently with the program.
Used by `Engine`.
"""

from __future__ import annotations

from collections import deque

from ....ops.interfaces import Copies
from ....readers.base import Reader
from ...compile.plan import Plan
from ...graph.nodes import Node
from ..batch_budget import BatchBudget
from ..batch_merger import BatchMerger
from ..device.executor import DeviceExecutor
from ..errors import ignore_device_errors
from ..host_executor import HostExecutor
from ..in_flight import InFlightBatch
from ..options import Options
from ..services import Services
from .fast_path import FastHostStep
from .replayed_step import LaunchedBatch, ReplayedStep


def is_applicable(plan: Plan, options: Options) -> bool:
    """Return whether `DirectGpu` can run the plan. The user's program must request each batch. All work must be kernel
    launches on one GPU, after at most arithmetic on a few numbers. Decoding is allowed only if the program requests one
    batch at a time, so that no other batch could be read meanwhile."""
    target, steps = plan.target, plan.steps
    return (
        options.on_demand
        and target.device == "gpu"
        and len(target.indices) == 1
        and [s.kind for s in steps] == ["whole"] * (len(steps) - 1) + ["device"]
        and all(_is_quick(n) and (n.stage != "mixed" or options.gpu_queue == 1) for n in plan.graph.nodes)
    )


def _is_quick(node: Node) -> bool:
    op = node.op
    return not isinstance(op, Reader) and (
        op.is_trivial
        or not op.per_batch
        or (node.stage == "gpu" and op.shared)  # the operator does not call the program
    )


class DirectGpu:
    """Runs all batches of an engine in the thread that calls it, on one GPU. Created by `Engine`; used by the caller's
    thread only."""

    def __init__(
        self,
        services: Services,
        budget: BatchBudget,
        merger: BatchMerger,
        host_executor: HostExecutor,
        device_executor: DeviceExecutor,
    ) -> None:
        *before, last = services.plan.steps
        self._before = [(services.name_of(s), s, FastHostStep(services, services.name_of(s), s)) for s in before]
        self._name, self._step = services.name_of(last), last
        self._budget, self._merger, self._host_executor, self._device_executor = (
            budget,
            merger,
            host_executor,
            device_executor,
        )
        self._replayed = ReplayedStep(services, budget, self._name, last, device_executor.wanted_on_host(last))
        self._in_flight: deque[tuple[InFlightBatch, Copies | None, LaunchedBatch | None]] = deque()
        """Launched batches, oldest first, as tuples: the batch; its lane (a CUDA stream with memory), or None if it
        failed before it got one; the state of the launch, or None if `DeviceExecutor` launched it."""
        self._requested = 0
        """Number of batches that were requested and are not launched yet."""

    def open(self) -> None:
        """Open the lanes (CUDA streams with their memory) of the GPU."""
        (lanes,) = self._device_executor.lanes.for_step()
        self._device_executor.lanes.open()
        self._lanes = deque(lanes.get() for _ in range(lanes.fill))
        self._host_executor.charge_batches = False

    def drop_references(self) -> None:
        """Drop all references to batches, because the run is over."""
        self._in_flight.clear()
        self._replayed.drop_references()

    def request_next(self) -> None:
        """Request one more batch. It is launched now, or later if no lane (CUDA stream with memory) is free."""
        self._requested += 1
        self._launch()

    def take(self) -> InFlightBatch:
        """Return the oldest batch, after the GPU has finished it. If it failed, its ``problem`` is the exception."""
        if not self._in_flight:
            self._requested = max(self._requested, 1)
            self._launch()
        it, lane, launched = self._in_flight.popleft()
        try:
            if it.problem is None:
                self._finish(it, launched)
            if it.problem is not None and lane is not None:
                ignore_device_errors(lane.synchronize)
        finally:
            if lane is not None:
                self._lanes.append(lane)
        if self._requested:
            self._launch()
        return it

    def _launch(self) -> None:
        while self._requested and self._lanes:
            self._requested -= 1
            it = self._merger.one(None)
            assert it is not None
            lane, launched = None, None
            try:
                for name, step, plain in self._before:
                    if not (plain.is_applicable and plain.run(it)):
                        self._host_executor.run_whole(it, name, step, None, None)
                lane = self._lanes.popleft()
                launched = self._launch_on(it, lane)
            except Exception as e:  # raised when the batch is taken
                it.fail(e)
            self._in_flight.append((it, lane, launched))

    def _finish(self, it: InFlightBatch, launched: LaunchedBatch | None) -> None:
        try:
            if launched is not None:
                self._replayed.finish(it, launched)
            else:
                self._device_executor.finish(it, self._step)
                self._budget.release(it.order)
        except Exception as e:  # the program may continue with the next batch
            it.fail(e)

    def _launch_on(self, it: InFlightBatch, lane: Copies) -> LaunchedBatch | None:
        """Launch the batch on ``lane`` and return the state of the launch. Return None if the fast path could not
        launch the batch, so that `DeviceExecutor` did."""
        launched = self._replayed.launch(it, lane) if self._replayed.is_applicable else None
        if launched is None:
            self._device_executor.launch_now(self._name, self._step, it, lane)
        return launched
