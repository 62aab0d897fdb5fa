"""Spread work on the bytes of one batch over several threads."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from ...ops.context import Context
from ...ops.errors import without_frames

_PART = 4 << 20  # bytes of work that are worth a task of their own
_MAX_THREADS = 16


def spread(ctx: Context, n: int, nbytes: int, work: Callable[[int, int], object]) -> None:
    """Call ``work(low, high)`` for ranges that together cover range(n), in the calling thread and in idle threads of
    the pool, concurrently and in any order. The calling thread runs the ranges that no other thread has started, and so
    never waits for a busy pool. Each thread takes one range, and needs the GIL only before and after it."""
    parts = 1 if ctx.services.pool is None else min(n, nbytes // _PART, ctx.services.pool.count + 1, _MAX_THREADS)
    if ctx.services.pool is None or parts < 2:
        work(0, n)
        return
    shared = _Parts([(n * k // parts, n * (k + 1) // parts) for k in range(parts)], work)
    with contextlib.suppress(RuntimeError):  # a pool that is shutting down accepts no work
        for _ in range(parts - 1):
            ctx.services.pool.do(shared.help_out)
    shared.help_out()
    shared.wait()


class _Parts:
    """The ranges of one call of `spread`, which several threads take until all are done."""

    def __init__(self, parts: list[tuple[int, int]], work: Callable[[int, int], object]) -> None:
        self._todo = deque(parts)
        self._left = len(parts)
        self._work = work
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._busy = threading.Lock()  # released when all ranges are done
        self._busy.acquire()

    def help_out(self) -> None:
        """Take ranges and run ``work`` on them, until no range is left."""
        while self._todo:
            try:
                low, high = self._todo.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                if self._error is None:
                    self._work(low, high)
            except BaseException as e:  # raised by `wait`
                self._error = without_frames(e)
            with self._lock:
                self._left -= 1
                if self._left:
                    continue
            self._busy.release()

    def wait(self) -> None:
        """Wait for ranges that other threads have started. Raises the first exception of any of them."""
        self._busy.acquire()
        if self._error is not None:
            raise self._error
