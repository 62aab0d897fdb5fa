"""Pipelines and pools that nobody closes: garbage is collected by any thread at any moment, and waits for no thread."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dali_run import fn, pipeline_def
from dali_run.ops.images.flip import Flip
from dali_run.pipelines.engine.caller_thread import inline_host
from dali_run.pipelines.engine.inputs import Sources
from dali_run.pipelines.engine.threads import workers as pools
from dali_run.pipelines.engine.threads.workers import Pool
from dali_run.pipelines.python.pipeline import Pipeline

PATIENCE = 60
"""Seconds after which something hangs."""
BATCH, THREADS = 32, 2


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """But those that the test asks for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a pipeline's data sets are closed."""
    done, close = threading.Event(), Sources.close

    def closing(self: Sources) -> None:
        close(self)
        done.set()

    monkeypatch.setattr(Sources, "close", closing)
    return done


class Kernel:
    """In the place of flip's: the first chunk of the second batch waits until it may go on, and then does ``work``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self._waits, self._lock = True, threading.Lock()
        flip = Flip.cpu

        def cpu(op: Flip, *args: Any) -> Any:
            with self._lock:
                waits = self._waits and int(args[0].samples.position[0]) == BATCH
                self._waits = self._waits and not waits
            if waits:
                self.entered.set()
                assert self.leave.wait(PATIENCE)
                work()
            return flip(op, *args)

        monkeypatch.setattr(Flip, "cpu", cpu)
        monkeypatch.setattr(inline_host, "_MAX_SLOW", -1)  # threads make the first batch, too


def started(kernel: Kernel) -> Pipeline:
    """A pipeline of which a worker is in ``kernel``; one of its threads waits for this worker's chunk."""

    @pipeline_def(batch_size=BATCH, num_threads=THREADS, device_id=None, prefetch_queue_depth=2)
    def mirrored() -> Any:
        x = fn.external_source(source=lambda _: np.zeros((10, 10, 3), np.uint8), batch=False, layout="HWC")
        return fn.permute_batch(fn.flip(x), indices=list(range(BATCH)))

    pipe: Pipeline = mirrored()
    pipe.build()
    pipe.run()
    assert kernel.entered.wait(PATIENCE)
    return pipe


def ended(before: set[threading.Thread]) -> bool:
    """All threads that were not there ``before`` come to their end."""
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    return set(threading.enumerate()) <= before


def test_a_pipeline_that_is_dropped_waits_for_nobody(monkeypatch: pytest.MonkeyPatch, closed: threading.Event) -> None:
    kernel, before = Kernel(monkeypatch, lambda: None), set(threading.enumerate())
    pipe = started(kernel)
    del pipe  # a worker is busy, and stays so
    assert not closed.is_set()
    kernel.leave.set()
    assert closed.wait(PATIENCE)
    assert ended(before)


def test_a_pipeline_may_be_collected_by_its_own_worker(
    monkeypatch: pytest.MonkeyPatch, closed: threading.Event
) -> None:
    kernel, before = Kernel(monkeypatch, gc.collect), set(threading.enumerate())
    pipe: Any = started(kernel)
    pipe.itself = pipe
    del pipe
    assert not closed.is_set()
    kernel.leave.set()
    assert closed.wait(PATIENCE)
    assert ended(before)


def test_a_pipeline_that_was_closed_leaves_no_threads(monkeypatch: pytest.MonkeyPatch, closed: threading.Event) -> None:
    kernel, before = Kernel(monkeypatch, lambda: None), set(threading.enumerate())
    kernel.leave.set()
    pipe = started(kernel)
    pipe.close()
    assert closed.is_set()
    assert set(threading.enumerate()) <= before
    pipe.close()


def test_a_pool_that_is_dropped_waits_for_nobody() -> None:
    before, entered, leave = set(threading.enumerate()), threading.Event(), threading.Event()
    pool = Pool(2, "dropped")

    def work() -> None:
        entered.set()
        leave.wait(PATIENCE)

    pool.do(work)
    assert entered.wait(PATIENCE)
    del pool
    assert not leave.is_set()
    leave.set()
    assert ended(before)


def test_work_given_while_a_pool_shuts_down_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot come after what ends the threads: its result would never come."""
    closing: list[threading.Thread] = []

    class Tasks:
        """A queue that is as slow as a thread that loses the GIL."""

        def __init__(self) -> None:
            self.queue = queue()
            self.get, self.empty, self.get_nowait = self.queue.get, self.queue.empty, self.queue.get_nowait

        def put(self, task: Any) -> None:
            if task is not None:
                closing.append(threading.Thread(target=pool.shutdown))
                closing[0].start()
                closing[0].join(0.2)
            self.queue.put(task)

    queue: Any = pools.SimpleQueue  # type: ignore[attr-defined]
    monkeypatch.setattr(pools, "SimpleQueue", Tasks)
    pool, done = Pool(1, "late"), threading.Event()
    pool.do(done.set)
    closing[0].join(PATIENCE)
    assert done.is_set()
