"""Free lanes, and those that runs of one job have in common: one that begins while another ends goes on with its lanes,
their memory and what operators keep there, instead of opening some more.
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
    """The free lanes of one device of one run."""

    def drop(self, lane: Copies) -> None:
        """The lane that was taken does not come back."""


class _Free:
    """The free lanes of one device."""

    def __init__(self) -> None:
        self.lanes: deque[Copies] = deque()
        self.changed = threading.Condition()


class SharedLanes:
    """The free lanes of one device, as one of several runs sees them: a `Channel` that no other run ends."""

    def __init__(self, free: _Free) -> None:
        self._free = free
        self._taken: list[Copies] = []
        """By this run."""
        self._stopped = False

    @property
    def fill(self) -> int:
        """How many there are now, about: other threads go on."""
        return len(self._free.lanes)

    def get(self) -> Copies:
        """A free lane, waiting for one. Raises Closed when the run was stopped."""
        with self._free.changed:
            self._free.changed.wait_for(lambda: self._stopped or self._free.lanes)
            if self._stopped:
                raise Closed
            lane = self._free.lanes.popleft()
            self._taken.append(lane)
            return lane

    def put(self, lane: Copies) -> None:
        """The lane is free; a new one, too."""
        with self._free.changed:
            self._taken = [t for t in self._taken if t is not lane]
            self._free.lanes.append(lane)
            self._free.changed.notify_all()  # those of a run that was stopped may be the first to hear

    def drop(self, lane: Copies) -> None:
        """The lane that was taken does not come back."""
        with self._free.changed:
            self._taken = [t for t in self._taken if t is not lane]

    def stop(self) -> None:
        """Wake everybody of this run with Closed."""
        with self._free.changed:
            self._stopped = True
            self._free.changed.notify_all()

    def give_back(self, ready: Callable[[Copies], object]) -> None:
        """The run is over: lanes of its batches that were not settled are free for others, once they are ``ready``."""
        for lane in list(self._taken):
            ready(lane)
            self.put(lane)


FreeLanes = OwnLanes | SharedLanes


class LanePool:
    """The lanes of all runs of a job in this process. They stay open from run to run, until `close`."""

    def __init__(self) -> None:
        self.opening = threading.Lock()
        """Held by the run that opens them."""
        self.lanes: dict[int, list[Copies]] = {}
        """By the plan of the runs that have them."""
        self._free: dict[tuple[int, int, int], _Free] = {}
        self._limited: set[int] = set()

    def of(self, plan: object, step: int, devices: int) -> list[SharedLanes]:
        """Those of each device for the ``step``-th step on devices of ``plan``, which must live as long as this."""
        return [SharedLanes(self._free.setdefault((id(plan), step, k), _Free())) for k in range(devices)]

    def limit(self, index: int, nbytes: int) -> None:
        """Hold the pool of GPU ``index`` to ``nbytes`` for these runs."""
        self._limited.add(index)
        limit_pool(index, self, nbytes)

    def close(self) -> None:
        """Give lanes and memory back; no run uses them any more."""
        lanes, self.lanes = self.lanes, {}
        self._free.clear()
        for own in lanes.values():
            for lane in own:
                lane.close()
        for index in self._limited:
            limit_pool(index, self, None)
        self._limited.clear()


class SharedResources:
    """Accounts and lanes of the runs of one job in this process, which come one after the other or overlap."""

    def __init__(self) -> None:
        self.budgets = SharedBudgets()
        self.lanes = LanePool()

    def close(self) -> None:
        """No run comes any more."""
        self.lanes.close()
