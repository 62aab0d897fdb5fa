"""OpenLanes: the lanes of every device of a run, from their opening to their end, and the memory that they may take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ....ops.codecs.on_host import CUDA as BATCHED
from ....ops.errors import DeviceError
from ....ops.gpu.lane import Lane, free_memory, gpu_count, limit_pool
from ....ops.interfaces import Copies
from ...compile.place import Target
from ..batch_budget import BatchBudget
from ..errors import if_it_works, out_of_memory
from ..lanes import FreeLanes, OwnLanes, SharedLanes
from ..memory.budget import Ledger
from ..services import Services
from ..threads.channel import Channel
from .more_lanes import MOST, Change, MoreLanes
from .null_lane import NullLane

NO_LANE = "out of GPU memory: a batch less in flight"

_FEW = 0.01
"""Part of the pictures that other decoders take from which the rest may wait for those."""


class OpenLanes:
    """One thread opens them; the launching thread of a device asks for more."""

    def __init__(self, services: Services, budget: BatchBudget, open_lane: Callable[[Target, int], Copies]) -> None:
        self._services, self._budget = services, budget
        self._plan, self._options = services.plan, services.options
        self._open_lane = open_lane
        self.all: list[Copies] = []
        """Those that are open."""
        self.devices = len(services.plan.target.indices)
        self._free: list[FreeLanes] = []
        self._limited: list[int] = []
        """Devices that are held to a budget."""
        self._opened = threading.Event()
        self.stopped = False
        if any(s.kind == "device" for s in services.plan.steps):
            beside = self._options.beside
            budget.device = Ledger(0) if beside is None else beside.accounts.of(self._plan, "device", 0)

    @property
    def are_open(self) -> bool:
        """All lanes are there: memory can be page-locked without waiting for the device to start."""
        return self._opened.is_set()

    def wait(self) -> None:
        """Return when they are open; before that the budget is not known."""
        self._opened.wait()

    def for_step(self) -> list[FreeLanes]:
        """Where one step will find its free lanes, of each device; they come with `open`. With lanes in common, a step
        could take all of them and wait for the next, which waits for a lane."""
        found: list[FreeLanes] = []
        if self._options.beside is not None:
            found += self._options.beside.lanes.of(self._plan, len(self._free) // self.devices, self.devices)
        else:
            found += [OwnLanes("lanes", max(MOST, self._options.lanes)) for _ in self._plan.target.indices]
        self._free += found
        return found

    # -- their life ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the lanes: the body of a thread. A GPU takes some tenths of a second to start, in which batches are
        read. Raises DeviceError."""
        pool = None if self._options.beside is None else self._options.beside.lanes
        if pool is None:
            self._open_all()
        else:
            with pool.opening:
                if id(self._plan) not in pool.lanes:
                    self._open_all()
                    pool.lanes[id(self._plan)] = self.all
                self.all = pool.lanes[id(self._plan)]
        self._opened.set()

    def _open_all(self) -> None:
        count = len(self._plan.target.indices)
        for number, free in enumerate(self._free):
            index = self._plan.target.indices[number % count]
            lanes = [self._opened_on(index)]
            while len(lanes) < self._options.lanes and (another := self._one_more(index)) is not None:
                lanes.append(another)
            if index not in self._limited:
                self._limit(index)
            for lane in lanes:
                free.put(lane)

    def _opened_on(self, index: int) -> Copies:
        lane = self._open_lane(self._plan.target, index)
        self.all.append(lane)
        return lane

    def _one_more(self, index: int) -> Copies | None:
        """Another lane of a device that has some; None, and the run goes on with those, where there is no memory."""
        try:
            return self._opened_on(index)
        except Exception as e:
            if not out_of_memory(e):
                raise
        self._services.fell_back(NO_LANE)
        return None

    def _limit(self, index: int) -> None:
        """Hold the pool of device ``index`` to the budget; all of them are on one account."""
        gpu = self._plan.target.device == "gpu"
        budget = self._options.memory.gpu_bytes(free_memory(index) if gpu else NullLane.free_memory)
        if gpu and self._options.beside is not None:
            self._options.beside.lanes.limit(index, budget)
        elif gpu:
            limit_pool(index, self, budget)
        self._limited.append(index)
        assert self._budget.device is not None
        self._budget.device.limit += budget

    def stop(self) -> None:
        """Wake the threads that wait for a lane with Closed."""
        self.stopped = True
        self._opened.set()
        for free in self._free:
            free.stop()

    def close(self) -> None:
        """Give lanes and pools back; no thread uses them any more."""
        if self._options.beside is not None:
            for free in self._free:
                assert isinstance(free, SharedLanes)
                free.give_back(lambda lane: if_it_works(lane.synchronize))
            return
        for lane in self.all:
            if_it_works(lane.close)

    def lift_limits(self) -> None:
        """Let others use the memory of the devices again."""
        if self._plan.target.device == "gpu" and self._options.beside is None:
            for index in self._limited:
                limit_pool(index, self, None)

    # -- one more -----------------------------------------------------------------------------------------------

    def take(self, free: FreeLanes, more: MoreLanes, samples: int, out: Channel[Any]) -> Copies:
        """One of the ``free`` lanes for a batch of ``samples``, waiting for it. Where that takes long, one more is
        tried, and one place more in ``out``, where batches in flight are."""
        began = time.perf_counter()
        lane = free.get()
        if not self._waits_for_few():
            return lane
        change = more.launched(samples, time.perf_counter() - began, self._room_for_more())
        if change is Change.ONE_MORE:
            try:
                another = self._one_more(lane.index)
            except BaseException:
                free.put(lane)
                raise
            if another is None:
                more.refused()
            else:
                out.deepen()
                free.put(another)
        elif change is Change.ONE_LESS:
            self.all[:] = [k for k in self.all if k is not lane]
            free.drop(lane)
            if_it_works(lane.close)
            lane = free.get()
        return lane

    def _waits_for_few(self) -> bool:
        """Some pictures take other decoders than the one that decodes a whole batch at once: the rest of their batch
        may wait for them while the GPU has little to do."""
        counts = self._services.stats.decoders
        total = sum(list(counts.values()))
        return total > 0 and total - counts.get(BATCHED, 0) >= _FEW * total

    def _room_for_more(self) -> bool:
        """A batch more would fit into the memory."""
        assert self._budget.device is not None
        return all(
            ledger.used <= ledger.limit * (1 - 2 / max(4, len(self.all)))
            for ledger in (self._budget.device, self._budget.host)
        )


def open_lane(target: Target, index: int) -> Copies:
    """A lane of device ``index``. Raises DeviceError for a GPU that is not there."""
    if target.device == "null":
        return NullLane(index)
    if index >= gpu_count():
        raise DeviceError(f"GPU {index} was asked for, this machine has {gpu_count()}; run `dali-run doctor`, or "
                          "use device: cpu")  # fmt: skip
    return Lane(index)
