"""Direct: batches that the program itself provides, or that a GPU makes of nothing, launched and settled by the
program's own thread.

Each hand-over to another thread costs 10 to 50 us, and as long again where the other one holds the GIL; launching a few
kernels costs less than the four of them. What the GPU does, it does beside the program all the same.
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
from ..errors import if_it_works
from ..host_executor import HostExecutor
from ..in_flight import InFlightBatch
from ..options import Options
from ..services import Services
from .fast_path import FastHostStep
from .replayed_step import LaunchedBatch, ReplayedStep


def is_applicable(plan: Plan, options: Options) -> bool:
    """Whether the program asks for each batch, and all that there is to do is to launch kernels on one GPU, after
    arithmetic on a few numbers; and to decode, if it asks for one batch at a time: no other one is read meanwhile."""
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
        op.is_trivial or not op.per_batch or (node.stage == "gpu" and op.shared)  # and does not call the program
    )


class DirectGpu:
    """The program's thread owns it."""

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
        """Batches with their lanes, if they came to have one."""
        self._due = 0
        """Batches that were asked for and have not begun."""

    def open(self) -> None:
        """Open the lanes."""
        (lanes,) = self._device_executor.lanes.for_step()
        self._device_executor.lanes.open()
        self._lanes = deque(lanes.get() for _ in range(lanes.fill))
        self._host_executor.charge_batches = False

    def drop_references(self) -> None:
        """The run is over: hold no batch."""
        self._in_flight.clear()
        self._replayed.drop_references()

    def request_next(self) -> None:
        """The schedule has one more batch: launch it, or do so later where all lanes are taken."""
        self._due += 1
        self._launch()

    def take(self) -> InFlightBatch:
        """The oldest batch, complete, or with what made it fail."""
        if not self._in_flight:
            self._due = max(self._due, 1)
            self._launch()
        it, lane, begun = self._in_flight.popleft()
        try:
            if it.problem is None:
                self._finish(it, begun)
            if it.problem is not None and lane is not None:
                if_it_works(lane.synchronize)
        finally:
            if lane is not None:
                self._lanes.append(lane)
        if self._due:
            self._launch()
        return it

    def _launch(self) -> None:
        while self._due and self._lanes:
            self._due -= 1
            it = self._merger.one(None)
            assert it is not None
            lane, begun = None, None
            try:
                for name, step, plain in self._before:
                    if not (plain.is_applicable and plain.run(it)):
                        self._host_executor.whole(it, name, step, None, None)
                lane = self._lanes.popleft()
                begun = self._begun(it, lane)
            except Exception as e:  # raised in its turn
                it.fail(e)
            self._in_flight.append((it, lane, begun))

    def _finish(self, it: InFlightBatch, begun: LaunchedBatch | None) -> None:
        try:
            if begun is not None:
                self._replayed.finish(it, begun)
            else:
                self._device_executor.finish(it, self._step)
                self._budget.release(it.order)
        except Exception as e:  # the program may go on with the next batch
            it.fail(e)

    def _begun(self, it: InFlightBatch, lane: Copies) -> LaunchedBatch | None:
        """Launch the batch; None where `DevicePart` has it."""
        begun = self._replayed.begin(it, lane) if self._replayed.is_applicable else None
        if begun is None:
            self._device_executor.begin(self._name, self._step, it, lane)
        return begun
