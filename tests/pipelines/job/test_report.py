"""Reports name the part that held a run back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dali_run.pipelines.engine.threads.channel import Channel
from dali_run.pipelines.job.report import Load, _percent, _waits, bottleneck

CPU = Load("cpu", 0.7, "The CPU workers hold the job back.", "More threads.")


def loads(*shares: float) -> list[Load]:
    return [Load(f"load{i}", share, f"load{i} holds the job back.", "") for i, share in enumerate(shares)]


def test_the_busiest_is_named() -> None:
    assert bottleneck([*loads(0.2, 0.69), CPU], 2) is CPU


def test_nothing_is_blamed_that_was_idle_for_most_of_the_time() -> None:
    short = bottleneck(loads(0.1, 0.45), 1)
    assert (short.name, short.share) == ("load1", 0.45)
    assert short.sentence == (
        "No stage was busy more than half the time; the busiest was load1 (45%). 1 batch is too few for the stages "
        "to work at the same time."
    )
    long = bottleneck(loads(0.1, 0.45), 100)
    assert "holds the job back" not in long.sentence
    assert "wait for each other" in long.sentence


def test_nothing_is_busy_for_more_than_all_of_the_time() -> None:
    assert (_percent(0.456), _percent(1.02)) == ("46%", "100%")


@pytest.mark.parametrize(
    ("full", "idle", "waited", "blocked"), [(5.0, 0.1, 0.0, 0.1), (5.0, 6.0, 1.0, 5.0), (0.0, 2.0, 2.0, 0.0)]
)
def test_workers_are_blocked_only_while_they_have_no_work(
    full: float, idle: float, waited: float, blocked: float
) -> None:
    queue, step = Channel[int]("01:cpu", 4), SimpleNamespace(kind="chunk")
    queue.waited_full = full
    engine: Any = SimpleNamespace(
        boxes={"01:cpu": (None, queue)},
        delivery=queue,
        stats=SimpleNamespace(idled={"01:cpu": idle}),
        plan=SimpleNamespace(steps=[None, step]),
        name_of=lambda _: "01:cpu",
    )
    assert _waits(engine, 1) == {"waiting_for_input_seconds": waited, "blocked_on_output_seconds": blocked}
