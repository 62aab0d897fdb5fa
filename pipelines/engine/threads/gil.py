"""Lower Python's thread switch interval while an engine feeds a GPU, and restore it afterwards."""

from __future__ import annotations

import sys
import threading

INTERVAL = 2e-4
"""Python's switch interval in seconds while a GPU is in use. The thread that launches kernels releases the GIL many
times per batch. With Python's default of 5 ms, readers' threads keep it waiting longer than it works (one H200, batch
1024: 135k images/s with 5 ms, 173k with 0.2 ms)."""


class _SwitchInterval:
    """Python's switch interval, one per process, and the engines for which it is lowered."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """Lock of this object, held only briefly. It is reentrant because a destructor that stops an engine may
        interrupt a thread that holds it."""
        self._owners: set[int] = set()
        self._before = self._lowered = 0.0
        """The switch interval before it was lowered, and as Python reported it after that; both 0 if not lowered."""

    def lower(self, owner: int) -> None:
        """Lower the interval for ``owner``."""
        with self._lock:
            self._owners.add(owner)
            current = sys.getswitchinterval()
            if current > INTERVAL:
                sys.setswitchinterval(INTERVAL)
                self._before, self._lowered = current, sys.getswitchinterval()

    def restore(self, owner: int) -> None:
        """Set the interval back if ``owner`` was the last one, and if no other code has changed it."""
        with self._lock:
            self._owners.discard(owner)
            if self._owners:
                return
            if sys.getswitchinterval() == self._lowered:
                sys.setswitchinterval(self._before)
            self._lowered = 0.0


_interval = _SwitchInterval()


def lower(owner: int) -> None:
    """Lower Python's switch interval until `restore` was called for this ``owner`` and all other owners."""
    _interval.lower(owner)


def restore(owner: int) -> None:
    """Declare that ``owner`` no longer needs the lowered switch interval. After the last owner the interval is set
    back, unless other code changed it meanwhile."""
    _interval.restore(owner)
