"""Parts that lie side by side are joined without a copy, all others with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
from dali_run import pipeline_def
from dali_run.ops.batch import Batch, Samples
from dali_run.pipelines.engine import host_executor
from dali_run.pipelines.engine.caller_thread import fast_path, inline_host
from dali_run.pipelines.engine.memory.buffer_pool import BufferPool
from dali_run.pipelines.engine.memory.output_slices import OutputSlice, join

EACH = 1 << 17


def parts(bands: list[OutputSlice], counts: list[int]) -> list[Batch]:
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


def bands(counts: list[int]) -> tuple[np.ndarray, list[OutputSlice]]:
    whole = BufferPool().empty(sum(counts) * EACH, np.float32)
    ends = np.cumsum(counts).tolist()
    each = np.arange(1, sum(counts) + 1) * EACH
    return whole, [OutputSlice([(whole, each)], b - n, b) for n, b in zip(counts, ends, strict=True)]


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


@pytest.mark.parametrize("chain", ["flip", "flip, brightness", "brightness, flip, brightness"])
def test_pictures_of_any_size_get_their_places_too(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is known before the data comes: as foreseen from the inputs, the last step's, not the first's."""
    extents = [(200 + 10 * k, 300 - 7 * k) for k in range(40)]
    pictures = [np.full((h, w, 3), k, np.uint8) for k, (h, w) in enumerate(extents)]
    seen: list[bool] = []

    def watched(parts: Sequence[Batch], empty: Any) -> Batch:
        joined = join(parts, empty)
        seen.append(len(parts) > 1 and np.shares_memory(joined.data, parts[0].data))
        return joined

    monkeypatch.setattr(host_executor, "join", watched)
    monkeypatch.setattr(inline_host, "_MAX_BYTES", 0)  # all batches go to the workers

    @pipeline_def(batch_size=40, num_threads=2, device_id=None)
    def program() -> Any:
        data = fn.external_source(source=lambda: pictures, layout="HWC")
        for name in chain.split(", "):
            data = fn.flip(data, horizontal=1) if name == "flip" else fn.brightness(data, brightness=2.0)
        return data

    pipe = program()
    for _ in range(3):
        (out,) = pipe.run()
        for k, picture in enumerate(pictures):
            np.testing.assert_array_equal(np.asarray(out[k]), picture * 2 ** chain.count("brightness"))
    assert len(seen) >= 2, "no batch was cut"
    assert all(seen[-2:]), seen


@pytest.mark.parametrize("what", ["another type", "another shape", "both"])
def test_outputs_that_nobody_declared_are_foreseen_from_the_data(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program feeds arrays of a type and a shape that it does not declare; operators say what they make of them."""
    images = np.arange(40 * 120 * 100 * 3, dtype=np.uint32).astype(np.uint8).reshape(40, 120, 100, 3)
    seen: list[bool] = []

    def watched(parts: Sequence[Batch], empty: Any) -> Batch:
        joined = join(parts, empty)
        seen.append(len(parts) > 1 and np.shares_memory(joined.data, parts[0].data))
        return joined

    monkeypatch.setattr(host_executor, "join", watched)
    monkeypatch.setattr(fast_path, "_MAX_BYTES", 0)  # all batches go to the workers
    monkeypatch.setattr(inline_host, "_MAX_BYTES", 0)

    @pipeline_def(batch_size=40, num_threads=2, device_id=None)
    def program() -> Any:
        data = fn.external_source(source=lambda: images, layout="HWC")
        if what != "another type":
            data = fn.cat(data, data, axis_name="C")
        return data if what == "another shape" else data * 0.5

    pipe = program()
    for _ in range(8):
        (out,) = pipe.run()
        expected = np.concatenate([images, images], axis=3) if what != "another type" else images
        np.testing.assert_array_equal(
            np.asarray(out.as_tensor()), expected if what == "another shape" else expected * np.float32(0.5)
        )
    assert seen, "no batch was cut"
    assert all(seen), seen
