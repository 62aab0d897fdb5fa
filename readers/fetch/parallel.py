"""Work on the bytes of one batch by several threads."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from ...ops.context import Context
from ...ops.errors import kept

_PART = 4 << 20  # bytes of work that are worth a task
_MOST = 16


def spread(ctx: Context, n: int, nbytes: int, work: Callable[[int, int], object]) -> None:
    """``work(low, high)`` for all of range(n), in parts, by the calling thread and by idle threads of the pool.

    Parts may run at once and in any order. The caller does not wait for a busy pool: what nobody has begun, it does.
    There are as many parts as threads that may join in: each of them needs the GIL before and after its part only.
    """
    parts = 1 if ctx.pool is None else min(n, nbytes // _PART, ctx.pool.count + 1, _MOST)
    if ctx.pool is None or parts < 2:
        work(0, n)
        return
    shared = _Parts([(n * k // parts, n * (k + 1) // parts) for k in range(parts)], work)
    with contextlib.suppress(RuntimeError):  # a pool that is shutting down gives no help
        for _ in range(parts - 1):
            ctx.pool.do(shared.help_out)
    shared.help_out()
    shared.wait()


class _Parts:
    """Parts of one piece of work, until all are done."""

    def __init__(self, parts: list[tuple[int, int]], work: Callable[[int, int], object]) -> None:
        self._todo = deque(parts)
        self._left = len(parts)
        self._work = work
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._busy = threading.Lock()  # held until all is done
        self._busy.acquire()

    def help_out(self) -> None:
        """Do parts as long as there are any."""
        while self._todo:
            try:
                low, high = self._todo.popleft()
            except IndexError:  # another one was faster
                return
            try:
                if self._error is None:
                    self._work(low, high)
            except BaseException as e:  # raised where all of it is waited for
                self._error = kept(e)
            with self._lock:
                self._left -= 1
                if self._left:
                    continue
            self._busy.release()

    def wait(self) -> None:
        """Wait for parts that others have begun. Raises what one of them raised."""
        self._busy.acquire()
        if self._error is not None:
            raise self._error
