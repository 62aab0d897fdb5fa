"""batching: iterators give full batches though samples are left out, or batches of samples of one shape."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
from dali_run import Pipeline, pipeline_def
from dali_run.plugin.base_iterator import LastBatchPolicy
from dali_run.plugin.numpy import DALIGenericIterator, DALIRaggedIterator

WIDTHS = [3, 4, 5]
COUNT = 23


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("arrays")
    for i in range(COUNT):
        np.save(root / f"{i:02d}.npy", np.full((2, WIDTHS[i * i % 3]), i, np.float32))
    return root


def pipeline(folder: Path, batching: str, **settings: Any) -> Pipeline:
    @pipeline_def(batch_size=4, num_threads=2, device_id=None, batching=batching, **settings)
    def define() -> Any:
        array = fn.readers.numpy(file_root=str(folder), file_filter="*.npy", name="R", pad_last_batch=True)
        fn.keep_if(fn.reductions.mean(array) % 3 != 1)
        return array

    return define()


def numbers(one: dict[str, Any]) -> list[int]:
    return [int(a[0, 0]) for a in one["x"]]


def batches(it: DALIGenericIterator) -> list[list[int]]:
    return [numbers(one) for (one,) in it]


def iterator(pipe: Pipeline, policy: LastBatchPolicy = LastBatchPolicy.PARTIAL) -> DALIGenericIterator:
    kind = DALIGenericIterator if pipe._settings.run.batching == "shapes" else DALIRaggedIterator
    return kind(pipe, ["x"], reader_name="R", last_batch_policy=policy, auto_reset=True)


KEPT = [i for i in range(COUNT) if i % 3 != 1]


@pytest.mark.parametrize("policy", list(LastBatchPolicy))
def test_full_batches_hold_the_samples_that_are_left_in_order(folder: Path, policy: LastBatchPolicy) -> None:
    it = iterator(pipeline(folder, "full"), policy)
    for _ in range(2):
        found = batches(it)
        assert {len(b) for b in found[:-1]} == {4}
        flat = [i for b in found for i in b]
        if policy is LastBatchPolicy.PARTIAL:
            assert flat == KEPT
        elif policy is LastBatchPolicy.DROP:
            assert flat == KEPT[: len(KEPT) // 4 * 4]
        else:
            assert len(flat) % 4 == 0
            assert flat[: len(KEPT)] == KEPT
            assert set(flat[len(KEPT) :]) <= {KEPT[-1]}
    with pytest.raises(TypeError, match="length is known only at the end"):
        len(it)


def test_batches_of_one_shape_hold_every_sample_once(folder: Path) -> None:
    it = iterator(pipeline(folder, "shapes"))
    found = batches(it)  # as arrays: samples of several shapes would be an error
    assert Counter(i for b in found for i in b) == Counter(KEPT)
    shapes = [{WIDTHS[i * i % 3] for i in b} for b in found]
    assert all(len(s) == 1 for s in shapes)
    sizes = Counter(WIDTHS[i * i % 3] for i in KEPT)
    assert sum(len(b) == 4 for b in found) == sum(n // 4 for n in sizes.values())


@pytest.mark.parametrize("batching", ["full", "shapes"])
def test_checkpoints_go_on_with_the_samples_that_wait(folder: Path, batching: str) -> None:
    whole = iterator(pipeline(folder, batching, enable_checkpointing=True))
    expected = [*batches(whole), *batches(whole)]
    for at in range(len(expected)):
        first = iterator(pipeline(folder, batching, enable_checkpointing=True))
        seen = []
        while len(seen) < at:
            try:
                (one,) = next(first)
            except StopIteration:
                continue
            seen.append(numbers(one))
        (state,) = first.checkpoints()
        again = iterator(pipeline(folder, batching, checkpoint=state))
        rest = [*batches(again), *batches(again)]
        assert (seen + rest)[: len(expected)] == expected, at


def test_several_pipelines_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="batching: full is for an iterator of one pipeline, got 2"):
        DALIGenericIterator([pipeline(folder, "full"), pipeline(folder, "full")], ["x"], reader_name="R")
