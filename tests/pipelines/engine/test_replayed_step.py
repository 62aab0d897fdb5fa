"""Batches whose launches are known go past the engine's other way to a device, with the same results; on a stand-in for
CuPy (tests/kit/fake_cupy.py)."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from dali_run import Pipeline, fn, math, pipeline_def, types
from dali_run.ops.gpu.launch_program import LaunchProgram
from dali_run.pipelines.engine.caller_thread.replayed_step import ReplayedStep
from tests.kit.fake_cupy import faked

BATCH, LANES = 3, 4
COUNT = 72
"""Batches, by the end of which each lane has a program for both shapes."""
REAL = [False, pytest.param(True, marks=pytest.mark.gpu(emulated=False))]


def batches(seed: int = 3) -> Iterator[list[np.ndarray]]:
    """Of two sizes, three batches of each in turns."""
    random = np.random.default_rng(seed)
    for k in range(1000):
        yield [random.integers(0, 9, (5 + k // 3 % 2, 8, 3), np.uint8) for _ in range(BATCH)]


def moved(arrays: list[np.ndarray], device: int | None) -> list[Any]:
    """Arrays as the device takes them."""
    if device is None:
        return arrays
    import cupy

    return [cupy.asarray(a) for a in arrays]


def given(source: Iterator[list[np.ndarray]], device: int | None) -> Callable[[], list[Any]]:
    """As `external_source` asks for it."""
    return lambda: moved(next(source), device)


def made(call: Callable[..., Any], device: int | None, inputs: int = 1, **more: Any) -> Pipeline:
    """``call`` of fed batches; of ``inputs`` different ones."""
    sources = [batches(k) for k in range(inputs)]

    @pipeline_def(batch_size=BATCH, num_threads=2, seed=8, device_id=device, **more)
    def pipe() -> Any:
        fed = [
            fn.external_source(source=given(s, device), layout="HWC", device="cpu" if device is None else "gpu")
            for s in sources
        ]
        return call(*fed)

    return pipe()


def results(pipe: Pipeline, count: int, hold: list[Any] | None = None) -> list[np.ndarray]:
    """All values and shapes of the first batches."""
    found = []
    for _ in range(count):
        outputs = pipe.run()
        if hold is not None:
            hold.append(outputs)
            continue
        found += [values(o) for o in outputs]
    return found


def values(output: Any) -> np.ndarray:
    """Of all samples, with their shapes and layout before them."""
    host = output.as_cpu()
    parts = [np.asarray(host[i]) for i in range(len(host))]
    head = [ord(c) for c in output.layout()] + [d for p in parts for d in p.shape]
    return np.concatenate([np.array(head, np.float64), *(p.reshape(-1).astype(np.float64) for p in parts)])


def uniform(low: float, high: float, **more: Any) -> Any:
    return fn.random.uniform(range=[low, high], device="cpu", **more)


CALLS: dict[str, tuple[Callable[..., Any], int]] = {
    "source": (lambda x: x, 1),
    "two sources": (lambda x, y: (y, x), 2),
    "one operator": (lambda x: fn.flip(x), 1),
    "a view": (lambda x: fn.reshape(x, shape=[-1, 3]), 1),
    "views of views": (
        lambda x: fn.squeeze(fn.expand_dims(fn.reinterpret(x, dtype=types.INT8), axes=[0]), axes=[0]), 1),
    "a view and what it is of": (lambda x: (fn.reshape(x, shape=[-1]), x, fn.flip(x)), 1),
    "shapes": (lambda x: x.shape(), 1),
    "shapes and data": (lambda x: (fn.flip(x), x.shape(), fn.flip(x).shape(dtype=types.INT32)), 1),
    "numbers": (lambda x: math.sqrt(x) + 2, 1),
    "two inputs": (lambda x, y: x * y, 2),
    "one input twice": (lambda x: x * x, 1),
    "drawn numbers as an input": (lambda x: x * uniform(0.5, 1.5), 1),
    "drawn numbers as an argument": (lambda x: fn.brightness(x, brightness=uniform(0.5, 1.5)), 1),
    "drawn numbers that are an output, too": (
        lambda x: (lambda f: (fn.brightness(x, brightness=f), f))(uniform(0.5, 1.5)), 1),
    "drawn windows": (lambda x: fn.crop(x, crop=[3, 4], crop_pos_x=uniform(0, 1), crop_pos_y=uniform(0, 1)), 1),
    "numbers of the host that are calculated": (lambda x: x + (uniform(0, 1) + uniform(0, 1)), 1),
    "drawn shapes of a view": (
        lambda x: fn.reshape(x, rel_shape=fn.random.choice(2, shape=[3]) * 0.0 + [1.0, 1.0, 1.0]), 1),
    "a permutation": (lambda x: fn.flip(fn.permute_batch(x, indices=fn.batch_permutation())), 1),
    "classes": (lambda x: fn.one_hot(fn.cast(x, dtype=types.INT32), num_classes=9), 1),
    "a table": (lambda x: fn.lookup_table(x, keys=[1, 3], values=[7, 8], dtype=types.INT32), 1),
    "parts": (lambda x: (x[1:-1, 2:], fn.slice(x, start=[1], end=[4], axes=[1]), fn.cat(x, x, axis=2)), 1),
    "types": (lambda x, y: fn.cast_like(fn.cast(x, dtype=types.INT64), fn.cast(y, dtype=types.FLOAT)), 2),
    "the type that is there": (lambda x: fn.cast(x, dtype=types.UINT8), 1),
    "a copy": (lambda x: fn.copy(x), 1),
    "noise": (lambda x: fn.noise.salt_and_pepper(x, prob=0.3), 1),
}  # fmt: skip


@pytest.mark.parametrize("real", REAL)
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_the_cpu(name: str, real: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, held until the end: what a later batch does must not touch what an earlier one gave."""
    call, inputs = CALLS[name]
    wanted = results(made(call, None, inputs), COUNT)
    rehearsed: list[bool] = []
    begin = ReplayedStep.launch

    def watched(self: ReplayedStep, *args: Any) -> Any:
        found = begin(self, *args)
        rehearsed.append(found is not None)
        return found

    monkeypatch.setattr(ReplayedStep, "launch", watched)
    ran, run = [], LaunchProgram.run

    def running(self: LaunchProgram, *args: Any, **more: Any) -> Any:
        ran.append(len(rehearsed))
        return run(self, *args, **more)

    monkeypatch.setattr(LaunchProgram, "run", running)
    held: list[Any] = []
    with nullcontext() if real else faked(memory=True):
        pipe = made(call, 0, inputs)
        results(pipe, COUNT, held)
        found = [values(o) for outputs in held for o in outputs]
        pipe.close()
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1)
    assert all(rehearsed[-2 * LANES :])
    programs = not {"source", "two sources", "a permutation", "drawn shapes of a view"} & {name}
    assert len([at for at in ran if at >= COUNT - LANES]) >= programs * LANES


DRAWS: dict[str, Callable[[Any], Any]] = {
    "uniform": lambda on: fn.random.uniform(range=[-2.0, 5.0], device=on),
    "whole numbers": lambda on: fn.random.uniform(range=[0.0, 50.0], shape=[7], dtype=types.INT16, device=on),
    "of values": lambda on: fn.random.uniform(values=[1.5, -2.0, 9.0], shape=[2, 3], device=on),
    "coins": lambda on: fn.random.coin_flip(probability=0.3, device=on),
    "normal": lambda on: fn.random.normal(mean=3.0, stddev=2.0, device=on),
    "many": lambda on: fn.random.coin_flip(shape=[3000], dtype=types.UINT8, device=on),
    "wide": lambda on: fn.random.normal(stddev=100.0, shape=[5], dtype=types.INT32, device=on),
    "two, and what follows": lambda on: (
        (lambda a, b: (a, b * 2, fn.cast(a + b, dtype=types.FLOAT64)))(
            fn.random.uniform(shape=[4], device=on), fn.random.coin_flip(shape=[4], device=on))),
    "with arguments": lambda on: fn.random.coin_flip(probability=uniform(0, 1), shape=[9], device=on),
}  # fmt: skip
ALONE = [name for name in DRAWS if name != "with arguments"]
"""Nothing of them is of the host."""


def drawn(name: str, device: int | None, batch: int = BATCH, fed: bool = False, **more: Any) -> Pipeline:
    """A pipeline of nothing but draws; ``fed``: and of fed batches."""
    on = "cpu" if device is None else "gpu"
    source = given(batches(), device)

    @pipeline_def(batch_size=batch, num_threads=2, seed=8, device_id=device, **more)
    def pipe() -> Any:
        found = DRAWS[name](on)
        found = found if isinstance(found, tuple) else (found,)
        return (*found, fn.flip(fn.external_source(source=source, layout="HWC", device=on))) if fed else found

    return pipe()


@pytest.mark.parametrize("real", REAL)
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_a_gpu_are_those_of_the_host(
    name: str, fed: bool, real: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch has draws of its own, also where its launches are another one's; no thread is started for them."""
    wanted = results(drawn(name, None, fed=fed), COUNT)
    ran, run = list[bool](), LaunchProgram.run

    def running(self: LaunchProgram, *args: Any, **more: Any) -> Any:
        ran.append((found := run(self, *args, **more)) is not None)
        return found

    monkeypatch.setattr(LaunchProgram, "run", running)
    with nullcontext() if real else faked(memory=True):
        before = set(threading.enumerate())
        pipe = drawn(name, 0, fed=fed)
        held: list[Any] = []
        results(pipe, COUNT, held)
        started = {t.name for t in set(threading.enumerate()) - before}
        found = [values(o) for outputs in held for o in outputs]
        pipe.close()
    assert real or fed or name not in ALONE or started == {"abandoned"}
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert name not in ALONE or ran[-LANES:] == [True] * LANES


@pytest.mark.parametrize("batch", [1, 2, 6])
@pytest.mark.parametrize("name", ["uniform", "normal", "two, and what follows"])
def test_draws_do_not_depend_on_the_size_of_batches(name: str, batch: int) -> None:
    def found(size: int, count: int, **more: Any) -> tuple[list[np.ndarray], Any]:
        with faked(memory=True):
            pipe = drawn(name, 0, size, enable_checkpointing=True, **more)
            parts = [[np.asarray(s) for s in o.as_cpu()] for _ in range(count) for o in pipe.run()[:1]]
            state = pipe.checkpoint()
            pipe.close()
        return [s for p in parts for s in p], state

    whole, _ = found(3, 24)
    first, state = found(batch, 36 // batch)
    rest, _ = found(batch, 36 // batch, checkpoint=state)
    np.testing.assert_array_equal([*first, *rest], whole)


def test_a_batch_that_is_given_again_and_again() -> None:
    """Launches for the one array go on, also after another one was fed."""
    one, other = [next(batches(k)) for k in (1, 2)]
    with faked(memory=True):

        @pipeline_def(batch_size=BATCH, num_threads=2, device_id=0)
        def pipe() -> Any:
            return fn.flip(fn.external_source(name="x", device="gpu", layout="HWC", repeat_last=True, no_copy=True))

        running = pipe()
        running.build()
        for arrays in (one, other, one):
            running.feed_input("x", moved(arrays, 0))
            for _ in range(2):  # what was fed before is under way
                running.run()
            for _ in range(12):
                (out,) = running.run()
                for have, want in zip(out.as_cpu(), arrays, strict=True):
                    np.testing.assert_array_equal(np.asarray(have), want[:, ::-1])
        running.close()


def test_shapes_bring_no_data_to_the_host() -> None:
    with faked(memory=True) as fake:
        pipe = made(lambda x: x.shape(), 0)
        pipe.build()
        assert [s.kind for s in pipe.plan.steps] == ["device"]
        copied: list[int] = []
        copy = fake.memcpy

        def watched(to: int, source: int, size: int, kind: int, stream: int = 0) -> None:
            copied.append(kind)
            copy(to, source, size, kind, stream)

        fake.memcpy = watched  # type: ignore[method-assign]
        results(pipe, 12)
        pipe.close()
    assert 2 not in copied


READ: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "reshape": (fn.reshape, [[2, 3], [3, 2], [6, 1], [1, 6]]),
    "slice": (lambda x, at: fn.slice(x, at, at + 2, axes=[0]), [[0], [1], [2], [0]]),
    "warp_affine": (
        lambda x, m: fn.warp_affine(fn.reshape(x, shape=[2, 3, 1], layout="HWC"), fn.cast(m, dtype=types.FLOAT)),
        [[1, 0, 0, 0, 1, 0], [1, 0, 1, 0, 1, 0], [1, 0, 0, 0, 1, 1], [-1, 0, 3, 0, 1, 0]],
    ),
}


@pytest.mark.parametrize("where", ["cpu", "gpu"])
@pytest.mark.parametrize("name", READ)
def test_inputs_that_the_host_reads_are_read_each_time(name: str, where: str) -> None:
    """They are data: batches of the same shapes may say something else. On the host already, they stay there."""
    call, given = READ[name]
    arrays = [np.array(g, np.int32) for g in given]

    def found(device: int | None) -> list[np.ndarray]:
        turn = iter(range(1000))
        other = None if where == "cpu" else device

        @pipeline_def(batch_size=BATCH, num_threads=2, device_id=device)
        def pipe() -> Any:
            data = moved([np.arange(6, dtype=np.float32)] * BATCH, device)
            x = fn.external_source(source=lambda: data, device="cpu" if device is None else "gpu")
            read = fn.external_source(
                source=lambda: moved([arrays[next(turn) % 4]] * BATCH, other), device="cpu" if other is None else "gpu"
            )
            return call(x, read)

        running = pipe()
        taken = results(running, 48)
        running.close()
        return taken

    wanted = found(None)
    with faked(memory=True):
        have = found(0)
    for a, b in zip(have, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_operators_are_counted_as_on_the_other_way() -> None:
    with faked(memory=True):
        pipe = made(lambda x: fn.brightness(x, brightness=uniform(0.5, 1.5)), 0)
        results(pipe, 30)
        stats = pipe._session.stats.nodes
        # batches are launched before they are asked for
        calls = {n.op: n.calls for n in stats.values()}
        assert 30 <= calls["external_source"] == calls["brightness"] <= calls["random.uniform"] <= 40
        by_op = {n.op: n for n in stats.values()}
        assert {n.samples / n.calls for n in stats.values()} == {BATCH}
        assert by_op["brightness"].bytes_in == by_op["brightness"].bytes_out == by_op["external_source"].bytes_out
        assert by_op["random.uniform"].bytes_out == 4 * by_op["random.uniform"].samples
        assert len(by_op["brightness"].durations) == calls["brightness"]
        assert by_op["brightness"].gpu_seconds > 0
        pipe.close()


@pytest.mark.parametrize("where", ["begin", "milliseconds"])
def test_what_a_program_raises(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is launched the batch goes the other way; a device that fails ends the run."""
    wanted = results(made(lambda x: fn.flip(x), None), COUNT)

    run, calls = LaunchProgram.run, iter(range(1000))

    def failing(self: LaunchProgram, *args: Any, **more: Any) -> Any:
        if where == "begin" and next(calls) % 2:  # the other way finds that all is well
            return run(self, *args, **more)
        raise RuntimeError("no")

    monkeypatch.setattr(LaunchProgram, "run" if where == "begin" else "milliseconds", failing)
    with faked(memory=True):
        pipe = made(lambda x: fn.flip(x), 0)
        if where == "begin":
            found = results(pipe, COUNT)
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(a, b)
        else:
            with pytest.raises(RuntimeError, match="no"):
                results(pipe, COUNT)
        pipe.close()


def test_uploads_are_not_changed_before_they_are_done() -> None:
    """A stream does nothing before somebody waits for it: memory of the host that is used again before shows."""

    def call(x: Any) -> Any:
        return fn.brightness(x * uniform(0.5, 1.5), brightness=uniform(0.5, 1.5))

    wanted = results(made(call, None), 24)
    with faked(memory=True, late=True):
        pipe = made(call, 0, prefetch_queue_depth=3)
        found = results(pipe, 24)
        pipe.close()
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1)


MORE: dict[str, Callable[..., Any]] = {
    "a constant": lambda x: (types.Constant([1, 2, 3]), fn.constant(fdata=[0.5], shape=[2, 2])),
    "shapes of the device": lambda x: (x.shape(device="gpu"), fn.flip(x)),
    "filled": lambda x: (fn.zeros(shape=[3]), fn.ones_like(x), fn.full(4, shape=[2])),
    "what is said of samples": lambda x: (fn.get_property(x, key="layout"), fn.one_hot(x.shape()[0], num_classes=9)),
}


@pytest.mark.parametrize("device", [None, 0])
@pytest.mark.parametrize("name", [*CALLS, *MORE])
def test_outputs_may_be_written_into(name: str, device: int | None) -> None:
    """They are the program's: what it does with them changes no later batch."""
    call, inputs = CALLS.get(name) or (MORE[name], 1)
    if device is None and "device" in name:
        pytest.skip("there is none")

    def found(write: bool) -> list[np.ndarray]:
        taken = []
        with nullcontext() if device is None else faked(memory=True):
            pipe = made(call, device, inputs)
            for _ in range(COUNT):
                outputs = pipe.run()
                taken += [values(o) for o in outputs]
                for o in outputs if write else ():
                    data = o.batch.data
                    ctypes.memset(data.ctypes.data if o.batch.on_host else data.data.ptr, 77, data.nbytes)
            pipe.close()
        return taken

    for have, want in zip(found(True), found(False), strict=True):
        np.testing.assert_array_equal(have, want)
