"""Batches reach NumPy, PyTorch and JAX without a copy (by address), and stay as they are once the pipeline moves on."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run import Pipeline, fn, pipeline_def, types
from dali_run.pipelines.python.iterators import BaseIterator
from dali_run.pipelines.python.tensors import TensorList

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """24 images of one size, of different contents."""
    root = tmp_path_factory.mktemp("pictures")
    (root / "a").mkdir()
    rng = np.random.default_rng(0)
    for k in range(24):
        Image.fromarray(rng.integers(0, 255, (40, 48, 3), np.uint8)).save(root / "a" / f"{k:02d}.png")
    return str(root)


def decoding(root: str, batch_size: int) -> Pipeline:
    @pipeline_def(batch_size=batch_size, num_threads=2, seed=1)
    def pipe() -> Any:
        files, labels = fn.readers.file(file_root=root, name="Reader")
        images = fn.decoders.image(files)
        return fn.crop_mirror_normalize(images, dtype=types.FLOAT, crop=(32, 32)), labels

    return pipe()


def drawing(_: str, batch_size: int) -> Pipeline:
    @pipeline_def(batch_size=batch_size, num_threads=2, seed=1)
    def pipe() -> Any:
        x = fn.random.uniform(range=(0.0, 1.0), shape=(3000,))
        return x * 2 + 1, fn.random.coin_flip()

    return pipe()


def fed(_: str, batch_size: int) -> Pipeline:
    @pipeline_def(batch_size=batch_size, num_threads=2)
    def pipe() -> Any:
        a, b = fn.external_source(
            lambda k: (np.full((batch_size, 50, 40), k, np.float32), np.full((batch_size, 1), k)), num_outputs=2
        )
        return a, b

    return pipe()


MAKERS: list[Callable[[str, int], Pipeline]] = [decoding, drawing, fed]


def watched(iterator: BaseIterator) -> list[tuple[TensorList, ...]]:
    """The outputs that ``iterator`` takes from its first pipeline, as they come."""
    seen: list[tuple[TensorList, ...]] = []
    take = iterator._run

    def run() -> list[tuple[TensorList, ...]]:
        found = take()
        seen.append(found[0])
        return found

    iterator._run = run  # type: ignore[method-assign]
    return seen


def address(outputs: TensorList) -> int:
    """Of the first element."""
    return int(outputs.batch.data.ctypes.data) + int(outputs.batch.offsets[0]) * outputs.batch.dtype.itemsize


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("batch_size", [1, 12])
def test_numpy_sees_the_batch_itself(make: Any, batch_size: int, pictures: str) -> None:
    (out, _) = make(pictures, batch_size).run()
    for view in (out.as_array(), out.as_tensor().array, np.from_dlpack(out), np.from_dlpack(out.as_tensor())):
        assert view.ctypes.data == address(out)
    assert np.asarray(out.as_tensor()).ctypes.data == address(out)
    assert np.from_dlpack(out[batch_size - 1]).ctypes.data == out.data_at(batch_size - 1)
    one = out.at(batch_size - 1)
    one[...] = 7
    assert (out.as_array()[-1] == 7).all()
    assert out.as_cpu() is out


@pytest.mark.parametrize("batch_size", [1, 12])
def test_the_numpy_iterator_hands_out_views(batch_size: int, pictures: str) -> None:
    from dali_run.plugin.numpy import DALIGenericIterator

    iterator = DALIGenericIterator(decoding(pictures, batch_size), ["image", "label"], reader_name="Reader",
                                   prepare_first_batch=False)  # fmt: skip
    seen = watched(iterator)
    for _ in range(2):
        batch = next(iterator)[0]
        assert [batch["image"].ctypes.data, batch["label"].ctypes.data] == [address(o) for o in seen[-1]]


@needs_torch
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("batch_size", [1, 12])
def test_the_torch_iterator_hands_out_views(make: Any, batch_size: int, pictures: str) -> None:
    import torch

    from dali_run.plugin.pytorch import DALIGenericIterator, to_torch_tensor

    iterator = DALIGenericIterator(make(pictures, batch_size), ["x", "label"], size=24, prepare_first_batch=False)
    seen = watched(iterator)
    for _ in range(2):
        batch = next(iterator)[0]
        x, label = seen[-1]
        assert batch["x"].data_ptr() == address(x)
        assert batch["label"].data_ptr() == address(label)
        assert torch.from_dlpack(x.as_tensor()).data_ptr() == address(x)
        assert to_torch_tensor(x, copy=True).data_ptr() != address(x)


@needs_torch
def test_a_last_batch_that_is_cut_is_a_view(pictures: str) -> None:
    from dali_run.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    iterator = DALIGenericIterator(decoding(pictures, 16), ["x", "label"], reader_name="Reader",
                                   last_batch_policy=LastBatchPolicy.PARTIAL, prepare_first_batch=False)  # fmt: skip
    seen = watched(iterator)
    sizes = []
    for batch in iterator:
        sizes.append(len(batch[0]["x"]))
        assert batch[0]["x"].data_ptr() == address(seen[-1][0])
    assert sizes == [16, 8]


@needs_jax
@pytest.mark.parametrize("batch_size", [1, 12])
def test_the_jax_iterator_hands_out_views(batch_size: int, pictures: str) -> None:
    from dali_run.plugin.jax import DALIGenericIterator

    iterator = DALIGenericIterator(decoding(pictures, batch_size), ["x", "label"], reader_name="Reader",
                                   prepare_first_batch=False)  # fmt: skip
    seen = watched(iterator)
    for _ in range(2):
        batch = next(iterator)
        assert batch["x"].unsafe_buffer_pointer() == address(seen[-1][0])
        assert np.array_equal(np.asarray(batch["x"]), seen[-1][0].as_array())
        assert np.array_equal(np.asarray(batch["label"]), seen[-1][1].as_array())


@needs_jax
def test_jax_copies_what_it_must_not_keep(tmp_path: Path) -> None:
    from dali_run.plugin.jax import DALIGenericIterator

    kept = np.arange(2000, dtype=np.float32).reshape(2, 1000)
    kept.flags.writeable = False

    @pipeline_def(batch_size=2, num_threads=1)
    def pipe() -> Any:
        return fn.external_source(lambda: kept, no_copy=True)

    x = next(DALIGenericIterator(pipe(), ["x"]))["x"]
    assert x.unsafe_buffer_pointer() != kept.ctypes.data
    assert np.array_equal(np.asarray(x), kept)


@needs_jax
def test_gpu_memory_goes_back_after_the_kernels_that_were_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    from dali_run.plugin import jax as plugin

    class Queued:
        """A result that is ready when the queue is done."""

        done = False

        def is_ready(self) -> bool:
            return self.done

    class Array:
        """A GPU array."""

        device = SimpleNamespace(id=1)

    monkeypatch.setattr(plugin, "_nothing", lambda index: index)
    marks: list[Queued] = []
    monkeypatch.setattr(plugin, "_mark", lambda index: marks.append(Queued()) or marks[-1])
    array = Array()
    gone = weakref.ref(array)
    guard = plugin._Guard(array)
    del array, guard  # JAX lets go of its view
    gc.collect()
    plugin._give_back()
    plugin._give_back()
    assert len(marks) == 1
    assert gone() is not None  # kernels that read it may be queued
    marks[0].done = True
    plugin._give_back()
    assert gone() is None


class Event:
    """Of a queue of a GPU that is done when somebody says so."""

    recorded: list[Event]
    then: Callable[[], object] | None = None
    """The work of another thread meanwhile."""

    def __init__(self) -> None:
        self.done = False

    def record(self, stream: object) -> None:
        self.stream, self.done = stream, False
        self.recorded.append(self)
        self.meanwhile()

    def query(self) -> bool:
        self.meanwhile()
        return self.done

    def meanwhile(self) -> None:
        if Event.then is not None:
            then, Event.then = Event.then, None
            then()


class Part:
    """An array in GPU memory ``mem``."""

    def __init__(self, mem: object) -> None:
        self.data, self.device = SimpleNamespace(mem=mem), SimpleNamespace(id=0)


class Memory:
    """Of a GPU."""


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """PyTorch's stream at the moment."""
    import torch

    streams = ["main"]
    from dali_run.pipelines.python import torch_views

    monkeypatch.setattr(torch_views, "_all", torch_views._ViewedMemory())
    monkeypatch.setattr(Event, "recorded", [], raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: streams[0])
    return streams


def guard_of(memory: object) -> Any:
    from dali_run.pipelines.python import torch_views

    return torch_views._Guard(Part(memory))


def finish(*events: Event) -> None:
    """The work before ``events`` is done; the next tensor that goes sees it."""
    for event in events:
        event.done = True
    guard_of(Memory())
    Event.recorded.pop().done = True


@needs_torch
def test_tensors_of_batches_that_came_together_wait_together(current: list[str]) -> None:
    memory, other = Memory(), Memory()
    gone = weakref.ref(memory)
    guards = [guard_of(m) for m in (memory, other, memory)]
    del memory
    del guards[0]
    assert not Event.recorded  # a view is left
    del guards[-1]
    (event,) = Event.recorded
    assert gone() is not None  # kernels that read it may be queued
    guards.clear()
    finish(*Event.recorded)
    assert event.stream == "main"
    assert gone() is None


@needs_torch
def test_tensors_that_go_on_several_streams_wait_for_each(current: list[str]) -> None:
    memory = Memory()
    gone = weakref.ref(memory)
    guards = [guard_of(memory) for _ in range(3)]
    del memory
    for current[0] in ("first", "second", "first"):
        guards.pop()
    first, second = sorted(Event.recorded, key=lambda e: str(e.stream))
    assert (first.stream, second.stream) == ("first", "second")
    finish(first)
    assert gone() is not None
    finish(second)
    assert gone() is None


@needs_torch
def test_memory_that_is_viewed_again_while_its_last_tensor_goes_waits_again(current: list[str]) -> None:
    memory = Memory()
    gone = weakref.ref(memory)
    guards, later = [guard_of(memory)], []
    Event.then = lambda: later.append(guard_of(gone()))
    del memory
    guards.clear()
    finish(Event.recorded[0])
    assert gone() is not None  # there is a tensor again
    later.clear()
    assert len(Event.recorded) == 2
    assert gone() is not None
    finish(Event.recorded[1])
    assert gone() is None


@needs_torch
def test_a_tensor_that_goes_while_events_are_asked_frees_no_memory_early(current: list[str]) -> None:
    memories = [Memory() for _ in range(3)]
    gone = [weakref.ref(m) for m in memories]
    guards = [guard_of(m) for m in memories]
    memories.clear()
    del guards[0]
    Event.recorded[0].done = True
    nested = [guards.pop()]
    Event.then = lambda: setattr(Event, "then", nested.clear)  # not as it is recorded, but as it is asked
    guards.clear()
    assert not nested
    assert [g() is None for g in gone] == [True, False, False]
    finish(*Event.recorded)
    assert [g() is None for g in gone] == [True, True, True]


@needs_torch
def test_events_are_recorded_again(current: list[str]) -> None:
    for _ in range(5):
        finish(*Event.recorded)
        assert len({id(e) for e in Event.recorded}) <= 1
        guard_of(Memory())
    assert len(Event.recorded) == 5


def numpy_of(out: TensorList) -> Any:
    return out.as_array()


def torch_of(out: TensorList) -> Any:
    from dali_run.plugin.pytorch import to_torch_tensor

    return to_torch_tensor(out)


def jax_of(out: TensorList) -> Any:
    from dali_run.plugin.jax import _to_jax

    return _to_jax(out)


TAKERS = [numpy_of, pytest.param(torch_of, marks=needs_torch), pytest.param(jax_of, marks=needs_jax)]


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("batch_size", [1, 12])
def test_what_is_kept_stays_as_it_is(take: Any, make: Any, batch_size: int, pictures: str) -> None:
    pipe = make(pictures, batch_size)
    kept, copies = [], []
    for _ in range(6):
        for out in pipe.run():
            kept.append(take(out))
            copies.append(out.as_array().copy())
    for _ in range(30):  # many times as many as are in flight
        pipe.run()
    pipe.close()
    del pipe, out
    gc.collect()
    churn = [np.full(c.shape, 99, c.dtype) for c in copies]  # takes the place of whatever was given back
    assert all(np.array_equal(np.asarray(k), c) for k, c in zip(kept, copies, strict=True))
    assert not any(np.array_equal(c, x) for c, x in zip(copies[::2], churn[::2], strict=True))


def test_batches_are_given_back_when_nobody_keeps_them(pictures: str) -> None:
    pipe = decoding(pictures, 12)
    (out, _) = pipe.run()
    gone = weakref.ref(out.batch.data)
    del out
    for _ in range(3):
        pipe.run()
    gc.collect()
    assert gone() is None
