"""Batches that a program feeds are launched by its own thread, on a stand-in for CuPy; see tests/kit/fake_cupy.py."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from dali_run import Pipeline, fn, pipeline_def, types
from dali_run.ops.errors import JobError, SpecError
from dali_run.ops.gpu.launch_program import LaunchProgram
from tests.kit.fake_cupy import faked

BATCH, LATE = 3, 2


def batches(seed: int = 3) -> Iterator[list[np.ndarray]]:
    """Of two sizes in turns."""
    random = np.random.default_rng(seed)
    for k in range(100):
        yield [random.integers(0, 256, (5 + k % 2, 8, 3), np.uint8) for _ in range(BATCH)]


def made(source: Callable[[], Any], device: int | None, **more: Any) -> Pipeline:
    """Feeding, drawing, flipping, normalising."""
    on = "cpu" if device is None else "gpu"

    @pipeline_def(batch_size=BATCH, num_threads=2, seed=8, device_id=device, **more)
    def pipe() -> Any:
        x = fn.external_source(source=source, layout="HWC", device=on)
        x = fn.flip(x, horizontal=fn.random.coin_flip())
        x = fn.brightness(x, brightness=fn.random.uniform(range=[0.5, 1.5]))
        return fn.crop_mirror_normalize(x, dtype=types.FLOAT, output_layout="CHW", mean=[3.0, 4.0, 5.0])

    return pipe()


def fed(device: int | None, **more: Any) -> Pipeline:
    """Batches as the device takes them."""
    source = batches()
    return made(lambda: moved(next(source), device), device, **more)


def moved(arrays: list[np.ndarray], device: int | None) -> list[Any]:
    """Arrays as the device takes them."""
    if device is None:
        return arrays
    import cupy

    return [cupy.asarray(a) for a in arrays]


def watch() -> tuple[list[bool], Callable[..., Any]]:
    """Whether each `Program.run` was a program's, and what is to stand in its place."""
    ran: list[bool] = []
    run = LaunchProgram.run

    def watched(self: LaunchProgram, *args: Any, **more: Any) -> Any:
        ran.append((found := run(self, *args, **more)) is not None)
        return found

    return ran, watched


def results(pipe: Pipeline, count: int) -> list[np.ndarray]:
    """Of the first batches."""
    found = []
    for _ in range(count):
        (out,) = pipe.run()
        out = out.as_cpu()
        found.append(np.stack([np.asarray(out[i]) for i in range(len(out))]))
    return found


@pytest.mark.parametrize("more", [{}, {"prefetch_queue_depth": 7}, {"exec_pipelined": False, "exec_async": False}])
def test_results_are_those_of_the_cpu_in_their_order(more: dict[str, Any]) -> None:
    wanted = results(fed(None), 12)
    with faked(memory=True):
        before = set(threading.enumerate())
        pipe = fed(0, **more)
        found = results(pipe, 12)
        started = {t.name for t in set(threading.enumerate()) - before}
        pipe.close()
    assert started == {"abandoned"}, "nothing is handed to another thread"
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.gpu(emulated=False))])
@pytest.mark.parametrize("keeps", [False, True])
def test_batches_of_known_shapes_are_one_program(keeps: bool, real: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results stay what they are where all operators of a step are launched as one; also those that others read, and
    while one batch has other shapes than the next."""
    ran, watched = watch()

    def chain(device: int | None) -> list[np.ndarray]:
        source = batches()

        def there() -> Any:
            return moved(next(source), device)

        @pipeline_def(batch_size=BATCH, num_threads=2, seed=8, device_id=device)
        def pipe() -> Any:
            x = fn.external_source(source=there, layout="HWC", device="cpu" if device is None else "gpu")
            x = fn.random_resized_crop(x, size=[6, 7])
            x = fn.color_twist(
                x, hue=fn.random.uniform(range=[-30.0, 30.0]), contrast=fn.random.uniform(range=[0.5, 1])
            )
            y = fn.gaussian_blur(x, sigma=fn.random.uniform(range=[0.3, 2.0], shape=[1]))
            z = fn.flip(y, horizontal=fn.random.coin_flip())
            z = fn.crop_mirror_normalize(z, dtype=types.FLOAT, output_layout="CHW", mean=[3.0, 4.0, 5.0])
            return (z, fn.cast(x, dtype=types.FLOAT), y) if keeps else z

        running = pipe()
        found = []
        for _ in range(24):
            for out in running.run():
                host = out.as_cpu()
                found.append(np.concatenate([np.asarray(host[i]).astype(np.float32).reshape(-1) for i in range(BATCH)]))
        running.close()
        return found

    wanted = chain(None)
    with nullcontext() if real else faked(memory=True):
        monkeypatch.setattr(LaunchProgram, "run", watched)
        found = chain(0)
    assert sum(ran) >= 6, "each lane does so from the fourth batch of a shape on"
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=3)


@pytest.mark.parametrize("last", ["cast", "flip"])
@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.gpu(emulated=False))])
def test_views_in_a_program_keep_the_memory_that_they_are_of(
    last: str, real: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cast to the type that is there gives what it was given: others may not have that memory while it is read."""
    ran, watched = watch()

    def chain(device: int | None) -> list[np.ndarray]:
        random = np.random.default_rng(3)

        def there() -> Any:
            return moved([random.integers(0, 256, (5, 8, 3), np.uint8) for _ in range(BATCH)], device)

        @pipeline_def(batch_size=BATCH, num_threads=2, seed=8, device_id=device)
        def pipe() -> Any:
            x = fn.external_source(source=there, layout="HWC", device="cpu" if device is None else "gpu")
            y = fn.cast(fn.cast(fn.flip(x), dtype=types.UINT8), dtype=types.UINT8)
            z = fn.cast(fn.flip(y, horizontal=0, vertical=1), dtype=types.UINT8)
            return (z, y) if last == "cast" else fn.flip(z, vertical=1)

        running = pipe()
        found = [np.asarray(out.as_cpu().as_array()) for _ in range(24) for out in running.run()]
        running.close()
        return found

    wanted = chain(None)
    with nullcontext() if real else faked(memory=True):
        monkeypatch.setattr(LaunchProgram, "run", watched)
        found = chain(0)
    assert any(ran)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_time_of_a_program_is_dealt_out_to_its_operators() -> None:
    with faked(memory=True):
        pipe = fed(0)
        results(pipe, 30)
        stats = pipe._session.stats.nodes
        assert {stats[n].calls for n in ("flip", "brightness", "crop_mirror_normalize")} == {stats["flip"].calls}
        assert stats["flip"].calls >= 30
        assert stats["crop_mirror_normalize"].bytes_out == 4 * stats["flip"].bytes_in
        pipe.close()


def test_what_is_drawn_by_the_host_does_not_divide_the_launches() -> None:
    with faked(memory=True):
        pipe = fed(0)
        assert [s.kind for s in pipe.plan.steps] == ["whole", "device"]


def test_batches_before_a_failure_are_handed_out() -> None:
    source = batches()

    def then_bad() -> Any:
        import cupy

        data = next(source)
        left.append(len(left))
        return [cupy.asarray(a if len(left) <= LATE else a[:, :, 0][:, :, None]) for a in data]

    left: list[int] = []
    with faked(memory=True):
        pipe = made(then_bad, 0)
        assert len(results(pipe, LATE)) == LATE
        with pytest.raises((JobError, SpecError, RuntimeError)):
            results(pipe, 1)
        pipe.close()


def test_a_source_that_ends_begins_again() -> None:
    with faked(memory=True):
        import cupy

        data = [[cupy.asarray(a) for a in batch] for batch, _ in zip(batches(), range(4), strict=False)]

        @pipeline_def(batch_size=BATCH, num_threads=2, device_id=0)
        def pipe() -> Any:
            return fn.external_source(source=data, layout="HWC", device="gpu", cycle="raise")

        running = pipe()
        for _ in range(2):
            assert len(results(running, 4)) == 4
            with pytest.raises(StopIteration):
                running.run()
            running.reset()
        running.close()


def test_a_pipeline_that_is_dropped_ends() -> None:
    with faked(memory=True):
        pipe = fed(0)
        results(pipe, 2)
        (thread,) = [t for t in threading.enumerate() if t.name == "abandoned"]
        del pipe
        gc.collect()
        thread.join(30)
        assert not thread.is_alive()


def test_decoders_and_readers_have_threads_of_their_own() -> None:
    with faked(memory=True):

        @pipeline_def(batch_size=BATCH, num_threads=2, device_id=0)
        def pipe() -> Any:
            return fn.decoders.image(fn.external_source(source=lambda: None), device="mixed")

        running = pipe()
        running.build()
        assert running._session.engine().direct is None
        running.close()


def test_a_program_goes_on_after_batches_that_raise() -> None:
    """More of them than there are lanes: each gives its own back."""

    def found(device: int | None) -> list[int | None]:
        turn = iter(range(100))

        def source() -> list[Any]:
            k = next(turn)
            arrays = [np.full((1, 1, 3) if k % 3 == 1 else (4, 5, 3), k, np.uint8) for _ in range(BATCH)]
            if device is None:
                return arrays
            import cupy

            return [cupy.asarray(a) for a in arrays]

        @pipeline_def(batch_size=BATCH, num_threads=2, device_id=device)
        def pipe() -> Any:
            x = fn.external_source(source=source, device="cpu" if device is None else "gpu")
            return fn.crop(fn.reshape(x, layout="HWC"), crop=[2, 2])

        running, taken = pipe(), list[int | None]()
        for _ in range(30):
            try:
                taken.append(int(np.asarray(running.run()[0].as_cpu()[0])[0, 0, 0]))
            except JobError:
                taken.append(None)
        running.close()
        return taken

    wanted = [None if k % 3 == 1 else k for k in range(30)]
    assert found(None) == wanted
    with faked(memory=True):
        assert found(0) == wanted
