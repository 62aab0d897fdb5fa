"""Batches are cut by the work of their samples, not by how many there are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dali_run.pipelines.compile.schedule import Step
from dali_run.pipelines.engine.cost import CHUNK, MIN_CHUNK, SAMPLE, chunks, costs, runs
from dali_run.pipelines.engine.memory.estimate import MemoryEstimate

PLENTY = 1 << 40
STEP = Step("chunk", (), (), ())


@pytest.fixture(autouse=True)
def small_chunks() -> None:
    """Not here: small batches are cut as they are for users."""


def foreseen(sizes: list[int]) -> MemoryEstimate:
    peak = np.array(sizes, np.int64)
    return MemoryEstimate(peak, peak, peak, "", int(peak.sum()), int(peak.sum()))


def cut(sizes: list[int], threads: int, room: int = PLENTY) -> list[tuple[int, int]]:
    ahead = foreseen(sizes)
    return chunks(costs(STEP, ahead, {}), ahead.peak, room, threads)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1 << 24), max_size=60), st.integers(1, 64), st.integers(1, 1 << 25))
def test_chunks_cover_the_batch_in_order_and_keep_to_the_limits(sizes: list[int], threads: int, room: int) -> None:
    found = cut(sizes, threads, room)
    assert found[0][0] == 0
    assert found[-1][1] == len(sizes)
    assert all(before[1] == after[0] for before, after in pairwise(found))
    cost = costs(STEP, foreseen(sizes), {})
    for a, b in found:
        assert b > a or not sizes
        if b > a + 1:
            assert cost[a:b].sum() <= CHUNK + 1
            assert sum(sizes[a:b]) <= room


def test_hundreds_of_thumbnails_and_one_photograph() -> None:
    assert cut([3 << 10] * 256, threads=2) == [(0, 256)]
    assert cut([3 << 10] * 2048, threads=2) == [(0, 1025), (1025, 2048)]
    assert cut([36 << 20] * 4, threads=2) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    mixed = cut([3 << 10] * 100 + [36 << 20] + [3 << 10] * 100, threads=2)
    assert (100, 101) in mixed
    assert len(mixed) == 3


@pytest.mark.parametrize("threads", [1, 2, 16, 64])
@pytest.mark.parametrize("samples", [64, 256, 2048])
@pytest.mark.parametrize("size", [100, 3 << 10, 600 << 10])
def test_all_threads_get_work_that_is_worth_a_task(threads: int, samples: int, size: int) -> None:
    found = [(size + SAMPLE) * (b - a) for a, b in cut([size] * samples, threads)]
    total = samples * (size + SAMPLE)
    assert len(found) <= max(1, total // MIN_CHUNK)
    assert len(found) >= min(threads, total // MIN_CHUNK) // 2  # samples are not cut
    assert len(found) == 1 or min(found) >= MIN_CHUNK // 4


def test_runs_of_one_may_be_larger() -> None:
    assert list(runs(np.array([5, 1, 1, 9, 9, 2]), 4)) == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]
    assert list(runs(np.array([2, 2, 2, 2]), 4)) == [(0, 2), (2, 4)]
    assert list(runs(np.array([], np.int64), 4)) == []
