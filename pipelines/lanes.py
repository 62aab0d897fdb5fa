"""Lanes: what the engine adds to a device's - times of kernels, and a stand-in where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops.batch import Batch
from ..ops.device import Lane
from .graph import Node
from .stats import Stats


class DeviceTimer:
    """Events around every kernel of one launch; read after the lane is synchronised."""

    def __init__(self, lane: Lane, stats: Stats) -> None:
        self._lane, self._stats = lane, stats
        self._marks: list[tuple[Node, int, int, int, Any, Any]] = []
        self._open: Any = None

    def __call__(self, node: Node, samples: int, taken: int, given: int, after: bool) -> None:
        event = self._lane.mark()
        if after:
            self._marks.append((node, samples, taken, given, self._open, event))
        else:
            self._open = event

    def read(self) -> None:
        """Hand the times to the statistics."""
        for node, samples, taken, given, begin, end in self._marks:
            self._stats.called(node, samples, taken, given, self._lane.seconds_between(begin, end), device=True)
        self._marks.clear()


class NullLane:
    """In the place of a GPU: host memory, CPU kernels, the same steps and threads around them."""

    free_memory = 1 << 62
    """Bytes that there are."""

    def __init__(self, index: int = 0) -> None:
        self.index = index

    def __enter__(self) -> NullLane:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def empty(self, n: int, dtype: Any) -> Any:
        return np.empty(n, dtype)

    def to_device(self, batch: Batch) -> Batch:
        return batch

    def to_host(self, batch: Batch) -> Batch:
        return batch

    def holds(self, batch: Batch) -> bool:
        return True

    def wait(self) -> None:
        pass

    def give_back(self, *, mine: bool) -> None:
        pass

    def synchronize(self) -> None:
        pass
