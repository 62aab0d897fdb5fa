"""The kernels of copies on a GPU, for lines and samples that begin at any byte of a word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch
from dali_run.pipelines.plugins import load_operators

from ...kit.operators import apply, batch_of, operator

load_operators()
pytestmark = pytest.mark.gpu

CMN = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}
COLOURS = {"image_type": "RGB", "output_type": "BGR"}
OF_IMAGES: list[tuple[str, dict[str, Any]]] = [
    ("copy", {}),
    ("paste", {"ratio": 1.7, "fill_value": [1, 2, 3], "paste_x": 0.3}),
    ("paste", {"ratio": 3.1, "fill_value": [200]}),
    ("slice", {"rel_start": [0.1, 0.1], "rel_shape": [0.8, 0.8], "axis_names": "HW"}),
    ("slice", {"start": [-3, -4], "end": [50, 300], "axes": [0, 1], "out_of_bounds_policy": "reflect_101"}),
    ("pad", {}),
    ("pad", {"axis_names": "HW", "align": [16, 16], "fill_value": 5}),
    ("crop", {"crop": [40, 50], "out_of_bounds_policy": "pad", "fill_values": [3, 2, 1]}),
    ("crop", {"crop": [20, 20], "out_of_bounds_policy": "pad", "dtype": "FLOAT"}),
    ("tensor_subscript", {"kinds": "ss", "start": [1, 2], "stop": [-1, -2]}),
    ("tensor_subscript", {"kinds": "::s", "start": [0, 0, 1], "stop": [0, 0, 3]}),
    ("transpose", {"perm": [2, 0, 1]}),
    ("transpose", {"perm": [1, 0, 2]}),
    ("color_space_conversion", COLOURS),
    ("flip", {"horizontal": 1}),
    ("flip", {"vertical": 1}),
    ("grid_mask", {"tile": 5, "ratio": 0.6, "shift_x": 1.5}),
    ("lookup_table", {"keys": list(range(256)), "values": [255 - k for k in range(256)], "dtype": "UINT8"}),
    ("crop_mirror_normalize", {"output_layout": "HWC", "pad_output": True, **CMN}),
    ("crop_mirror_normalize", {"output_layout": "HWC", "mirror": 1, "dtype": "UINT8", "mean": 3.0}),
    ("crop_mirror_normalize", {"mirror": 1, "dtype": "FLOAT16", **CMN}),
    (
        "erase",
        {"anchor": [0.2, 0.3], "shape": [0.4, 0.4], "axis_names": "HW", "normalized": True, "fill_value": [9, 8, 7]},
    ),
]
OF_OTHERS: list[tuple[str, dict[str, Any], str, tuple[int, ...]]] = [
    ("transpose", {"perm": [1, 2, 0]}, "CHW", (3, 5, 0)),
    ("color_space_conversion", {"image_type": "GRAY", "output_type": "RGB"}, "HWC", (5, 0, 1)),
    ("flip", {"horizontal": 1}, "CHW", (3, 5, 0)),
    ("flip", {"horizontal": 1}, "FHWC", (3, 5, 0, 3)),
    ("crop_mirror_normalize", {"output_layout": "FCHW", "mirror": 1, **CMN}, "FHWC", (2, 5, 0, 3)),
    ("copy", {}, "", (0, 4001)),
]


def ragged(layout: str, shape: tuple[int, ...]) -> Batch:
    """Of all extents in place of the 0, from a byte that is no word's first."""
    random = np.random.default_rng(9)
    whole = batch_of(
        [random.integers(0, 256, [k if d == 0 else d for d in shape]).astype(np.uint8) for k in range(1, 80)], layout
    )
    return whole.replace(data=np.concatenate([np.zeros(5, np.uint8), whole.data]), offsets=whole.offsets + 5)


def compared(name: str, arguments: dict[str, Any], *inputs: Batch) -> None:
    from dali_run.ops.gpu.lane import Lane

    op = operator(name, **arguments)
    want, _ = apply(op, *inputs)
    with Lane() as lane:
        got, rejects = apply(op, *map(lane.to_device, inputs), lane=lane)
        got = lane.to_host(got)
        lane.synchronize()
    assert not rejects
    assert (got.layout, got.dtype, got.shapes.tolist()) == (want.layout, want.dtype, want.shapes.tolist())
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "arguments"), OF_IMAGES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(OF_IMAGES)])
def test_images(name: str, arguments: dict[str, Any]) -> None:
    compared(name, arguments, ragged("HWC", (7, 0, 3)))


@pytest.mark.parametrize(("name", "arguments", "layout", "shape"), OF_OTHERS, ids=str)
def test_others(name: str, arguments: dict[str, Any], layout: str, shape: tuple[int, ...]) -> None:
    compared(name, arguments, ragged(layout, shape))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_joined(axis: int) -> None:
    one = ragged("HWC", (7, 0, 3))
    compared("cat", {"axis": axis}, one, one.replace(samples=one.samples))
    compared("stack", {"axis": axis + 1}, one, one)


@pytest.mark.parametrize("anchors", [[[0, 0], [0, 40], [31, 0], [31, 40]], [[0, 0], [5, 9], [31, 0], [2, 3]]])
def test_parts_apart_and_over_each_other(anchors: list[list[int]]) -> None:
    images = batch_of(list(np.random.default_rng(1).integers(0, 256, (5, 31, 40, 3)).astype(np.uint8)), "HWC")
    flat = [v for pair in anchors for v in pair]
    compared("multi_paste", {"in_ids": [0, 1, 2, 4], "output_size": [62, 80], "out_anchors": flat}, images)
