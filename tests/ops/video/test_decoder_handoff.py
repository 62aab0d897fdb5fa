"""Relay: whoever asks gets what was left, or None, once; and what nobody takes is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dali_run.ops.video.decoder_handoff import DecoderHandoff


class Left:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


_STEPS: dict[str, Callable[[DecoderHandoff[Left], Left, list[Left | None]], object]] = {
    "claim": lambda relay, left, got: relay.claim(),
    "give": lambda relay, left, got: relay.give(left),
    "fail": lambda relay, left, got: relay.fail(),
    "drop": lambda relay, left, got: relay.drop(),
    "ask": lambda relay, left, got: relay.then(got.append),
}


@pytest.mark.parametrize(
    ("steps", "taken"),
    [
        ("claim give ask", True), ("claim ask give", True), ("claim give fail ask", True),
        ("ask claim give", False), ("claim fail ask", False), ("claim ask fail", False), ("ask", False),
        ("claim give drop ask", False), ("drop claim give ask", False), ("claim drop give ask", False),
        ("fail claim give ask", False),
        ("claim ask give fail drop", True), ("claim give ask drop", True),
        ("claim ask drop give", False), ("give ask", False),
    ],
)  # fmt: skip
def test_a_left_decoder_is_taken_or_closed(steps: str, taken: bool) -> None:
    relay, left, got = DecoderHandoff[Left](3), Left(), list[Left | None]()
    for step in steps.split():
        _STEPS[step](relay, left, got)
    assert got == ([left] if taken else [None])
    assert left.closed == (not taken and "give" in steps)
    assert relay.is_over


def test_waiting_ends_with_what_another_thread_gives() -> None:
    relay, left = DecoderHandoff[Left](0), Left()
    relay.claim()
    giver = threading.Thread(target=lambda: relay.give(left))
    giver.start()
    assert relay.wait() is left
    giver.join()
