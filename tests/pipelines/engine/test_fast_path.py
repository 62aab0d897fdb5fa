"""Batches of a few numbers are computed with nothing of the engine around the kernels; what needs more is not."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from dali_run import Pipeline, fn, pipeline_def, types
from dali_run.ops.arrays.cast import Cast
from dali_run.ops.errors import JobError
from dali_run.pipelines.engine.caller_thread import fast_path
from dali_run.pipelines.engine.caller_thread.fast_path import FastHostStep
from tests.kit.fake_cupy import faked

BATCH, COUNT = 4, 12


def made(call: Callable[[Any], Any], source: Callable[[], Any], **more: Any) -> Pipeline:
    @pipeline_def(batch_size=BATCH, num_threads=2, seed=8, device_id=None, **more)
    def pipe() -> Any:
        return call(fn.external_source(source=source))

    return pipe()


def results(pipe: Pipeline, count: int = COUNT) -> list[list[np.ndarray]]:
    """The samples of the first batches' first outputs."""
    found = []
    for _ in range(count):
        out, *_ = pipe.run()
        found.append([np.array(out[i]) for i in range(len(out))])
    pipe.close()
    return found


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step of each batch was computed so."""
    ran: list[bool] = []
    run = FastHostStep.run

    def watched(self: FastHostStep, *args: Any) -> bool:
        ran.append(run(self, *args))
        return ran[-1]

    monkeypatch.setattr(FastHostStep, "run", watched)
    return ran


def numbers(length: int = 5) -> Callable[[], Any]:
    turn = iter(range(1000))
    return lambda: [np.arange(length, dtype=np.float32) + 10 * next(turn) for _ in range(BATCH)]


def test_few_numbers_are(tried: list[bool]) -> None:
    found = results(made(lambda x: fn.cast(x + 1, dtype=types.INT32), numbers()))
    turn = iter(range(1000))
    for batch in found:
        for sample in batch:
            np.testing.assert_array_equal(sample, np.arange(5) + 10 * next(turn) + 1)
    assert tried
    assert all(tried)


def test_draws_are_those_of_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(x: Any) -> Any:
        return x * fn.random.uniform(range=[0.0, 1.0]) + fn.random.normal() * fn.random.coin_flip()

    found = results(made(call, numbers()))
    monkeypatch.setattr(FastHostStep, "run", lambda self, it: False)
    wanted = results(made(call, numbers()))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_a_sample_that_is_refused_costs_itself(policy: str, tried: list[bool]) -> None:
    turn = iter(range(1000))

    def shapes() -> list[np.ndarray]:
        return [np.zeros(6 if next(turn) != 2 * BATCH + 1 else 5, np.float32) for _ in range(BATCH)]

    pipe = made(lambda x: fn.reshape(x, shape=[2, 3]), shapes, on_error=policy)
    if policy == "fail":
        with pytest.raises(JobError, match="do not fill the shape"):
            results(pipe)
        pipe.close()
        return
    assert [len(batch) for batch in results(pipe)] == [BATCH, BATCH, BATCH - 1] + [BATCH] * (COUNT - 3)
    assert not all(tried)
    assert tried[-1]


def test_large_arrays_go_the_other_way(tried: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come in, and those that kernels ask for."""
    monkeypatch.setattr(fast_path, "_MAX_BYTES", 4 * 5 * BATCH)
    results(made(lambda x: x + 1, numbers()))
    assert all(tried)
    tried.clear()
    found = results(made(lambda x: fn.pad(x, axes=[0], shape=[6]), numbers()))
    assert all(len(sample) == 6 for batch in found for sample in batch)
    assert not all(tried)
    tried.clear()
    results(made(lambda x: x + 1, numbers(6)))
    assert not all(tried)


def test_what_fails_again_and_again_is_not_tried_any_more(tried: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    run = fast_path.FastPath.run

    def failing(self: fast_path.FastPath, *args: Any) -> Any:
        if self._nodes:
            calls.append(1)
            raise ValueError
        return run(self, *args)

    monkeypatch.setattr(fast_path.FastPath, "run", failing)
    pipe = made(lambda x: x + 1, numbers())
    pipe.build()
    stats = pipe._session.stats
    found = results(pipe, 40)
    assert len(found) == 40
    assert len(calls) == fast_path._MAX_FAILURES + 1
    assert stats.fallbacks == {fast_path.AGAIN: BATCH * len(calls)}


def test_operators_are_counted() -> None:
    pipe = made(lambda x: fn.cast(x + fn.random.uniform(), dtype=types.INT32), numbers())
    for _ in range(COUNT):
        pipe.run()
    nodes = pipe._session.stats.nodes
    assert {n.calls for n in nodes.values()} == {next(iter(nodes.values())).calls}
    assert all(n.calls >= COUNT and n.samples == BATCH * n.calls for n in nodes.values())
    assert all(len(n.durations) == n.calls for n in nodes.values())
    by_op = {n.op: n for n in nodes.values()}
    assert by_op["external_source"].bytes_out == 20 * by_op["external_source"].samples
    assert by_op["cast"].bytes_out == 20 * by_op["cast"].samples
    pipe.close()


@pytest.mark.parametrize("device", [None, 0])
def test_the_collector_finds_nothing_to_do(device: int | None) -> None:
    """It looks at what lasts for more than some hundred objects, and at everything in the end, which takes long."""

    @pipeline_def(batch_size=BATCH, num_threads=2, device_id=device)
    def pipe() -> Any:
        x = fn.external_source(name="x", device="cpu" if device is None else "gpu", repeat_last=True, no_copy=True)
        return x + 1

    with nullcontext() if device is None else faked():
        running = pipe()
        running.build()
        array: Any = np.zeros((BATCH, 3), np.float32)
        if device is not None:
            import cupy

            array = cupy.empty(array.shape, array.dtype)
        running.feed_input("x", array)
        for _ in range(100):
            running.run()
        before = sum(s["collections"] for s in gc.get_stats())
        for _ in range(2000):
            running.run()
        assert sum(s["collections"] for s in gc.get_stats()) - before <= 5
        running.close()


def test_what_a_program_gives_is_not_held() -> None:
    """A batch that was handed out goes when the program lets go of it."""
    import weakref

    class Watched(np.ndarray):
        """NumPy's arrays cannot be referred to weakly."""

    alive: list[Any] = []

    def given() -> list[Any]:
        array = np.zeros((BATCH, 3), np.float32).view(Watched)
        alive.append(weakref.ref(array))
        return array  # type: ignore[return-value]

    @pipeline_def(batch_size=BATCH, num_threads=2, device_id=None)
    def pipe() -> Any:
        return fn.external_source(source=given, no_copy=True) + 1

    running = pipe()
    for _ in range(COUNT):
        running.run()
    assert sum(ref() is not None for ref in alive) <= 4
    running.close()


def test_a_batch_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tried: list[bool]) -> None:
    """Contexts go from batch to batch: that of a kernel which raised has been told of samples."""
    kernel, turn = Cast.cpu, iter(range(1000))

    def failing(self: Cast, ctx: Any, data: Any) -> Any:
        if next(turn) == 3:
            ctx.reject(0, "bad_argument", "no")
            raise RuntimeError("only this once")
        return kernel(self, ctx, data)

    monkeypatch.setattr(Cast, "cpu", failing)
    results(made(lambda x: fn.cast(x * fn.random.uniform(), dtype=types.INT32), numbers()))
    assert len(tried) >= COUNT
    assert tried.count(False) == 1
