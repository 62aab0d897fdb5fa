"""Signals wait while Numba compiles, and whatever moment they meet, they mean afterwards what they meant before."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

import numba
import pytest

from dali_run.ops.compiled.interrupts import hold_interrupts


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
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # inside of the try: the timer may run out after the call
            except Interrupted:
                met += 1
            assert function(5) == 10 * k + 15 * k
            assert signal.getsignal(kind) is handler
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, trigger)
        signal.signal(kind, before)
    assert met


def taken_with_a_signal(lock: Any, kind: signal.Signals, moment: int) -> bool:
    """Take and give back the lock, with a signal at one of the calls and returns meanwhile; False: there are fewer."""
    seen, armed = 0, True

    def profile(*_: Any) -> None:
        nonlocal seen
        if armed:
            seen += 1
            if seen == moment:
                signal.raise_signal(kind)

    try:
        sys.setprofile(profile)
        try:
            with lock:
                pass
        finally:
            armed = False
    except Interrupted:
        pass
    sys.setprofile(None)
    return seen >= moment


def test_no_moment_of_taking_the_lock_loses_a_handler() -> None:
    from numba.core.compiler_lock import global_compiler_lock as lock

    hold_interrupts()
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    told: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        told.append(number)
        raise Interrupted

    before = {kind: signal.signal(kind, handler) for kind in kinds}
    try:
        for kind in kinds:
            moment = 1
            while taken_with_a_signal(lock, kind, moment):
                assert not lock.is_locked(), (kind, moment)
                assert told == [kind], (kind, moment)
                for other in kinds:
                    told.clear()
                    with pytest.raises(Interrupted):  # it is heard at once,
                        signal.raise_signal(other)
                    with pytest.raises(Interrupted), lock:  # noqa: PT012  and waits for the lock
                        signal.raise_signal(other)
                        assert told == [other], (kind, moment)
                    assert told == [other, other], (kind, moment)
                told.clear()
                assert all(signal.getsignal(other) is handler for other in kinds), (kind, moment)
                moment += 1
            assert moment > 10
    finally:
        sys.setprofile(None)
        for kind, previous in before.items():
            signal.signal(kind, previous)
