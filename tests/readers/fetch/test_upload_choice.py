"""The choice between two ways, on a made-up clock: batches take as long as the test says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dali_run.readers.fetch.upload_choice import Chooser, UploadChoice, Way

OTHER: dict[Way, Way] = {"registered": "copy", "copy": "registered"}


def played(
    first: Way,
    seconds: Callable[[Way, int], float],
    batches: int = 4000,
    refuses: Callable[[int], bool] = lambda _: False,
) -> tuple[UploadChoice, list[Way]]:
    """``batches``, of which number k takes ``seconds(way, k)``."""
    choice, now, ways = UploadChoice(first), 0.0, []
    for k in range(batches):
        way = choice.next(now)
        if way == "registered" and refuses(k):
            choice.refused()
        ways.append(way)
        now += seconds(way, k)
    return choice, ways


@pytest.mark.parametrize("first", ["registered", "copy"])
@pytest.mark.parametrize("better", ["registered", "copy"])
def test_the_faster_way_is_found_and_kept(first: Way, better: Way) -> None:
    choice, ways = played(first, lambda way, _: 0.010 if way == better else 0.013)
    assert choice.decided == better
    assert set(ways[-1000:]) == {better}
    assert ways[0] == first


@pytest.mark.parametrize("first", ["registered", "copy"])
@pytest.mark.parametrize("gain", [0.96, 1.0, 1.04])
def test_for_little_nothing_is_changed(first: Way, gain: float) -> None:
    choice, _ = played(first, lambda way, _: 0.01 if way == first else 0.01 / gain)
    assert choice.decided == first


@pytest.mark.parametrize("first", ["registered", "copy"])
def test_chance_does_not_decide(first: Way) -> None:
    """Both are alike, but for a noise of a third; or one is twice as fast, in spite of it."""
    for seed in range(20):
        noise = np.random.default_rng(seed).uniform(0.75, 1.25, 4000)
        alike, _ = played(first, lambda _, k, noise=noise: 0.01 * noise[k])
        assert alike.decided == first
        other, _ = played(first, lambda way, k, noise=noise: 0.01 * noise[k] / (1 if way == first else 2))
        assert other.decided == OTHER[first]


@pytest.mark.parametrize("better", ["registered", "copy"])
def test_a_pause_does_not_decide_for_the_slower_way(better: Way) -> None:
    """A pause may keep the way that it was begun with; it never leaves that for a slower one."""
    for pause in range(0, 300, 7):

        def seconds(way: Way, k: int, at: int = pause) -> float:
            return (0.01 if way == better else 0.02) + (30.0 if k == at else 0)

        choice, _ = played("copy", seconds)
        assert choice.decided == "copy" if better == "copy" else choice.decided is not None


@pytest.mark.parametrize("first", ["registered", "copy"])
def test_what_is_clear_takes_one_turn_of_each(first: Way) -> None:
    _, ways = played(first, lambda way, _: 0.010 if way == first else 0.012)
    assert ways.count(OTHER[first]) < 60
    _, ways = played(first, lambda way, _: 0.010 if way == first else 0.011)
    assert ways.count(OTHER[first]) > 130


def test_start_up_counts_for_nobody() -> None:
    choice, _ = played("copy", lambda way, k: 2.0 if k < 16 else 0.01 if way == "copy" else 0.0099)
    assert choice.decided == "copy"


def test_batches_in_flight_count_for_nobody() -> None:
    """The first eight of a turn take as long as those of the turn before."""
    ways: list[Way] = []

    def seconds(way: Way, k: int) -> float:
        ways.append(way)
        return 0.01 if ways[max(0, k - 8)] == "registered" else 0.02

    assert played("copy", seconds)[0].decided == "registered"


def test_files_that_cannot_be_registered_are_copied() -> None:
    choice, ways = played("registered", lambda *_: 0.01, refuses=lambda _: True)
    assert choice.decided == "copy"
    assert choice.rates["registered"] == []
    assert ways.index("copy") < 200
    later, _ = played("copy", lambda way, _: 0.02 if way == "copy" else 0.01, refuses=lambda k: k < 150)
    assert later.decided == "registered"  # the files were being registered in its first turn


def test_a_slow_run_is_not_measured_for_ever() -> None:
    _, ways = played("copy", lambda way, _: 3.0 if way == "copy" else 2.0, batches=200)
    assert ways.count("copy") < 100
    assert set(ways[120:]) == {"registered"}


def test_with_a_clock_and_what_is_refused() -> None:
    now = [0.0]
    chooser = Chooser(UploadChoice("registered"), clock=lambda: now[0])
    for _ in range(2000):
        if chooser.way() == "registered":
            chooser.refused()
        now[0] += 0.01
    assert chooser.choice.decided == "copy"


@pytest.mark.parametrize("better", ["registered", "copy"])
def test_runs_that_are_too_short_decide_together(better: Way) -> None:
    """Each has batches for one turn; all of them have batches for all turns. First batches of a run never count."""
    choice, now, short = UploadChoice("copy"), [0.0], 0
    while choice.decided is None:
        short += 1
        assert short < 50
        chooser = Chooser(choice, clock=lambda: now[0])
        for k in range(24 + 60):
            way = chooser.way()
            now[0] += 1.0 if k < 23 else 0.010 if way == better else 0.013
    assert choice.decided == better
    assert short >= (6 if better == "registered" else 2)
    assert max(rate for rates in choice.rates.values() for rate in rates) <= 101
