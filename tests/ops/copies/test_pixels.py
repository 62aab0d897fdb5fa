"""The kernel for copies of pictures of three bytes a pixel, against the loops of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch
from dali_run.pipelines.plugins import load_operators

from ...kit.emulated_lane import EmulatedLane
from ...kit.operators import apply, batch_of, operator

load_operators()
MEAN_STD = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("crop_mirror_normalize", {"dtype": "FLOAT16", **MEAN_STD}),
    ("crop_mirror_normalize", {"dtype": "FLOAT", "output_layout": "HWC", **MEAN_STD}),
    ("crop_mirror_normalize", {"dtype": "UINT8", "scale": 70.0, "shift": 100.0, **MEAN_STD}),
    ("crop_mirror_normalize", {"dtype": "FLOAT", "mean": 3.0}),
    ("flip", {"vertical": 1}),
    ("flip", {}),
    ("crop", {"crop": [5, 8], "crop_pos_x": 0.37}),
    ("crop", {"crop": [3, 5], "crop_pos_x": 0.9, "crop_pos_y": 0.1, "dtype": "FLOAT"}),
    ("transpose", {"perm": [2, 0, 1]}),
    ("cast", {"dtype": "FLOAT16"}),
]


def pictures(start: int) -> Batch:
    """Of all widths from 8 to 40, not where words begin."""
    random = np.random.default_rng(5)
    whole = batch_of([random.integers(0, 256, (5 + k % 3, k, 3), np.uint8) for k in range(8, 41)], "HWC")
    return whole.replace(data=np.concatenate([np.zeros(start, np.uint8), whole.data]), offsets=whole.offsets + start)


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)])
@pytest.mark.parametrize("start", [4, 7])
def test_as_on_the_cpu(name: str, arguments: dict[str, Any], start: int) -> None:
    batch, lane = pictures(start), EmulatedLane()
    drawn = {"crop_mirror_normalize": "mirror", "flip": "horizontal"}.get(name)
    args = {drawn: batch_of([np.int32(k % 2) for k in range(len(batch))])} if drawn else {}
    op = operator(name, tuple(args), **arguments)
    want, _ = apply(op, batch, args=args)
    got, rejects = apply(op, batch, args=args, lane=lane)
    assert not rejects
    if name != "cast":  # which is of one dimension
        assert [kernel.split("<")[0] for kernel in lane.launched] == ["pixels"]
    assert (got.layout, got.dtype, got.shapes.tolist()) == (want.layout, want.dtype, want.shapes.tolist())
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_other_copies_go_the_general_way() -> None:
    """Four channels, places outside, pixels that do not lie next to each other."""
    random = np.random.default_rng(5)
    for shape, name, arguments in (
        ((6, 9, 4), "flip", {"horizontal": 1}),
        ((6, 9, 3), "crop", {"crop": [9, 9], "out_of_bounds_policy": "pad"}),
        ((6, 9, 3), "transpose", {"perm": [1, 0, 2]}),
    ):
        batch, lane = batch_of([random.integers(0, 256, shape, np.uint8) for _ in range(2)], "HWC"), EmulatedLane()
        want, _ = apply(operator(name, **arguments), batch)
        got, _ = apply(operator(name, **arguments), batch, lane=lane)
        assert lane.launched[0].startswith("strided<")
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
