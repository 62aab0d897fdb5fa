"""Latch, and how the engine's threads share the steps."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

import numpy as np
import pytest

from dali_run import Pipeline, fn
from dali_run.ops.base import Operator, Spec
from dali_run.ops.batch import Batch
from dali_run.ops.context import Context
from dali_run.ops.errors import JobError
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.compile.schedule import Step
from dali_run.pipelines.engine.caller_thread import fast_path, inline_host
from dali_run.pipelines.engine.engine import Engine, Options, Request, segments
from dali_run.pipelines.engine.inputs import numbered
from dali_run.pipelines.engine.threads.latch import Latch
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.plugins import load_operators


def test_the_last_part_ends_the_wait() -> None:
    chunks: Latch[str] = Latch(2)
    assert not chunks.add(1, "b")
    waiter = threading.Thread(target=chunks.wait)
    waiter.start()
    assert waiter.is_alive()
    assert chunks.add(0, "a")
    assert chunks.parts == ["a", "b"]
    chunks.done()
    waiter.join(timeout=120)
    assert not waiter.is_alive()
    chunks.wait()  # whoever comes later does not wait


def test_the_first_failure_ends_the_wait() -> None:
    chunks: Latch[str] = Latch(3)
    chunks.fail(ValueError("first"))
    chunks.fail(ValueError("second"))
    assert not chunks.add(1, "late")
    with pytest.raises(ValueError, match="first"):
        chunks.wait()


def step(kind: Any) -> Step:
    return Step(kind, (), (), ())


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        ("whole", ["whole"]),
        ("chunk", ["chunk"]),
        ("whole whole chunk", ["whole whole chunk"]),
        ("whole chunk whole chunk", ["whole chunk", "whole chunk"]),
        ("chunk chunk", ["chunk", "chunk"]),
        ("whole device whole", ["whole", "device", "whole"]),
        ("whole chunk device chunk", ["whole chunk", "device", "chunk"]),
        ("device device", ["", "device", "device"]),
    ],
)
def test_host_steps_share_a_thread_up_to_chunks(kinds: str, wanted: list[str]) -> None:
    found = segments([step(k) for k in kinds.split()])
    assert [" ".join(s.kind for s in part) for part in found] == wanted


class Gate:
    """Holds workers back."""

    opened = threading.Event()
    entered = threading.Semaphore(0)


class Length(Operator, name="_test.length"):
    """Work for chunks."""

    def infer(self, *specs: Spec) -> Spec:
        return Spec((None,), DALIDataType.UINT8)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        Gate.entered.release()
        Gate.opened.wait(60)
        if (ctx.samples.position >= 96).any():
            raise JobError("the disk went away")
        return data


def engine(threads: int, batch: int = 32, **options: Any) -> Engine:
    class Feed:
        states: ClassVar[dict[int, Any]] = {}
        kinds: ClassVar[dict[Any, Any]] = {}

        def samples(self, request: Request) -> Any:
            return numbered(request), {}

    load_operators()
    Gate.opened.clear()
    Gate.entered = threading.Semaphore(0)
    builder = GraphBuilder()
    (data,) = builder.add("random.uniform", [], {"shape": (100,)})
    (out,) = builder.add(Length, [*builder.add("cast", [data], {"dtype": "UINT8"})], {})
    plan = compile_graph(builder.build({"out": out}), Target("cpu"))
    requests = iter([Request(at, batch) for at in range(0, 10**5, batch)])
    return Engine(plan, Feed(), requests, Options(num_threads=threads, **options))


def test_stop_does_not_wait_for_chunks_that_nobody_has_begun() -> None:
    running = engine(1)
    running.start()
    assert Gate.entered.acquire(timeout=60)
    stopper = threading.Thread(target=running.stop)
    stopper.start()
    while not running.host_executor.stopped:
        time.sleep(0.001)
    Gate.opened.set()  # the one that runs ends; the others never begin
    stopper.join(timeout=60)
    assert not stopper.is_alive()
    begun = 0
    while Gate.entered.acquire(blocking=False):
        begun += 1
    assert begun <= 1


def test_batches_before_a_failure_come_first() -> None:
    with engine(2) as running:
        Gate.opened.set()
        assert [next(running).request.start for _ in range(3)] == [0, 32, 64]
        with pytest.raises(JobError, match="went away"):
            next(running)
        with pytest.raises(JobError, match="went away"):
            next(running)


def test_small_batches_are_made_by_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_MAX_CPU_SECONDS", "_MAX_SECONDS"):
        monkeypatch.setattr(inline_host, limit, 1e9)
    before = set(threading.enumerate())
    with engine(2, batch=4, inline=True) as running:
        Gate.opened.set()
        assert [next(running).request.start for _ in range(20)] == list(range(0, 80, 4))
        assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("limit", ["_MAX_CPU_SECONDS", "_MAX_SECONDS"])
def test_threads_take_over_where_batches_take_long(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_host, limit, -1.0)
    with engine(2, batch=4, inline=True) as running:
        Gate.opened.set()
        found = [next(running) for _ in range(20)]
        assert not running.inline
    assert [it.request.start for it in found] == list(range(0, 80, 4))
    assert [it.number for it in found] == list(range(20))
    assert all(it.samples.position.tolist() == list(range(4 * k, 4 * k + 4)) for k, it in enumerate(found))


def test_a_large_batch_of_several_chunks_goes_to_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_host, "_MAX_BYTES", -1)
    monkeypatch.setattr(fast_path, "_MAX_BYTES", -1)
    with engine(2, batch=32, inline=True) as running:
        Gate.opened.set()
        found = [next(running) for _ in range(3)]
        assert not running.inline
    assert [it.request.start for it in found] == [0, 32, 64]
    assert [it.number for it in found] == [0, 1, 2]
    assert all(it.samples.position.tolist() == list(range(32 * k, 32 * k + 32)) for k, it in enumerate(found))


def test_a_small_batch_of_several_chunks_is_made_by_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_MAX_CPU_SECONDS", "_MAX_SECONDS"):
        monkeypatch.setattr(inline_host, limit, 1e9)
    before = set(threading.enumerate())
    with engine(2, batch=32, inline=True) as running:
        Gate.opened.set()
        assert [next(running).request.start for _ in range(3)] == [0, 32, 64]
        assert set(threading.enumerate()) <= before


def test_batches_of_several_chunks_that_take_long_soon_go_to_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_host, "_MAX_CPU_SECONDS", -1.0)
    monkeypatch.setattr(inline_host, "_MAX_SECONDS", 1e-9)  # each is billions of times too long
    with engine(2, batch=16, inline=True) as running:
        Gate.opened.set()
        assert [next(running).request.start for _ in range(4)] == [0, 16, 32, 48]
        assert not running.inline


def test_what_nothing_but_draws_goes_to_the_threads_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_host, "_MAX_CPU_SECONDS", -1.0)
    pipe = Pipeline(batch_size=4, num_threads=2, device_id=None, seed=3)
    with pipe:
        pipe.set_outputs(fn.random.uniform(shape=[5]))
    found = [np.asarray(pipe.run()[0].as_array()) for _ in range(20)]
    assert not pipe._session.engine().inline
    monkeypatch.setattr(inline_host, "_MAX_CPU_SECONDS", 1e9)
    monkeypatch.setattr(inline_host, "_MAX_SECONDS", 1e9)
    again = Pipeline(batch_size=4, num_threads=2, device_id=None, seed=3)
    with again:
        again.set_outputs(fn.random.uniform(shape=[5]))
    assert all((a == np.asarray(again.run()[0].as_array())).all() for a in found)
    assert again._session.engine().inline


def test_what_fails_in_the_caller_s_thread_is_raised_there() -> None:
    with engine(2, batch=8, inline=True) as running:
        Gate.opened.set()
        assert [next(running).request.start for _ in range(12)] == list(range(0, 96, 8))
        with pytest.raises(JobError, match="went away"):
            next(running)
