"""Compiled functions survive interrupts while they are compiled."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any

import numba
import pytest

from dali_run.ops.kernels import hold_interrupts


def fresh(k: int) -> Any:
    """A function that was never compiled."""

    @numba.njit
    def inner(x: Any) -> Any:
        total = 0
        for i in range(x):
            total += i * k
        return total

    @numba.njit
    def outer(x: Any) -> Any:
        return inner(x) + inner(x + 1)

    return outer


class Interrupted(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def test_an_interrupt_waits_for_the_compiler(kind: signal.Signals) -> None:
    hold_interrupts()

    def handler(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(kind, handler)
    trigger = signal.signal(signal.SIGVTALRM, lambda *_: signal.raise_signal(kind))  # by processor time
    met = 0
    try:
        for k in range(12):
            function = fresh(k)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.005 + 0.02 * k)
            try:
                function(5)
            except Interrupted:
                met += 1
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            assert function(5) == 10 * k + 15 * k
            assert signal.getsignal(kind) is handler
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, trigger)
        signal.signal(kind, before)
    assert met
    time.sleep(0)
