"""On whose behalf loops are called; without Numba being loaded for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_now = [""]


def client() -> str:
    """The operator or the writer (``writers.NAME``) that is being warmed up."""
    return _now[-1]


@contextmanager
def on_behalf(name: str) -> Iterator[None]:
    """Loops that are called meanwhile are called for this operator or writer."""
    _now.append(name)
    try:
        yield
    finally:
        _now.pop()
