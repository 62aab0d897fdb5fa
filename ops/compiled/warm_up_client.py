"""Names the operator or writer for which loops are being called, so that recorded loops list it. Loads no Numba.

Set by the warm-up of jobs (`pipelines.engine.warm_up`), read by `numba_cache`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_now = [""]


def client() -> str:
    """Return the operator or writer (``writers.NAME``) whose functions are being compiled ahead of time; empty if none
    is."""
    return _now[-1]


@contextmanager
def on_behalf(name: str) -> Iterator[None]:
    """Context manager: record the Numba functions that are called inside as functions that the operator or writer
    ``name`` needs."""
    _now.append(name)
    try:
        yield
    finally:
        _now.pop()
