"""The engine on small operators of its own: order, chunks, failures, conditionals, the null device, stopping."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from dali_run.ops.base import Arg
from dali_run.ops.batch import Batch
from dali_run.ops.context import Context
from dali_run.ops.errors import JobError
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.engine import Engine, NullLane, Options, Request
from dali_run.pipelines.engine.threads import gil as switch_interval
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.graph.nodes import Edge
from tests.kit.engine.testing_operators import CountingFeed, Work, branching, compiled, requests


def collect(plan: Plan, total: int = 100, batch: int = 16, **options: Any) -> tuple[dict[int, list[int]], Engine]:
    with Engine(plan, CountingFeed(), requests(total, batch), Options(**options)) as engine:
        found: dict[int, list[int]] = {}
        for it in engine:
            outputs = it.outputs(plan)
            for x, z, i in zip(outputs["x"], outputs["z"], it.samples.index.tolist(), strict=True):
                assert x.tolist() == [i] * (1 + i % 3)
                found[i] = z.tolist()
    return found, engine


def expected(total: int = 100, without: tuple[int, ...] = ()) -> dict[int, list[int]]:
    return {i: [i + 2] * (1 + i % 3) for i in range(total) if i not in without}


def test_batches_come_in_order_from_two_launching_threads() -> None:
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (y,) = b.add("testing.waiting", [x], {"raise_at": 41}, device="gpu")
    (z,) = b.add("testing.work", [y], device="gpu")
    plan = compile_graph(b.build({"x": x, "z": z}), Target(device="null"))
    found, engine = collect(plan, batch=4)
    assert found == expected(without=(41,))
    assert list(found) == [i for i in range(100) if i != 41]
    assert engine.stats.rejected == {"internal": 1}


@pytest.mark.parametrize("device", ["cpu", "null"])
@pytest.mark.parametrize("batch", [1, 7, 16, 256])
def test_results_do_not_depend_on_batch_size_or_device(device: str, batch: int) -> None:
    found, _ = collect(compiled(device), batch=batch)
    assert found == expected()
    assert list(found) == list(range(100))  # delivered in order


@pytest.mark.parametrize("device", ["cpu", "null"])
def test_a_rejected_sample_costs_only_itself(device: str) -> None:
    found, engine = collect(compiled(device, reject_at=37))
    assert found == expected(without=(37,))
    assert engine.stats.rejected == {"bad_argument": 1}


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_an_operator_that_raises_for_one_sample_loses_only_that(batch: int) -> None:
    found, engine = collect(compiled(raise_at=50), batch=batch)
    assert found == expected(without=(50,))
    assert engine.stats.rejected == {"internal": 1}


def test_a_failed_device_check_runs_the_sample_again() -> None:
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (z,) = b.add("testing.work", [x], {"retry_at": 20}, device="gpu")
    plan = compile_graph(b.build({"x": x, "z": z}), Target(device="null"))
    with Engine(plan, CountingFeed(), requests(32, 16), Options()) as engine:
        batches = [it.outputs(plan)["z"] for it in engine]
    values = [z.tolist() for batch in batches for z in batch]
    assert values == [[i + 1] * (1 + i % 3) for i in range(32)]
    assert sum(engine.stats.fallbacks.values()) == 1


def late(**args: Any) -> Plan:
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (y,) = b.add("testing.late", [x], args, device="gpu")
    (z,) = b.add("testing.work", [y])
    return compile_graph(b.build({"x": x, "y": y, "z": z}), Target(device="null"))


@pytest.mark.parametrize("batch", [1, 7, 64])
@pytest.mark.parametrize("args", [{}, {"reject_at": 37}, {"raise_at": 37}, {"retry_at": 37}])
def test_outputs_that_come_late(batch: int, args: dict[str, int]) -> None:
    """Samples that are dropped, retried or narrowed down take nothing of the others' with them."""
    found, _ = collect(late(**args), batch=batch)
    assert found == expected(without=() if "retry_at" in args or not args else (37,))


def test_what_reads_a_late_output_runs_in_a_later_step_on_the_host() -> None:
    assert [n.stage for n in late().graph.nodes] == ["cpu", "gpu", "cpu"]
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (y,) = b.add("testing.late", [x], device="gpu")
    (z,) = b.add("testing.work", [y], device="gpu")
    plan = compile_graph(b.build({"x": x, "z": z}), Target(device="null"))
    assert [[n.name for n in s.nodes] for s in plan.steps][1:] == [["testing.late"], ["testing.work"]]
    assert collect(plan)[0] == expected()


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize(("batch", "lanes"), [(1, 1), (7, 1), (16, 3)])
@pytest.mark.parametrize("args", [{}, {"reject_at": 37}, {"raise_at": 50}, {"retry_at": 20}])
def test_several_devices_give_what_one_gives(devices: int, batch: int, lanes: int, args: dict[str, int]) -> None:
    """In order, whatever fails on one of them; each has its share of the batches."""
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (y,) = b.add("testing.late", [x], device="gpu")
    (z,) = b.add("testing.work", [y], args, device="gpu")  # a second step of device work
    plan = compile_graph(b.build({"x": x, "z": z}), Target("null", tuple(range(devices))))
    opened: list[int] = []
    used: list[int] = []

    class Watched(NullLane):
        def __enter__(self) -> NullLane:
            used.append(self.index)
            return self

    class Watching(Engine):
        @staticmethod
        def open_lane(target: Target, index: int) -> Any:
            opened.append(index)
            return Watched(index)

    with Watching(plan, CountingFeed(), requests(100, batch), Options(lanes=lanes)) as engine:
        found = {
            i: z.tolist()
            for it in engine
            for z, i in zip(it.outputs(plan)["z"], it.samples.index.tolist(), strict=True)
        }
    gone = [v - 1 for k, v in args.items() if k != "retry_at"]  # testing.late adds 1
    assert list(found) == [i for i in range(100) if i not in gone]
    assert found == expected(without=tuple(gone))
    assert sorted(opened) == sorted(2 * lanes * list(range(devices)))
    turns = -(-100 // batch)
    for k in range(devices):
        assert used.count(k) >= 2 * len(range(k, turns, devices))


class Failing(Work, name="testing.failing"):
    """Work whose device fails from a value on: while it is launched, or when the batch is settled."""

    fail_from: Annotated[int, Arg("fail when this value, or a larger one, is in the batch")] = -1
    how: Annotated[str, Arg("launch or settle")] = "launch"

    def gpu(self, ctx: Context, x: Batch) -> Batch:
        fails = int(x.data[x.offsets].max(initial=-1)) >= self.fail_from

        def check() -> Any:
            raise JobError("failed on request")

        if fails:
            if self.how == "launch":
                raise JobError("failed on request")
            ctx.check_later(check)
        return super().cpu(ctx, x)

    cpu = gpu


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("how", ["launch", "settle"])
@pytest.mark.parametrize("then", ["", "gpu", "cpu"])
def test_batches_before_one_that_fails_on_a_device_are_handed_out(devices: int, how: str, then: str) -> None:
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (z,) = b.add("testing.failing", [x], {"fail_from": 23, "how": how}, device="gpu")
    if then == "gpu":  # another step: it must not wait for a batch that never comes
        (z,) = b.add("testing.late", [z], device="gpu")
        (z,) = b.add("testing.work", [z], device="gpu")
    elif then == "cpu":
        (z,) = b.add("testing.late", [z], device="gpu")
        (z,) = b.add("testing.work", [z])
    plan = compile_graph(b.build({"x": x, "z": z}), Target("null", tuple(range(devices))))
    options = Options(gpu_queue=8, cpu_queue=8, lanes=1, policy="fail")
    with Engine(plan, CountingFeed(), requests(10**9, 4), options) as engine:
        engine.start()
        until = time.monotonic() + 60
        while engine.delivery.passed < 6:  # the failure is known before anybody asks for the first batch
            assert time.monotonic() < until
            time.sleep(0.001)
        assert [next(engine).request.start for _ in range(5)] == [0, 4, 8, 12, 16]
        for _ in range(2):
            with pytest.raises(JobError, match="failed on request"):
                next(engine)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("how", ["launch", "settle"])
def test_where_batches_go_together_those_before_the_failed_ones_are_handed_out(whole: bool, how: str) -> None:
    """One by one, or as they went; none is left out, and few are lost with the one that failed."""
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (z,) = b.add("testing.failing", [x], {"fail_from": 801, "how": how}, device="gpu")
    plan = compile_graph(b.build({"x": x, "z": z}), Target("null"))
    options = Options(policy="fail", merge_requests=True, whole_batches=whole)
    came: list[Any] = []
    with Engine(plan, CountingFeed(), requests(10**9, 4), options) as engine:
        with pytest.raises(JobError, match="failed on request"):
            came.extend(iter(engine.__next__, None))
        with pytest.raises(JobError, match="failed on request"):
            next(engine)
    reached = 0
    for it in came:
        assert it.request.start == reached
        reached += it.request.n
        assert [int(v[0]) for v in it.outputs(plan)["z"]] == list(range(it.request.start + 1, reached + 1))
    assert 600 <= reached <= 800  # a launch is at most a quarter of what came before


def test_policy_fail_names_the_sample_and_the_cause() -> None:
    with pytest.raises(JobError, match=r"000000037: testing.work: bad_argument: rejected on request"):
        collect(compiled(reject_at=37), policy="fail")


def test_policy_replace_keeps_the_batch_full() -> None:
    plan = compiled(reject_at=37)
    with Engine(plan, CountingFeed(), requests(64, 16), Options(policy="replace")) as engine:
        batches = list(engine)
    assert [it.samples.index.tolist() for it in batches] == [list(range(k, k + 16)) for k in range(0, 64, 16)]
    values = [int(z[0]) for it in batches for z in it.outputs(plan)["z"]]
    assert values == [(36 if i == 37 else i) + 2 for i in range(64)]
    assert [it.replaced for it in batches] == [False, False, True, False]


@pytest.mark.parametrize("device", ["cpu", "null"])
@pytest.mark.parametrize("batch", [1, 2, 64])
def test_conditionals_take_each_sample_through_its_branch(device: str, batch: int) -> None:
    found, _ = collect(branching(device), total=40, batch=batch)
    assert found == {
        i: [((i + 1) * 10 if i % 2 == 0 else i + 1) + 1] * (1 + i % 3) for i in range(40) if i not in (8, 13)
    }


def test_an_untouched_variable_passes_through_a_branch() -> None:
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (even,) = b.add("testing.is_even", [x])
    b.enter(even, True)
    (then,) = b.add("testing.work", [x])
    b.leave()
    plan = compile_graph(b.build({"z": b.merge(even, then, x)}), Target())
    with Engine(plan, CountingFeed(), requests(10, 4), Options()) as engine:
        values = [int(v[0]) for it in engine for v in it.outputs(plan)["z"]]
    assert values == [i + 1 if i % 2 == 0 else i for i in range(10)]


def test_stopping_in_the_middle_ends_all_threads() -> None:
    before = set(threading.enumerate())
    engine = Engine(compiled(), CountingFeed(), requests(10**9, 64), Options())
    next(engine)
    engine.stop()
    assert set(threading.enumerate()) <= before


@pytest.fixture
def interval() -> Iterator[float]:
    """Python's switch interval, one that nobody else sets."""
    found = sys.getswitchinterval()
    sys.setswitchinterval(0.003)
    yield sys.getswitchinterval()
    sys.setswitchinterval(found)


def feeding(device: str = "null") -> Engine:
    engine = Engine(compiled(device), CountingFeed(), requests(10**9, 4), Options())
    engine.start()
    return engine


def test_the_switch_interval_is_lowered_while_a_device_is_fed_and_no_longer(interval: float) -> None:
    feeding("cpu").stop()
    assert sys.getswitchinterval() == interval
    first, second = feeding(), feeding()
    assert sys.getswitchinterval() < interval / 10
    first.stop()
    first.stop()
    assert sys.getswitchinterval() < interval / 10  # the second is at work
    second.stop()
    assert sys.getswitchinterval() == interval


@pytest.mark.parametrize("chosen", [0.001, 0.0001])
def test_a_switch_interval_that_the_program_sets_stays(interval: float, chosen: float) -> None:
    engine = feeding()
    sys.setswitchinterval(chosen)
    chosen = sys.getswitchinterval()
    engine.stop()
    assert sys.getswitchinterval() == chosen
    feeding().stop()
    assert sys.getswitchinterval() == chosen
    assert chosen != interval


def test_an_engine_that_is_abandoned_restores_the_switch_interval_and_waits_for_nobody(interval: float) -> None:
    engine, restored = feeding(), threading.Event()
    with switch_interval._interval._lock:  # whoever collects garbage may be anyone
        collector = threading.Thread(target=engine.abandon, args=(restored.set,))
        collector.start()
        collector.join(60)
        assert not collector.is_alive()
        assert not restored.is_set()
    assert restored.wait(60)
    assert sys.getswitchinterval() == interval


@pytest.mark.parametrize(("device", "nth"), [("cpu", 1), ("cpu", 2), ("cpu", 3), ("null", 2), ("null", 4)])
def test_a_thread_that_cannot_be_started_ends_the_run(device: str, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, start, number = set(threading.enumerate()), threading.Thread.start, iter(range(1, 100))

    def start_or_fail(self: threading.Thread) -> None:
        if next(number) == nth:
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as m:
        m.setattr(threading.Thread, "start", start_or_fail)
        with pytest.raises(JobError, match="cannot start more threads"):
            collect(compiled(device))
    assert set(threading.enumerate()) <= before


def test_an_exception_in_the_schedule_reaches_the_caller() -> None:
    def broken() -> Iterator[Request]:
        yield Request(0, 4)
        raise JobError("the index went away")

    with Engine(compiled(), CountingFeed(), broken(), Options()) as engine, pytest.raises(JobError, match="went away"):
        for _ in engine:
            pass


def test_argument_inputs_are_per_sample() -> None:
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (even,) = b.add("testing.is_even", [x])
    (z,) = b.add("testing.work", [x], {"scale": even})
    plan = compile_graph(b.build({"z": z}), Target())
    with Engine(plan, CountingFeed(), requests(10, 4), Options()) as engine:
        values = [int(v[0]) for it in engine for v in it.outputs(plan)["z"]]
    assert values == [i + 1 if i % 2 == 0 else 0 for i in range(10)]


def test_edges_are_pruned_when_no_output_needs_them() -> None:
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    b.add("testing.work", [x], {"raise_at": 0})
    plan = compile_graph(b.build({"x": x}), Target())
    assert [n.name for n in plan.graph.nodes] == ["testing.numbers"]
    assert plan.graph.outputs == {"x": Edge(0)}
