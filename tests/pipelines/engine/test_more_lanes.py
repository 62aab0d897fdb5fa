"""Another lane is tried where there is none free for long, and stays where the run is faster with it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dali_run.ops.errors import DeviceError
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.engine.device import more_lanes
from dali_run.pipelines.engine.device.more_lanes import Change, MoreLanes
from dali_run.pipelines.engine.device.null_lane import NullLane
from dali_run.pipelines.engine.device.open_lanes import NO_LANE, OpenLanes
from dali_run.pipelines.engine.engine import Engine, Options, Request
from dali_run.pipelines.engine.inputs import EndlessFeed, Sources
from dali_run.pipelines.engine.lanes import LanePool, OwnLanes
from dali_run.pipelines.engine.memory.budget import Ledger
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.plugins import load_operators

load_operators()
BATCH = 1024


class Machine:
    """A launching thread whose batches take ``seconds`` by the number of lanes, by a clock of its own."""

    def __init__(self, seconds: Callable[[int], float], waiting: float = 0.8, room: bool = True) -> None:
        self.now = 100.0
        self.seconds, self.waiting, self.room = seconds, waiting, room
        self.more = MoreLanes(4, lambda: self.now)
        self.course = [4]

    def run(self, seconds: float) -> MoreLanes:
        until = self.now + seconds
        while self.now < until:
            took = self.seconds(self.course[-1])
            self.now += took
            change = self.more.launched(BATCH, self.waiting * took, self.room)
            if change is Change.ONE_MORE:
                self.course.append(self.course[-1] + 1)
            elif change is Change.ONE_LESS:
                self.course.append(self.course[-1] - 1)
        return self.more


def test_where_batches_wait_for_each_other_lanes_are_added_to_the_most() -> None:
    """88 ms for a batch, however many there are."""
    machine = Machine(lambda lanes: 0.088 / lanes)
    assert machine.run(60).lanes == more_lanes.MOST
    assert machine.course == list(range(4, more_lanes.MOST + 1))


def test_lanes_are_added_as_long_as_that_is_faster() -> None:
    """Seven fill the GPU."""
    machine = Machine(lambda lanes: 0.088 / min(lanes, 7))
    assert machine.run(25).lanes == 7
    assert machine.course == [4, 5, 6, 7, 8, 7]


def test_a_full_gpu_is_left_with_what_it_has_and_asked_less_and_less_often() -> None:
    machine = Machine(lambda lanes: 0.004 * (1 if lanes == 4 else 1.3))
    machine.run(more_lanes.AGAIN - 5)
    assert machine.course == [4, 5, 4]
    machine.run(30 * more_lanes.AGAIN)
    assert machine.more.lanes == 4
    assert 4 <= len(machine.course) // 2 <= 6


@pytest.mark.parametrize("kind", ["no lane is waited for", "no room"])
def test_nothing_is_tried(kind: str) -> None:
    machine = Machine(lambda lanes: 0.088 / lanes, waiting=0.1 if kind[3] == "l" else 0.9, room=kind != "no room")
    assert machine.run(100).lanes == 4
    assert machine.course == [4]


def test_few_slow_batches_are_enough_of_a_window() -> None:
    machine = Machine(lambda lanes: 8 / lanes)
    machine.run(30)
    assert machine.course == [4], "16 of them take longer"
    machine.run(400)
    assert machine.more.lanes > 4


fallbacks: list[str] = []


class OutOfMemoryError(Exception):
    """As CuPy's."""


def opened(decoders: dict[str, int], lanes: list[Any], problem: Exception | None = None) -> OpenLanes:
    """Lanes of a run that has nothing else; ``problem`` is raised where one is opened."""

    def open_lane(target: Any, index: int) -> NullLane:
        if problem is not None:
            raise problem
        return NullLane(index)

    fallbacks.clear()
    ledger = Ledger(1000)
    target = SimpleNamespace(indices=(3,))
    services: Any = SimpleNamespace(
        stats=SimpleNamespace(decoders=decoders),
        plan=SimpleNamespace(target=target, steps=[]),
        options=None,
        fell_back=lambda reason: fallbacks.append(reason),
    )
    budget: Any = SimpleNamespace(device=ledger, host=ledger)
    found = OpenLanes(services, budget, open_lane)
    found.all += lanes
    return found


@pytest.mark.parametrize("shared", [False, True])
def test_lanes_come_and_go(shared: bool) -> None:
    """A lane that does not help is closed; all others stay with whoever takes the next batches."""
    first = [NullLane(3) for _ in range(2)]
    closed: list[Any] = []
    free: Any = OwnLanes("lanes", 12)
    if shared:
        pool, plan = LanePool(), object()
        free = pool.of(plan, 0, 1)[0]
    for lane in first:
        free.put(lane)
        lane.close = lambda lane=lane: closed.append(lane)  # type: ignore[method-assign, misc]
    own = opened({"cuda": 900, "cuda webp": 100}, first)
    changes = iter([Change.NOTHING, Change.ONE_MORE, Change.NOTHING, Change.ONE_LESS])
    more: Any = SimpleNamespace(launched=lambda *_: next(changes))
    deeper: list[int] = []
    out: Any = SimpleNamespace(deepen=lambda: deeper.append(1))

    def launch() -> Any:
        return own.take(free, more, 4, out)

    a, b = launch(), launch()
    assert len(own.all) == 3
    assert deeper == [1]
    c = launch()
    assert own.all == [*first, c]
    assert {id(a), id(b)} == set(map(id, first))
    free.put(a)
    free.put(b)
    assert launch() is b, "a was free first, and did not help"
    assert closed == [a]
    assert own.all == [b, c]
    assert free.fill == 0
    own = opened({"cuda": 1000, "cpu": 5}, [b, c])
    free.put(c)
    assert launch() is c, "nothing is asked: there are no more changes"


def test_a_lane_that_cannot_be_opened_is_tried_later_and_the_run_goes_on() -> None:
    machine = Machine(lambda lanes: 0.088 / lanes)
    while machine.course[-1] == 4:
        machine.run(1)
    machine.more.refused()
    machine.course.append(4)
    began = machine.now
    while machine.course[-1] == 4:
        machine.run(1)
    assert machine.more.lanes == 5
    assert machine.now - began >= more_lanes.AGAIN


@pytest.mark.parametrize("problem", [OutOfMemoryError("no more"), DeviceError("it fell off the bus")])
def test_a_try_for_which_there_is_no_memory_costs_nothing(problem: Exception) -> None:
    """The lane that the batch was to have is there all the same."""
    first = [NullLane(3) for _ in range(2)]
    free: Any = OwnLanes("lanes", 12)
    for lane in first:
        free.put(lane)
    own = opened({"cuda": 900, "cuda webp": 100}, list(first), problem)
    refused: list[int] = []
    more: Any = SimpleNamespace(launched=lambda *_: Change.ONE_MORE, refused=lambda: refused.append(1))
    if isinstance(problem, DeviceError):
        with pytest.raises(DeviceError, match="off the bus"):
            own.take(free, more, 4, None)  # type: ignore[arg-type]
        assert free.fill == 2
        return
    assert own.take(free, more, 4, None) is first[0]  # type: ignore[arg-type]
    assert (own.all, free.fill, refused, fallbacks) == (first, 1, [1], [NO_LANE])


@pytest.mark.parametrize("there", [0, 1, 3])
def test_a_run_begins_with_the_lanes_that_there_is_memory_for(there: int) -> None:
    left = iter(range(there))

    def open_lane(target: Target, index: int) -> Any:
        if next(left, None) is None:
            raise OutOfMemoryError("no more")
        return NullLane(index)

    class Few(Engine):
        pass

    Few.open_lane = staticmethod(open_lane)
    b = GraphBuilder()
    (x,) = b.add("random.uniform")
    (y,) = b.add("cast", [x], {"dtype": "INT32"}, device="gpu")
    plan = compile_graph(b.build({"y": y}), Target("null"))
    with Sources(plan, 4) as sources:
        requests = (Request(k, 4) for k in range(0, 40, 4))
        with Few(plan, EndlessFeed(sources), requests, Options()) as engine:
            if not there:
                with pytest.raises(DeviceError, match="memory does not suffice"):
                    next(engine)
                return
            assert [it.request.start for it in engine] == list(range(0, 40, 4))
            assert len(engine.lanes.all) == there
            assert engine.stats.fallbacks == {NO_LANE: 1}
