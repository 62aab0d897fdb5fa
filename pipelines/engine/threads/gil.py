"""Lowers Python's thread switch interval while a GPU is being fed, and restores it afterwards."""

from __future__ import annotations

import sys
import threading

INTERVAL = 2e-4
"""Seconds. The launching thread lets go of the GIL many times a batch; with Python's 5 ms, readers' threads keep
it waiting longer than it works (one H200, batch 1024: 135k images/s with 5 ms, 173k with 0.2 ms)."""

_lock = threading.RLock()
"""Held for a moment; may be taken again by a destructor that stops an engine in the midst of it."""
_owners: set[int] = set()
_before = _ours = 0.0
"""The interval that was found, and what it reads as since it was lowered; 0 where it was not."""


def lower(owner: int) -> None:
    """Lower the interval until `restore` was called for this ``owner`` and all others."""
    global _before, _ours
    with _lock:
        _owners.add(owner)
        found = sys.getswitchinterval()
        if found > INTERVAL:
            sys.setswitchinterval(INTERVAL)
            _before, _ours = found, sys.getswitchinterval()


def restore(owner: int) -> None:
    """``owner`` needs it no more. After the last one the interval is what it was, unless other code changed it."""
    global _ours
    with _lock:
        _owners.discard(owner)
        if _owners:
            return
        if sys.getswitchinterval() == _ours:
            sys.setswitchinterval(_before)
        _ours = 0.0
