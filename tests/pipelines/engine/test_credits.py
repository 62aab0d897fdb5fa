"""Credits: the size of launches and their budget, by what the consumer does and what samples need."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run import fn, pipeline_def
from dali_run.ops.errors import JobError
from dali_run.pipelines.engine import credits as rule
from dali_run.pipelines.engine.cost import CHUNK
from dali_run.pipelines.engine.credits import LAUNCH_BYTES, SHARES, SLACK, Credits, gpu_budget
from dali_run.pipelines.engine.memory.budget import MemoryBudget
from dali_run.pipelines.engine.memory.estimate import MemoryEstimate
from dali_run.pipelines.engine.options import Options
from dali_run.pipelines.limits import Memory

MIB, GIB = 1 << 20, 1 << 30


def of(n: int, peak: int, kept: int) -> MemoryEstimate:
    """The estimate of ``n`` samples that take so many bytes each."""
    each = np.full(n, peak), np.full(n, kept), np.full(n, 0)
    return MemoryEstimate(*each, "", n * peak, n * kept)


def credits(limit: int, most: int = 0, **options: Any) -> Credits:
    """The rule of a run whose launches may hold ``limit`` bytes."""
    budget: Any = types.SimpleNamespace(device=MemoryBudget(limit), host=MemoryBudget(1 << 40))
    found = Credits(Options(**options), budget, 1)
    found.maximum = most
    return found


@pytest.fixture
def large_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are for users."""
    monkeypatch.setattr(rule, "CHUNK", CHUNK)


VAL = of(256, 2600_000, 602_112)
"""A batch of ImageNet's pictures."""


def test_launches_grow_while_the_consumer_waits_and_shrink_when_it_does_not() -> None:
    found = credits(6 * GIB)
    assert found.requests(64) == 1  # nothing is known
    found.launch(of(64, 2600_000, 602_112), 0, 0)
    assert found.requests(64) == 1  # nobody waits
    sizes = []
    for _ in range(24):
        found.consumer_takes(0, 2, 0.0)
        sizes.append(found.requests(64))
    assert sizes == sorted(sizes)
    assert sizes[0] == 1
    share = min(6 * GIB / SHARES, LAUNCH_BYTES)  # but for what has no round size
    assert share / 1.25 < sizes[-1] * 64 * 2600_000 <= share
    for _ in range(24):
        found.consumer_takes(1, 2, 0.0)
    assert found.requests(64) == sizes[-1]  # it takes them about as fast as they come
    for _ in range(24):
        found.consumer_takes(2, 2, 0.0)
    assert found.requests(64) == 1


@pytest.mark.parametrize("batch", [16, 64, 256])
def test_what_is_in_flight_grows_with_the_budget(batch: int) -> None:
    in_flight = []
    for limit in (GIB, 2 * GIB, 4 * GIB, 8 * GIB, 16 * GIB, 64 * GIB):
        found = credits(limit)
        for _ in range(64):
            _, cuts = found.launch(of(batch, 2600_000, 602_112), 0, 0)
            found.consumer_takes(0, 2, 0.0)
            count = found.requests(batch)
        need, cuts = found.launch(of(batch * count, 2600_000, 602_112), 0, 0)
        assert need <= limit
        assert len(cuts) <= 2
        in_flight.append(min(4, limit // need) * batch * count)
    assert in_flight == sorted(in_flight)
    assert in_flight[-1] * 2600_000 <= 4 * LAUNCH_BYTES


def test_small_samples_are_counted_by_more_than_their_bytes() -> None:
    found = credits(6 * GIB)
    for _ in range(200):
        found.launch(of(256, 20_000, 3_072), 0, 0)
        found.consumer_takes(0, 2, 0.0)
        count = found.requests(256)
    assert 2048 <= count * 256 <= 6 * GIB / SHARES / rule.SAMPLE_BYTES


def test_a_large_batch_goes_in_pieces_of_one_size_whose_results_are_counted_once() -> None:
    found = credits(2 * GIB)
    need, cuts = found.launch(of(1024, 2600_000, 602_112), 80 * MIB, 0)
    assert [a for a, _ in cuts[1:]] == [b for _, b in cuts[:-1]]
    assert (cuts[0][0], cuts[-1][1]) == (0, 1024)
    sizes = [b - a for a, b in cuts]
    assert max(sizes) <= 2 * min(sizes)
    assert need == 80 * MIB + 1024 * 602_112 + max(sizes) * (2600_000 - 602_112)
    assert need <= GIB
    photos, cuts = found.launch(of(64, 130 * MIB, 600_000), 200 * MIB, 0)
    assert photos <= GIB
    assert len(cuts) > 8
    assert found.launch(of(1, 5 * GIB, 600_000), 0, 0)[1] == [(0, 1)]  # alone


def test_one_large_sample_among_small_ones_has_a_piece_of_its_own_size() -> None:
    sizes = np.full(100, MIB)
    sizes[50] = 900 * MIB
    ahead = MemoryEstimate(sizes, np.zeros(100, np.int64), sizes, "", int(sizes.sum()), 0)
    need, cuts = credits(GIB).launch(ahead, 0, 0)
    assert need <= 900 * MIB + 100 * MIB
    assert len(cuts) <= 4


def test_budgets() -> None:
    total, free = 80 * GIB, 70 * GIB
    guest, job = (gpu_budget(Memory(), free, total, guest=g) for g in (True, False))
    assert (guest.initial, job.initial) == (2 * GIB, 14 * GIB)
    assert gpu_budget(Memory(), GIB, total, guest=True).maximum == GIB // 2
    assert gpu_budget(Memory(), 15 * GIB, 16 * GIB, guest=True).maximum == int(1.6 * GIB)
    assert gpu_budget(Memory(), 2 * GIB, total, guest=False).maximum == int(1.6 * GIB)
    for g in (True, False):
        given = gpu_budget(Memory(gpu=3 * GIB), free, total, guest=g)
        assert given.initial == given.maximum == 3 * GIB


def test_the_budget_of_a_program_grows_while_it_waits_and_shrinks_when_it_does_not() -> None:
    found = credits(int(SLACK * 2 * GIB), most=6 * GIB)
    found.initial = 2 * GIB
    sizes = []
    for fill in [0] * 60 + [2] * 60:
        found.launch(of(256 * found.requests(256), 1900_000, 602_112), 20 * MIB, 0)
        found.consumer_takes(fill, 2, 0.0)
        sizes.append(found.limit)
    assert sizes[0] == sizes[-1] == int(SLACK * 2 * GIB)
    assert max(sizes) == sizes[59] == int(SLACK * 6 * GIB)
    assert sizes[:60] == sorted(sizes[:60])
    for k in range(60):  # a program that waits for its files
        found.consumer_takes(0, 2, 1e9 * k)
    assert found.limit == sizes[0]


def test_a_budget_below_one_sample_names_the_least_that_works() -> None:
    found = credits(int(SLACK * 5 * MIB), memory=Memory(gpu=5 * MIB))
    with pytest.raises(
        JobError, match=r"leaves 4\.2 MiB of GPU memory, and one sample takes 9\.0 MiB: set it to at least 11MiB"
    ):
        found.launch(of(64, 9 * MIB, MIB), 0, 0)
    credits(9 * MIB, memory=Memory(gpu=10 * MIB)).launch(of(64, 9 * MIB, MIB), 0, 0)
    credits(MIB).launch(of(64, 9 * MIB, MIB), 0, 0)  # what is free is not the user's to change: the CPU computes them


def test_a_batch_that_needs_more_raises_the_budget_of_a_program() -> None:
    found = credits(int(SLACK * 2 * GIB), most=6 * GIB)
    found.launch(of(256, 2600_000, 602_112), 20 * MIB, 0)
    assert found.limit == int(SLACK * 2 * GIB)
    found.launch(of(1024, 2600_000, 602_112), 80 * MIB, 0)
    assert 2 * GIB < found.limit <= 2 * LAUNCH_BYTES
    capped = credits(int(SLACK * 2 * GIB), most=2 * GIB)
    capped.launch(of(1024, 2600_000, 602_112), 80 * MIB, 0)
    assert capped.limit == int(SLACK * 2 * GIB)


@pytest.mark.usefixtures("large_chunks")
@pytest.mark.parametrize("whole", [True, False])
def test_on_the_host_small_batches_are_joined_up_to_a_chunk_for_each_thread(whole: bool) -> None:
    """For a program while it waits for batches, in a job at once."""
    budget: Any = types.SimpleNamespace(device=None, host=MemoryBudget(1 << 40))
    found = Credits(Options(num_threads=4, whole_batches=whole), budget, 0)
    assert found.requests(64) == 1  # nothing is known
    found.sample_bytes = 3000
    found.record_cut(np.full(64, 12_000), 64 * 3000)
    sizes = []
    for _ in range(64):
        found.consumer_takes(0, 2, 0.0)
        sizes.append(found.requests(64))
    assert sizes == sorted(sizes)
    assert sizes[0] <= 2
    assert 4 * CHUNK / 2 < sizes[-1] * 64 * 12_000 <= 4 * CHUNK
    assert sizes.index(sizes[-1]) < (64 if whole else 8)
    for _ in range(64):
        found.consumer_takes(2, 2, 0.0)
    assert (found.requests(64) == 1) is whole
    found.sample_bytes = 1 << 34  # of the budget the batches that wait have a part
    assert found.requests(64) == 1


@pytest.mark.usefixtures("large_chunks")
def test_joined_batches_are_the_batches_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures, random numbers, epochs and the last, smaller batch are as they are without joining."""
    rng = np.random.default_rng(0)
    for i in range(50):
        pixels = rng.integers(0, 256, (8 + i % 9, 20, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i:02d}.jpg")

    @pipeline_def(batch_size=9, num_threads=2, device_id=None, seed=3)
    def mirrored() -> Any:
        files, labels = fn.readers.file(file_root=str(tmp_path), files=[f"{i:02d}.jpg" for i in range(50)])
        images = fn.flip(fn.decoders.image(files), horizontal=fn.random.coin_flip())
        return images, labels

    def batches(joined: set[int]) -> list[list[bytes]]:
        requests = Credits.requests

        def note(self: Credits, samples: int) -> int:
            joined.add(requests(self, samples))
            return requests(self, samples)

        with monkeypatch.context() as m:
            m.setattr(Credits, "requests", note)
            pipe = mirrored()
            return [[s.tobytes() for out in pipe.run() for s in map(np.asarray, out)] for _ in range(40)]

    alone: set[int] = set()
    with monkeypatch.context() as m:
        m.setattr(rule, "GROW_AFTER", 1 << 30)
        expected = batches(alone)
    assert alone == {1}
    monkeypatch.setattr(rule, "GROW_AFTER", 1)
    together: set[int] = set()
    assert batches(together) == expected
    assert max(together) > 1
