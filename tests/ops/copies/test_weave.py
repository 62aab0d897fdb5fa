"""The kernel that joins samples by a few elements at a time, against the loops of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.pipelines.plugins import load_operators

from ...kit.emulated_lane import EmulatedLane
from ...kit.operators import apply, batch_of, operator

load_operators()


def inputs(dtype: str, channels: list[int]) -> list[Any]:
    """Pictures of all widths; a batch for each number of channels, none where a word begins."""
    random = np.random.default_rng(1)
    found = []
    for c in channels:
        tail = (c,) if c else ()
        batch = batch_of([random.integers(0, 99, (2 + k % 2, k, *tail)).astype(dtype) for k in range(1, 30)])
        found.append(batch.replace(data=np.concatenate([np.zeros(3, dtype), batch.data]), offsets=batch.offsets + 3))
    return found


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "int64", "bool"])
@pytest.mark.parametrize("channels", [[3, 3], [1, 3], [3, 1, 2], [1, 1, 1, 1]])
def test_channels_side_by_side(dtype: str, channels: list[int]) -> None:
    lane, given = EmulatedLane(), inputs(dtype, channels)
    op = operator("cat", axis=2)
    want, _ = apply(op, *given)
    got, rejects = apply(op, *given, lane=lane)
    assert not rejects
    assert [kernel.split("<")[0] for kernel in lane.launched] == ["weave"]
    np.testing.assert_array_equal(got.data, want.data)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_planes_become_channels(count: int) -> None:
    lane, given = EmulatedLane(), inputs("uint8", [0] * count)
    op = operator("stack", axis=-1)
    want, _ = apply(op, *given)
    got, _ = apply(op, *given, lane=lane)
    assert lane.launched == [f"weave<unsigned char, {count}>"]
    np.testing.assert_array_equal(got.data, want.data)


def test_samples_that_do_not_fit_are_left_out() -> None:
    lane = EmulatedLane()
    left = batch_of([np.full((2, 2, 3), k, np.uint8) for k in range(3)])
    right = batch_of([np.full((2, 2 + (k == 1), 1), 9, np.uint8) for k in range(3)])
    got, rejects = apply(operator("cat", axis=2), left, right, lane=lane)
    assert [r.slot for r in rejects] == [1]
    assert got.shapes.tolist() == [[2, 2, 4], [0, 0, 0], [2, 2, 4]]
    assert got.sample(2).reshape(-1, 4).tolist() == [[2, 2, 2, 9]] * 4


def test_longer_runs_and_more_inputs_go_another_way() -> None:
    for count, width in ((2, 40), (5, 3)):
        lane = EmulatedLane()
        given = [batch_of([np.full((4, width), k, np.uint8)]) for k in range(count)]
        want, _ = apply(operator("cat", axis=1), *given)
        got, _ = apply(operator("cat", axis=1), *given, lane=lane)
        assert not [kernel for kernel in lane.launched if kernel.startswith("weave")]
        np.testing.assert_array_equal(got.data, want.data)
