"""Channel: the bounded queue between two threads of the executor, which also measures how long each side waits."""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):  # noqa: N818  # an end, not an error
    """The channel was closed and is empty, or the run was stopped."""


_END: Any = object()


class Channel(Generic[T]):
    """First in, first out, at most ``depth`` items.

    Items go one way, permits to put one the other; both queues are of those that wake a thread at the least cost.
    """

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self.depth = depth
        self.waited_full = 0.0
        """Seconds that producers waited for room."""
        self.waited_empty = 0.0
        """Seconds that consumers waited for an item."""
        self.unfinished = 0
        """Items that were not finished when they were taken: their consumer waited for work in the pool."""
        self.passed = 0
        self.occupancy = 0
        """Sum of the items found at every put; over ``passed``, the mean fill."""
        self._items: SimpleQueue[T] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        self._stopped = self._ended = False
        for _ in range(depth):
            self._room.put(None)

    @property
    def fill(self) -> int:
        """Items in it now, about: other threads go on."""
        return min(max(self._items.qsize() - self._ended, 0), self.depth)

    def put(self, item: T) -> None:
        """Append ``item``, waiting for room. Raises Closed when the run was stopped."""
        if self._room.empty():
            began = time.perf_counter()
            self._room.get()
            self.waited_full += time.perf_counter() - began
        else:
            self._room.get()
        if self._stopped:
            self._room.put(None)  # for the next thread that waits
            raise Closed
        self.occupancy += self._items.qsize()
        self.passed += 1
        self._items.put(item)

    def get(self) -> T:
        """The oldest item, waiting for one. Raises Closed at the end, or when the run was stopped."""
        if self._items.empty():
            began = time.perf_counter()
            item = self._items.get()
            self.waited_empty += time.perf_counter() - began
        else:
            item = self._items.get()
        if item is _END or self._stopped:
            self._items.put(_END)  # for the next thread that waits
            raise Closed
        self._room.put(None)
        return item

    def close(self) -> None:
        """No more items will come; what is in the channel can still be taken."""
        self._ended = True
        self._items.put(_END)

    def stop(self) -> None:
        """Wake everybody with Closed, at once."""
        self._stopped = self._ended = True
        with suppress(Empty):
            while True:
                self._items.get_nowait()
        self._items.put(_END)
        self._room.put(None)
