"""Queues of free lanes, and lanes that the runs of one job share.

A run that begins while another one ends continues with its lanes, their memory, and the data that operators keep on
them, instead of opening more. Used by `OpenLanes`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ...ops.gpu.device_memory import limit_pool
from ...ops.interfaces import Copies
from .memory.budget import SharedBudgets
from .threads.channel import Channel, Closed


class OwnLanes(Channel[Copies]):
    """Queue of the free lanes (CUDA streams) of one device, for a run that shares them with no other run. Created by
    `OpenLanes`."""

    def drop(self, lane: Copies) -> None:
        """Do nothing: the queue keeps no record of a lane (CUDA stream) that will never be put back."""


class _Free:
    """The free lanes (CUDA streams) of one device, which the queues of several runs share."""

    def __init__(self) -> None:
        self.lanes: deque[Copies] = deque()
        self.changed = threading.Condition()


class SharedLanes:
    """Queue of the free lanes (CUDA streams) of one device, for one of several runs that share them. It works like a
    `Channel`, but other runs cannot stop it. Created by `LanePool`; used by the threads of one run."""

    def __init__(self, free: _Free) -> None:
        self._free = free
        self._taken: list[Copies] = []
        """The lanes (CUDA streams) that this run has taken and not yet put back."""
        self._stopped = False

    @property
    def fill(self) -> int:
        """Approximate number of free lanes now; other threads may change it at any moment."""
        return len(self._free.lanes)

    def get(self) -> Copies:
        """Take a free lane (CUDA stream); wait while there is none. Raises Closed if the run was stopped."""
        with self._free.changed:
            self._free.changed.wait_for(lambda: self._stopped or self._free.lanes)
            if self._stopped:
                raise Closed
            lane = self._free.lanes.popleft()
            self._taken.append(lane)
            return lane

    def put(self, lane: Copies) -> None:
        """Put back a lane (CUDA stream) that was taken, or add a new one."""
        with self._free.changed:
            self._taken = [t for t in self._taken if t is not lane]
            self._free.lanes.append(lane)
            self._free.changed.notify_all()  # notify all: threads of a stopped run may wake first

    def drop(self, lane: Copies) -> None:
        """Declare that a lane (CUDA stream) that `get` has returned will never be put back."""
        with self._free.changed:
            self._taken = [t for t in self._taken if t is not lane]

    def stop(self) -> None:
        """Make the threads of this run that wait for a lane raise Closed."""
        with self._free.changed:
            self._stopped = True
            self._free.changed.notify_all()

    def give_back(self, ready: Callable[[Copies], object]) -> None:
        """Put back the lanes (CUDA streams) that this run still holds, because batches were not completed; the run uses
        no lanes after that. ``ready(lane)`` is called for each of them first."""
        for lane in list(self._taken):
            ready(lane)
            self.put(lane)


FreeLanes = OwnLanes | SharedLanes


class LanePool:
    """The open lanes (CUDA streams with memory) of all runs of a job in this process. They stay open between the runs.
    Owned by `SharedResources`."""

    def __init__(self) -> None:
        self.opening = threading.Lock()
        """Lock that a run holds while it opens lanes (CUDA streams), so that no two runs do so at once."""
        self.lanes: dict[int, list[Copies]] = {}
        """The open lanes (CUDA streams) of each plan, by the id of the plan whose runs use them."""
        self._free: dict[tuple[int, int, int], _Free] = {}
        self._limited: set[int] = set()

    def of(self, plan: object, step: int, devices: int) -> list[SharedLanes]:
        """Return one queue of free lanes per device, for the device step number ``step`` of ``plan``. The plan must
        live as long as this pool."""
        return [SharedLanes(self._free.setdefault((id(plan), step, k), _Free())) for k in range(devices)]

    def limit(self, index: int, nbytes: int) -> None:
        """Limit the memory pool of GPU ``index`` to ``nbytes`` for all runs of the job."""
        self._limited.add(index)
        limit_pool(index, self, nbytes)

    def close(self) -> None:
        """Close all lanes and remove the limits of memory pools. No run may use them any longer."""
        lanes, self.lanes = self.lanes, {}
        self._free.clear()
        for own in lanes.values():
            for lane in own:
                lane.close()
        for index in self._limited:
            limit_pool(index, self, None)
        self._limited.clear()


class SharedResources:
    """Memory budgets and lanes (CUDA streams) that the runs of one job share in this process, one after the other or at
    once. Created and closed by the job (`job.part`)."""

    def __init__(self) -> None:
        self.budgets = SharedBudgets()
        self.lanes = LanePool()

    def close(self) -> None:
        """Close the lanes (CUDA streams): no further run will come."""
        self.lanes.close()
