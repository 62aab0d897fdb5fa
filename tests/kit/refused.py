"""Refuse files, pipes, mappings, threads and processes: each request of this project's code is refused once.

`each_refused` repeats a piece of work: the first request is refused, then the second, until the work succeeds
completely. After each run, `Left` reports what remains: descriptors, threads, children, temporary files, and objects
that only the garbage collector has closed.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EVENTS = frozenset({"open", "mmap.__new__", "subprocess.Popen", "os.fork"})
"""Requests to the operating system that Python reports to audit hooks."""
THREAD = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
UNTOLD = (
    (os, "memfd_create"), (os, "dup"), (os, "pipe"), (os, "pipe2"), (socket, "socketpair"), (threading, THREAD),
)  # fmt: skip
"""Functions that make requests to the operating system which Python does not report."""
PATIENCE = 60
_IMPORTS = ("<frozen importlib", "/importlib/", "/linecache.py", "/traceback.py", "/numba/", "/inspect.py",
            "/shutil.py")  # fmt: skip


@dataclass
class _Refusing:
    """Counter of requests to the operating system, one of which is refused."""

    nth: int
    """Number of the request that is refused; 0 for none."""
    error: Callable[[str, Any], BaseException]
    asked: int = 0
    lock: Any = field(default_factory=threading.Lock)
    what: str = ""
    """The request that was refused, and its place in the code."""

    def ask(self, event: str, path: Any = None) -> None:
        """Count a request; raise if it is the one to refuse."""
        place = _place()
        if place is None:
            return
        if self.error is interrupted and (event == THREAD or threading.current_thread() is not threading.main_thread()):
            return  # only the main thread gets the error, and `threading` itself would be left half initialised
        with self.lock:
            self.asked += 1
            mine = self.asked == self.nth
        if mine:
            self.what = f"{event} at {place}"
            raise self.error(event, path)


_now: _Refusing | None = None


def _place() -> str | None:
    """Return the place in this project's code that makes the request; None for imports, compilers and tests."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if any(part in name for part in _IMPORTS):
            return None
        if "/multiprocessing/" in name and "parent_r" in frame.f_locals:
            return None  # between its two pipes and the fork, the standard library leaves the first ones open
        if "/tests/" in name and name != __file__:
            return None
        if "/dali_run/" in name or _OURS.match(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


class _Ours:
    """Matcher of files of the package, under either of their names: its folders are links."""

    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        self._heads = tuple(f"{root / n}/" for n in ("ops", "readers", "writers", "pipelines", "cli", "dali_run"))

    def match(self, name: str) -> bool:
        return name.startswith(self._heads)


_OURS = _Ours()


def _hook(event: str, args: tuple[Any, ...]) -> None:
    now = _now
    if now is not None and event in EVENTS:
        if event == "open" and isinstance(args[0], int):
            return  # an existing descriptor: the system is not involved
        now.ask(event, args[0] if event == "open" else None)


_installed = False


@contextlib.contextmanager
def refusing(nth: int, error: Callable[[str, Any], BaseException]) -> Iterator[_Refusing]:
    """Context manager in which the ``nth`` request to the operating system is refused with ``error``."""
    global _installed, _now
    if not _installed:
        sys.addaudithook(_hook)  # a hook cannot be removed; it does nothing after the test
        _installed = True
    now = _Refusing(nth, error)

    def told(name: str, function: Any) -> Any:
        def ask(*args: Any, **kwargs: Any) -> Any:
            if _now is now:
                now.ask(name)
            return function(*args, **kwargs)

        return ask

    real = [(module, name, getattr(module, name)) for module, name in UNTOLD]
    for module, name, function in real:
        setattr(module, name, told(name, function))
    _now = now
    try:
        yield now
    finally:
        _now = None
        for module, name, function in real:
            setattr(module, name, function)


def too_many(event: str, path: Any) -> BaseException:
    """Return the error that the system raises when a limit is reached."""
    if event == THREAD:
        return RuntimeError("can't start new thread")
    if event in ("os.fork", "subprocess.Popen"):
        return BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE), *([path] if isinstance(path, (str, bytes)) else []))


def interrupted(event: str, path: Any) -> BaseException:
    """Return the error of Ctrl-C during a request."""
    return KeyboardInterrupt()


class Left:
    """Context manager that finds what a piece of work leaves behind; ``folder`` is for temporary files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __enter__(self) -> Left:
        gc.collect()
        self._stack = contextlib.ExitStack()
        self._warned = self._stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        was, tempfile.tempdir = tempfile.tempdir, str(self._folder)
        self._stack.callback(setattr, tempfile, "tempdir", was)
        hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        self._stack.callback(setattr, sys, "unraisablehook", hook)
        thread_hook, threading.excepthook = threading.excepthook, self._in_thread
        self._stack.callback(setattr, threading, "excepthook", thread_hook)
        self.found: list[str] = []
        self._before = _descriptors(), set(threading.enumerate()), _children()
        return self

    def _unraisable(self, told: Any) -> None:
        self.found.append(f"unraisable: {told.exc_value!r} in {told.object!r}")

    def _in_thread(self, told: Any) -> None:
        self.found.append(f"in thread {told.thread.name}: {told.exc_value!r}")

    def __exit__(self, *exc: object) -> None:
        gc.collect()
        end = time.monotonic() + PATIENCE
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.01)
            gc.collect()
        self.found += left
        self._stack.close()
        self.found += [f"closed by the garbage collector: {w.message}" for w in self._warned
                       if issubclass(w.category, ResourceWarning)]  # fmt: skip
        for path in sorted(self._folder.iterdir()):
            self.found.append(f"temporary: {path.name}")
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _left(self) -> list[str]:
        descriptors, threads, children = self._before
        return [
            *(f"descriptor {one[0]}: {name}" for one, name in _descriptors().items() if one not in descriptors),
            *(f"thread {thread.name}" for thread in set(threading.enumerate()) - threads),
            *(f"child {child}" for child in _children() - children),
        ]


def _descriptors() -> dict[tuple[int, int, int], str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            found[int(name), status.st_dev, status.st_ino] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _children() -> set[str]:
    found = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found |= set(Path(f"/proc/self/task/{task}/children").read_text().split())
    return found


def each_refused(
    work: Callable[[], object], folder: Path, error: Callable[[str, Any], BaseException] = too_many, step: int = 1,
    patience: float = 2.0, first: int = 1,
) -> Iterator[tuple[str, BaseException | None, list[str]]]:  # fmt: skip
    """Repeat the work, each time with another request refused. Yield the request, the exception and the remains."""
    global PATIENCE
    nth = first
    gc.collect()
    gc.freeze()  # earlier objects are not searched each time
    while True:
        raised: BaseException | None = None
        with Left(folder) as left:
            with refusing(nth, error) as now:
                try:
                    work()
                except BaseException as e:
                    raised = e.with_traceback(None)
                    raised.__context__ = raised.__cause__ = None
            gc.collect()
        if now.what == "":
            gc.unfreeze()
            return
        yield now.what, raised, left.found
        nth += step
