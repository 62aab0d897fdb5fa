"""Signals that ask a job to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dali_run.cli.interrupts import heeded


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As a process has them when it starts; put back afterwards."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for kind, handler in before.items():
        signal.signal(kind, handler)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_what_a_library_lost_is_raised_after_the_next_batch(kind: signal.Signals) -> None:
    told: list[int] = []
    report = heeded(told.append)
    report(1)
    lost = True
    with suppress(KeyboardInterrupt):
        signal.raise_signal(kind)
        lost = False
    assert lost
    with pytest.raises(KeyboardInterrupt):
        report(2)
    assert told == [1]


def test_ctrl_c_stays_ignored_where_it_is() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report = heeded(print)
    signal.raise_signal(signal.SIGINT)
    report("on it goes")
