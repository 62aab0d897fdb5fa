"""Spreading the bytes of a batch over threads: every part once, whoever is there to do it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dali_run.ops.batch import Samples
from dali_run.ops.context import Context, KernelServices
from dali_run.pipelines.engine.threads.workers import Pool
from dali_run.readers.fetch.parallel import spread
from dali_run.readers.file import File
from tests.kit.readers import content, open_reader


@contextmanager
def threads(count: int) -> Iterator[Pool]:
    pool = Pool(count, "helper")
    yield pool
    pool.shutdown()


def context(pool: Pool | None) -> Context:
    return Context(op=File(files=("x",)), stage="cpu", samples=Samples.numbered(1), services=KernelServices(pool=pool))


def test_every_part_once() -> None:
    with threads(3) as pool:
        for n in (0, 1, 2, 7, 1000):
            for nbytes in (0, 5 << 20, 1 << 30):
                done = np.zeros(n, np.int32)

                def work(low: int, high: int, done: np.ndarray = done) -> None:
                    done[low:high] += 1

                spread(context(pool), n, nbytes, work)
                assert (done == 1).all()


def test_a_busy_or_closed_pool_is_not_waited_for() -> None:
    release = threading.Event()
    with threads(1) as pool:
        pool.do(release.wait)
        seen: list[int] = []
        spread(context(pool), 100, 1 << 30, lambda low, high: seen.extend(range(low, high)))
        assert sorted(seen) == list(range(100))
        release.set()
    seen.clear()
    spread(context(pool), 100, 1 << 30, lambda low, high: seen.extend(range(low, high)))
    assert sorted(seen) == list(range(100))


def test_threads_work_together_and_errors_come_back() -> None:
    meeting = threading.Barrier(3, timeout=120)  # passes only where three threads work at once
    with threads(2) as pool:
        spread(context(pool), 3, 1 << 30, lambda low, high: meeting.wait())

        def fails(low: int, high: int) -> None:
            raise ValueError(f"part {low}")

        with pytest.raises(ValueError, match="part"):
            spread(context(pool), 50, 1 << 30, fails)


def test_files_are_read_by_several_threads(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = {f"{i}.bin": rng.bytes(200_000 + i) for i in range(64)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    reader = File(file_root=str(tmp_path), files=tuple(files))
    source = open_reader(reader)
    samples = reader.order(64).samples(0, 64, source)
    with threads(4) as pool:
        ctx = Context(op=reader, stage="cpu", samples=samples, source=source, services=KernelServices(pool=pool))
        data, _ = reader.cpu(ctx)
    assert content(data) == list(files.values())
    assert not ctx.rejects
