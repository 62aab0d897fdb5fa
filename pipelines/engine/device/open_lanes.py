"""Open and close the lanes (CUDA streams) of all devices of a run, and set the memory that they may use."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ....ops.errors import DeviceError
from ....ops.gpu.device_memory import device_memory, limit_pool
from ....ops.gpu.lane import Lane, gpu_count
from ....ops.interfaces import Copies
from ...compile.place import Target
from ..batch_budget import BatchBudget
from ..credits import SLACK, Credits, gpu_budget
from ..errors import ignore_device_errors, out_of_memory
from ..lanes import FreeLanes, OwnLanes, SharedLanes
from ..memory.budget import MemoryBudget
from ..services import Services
from .null_lane import NullLane

NO_LANE = "out of GPU memory: one batch fewer in flight"
"""Text under which reports count lanes (CUDA streams) that did not open, because GPU memory was exhausted."""


class OpenLanes:
    """The lanes of one run on all its devices; a lane is a CUDA stream with its memory. Created and closed by `Engine`,
    which opens them in a thread of their own."""

    def __init__(
        self, services: Services, budget: BatchBudget, credits: Credits, open_lane: Callable[[Target, int], Copies]
    ) -> None:
        self._services, self._budget, self._credits = services, budget, credits
        self._plan, self._options = services.plan, services.options
        self._open_lane = open_lane
        self.all: list[Copies] = []
        """The lanes of all devices that are open."""
        self.devices = len(services.plan.target.indices)
        self._free: list[FreeLanes] = []
        self._limited: list[int] = []
        """Indices of the devices whose memory pool this run has limited."""
        self._opened = threading.Event()
        self.stopped = False
        if any(s.kind == "device" for s in services.plan.steps):
            resources = self._options.resources
            budget.device = MemoryBudget(0) if resources is None else resources.budgets.of(self._plan, "device", 0)

    @property
    def are_open(self) -> bool:
        """Whether all lanes are open. Until then, page-locking memory would wait for the device to start."""
        return self._opened.is_set()

    def wait(self) -> None:
        """Wait until all lanes (CUDA streams) are open; only then is the memory budget of the devices known."""
        self._opened.wait()

    def for_step(self) -> list[FreeLanes]:
        """Return the queues of free lanes for one step, one queue per device; they are empty until `open` fills
        them. Each step has lanes of its own: with shared lanes, one step could hold all of them while the next waits
        for one."""
        queues: list[FreeLanes] = []
        if self._options.resources is not None:
            queues += self._options.resources.lanes.of(self._plan, len(self._free) // self.devices, self.devices)
        else:
            queues += [OwnLanes("lanes", self._options.lanes) for _ in self._plan.target.indices]
        self._free += queues
        return queues

    # -- their life ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open all lanes (CUDA streams with their memory); the body of a thread. A GPU takes some tenths of a second to
        start; batches are read meanwhile. Raises DeviceError."""
        pool = None if self._options.resources is None else self._options.resources.lanes
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
            lanes = [self._open_on(index)]
            while len(lanes) < self._options.lanes and (another := self._try_open(index)) is not None:
                lanes.append(another)
            if index not in self._limited:
                self._limit(index)
            for lane in lanes:
                free.put(lane)

    def _open_on(self, index: int) -> Copies:
        lane = self._open_lane(self._plan.target, index)
        self.all.append(lane)
        return lane

    def _try_open(self, index: int) -> Copies | None:
        """Open one more lane (CUDA stream with memory) of a device. Return None if GPU memory does not suffice; the run
        then uses only the lanes that are open."""
        try:
            return self._open_on(index)
        except Exception as e:
            if not out_of_memory(e):
                raise
        self._services.fell_back(NO_LANE)
        return None

    def _limit(self, index: int) -> None:
        """Limit the memory pool of device ``index`` to its budget, and add it to the total of the run's devices."""
        gpu = self._plan.target.device == "gpu"
        free, total = device_memory(index) if gpu else (NullLane.free_memory, NullLane.free_memory)
        budget = gpu_budget(self._options.memory, free, total, guest=self._options.guest)
        if gpu and self._options.resources is not None:
            self._options.resources.lanes.limit(index, budget.maximum)
        elif gpu:
            limit_pool(index, self, budget.maximum)
        self._limited.append(index)
        assert self._budget.device is not None
        self._budget.device.limit += max(1, int(SLACK * budget.initial))
        self._credits.initial, self._credits.maximum = budget.initial, budget.maximum

    def stop(self) -> None:
        """Make all threads that wait for a free lane (CUDA stream) raise Closed."""
        self.stopped = True
        self._opened.set()
        for free in self._free:
            free.stop()

    def close(self) -> None:
        """Close the lanes (CUDA streams), or return them to the job's pool. No thread may use them any longer."""
        if self._options.resources is not None:
            for free in self._free:
                assert isinstance(free, SharedLanes)
                free.give_back(lambda lane: ignore_device_errors(lane.synchronize))
            return
        for lane in self.all:
            ignore_device_errors(lane.close)

    def lift_limits(self) -> None:
        """Remove the limits of the devices' memory pools."""
        if self._plan.target.device == "gpu" and self._options.resources is None:
            for index in self._limited:
                limit_pool(index, self, None)


def open_lane(target: Target, index: int) -> Copies:
    """Open a lane (CUDA stream with memory) of device ``index``. Raises DeviceError if the machine has no such GPU."""
    if target.device == "null":
        return NullLane(index)
    if index >= gpu_count():
        raise DeviceError(f"there is no GPU {index}: this machine has {gpu_count()}; run `dali-run doctor`, or "
                          "use device: cpu")  # fmt: skip
    return Lane(index)
