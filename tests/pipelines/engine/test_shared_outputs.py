"""Parts that lie side by side are joined without a copy, all others with one."""

from __future__ import annotations

import numpy as np

from dali_run.ops.batch import Batch, Samples
from dali_run.pipelines.engine.memory.reuse import Recycler
from dali_run.pipelines.engine.memory.shared_outputs import Band, join

EACH = 1 << 17


def parts(bands: list[Band], counts: list[int]) -> list[Batch]:
    """Batches of float32 samples with their number as value, in memory of their bands where there is any."""
    made, first = [], 0
    for band, count in zip(bands, counts, strict=True):
        data = band.take(count * EACH, np.dtype(np.float32))
        data = np.empty(count * EACH, np.float32) if data is None else data
        data.reshape(count, EACH)[...] = np.arange(first, first + count)[:, None]
        samples = Samples.numbered(10).take(slice(first, first + count))
        made.append(Batch(data, np.arange(count) * EACH, np.full((count, 1), EACH, np.int32), "", samples))
        first += count
    return made


def check(joined: Batch) -> None:
    assert joined.samples.slot.tolist() == list(range(len(joined)))
    for i, sample in enumerate(joined):
        assert sample.shape == (EACH,)
        assert (sample == i).all()


def bands(counts: list[int]) -> tuple[np.ndarray, list[Band]]:
    whole = Recycler().empty(sum(counts) * EACH, np.float32)
    ends = np.cumsum(counts).tolist()
    return whole, [Band([(whole, EACH)], b - n, b) for n, b in zip(counts, ends, strict=True)]


def test_parts_in_their_bands_are_not_copied() -> None:
    counts = [3, 4, 1]
    whole, given = bands(counts)
    joined = join(parts(given, counts), np.empty)
    check(joined)
    assert np.shares_memory(joined.data, whole)
    assert joined.data[0] == 0
    whole[0] = -1
    assert joined.data[0] == -1


def test_a_part_somewhere_else_is_copied_with_the_others() -> None:
    counts = [3, 4, 1]
    whole, given = bands(counts)
    assert given[1].take(4 * EACH, np.dtype(np.float32)) is not None  # a kernel took it for something else
    joined = join(parts(given, counts), np.empty)
    check(joined)
    assert not np.shares_memory(joined.data, whole)


def test_parts_that_lost_samples_are_copied() -> None:
    counts = [3, 4]
    _, given = bands(counts)
    made = parts(given, counts)
    joined = join([made[0].take(np.array([0, 2])), made[1]], np.empty)
    assert [int(s[0]) for s in joined] == [0, 2, 3, 4, 5, 6]
    assert joined.samples.slot.tolist() == [0, 2, 3, 4, 5, 6]
    joined = join([made[0].take(slice(0, 0)), made[1]], np.empty)
    assert [int(s[0]) for s in joined] == [3, 4, 5, 6]


def test_only_memory_of_the_right_size_and_type_is_given_and_once() -> None:
    _, (band,) = bands([2])
    assert band.take(2 * EACH, np.dtype(np.int32)) is None
    assert band.take(2 * EACH - 1, np.dtype(np.float32)) is None
    assert band.take(2 * EACH, np.dtype(np.float32)) is not None
    assert band.take(2 * EACH, np.dtype(np.float32)) is None
