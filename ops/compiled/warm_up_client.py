"""Names the operator or writer for which loops are being called, so that recorded loops list it. Loads no Numba.

Set by the warm-up of jobs (`pipelines.engine.warm_up`), read by `numba_cache`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_now = [""]


def client() -> str:
    """Return the operator or writer (``writers.NAME``) that is being warmed up; empty if none is."""
    return _now[-1]


@contextmanager
def on_behalf(name: str) -> Iterator[None]:
    """Context manager: loops that are called inside it are recorded for this operator or writer."""
    _now.append(name)
    try:
        yield
    finally:
        _now.pop()
