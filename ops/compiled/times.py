"""How long this process has waited for compilers, and who is told of it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Times:
    """Counts of one process."""

    compiled = 0
    """Loops compiled by this process itself."""
    loaded = 0
    """Loops that were kept, loaded."""
    seconds = 0.0
    """Waited for compilers, of this process and of others."""
    announced = False
    """Whoever waits knows that loops are compiled."""
    images = 0
    """CUDA modules that were loaded from the wheel's images."""
    _told = 0.0

    def __init__(self) -> None:
        self._threads = threading.local()
        self.nvrtc: dict[str, float] = {}
        """CUDA kernels for which there was no image, and the seconds that NVRTC, or CuPy's cache of what it made once,
        took for them."""

    @contextmanager
    def by_nvrtc(self, kernel: str) -> Iterator[None]:
        """Meanwhile ``kernel`` is compiled, or taken from CuPy's cache."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.nvrtc[kernel] = self.nvrtc.get(kernel, 0.0) + time.perf_counter() - began

    def waited(self, seconds: float, *, compiled: bool = True) -> None:
        """This thread has waited for a compiler; ``compiled``: its own work, else for that of another thread."""
        self.seconds += seconds * compiled
        self._threads.seconds = self.in_this_thread() + seconds

    def in_this_thread(self) -> float:
        """Seconds that this thread has waited for compilers. What measures its work subtracts them."""
        return float(getattr(self._threads, "seconds", 0.0))

    def untold(self) -> float:
        """The seconds since this was last asked."""
        new, self._told = self.seconds - self._told, self.seconds
        return new


times = Times()


_listeners: list[Callable[[str], None]] = []


@contextmanager
def told_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile ``listener`` is told of compiling that takes long, in whole lines, instead of stderr."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(line: str) -> None:
    """Whoever waits for a compiler is to know it."""
    if _listeners:
        _listeners[-1](line)
    else:
        with suppress(OSError, ValueError):  # nobody may be there to read it
            print(f"dali-run: {line}", file=sys.stderr, flush=True)  # noqa: T201
