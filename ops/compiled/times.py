"""Time that this process has waited for compilers, and the listener that is notified of long compilation."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Times:
    """Counters of one process; the one instance is `times`. Any thread may update it."""

    compiled = 0
    """Number of loops compiled by this process."""
    loaded = 0
    """Number of loops loaded from the cache."""
    seconds = 0.0
    """Seconds that threads spent compiling."""
    announced = False
    """True once the user was told that loops are being compiled."""
    images = 0
    """Number of CUDA modules loaded from the wheel's images."""
    _told = 0.0

    def __init__(self) -> None:
        self._threads = threading.local()
        self.nvrtc: dict[str, float] = {}
        """Seconds per CUDA kernel without an image, for NVRTC to compile it or CuPy to load it from its own cache."""

    @contextmanager
    def by_nvrtc(self, kernel: str) -> Iterator[None]:
        """Context manager around compiling ``kernel``, or loading it from CuPy's cache: measures its time."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.nvrtc[kernel] = self.nvrtc.get(kernel, 0.0) + time.perf_counter() - began

    def waited(self, seconds: float, *, compiled: bool = True) -> None:
        """Add the time that this thread has waited for a compiler. ``compiled``: it compiled itself; otherwise another
        thread did."""
        self.seconds += seconds * compiled
        self._threads.seconds = self.in_this_thread() + seconds

    def in_this_thread(self) -> float:
        """Return the seconds that this thread has waited for compilers; measurements of its work subtract them."""
        return float(getattr(self._threads, "seconds", 0.0))

    def new_seconds(self) -> float:
        """Return the seconds of compiling since the last call."""
        new, self._told = self.seconds - self._told, self.seconds
        return new


times = Times()


_listeners: list[Callable[[str], None]] = []


@contextmanager
def messages_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Context manager: ``listener`` gets messages about long compilation, as whole lines, in place of stderr."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(line: str) -> None:
    """Print ``line`` for the user, who waits for a compiler, or pass it to the current listener."""
    if _listeners:
        _listeners[-1](line)
    else:
        with suppress(OSError, ValueError):  # stderr may be closed
            print(f"dali-run: {line}", file=sys.stderr, flush=True)  # noqa: T201
