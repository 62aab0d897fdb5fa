"""A bounded queue between two threads of the engine, which also measures how long each side waits."""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):  # noqa: N818  # an end, not an error
    """Raised by `Channel.get` and `Channel.put`: the channel was closed and is empty, or the run was stopped."""


_END: Any = object()


class Channel(Generic[T]):
    """A first-in, first-out queue of at most ``depth`` items between threads. Two `SimpleQueue`s, which wake a thread
    at the least cost, carry items to the consumer and permits to put an item back to the producer. The engine creates
    and closes channels; any thread may call them."""

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self.depth = depth
        self.waited_full = 0.0
        """Seconds for which `put` waited because the channel was full."""
        self.waited_empty = 0.0
        """Seconds for which `get` waited for an item."""
        self.unfinished = 0
        """Number of items (batches) that worker threads had not finished yet when they were taken; the consumer then
        waited for the workers."""
        self.passed = 0
        """Number of items that were put so far."""
        self.occupancy = 0
        """Number of items in the channel at each `put`, added up; divided by ``passed``, it is the mean fill."""
        self._items: SimpleQueue[T] = SimpleQueue()
        self._permits: SimpleQueue[None] = SimpleQueue()
        self._stopped = self._ended = False
        for _ in range(depth):
            self._permits.put(None)

    @property
    def fill(self) -> int:
        """Approximate number of items in the channel; other threads may change it at any moment."""
        return min(max(self._items.qsize() - self._ended, 0), self.depth)

    def put(self, item: T) -> None:
        """Append ``item``; wait while the channel is full. Raises Closed if the run was stopped."""
        if self._permits.empty():
            began = time.perf_counter()
            self._permits.get()
            self.waited_full += time.perf_counter() - began
        else:
            self._permits.get()
        if self._stopped:
            self._permits.put(None)  # for the next thread that waits
            raise Closed
        self.occupancy += self._items.qsize()
        self.passed += 1
        self._items.put(item)

    def get(self) -> T:
        """Take the oldest item; wait while there is none. Raises Closed at the end, or if the run was stopped."""
        if self._items.empty():
            began = time.perf_counter()
            item = self._items.get()
            self.waited_empty += time.perf_counter() - began
        else:
            item = self._items.get()
        if item is _END or self._stopped:
            self._items.put(_END)  # for the next thread that waits
            raise Closed
        self._permits.put(None)
        return item

    def close(self) -> None:
        """Declare that no more items will be put. Items in the channel can still be taken."""
        self._ended = True
        self._items.put(_END)

    def stop(self) -> None:
        """Make all threads that wait on this channel raise Closed at once, and discard the items in it."""
        self._stopped = self._ended = True
        with suppress(Empty):
            while True:
                self._items.get_nowait()
        self._items.put(_END)
        self._permits.put(None)
