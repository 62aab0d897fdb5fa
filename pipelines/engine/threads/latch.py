"""Wait for the parts of one batch on which several worker threads work."""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

from .channel import Closed

T = TypeVar("T")


class Latch(Generic[T]):
    """Collects the ``n`` parts of a result, such as the chunks of a batch, from any threads.

    The thread that finishes the last part joins the parts and calls `done`. The thread that cuts a batch creates the
    latch; the thread that takes the batch from a channel waits for it."""

    def __init__(self, n: int) -> None:
        self.parts: list[T | None] = [None] * n
        self.ended = 0.0
        """Time at which `done` was called (perf_counter, in seconds); 0 before that."""
        self._missing = n
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._busy = threading.Lock()  # locked until all parts are done; a lock costs a fraction of an Event
        self._busy.acquire()

    def add(self, k: int, part: T) -> bool:
        """Store the finished part number ``k``; return True if it was the last one."""
        with self._lock:
            self.parts[k] = part
            self._missing -= 1
            return self._missing == 0

    def take(self) -> list[T]:
        """Remove and return all parts, so that the caller can join them. The latch drops its references to them,
        because the engine keeps the last latch of every step."""
        taken, self.parts = self.parts, []
        return [part for part in taken if part is not None]

    def done(self) -> None:
        """Declare that the parts are joined: release the threads that wait."""
        self.ended = time.perf_counter()
        self._busy.release()

    def fail(self, error: BaseException) -> None:
        """Declare that a part has failed with ``error``: release the threads that wait, in which `wait` raises it."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self.done()

    def wait_done(self) -> None:
        """Wait until all parts are joined, or one has failed; raises nothing."""
        self._busy.acquire()
        self._busy.release()

    def wait(self) -> None:
        """Wait until all parts are joined. If a part failed, raises the exception of the first one that did."""
        self.wait_done()
        if isinstance(self._error, Closed):
            # a new exception: that of the latch would keep alive the frames of the ended thread, and so the batch
            raise Closed
        if self._error is not None:
            raise self._error
