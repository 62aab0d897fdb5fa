"""Pool: worker threads that take work in the order in which it came, at the least cost of handing it over."""

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
    """``count`` threads, started with the first work. Work says by itself when it is done, and never raises."""

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._tasks: _Tasks = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._tasks,), name=f"{name}_{k}", daemon=True) for k in range(count)
        ]
        self._lock = threading.Lock()
        self._started = self._closed = False

    def do(self, work: Callable[..., None], *args: Any) -> None:
        """Have ``work(*args)`` done. Raises RuntimeError after `shutdown`, and while threads cannot be started."""
        with self._lock:  # or it might be queued after the mark that ends the threads, and never be done
            if not self._started or self._closed:
                self._start()
            self._tasks.put((work, args))

    def some(self, count: int) -> PoolSlice | None:
        """The pool, for work that is to take ``count`` of its threads at most; None for none of them."""
        return PoolSlice(count, self.do) if count > 0 else None

    def shutdown(self, *, wait: bool = True) -> None:
        """Take no more work, and wait until what was given is done."""
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
            # Garbage may be collected by any thread, at any moment: it must not wait for others.
            weakref.finalize(self, _end, self._tasks, self.count).atexit = False
        for thread in self._threads:
            if thread.ident is None:  # others were started the last time, when one could not be
                thread.start()
        self._started = True


@dataclass(frozen=True, slots=True)
class PoolSlice:
    """A pool, and how many of its threads may be asked for help (`ops.context.Helpers`)."""

    count: int
    do: Callable[..., None]


def _work(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        work, args = task
        work(*args)
        del task, work, args  # nothing is kept while the thread waits


def _end(tasks: _Tasks, threads: int) -> None:
    for _ in range(threads):
        tasks.put(None)


def _wait(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        if thread is not threading.current_thread():
            with suppress(RuntimeError):  # it could not be started
                thread.join()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
"""Those that have threads."""


@atexit.register
def _end_all() -> None:
    """No thread may be in the middle of something when the interpreter goes; what nobody has begun is forgotten."""
    for pool in list(_pools):
        while not pool._tasks.empty():
            with suppress(Empty):
                pool._tasks.get_nowait()
        pool.shutdown()
