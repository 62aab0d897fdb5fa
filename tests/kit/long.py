"""The long version of tests: `make torture` runs it, `make test` runs a short relative."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
LONG = os.environ.get("DALI_RUN_LONG_TESTS") == "1"
"""Whether this run is the long version of the tests."""
long_only = pytest.mark.skipif(not LONG, reason="the long version runs it: make torture")


def thinned(values: Sequence[T], step: int) -> Sequence[T]:
    """Return all of ``values`` in the long version, otherwise every ``step``-th, from the first on."""
    return values if LONG else values[::step]


def examples(count: int, short: int) -> int:
    """Return ``count`` in the long version of the tests, otherwise ``short``."""
    return count if LONG else short
