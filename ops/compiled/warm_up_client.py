"""Name of the operator or writer whose loops are being called, which is recorded with the loops. Imports no Numba.

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
