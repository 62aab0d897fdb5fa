"""Pool: worker threads that take work in the order in which it came, at the least cost of handing it over."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Work = tuple[Callable[..., None], tuple[Any, ...]]
_Tasks = SimpleQueue[_Work | None]


class Pool(Executor):
    """``count`` threads, started with the first work.

    `do` is for work that says by itself when it is done, and never raises; `submit` gives a Future, at the price of
    making one.
    """

    def __init__(self, count: int, name: str) -> None:
        self._tasks: _Tasks = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._tasks,), name=f"{name}_{k}", daemon=True) for k in range(count)
        ]
        self._lock = threading.Lock()
        self._started = self._closed = False

    def do(self, work: Callable[..., None], *args: Any) -> None:
        """Have ``work(*args)`` done. Raises RuntimeError after `shutdown`."""
        if not self._started or self._closed:
            self._start()
        self._tasks.put((work, args))

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As `do`; the result will be in the Future. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        self.do(_fulfil, future, fn, args, kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work. The threads end when what was given is done, or with ``cancel_futures`` what was begun;
        ``wait`` for them."""
        with self._lock:
            self._closed = True
        if self._started:
            _end(self._tasks, self._threads, forget=cancel_futures, wait=wait)

    def _start(self) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("a pool that was shut down takes no more work")
            if not self._started:
                self._started = True
                for thread in self._threads:
                    thread.start()
                # no thread may be in the middle of something when the interpreter goes
                weakref.finalize(self, _end, self._tasks, self._threads, forget=True, wait=True)


def _work(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        work, args = task
        work(*args)
        del task, work, args  # nothing is kept while the thread waits


def _end(tasks: _Tasks, threads: Sequence[threading.Thread], *, forget: bool, wait: bool) -> None:
    with suppress(Empty):
        while forget:
            task = tasks.get_nowait()
            if task is not None and task[0] is _fulfil:
                task[1][0].cancel()
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        if wait and thread is not threading.current_thread():
            with suppress(RuntimeError):  # it could not be started
                thread.join()


def _fulfil(future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as e:  # raised where the result is asked for
        future.set_exception(e)
