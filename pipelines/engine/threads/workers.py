"""A pool of worker threads that take work in order, at the least cost of passing it to another thread."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

_Work = tuple[Callable[..., None], tuple[Any, ...]]
_Tasks = SimpleQueue[_Work | None]


class Pool:
    """A pool of ``count`` threads, which start when work is first queued.

    Work must report its own completion, and must not raise. Created and shut down by `HostExecutor` and the launching
    thread; any thread may add work."""

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._tasks: _Tasks = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._tasks,), name=f"{name}_{k}", daemon=True) for k in range(count)
        ]
        self._lock = threading.Lock()
        self._started = self._closed = False

    def do(self, work: Callable[..., None], *args: Any) -> None:
        """Queue the call ``work(*args)`` for one of the threads. Raises RuntimeError after `shutdown`, and if threads
        cannot be started."""
        with self._lock:  # otherwise work could be queued after the marks that end the threads, and never be done
            if not self._started or self._closed:
                self._start()
            self._tasks.put((work, args))

    def slice_of(self, count: int) -> PoolSlice | None:
        """Return an object that runs work on at most ``count`` of this pool's threads; None if ``count`` is 0."""
        return PoolSlice(count, self.do) if count > 0 else None

    def shutdown(self, *, wait: bool = True) -> None:
        """Accept no more work. With ``wait``, wait until the queued work is done."""
        with self._lock:
            self._closed = True
        _end(self._tasks, self.count)
        if wait:
            _wait(self._threads)

    def _start(self) -> None:
        if self._closed:
            raise RuntimeError("a pool that was shut down takes no more work")
        if self not in _pools:
            _pools.add(self)
            # The garbage collector may run in any thread at any moment: a finalizer must not wait for other threads.
            weakref.finalize(self, _end, self._tasks, self.count).atexit = False
        for thread in self._threads:
            if thread.ident is None:  # threads with an ident were started earlier, when another one could not be
                thread.start()
        self._started = True


@dataclass(frozen=True, slots=True)
class PoolSlice:
    """A limited number of a pool's threads, for use by a kernel (`ops.context.Helpers`). Created by `Pool.slice_of`."""

    count: int
    do: Callable[..., None]


def _work(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        work, args = task
        work(*args)
        del task, work, args  # keep no references while the thread waits


def _end(tasks: _Tasks, threads: int) -> None:
    for _ in range(threads):
        tasks.put(None)


def _wait(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        if thread is not threading.current_thread():
            with suppress(RuntimeError):  # the thread could not be started
                thread.join()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
"""The pools that have started threads, so that `_end_all` can end them."""


@atexit.register
def _end_all() -> None:
    """End the threads of all pools when the interpreter exits, so that no thread is then in the middle of its work.
    Queued work that has not begun is discarded."""
    for pool in list(_pools):
        while not pool._tasks.empty():
            with suppress(Empty):
                pool._tasks.get_nowait()
        pool.shutdown()
