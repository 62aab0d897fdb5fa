"""Time that this process has waited for compilers, and the listener that is notified of long compilation."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Times:
    """Counters of this process for compiling and loading functions. There is one instance, `times`; any thread may
    update it."""

    compiled = 0
    """Number of Numba functions that this process has compiled."""
    loaded = 0
    """Number of Numba functions that this process has loaded from the cache."""
    seconds = 0.0
    """Seconds that all threads together have spent on compiling Numba functions."""
    announced = False
    """Whether the user was told that functions are being compiled."""
    images = 0
    """Number of CUDA modules that this process has loaded from the wheel's binaries."""
    _told = 0.0

    def __init__(self) -> None:
        self._threads = threading.local()
        self.listeners: list[Callable[[str], None]] = []
        """Functions that get messages about long compiling, instead of stderr; the last one counts."""
        self.clients = [""]
        """Operators and writers (``writers.NAME``) whose warm-up runs now, innermost last; all threads work for the
        last one."""
        self.nvrtc: dict[str, float] = {}
        """Seconds that each CUDA kernel outside the wheel took, by name: compiling it with NVRTC, or loading it from
        CuPy's cache."""

    @contextmanager
    def by_nvrtc(self, kernel: str) -> Iterator[None]:
        """Context manager around compiling the CUDA ``kernel``, or loading it from CuPy's cache; adds the time to
        ``nvrtc``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.nvrtc[kernel] = self.nvrtc.get(kernel, 0.0) + time.perf_counter() - began

    def waited(self, seconds: float, *, compiled: bool = True) -> None:
        """Count ``seconds`` for which this thread has waited. ``compiled``: whether it compiled itself; False if it
        waited for another thread that compiled."""
        self.seconds += seconds * compiled
        self._threads.seconds = self.in_this_thread() + seconds

    def in_this_thread(self) -> float:
        """Return the seconds that this thread has waited for compilers, which measurements of its other work
        subtract."""
        return float(getattr(self._threads, "seconds", 0.0))

    def new_seconds(self) -> float:
        """Return the seconds of compiling since the last call of this method."""
        new, self._told = self.seconds - self._told, self.seconds
        return new


times = Times()


@contextmanager
def messages_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Context manager: pass messages about long compiling to ``listener``, one line at a time, instead of printing them
    to stderr."""
    times.listeners.append(listener)
    try:
        yield
    finally:
        times.listeners.remove(listener)


def tell(line: str) -> None:
    """Print ``line`` for the user, who waits for a compiler; or pass it to the listener of `messages_to`."""
    if times.listeners:
        times.listeners[-1](line)
    else:
        with suppress(OSError, ValueError):  # stderr may be closed
            print(f"dali-run: {line}", file=sys.stderr, flush=True)  # noqa: T201


def client() -> str:
    """Return the operator or writer (``writers.NAME``) whose functions are being compiled ahead of time; empty if none
    is."""
    return times.clients[-1]


@contextmanager
def on_behalf(name: str) -> Iterator[None]:
    """Context manager: record the Numba functions that are called inside as functions that the operator or writer
    ``name`` needs."""
    times.clients.append(name)
    try:
        yield
    finally:
        times.clients.pop()
