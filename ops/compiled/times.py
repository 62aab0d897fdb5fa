"""How long this process has waited for compilers, and who is told of it."""

from __future__ import annotations

import sys
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
    _told = 0.0

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
