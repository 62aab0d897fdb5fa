"""The watchdog: rounds are counted by the test, so nothing here depends on time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dali_run.ops.gpu import watchdog
from dali_run.ops.gpu.watchdog import ROUND, Watch, unwatch, waiting, watch

PATIENCE = 60


class Rounds:
    """In place of the pause between two rounds: each begins when the test says so."""

    def __init__(self) -> None:
        self.arrived, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, seconds: float) -> None:
        self.arrived.release()
        self.go.acquire()

    def advance(self, n: int) -> None:
        """``n`` rounds, to their ends."""
        for _ in range(n):
            assert self.arrived.acquire(timeout=PATIENCE)
            self.go.release()
        assert self.arrived.acquire(timeout=PATIENCE)
        self.arrived.release()


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    found = Rounds()
    monkeypatch.setattr(watchdog, "_pause", found)
    monkeypatch.setattr(watchdog, "_watchdog", watchdog._Watchdog())  # that of earlier tests ends by itself
    yield found
    for w in list(watchdog._watchdog.watches):
        unwatch(w)
    for _ in range(100):
        found.go.release()


def test_a_wait_that_does_not_end_is_told_of_once(rounds: Rounds) -> None:
    told: list[int] = []
    watch(Watch((0, 2), 10 * ROUND, told.append))
    watch(Watch((1,), 10 * ROUND, told.append))
    rounds.advance(3)
    with waiting(2):
        rounds.advance(10)
        assert not told
        assert not watchdog.any_hung()
        rounds.advance(5)
        assert told == [2]
        assert watchdog.any_hung()


def test_waits_that_end_are_not_added_up_and_other_gpus_are_not_looked_at(rounds: Rounds) -> None:
    told: list[int] = []
    one, other = Watch((0,), 4 * ROUND, told.append), Watch((1,), 400 * ROUND, told.append)
    watch(one)
    watch(other)
    for _ in range(5):
        with waiting(0):
            rounds.advance(4)
    with waiting(1):
        rounds.advance(30)
    assert not told
    unwatch(one)
    with waiting(0):
        rounds.advance(30)
    assert not told
