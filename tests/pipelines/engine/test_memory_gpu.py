"""Want of memory on a GPU: its allocations fail one by one, and most of it is taken. With CuPy's stand-in, and with a
real GPU where there is one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.pipelines.engine.device import out_of_memory as on_device
from dali_run.pipelines.engine.engine import Engine, Options
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.limits import Memory
from tests.kit.engine.short_of_gpu_memory import Results, device, plan_of, results
from tests.kit.engine.short_of_memory import Failing, OutOfMemoryError, picture
from tests.kit.fake_cupy import faked


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Seven small files, one of them for the second decoder, one damaged."""
    rng = np.random.default_rng(4)
    folder = tmp_path / "in" / "a"
    folder.mkdir(parents=True)
    for i in range(7):
        (folder / f"{i}.jpg").write_bytes(picture(rng, 24 + i, 40 - i, progressive=i == 3))
    (folder / "8.jpg").write_bytes(picture(rng, 20, 20)[:300])
    return tmp_path / "in"


def same(found: Results, want: Results, levels: int = 0) -> None:
    assert found.keys() == want.keys()
    for i, value in want.items():
        assert np.abs(found[i].astype(int) - value.astype(int)).max() <= levels, i


def test_any_allocation_on_a_gpu_may_fail(pictures: Path) -> None:
    with device() as watch:
        plan = plan_of(pictures)
        want, _ = results(plan)
        assert len(want) == 7
        i, tried = 1, 0
        while True:
            failing = Failing(lambda number, _, i=i: number == i, OutOfMemoryError)  # type: ignore[misc]
            watch(failing)
            found, fallbacks = results(plan)
            if failing.count < i:
                break
            same(found, want)
            assert any("out of GPU memory" in reason for reason in fallbacks)
            tried += 1
            i += 1
        assert tried >= 8


def test_batches_are_halved_on_a_gpu_until_they_fit(pictures: Path) -> None:
    with device() as watch:
        plan = plan_of(pictures)
        largest = [0]
        watch(lambda nbytes: largest.append(max(largest[-1], nbytes)))
        want, _ = results(plan)

        def full(nbytes: int) -> None:
            if nbytes > largest[-1] * 2 // 3:
                raise OutOfMemoryError

        watch(full)
        found, fallbacks = results(plan)
        same(found, want)
        assert fallbacks[on_device.HALVED] >= 4
        assert on_device.CPU_KERNELS not in fallbacks


def test_a_gpu_that_gives_nothing_leaves_the_work_to_the_cpu(pictures: Path) -> None:
    def full(nbytes: int) -> None:
        raise OutOfMemoryError

    with device() as watch:
        plan = plan_of(pictures)
        want, _ = results(plan)
        watch(full)
        found, fallbacks = results(plan)
        same(found, want, levels=1)
        assert fallbacks[on_device.CPU_KERNELS] == 8  # the damaged one, too


def test_a_budget_cuts_batches_before_anything_fails(pictures: Path) -> None:
    with device() as watch:
        plan = plan_of(pictures)
        want, _ = results(plan)
        widest = [0]
        watch(lambda nbytes: widest.append(max(widest[-1], nbytes)))
        results(plan)
        before = widest[-1]
        widest[:] = [0]
        found, fallbacks = results(plan, memory=Memory(gpu=60_000))
        same(found, want)
        assert not any("out of GPU memory" in reason for reason in fallbacks)
        assert widest[-1] < before


@pytest.mark.gpu(emulated=False)
def test_allocations_of_a_real_gpu_may_fail(pictures: Path) -> None:
    import cupy

    plan = plan_of(pictures)
    want, _ = results(plan)
    pool = cupy.get_default_memory_pool()
    try:
        single = [lambda n, _, i=i: n == i for i in range(1, 40)]  # type: ignore[misc]
        for fails in [*single, *(lambda n, _, p=p: n % p == 0 for p in (2, 3))]:  # type: ignore[misc]
            failing = Failing(fails, OutOfMemoryError, by_thread=fails not in single)

            def allocate(size: int, failing: Failing = failing) -> Any:
                failing(size)
                return pool.malloc(size)

            cupy.cuda.set_allocator(allocate)
            same(results(plan)[0], want, levels=1)
    finally:
        cupy.cuda.set_allocator(pool.malloc)


@pytest.mark.gpu(emulated=False)
def test_another_process_takes_the_gpu(pictures: Path) -> None:
    """All but 512 MB of it."""
    import cupy

    plan = plan_of(pictures)
    want, _ = results(plan)
    free, _ = cupy.cuda.runtime.memGetInfo()
    taken = cupy.cuda.runtime.malloc(max(free - (512 << 20), 1))
    try:
        found, _ = results(plan)
    finally:
        cupy.cuda.runtime.free(taken)
    same(found, want, levels=1)


class PinnedPool:
    """As CuPy's: blocks of a size are given out again, and never freed."""

    def __init__(self) -> None:
        self.idle: list[int] = []
        self.freed = 0
        self.full = False
        self.others: list[int] = []

    def n_free_blocks(self) -> int:
        return len(self.idle)

    def free_all_blocks(self) -> None:
        self.freed += 1
        self.full = False
        self.idle.clear()

    def malloc(self, size: int) -> int:
        self.idle += self.others
        if size in self.idle:
            return self.idle.pop(self.idle.index(size))
        if self.full:
            raise OutOfMemoryError
        return Block(size)


class Block(int):
    """Page-locked memory, by its size."""

    @property
    def ptr(self) -> int:
        return id(self)


def test_idle_page_locked_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from dali_run.ops.gpu import lane as lanes

    monkeypatch.setattr(lanes, "PINNED_SPARE", 1 << 20)
    monkeypatch.setattr(lanes, "_new_blocks", {})
    pool = PinnedPool()
    with faked():
        cupy = sys.modules["cupy"]
        cupy.get_default_pinned_memory_pool = lambda: pool  # type: ignore[attr-defined]
        cupy.cuda.alloc_pinned_memory = pool.malloc  # type: ignore[attr-defined]
        for _ in range(100):  # the same sizes over and over
            pool.idle += [lanes._alloc_pinned(n) for n in (1000, 100_000)]
        assert pool.freed == 0
        assert len(pool.idle) == 2
        pool.others = [Block(512)] * 3
        for _ in range(100):  # while other threads give back what they had taken
            pool.idle += [lanes._alloc_pinned(100_000)]
        assert pool.freed == 0
        pool.others, pool.idle[:] = [], []
        for n in range(1, 400):  # always others
            pool.idle.append(lanes._alloc_pinned(512 * n))
            assert sum(pool.idle) <= 2 << 20
        assert pool.freed >= 1
        pool.full, freed = True, pool.freed
        assert lanes._alloc_pinned(1 << 22) >= 1 << 22
        assert pool.freed > freed


@pytest.mark.gpu
def test_an_engine_that_has_ended_keeps_no_memory_of_the_gpu(pictures: Path) -> None:
    import cupy

    plan, pool = plan_of(pictures), cupy.get_default_memory_pool()
    results(plan)
    before, kept = pool.total_bytes(), []
    for _ in range(4):
        with Sources(plan, 4) as sources:
            feed = JobFeed(sources)
            with Engine(plan, feed, feed.requests(4), Options(lanes=2, to_host=False)) as engine:
                kept += [it.outputs(plan)["x"] for it in engine]
    assert pool.total_bytes() <= before + sum(max(b.nbytes, 1 << 20) for b in kept)
    kept.clear()
    results(plan)  # on the streams of those before, whose memory it may take
    assert pool.total_bytes() <= before
