"""Channel: the bounded queue between two threads of the executor, which also measures who waits for whom."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):  # noqa: N818  # an end, not an error
    """The channel was closed and is empty, or the run was stopped."""


class Channel(Generic[T]):
    """First in, first out, at most ``depth`` items."""

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self.depth = depth
        self.waited_full = 0.0
        """Seconds that producers waited for room."""
        self.waited_empty = 0.0
        """Seconds that consumers waited for an item."""
        self.passed = 0
        self.occupancy = 0
        """Sum of the items found at every put; over ``passed``, the mean fill."""
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._stopped = False

    def put(self, item: T) -> None:
        """Append ``item``, waiting for room. Raises Closed when the run was stopped."""
        with self._changed:
            if len(self._items) >= self.depth:
                began = time.perf_counter()
                self._changed.wait_for(lambda: self._stopped or len(self._items) < self.depth)
                self.waited_full += time.perf_counter() - began
            if self._stopped:
                raise Closed
            self.occupancy += len(self._items)
            self.passed += 1
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T:
        """The oldest item, waiting for one. Raises Closed at the end, or when the run was stopped."""
        with self._changed:
            if not self._items:
                began = time.perf_counter()
                self._changed.wait_for(lambda: self._stopped or self._closed or bool(self._items))
                self.waited_empty += time.perf_counter() - began
            if self._stopped or not self._items:
                raise Closed
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """No more items will come; what is in the channel can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Wake everybody with Closed, at once."""
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._changed.notify_all()
