"""A batch that fails costs itself, whichever way batches go: the program may go on with the next, up to the end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from dali_run import Pipeline, fn, pipeline_def
from dali_run.ops.base import Operator
from dali_run.ops.batch import Batch
from dali_run.ops.errors import DeviceError, JobError, SpecError
from dali_run.pipelines.engine.caller_thread import inline_host, replayed_step
from dali_run.pipelines.engine.device.executor import DeviceExecutor
from dali_run.pipelines.engine.engine import Engine, InFlightBatch, Request
from dali_run.pipelines.engine.inputs import numbered
from dali_run.pipelines.engine.memory.budget import MemoryBudget
from dali_run.pipelines.graph.nodes import Edge
from dali_run.pipelines.python.data_node import apply
from tests.kit.fake_cupy import Array, faked

BATCH, COUNT = 3, 12
EVERY_THIRD = [None if k % 3 == 1 else k for k in range(COUNT)]
WAYS = ["inline", "threads", "direct", "threads of a gpu"]


def numbers(x: Any) -> Any:
    """A function of the user's, for which there are threads."""
    return x


def piped(way: str, bad: tuple[int, ...], call: Callable[[Any], Any], **more: Any) -> Pipeline:
    """``call`` of batches of one number each; every third is of the shape ``bad``."""
    turn = iter(range(COUNT))
    there = way == "direct"

    def source() -> list[Any]:
        k = next(turn)
        arrays = [np.full(bad if k % 3 == 1 else (4, 5, 3), k, np.uint8) for _ in range(BATCH)]
        if not there:
            return arrays
        import cupy

        return [cupy.asarray(a) for a in arrays]

    @pipeline_def(batch_size=BATCH, num_threads=2, device_id=None if way in WAYS[:2] else 0, **more)
    def pipe() -> Any:
        x = fn.external_source(source=source, device="gpu" if there else "cpu")
        if way == "threads of a gpu":
            x = fn.python_function(x, function=numbers, device="cpu").gpu()
        return call(fn.reshape(x, layout="HWC"))

    return pipe()


def a_sample(way: str, **more: Any) -> Pipeline:
    """Samples are refused, and may not be."""
    return piped(way, (1, 1, 3), lambda x: fn.crop(x, crop=[2, 2]), **more)


class Stops(Operator, name="testing.stops"):
    """A kernel that ends the batch, not a sample, if images are six pixels wide."""

    def cpu(self, ctx: Any, x: Batch) -> Batch:
        if (x.shapes[:, 1] == 6).any():
            raise JobError("this batch does not fit")
        return x

    gpu = cpu


def an_operator(way: str, **more: Any) -> Pipeline:
    """An operator cannot take the batch."""
    return piped(way, (4, 6, 3), lambda x: fn.crop(apply("testing.stops", [x], {}), crop=[2, 2]), **more)


def taken(pipe: Pipeline) -> list[int | None]:
    """The number of each batch, None where it failed, until the source ends."""
    found: list[int | None] = []
    while len(found) <= COUNT:
        try:
            (out,) = pipe.run()
            found.append(int(np.asarray(out.as_cpu()[0]).reshape(-1)[0]))
        except StopIteration:
            return found
        except (DeviceError, JobError, SpecError):
            found.append(None)
    return found


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """All that come to be."""
    found: list[Engine] = []
    begin = Engine.__init__

    def watched(self: Engine, *args: Any) -> None:
        begin(self, *args)
        found.append(self)

    monkeypatch.setattr(Engine, "__init__", watched)
    return found


def held(budget: MemoryBudget) -> dict[tuple[int, ...], int]:
    return {o: n for o, n in budget._account.reserved.items() if n}


def check(way: str, pipe: Pipeline, engines: list[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch comes in its turn, no one waits at the end, nothing stays on the account, and no lane is lost."""
    if way == "threads":
        monkeypatch.setattr(inline_host, "_MAX_SLOW", -1)
    assert taken(pipe) == EVERY_THIRD
    assert pipe._session.in_flight == 0
    (engine,) = engines
    assert (engine.direct is not None) == (way == "direct")
    assert (engine.inline is not None) == (way == "inline")
    if engine._delivered is not None:
        engine.budget.release(engine._delivered)  # the program has the last one
    assert [held(budget) for budget in engine.budgets.values()] == [{}] * len(engine.budgets)
    free = len(engine.direct._lanes) if engine.direct is not None else sum(k.fill for k in engine.lanes._free)
    assert free == len(engine.lanes.all)
    pipe.close()


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [a_sample, an_operator])
def test_a_program_goes_on(
    make: Callable[..., Pipeline], way: str, pipelined: bool, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    with nullcontext() if way in WAYS[:2] else faked(memory=True):
        pipe = make(way, exec_pipelined=pipelined, exec_async=pipelined)
        check(way, pipe, engines, monkeypatch)


@pytest.mark.parametrize("way", WAYS[2:])
@pytest.mark.parametrize("where", ["_launch_whole", "_completed"])
def test_a_program_goes_on_after_errors_of_a_device(
    where: str, way: str, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a batch is launched, and when it is waited for."""
    before = getattr(DeviceExecutor, where)

    def failing(self: DeviceExecutor, *args: Any) -> Any:
        it = args[2 if where == "_launch_whole" else 0]
        if it.number % 3 == 1:
            raise DeviceError("this batch does not fit")
        return before(self, *args)

    monkeypatch.setattr(DeviceExecutor, where, failing)
    with faked(memory=True):
        pipe = piped(way, (4, 5, 3), lambda x: fn.crop(x, crop=[2, 2]))
        if way == "direct":
            monkeypatch.setattr(replayed_step.ReplayedStep, "launch", lambda *_: None)
        check(way, pipe, engines, monkeypatch)


def arrays_alive() -> set[int]:
    """Batches, and arrays of the GPU, that somebody holds."""
    return {id(o) for o in gc.get_objects() if type(o) in (Batch, Array)}


def refused(x: Any) -> Any:
    raise ValueError("not this one")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [a_sample, an_operator, "a function"])
def test_an_error_holds_no_batch(make: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may keep it for as long as it likes, with the lines that it came through."""
    if way == "threads":
        monkeypatch.setattr(inline_host, "_MAX_SLOW", -1)
    with nullcontext() if way in WAYS[:2] else faked(memory=True):
        if make == "a function":
            device = "gpu" if way == "direct" else "cpu"
            pipe = piped(way, (4, 5, 3), lambda x: fn.python_function(x, function=refused, device=device)
                         if way != "threads of a gpu" else fn.crop(x, crop=[9, 9]))  # fmt: skip
        else:
            pipe = make(way)
        gc.collect()
        before, errors = arrays_alive(), list[BaseException]()
        gc.disable()
        try:
            for _ in range(5):
                try:
                    pipe.run()
                except (DeviceError, JobError, SpecError) as e:
                    errors.append(e)
            pipe.close()
            del pipe
            left = arrays_alive() - before
        finally:
            gc.enable()
        assert errors
        assert all("pipelines/engine" in "".join(e.__notes__) for e in errors)
        assert not left


def test_batches_that_went_together_fail_one_by_one() -> None:
    """A program that counts its batches finds as many, wherever they were launched."""
    samples = numbered(Request(8, 6))
    asked = Request(8, 2), Request(10, 4)
    it = InFlightBatch((3,), Request(8, 6), samples, {}, samples, requests=asked, problem=SpecError("no"))
    it.env[Edge(0)] = Batch.from_list([np.zeros(2)] * 6, "", samples)  # half of an operator's work
    parts = it.split_by_request()
    assert [(p.request.start, p.request.n, p.problem) for p in parts] == [(8, 2, it.problem), (10, 4, it.problem)]


@pytest.mark.parametrize("way", WAYS[1:])
def test_where_nothing_can_be_started_each_attempt_says_so(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them waits for threads or lanes that are not there."""
    if way == "threads":
        monkeypatch.setattr(inline_host, "_MAX_SLOW", -1)
    start = threading.Thread.start

    def start_or_fail(self: threading.Thread) -> None:
        if self.name[0].isdigit():  # of a step
            raise RuntimeError("can't start new thread")
        start(self)

    def open_lane(target: Any, index: int) -> Any:
        raise DeviceError("it fell off the bus")

    with nullcontext() if way == "threads" else faked(memory=True):
        pipe = piped(way, (4, 5, 3), lambda x: fn.crop(x, crop=[2, 2]))
        pipe.build()
        if way == "direct":
            monkeypatch.setattr(Engine, "open_lane", staticmethod(open_lane))
        else:
            monkeypatch.setattr(threading.Thread, "start", start_or_fail)
        for _ in range(3):
            with pytest.raises((DeviceError, JobError), match=r"cannot start more threads|off the bus"):
                pipe.run()
        pipe.close()
