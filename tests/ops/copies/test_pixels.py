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
    ("flip", {"vertical": 1, "horizontal": 1}),
    ("flip", {}),
    ("crop", {"crop": [3, 5], "crop_pos_x": 0.9, "crop_pos_y": 0.1, "dtype": "FLOAT16"}),
    ("transpose", {"perm": [2, 0, 1]}),
    ("cast", {"dtype": "FLOAT16"}),
]


def _kernel(made: Batch) -> str:
    """The one that makes such a batch: channels last in floats, or four of them, are written side by side."""
    last = made.layout.endswith("C")
    return "spread" if last and (made.dtype == np.float32 or made.shapes[0, -1] == 4) else "pixels"


def pictures(start: int) -> Batch:
    """Of all widths from 8 to 40, not where words begin."""
    random = np.random.default_rng(5)
    whole = batch_of([random.integers(0, 256, (5 + k % 3, k, 3), np.uint8) for k in range(8, 41)], "HWC")
    return whole.replace(data=np.concatenate([np.zeros(start, np.uint8), whole.data]), offsets=whole.offsets + start)


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)])
@pytest.mark.parametrize("start", [4, 7])
def test_as_on_the_cpu(name: str, arguments: dict[str, Any], start: int) -> None:
    batch, lane = pictures(start), EmulatedLane()
    drawn = (
        {"crop_mirror_normalize": "mirror", "flip": "horizontal"}.get(name) if "horizontal" not in arguments else None
    )
    args = {drawn: batch_of([np.int32(k % 2) for k in range(len(batch))])} if drawn else {}
    op = operator(name, tuple(args), **arguments)
    want, _ = apply(op, batch, args=args)
    got, rejects = apply(op, batch, args=args, lane=lane)
    assert not rejects
    if name != "cast":  # which is of one dimension
        assert [kernel.split("<")[0] for kernel in lane.launched] == [_kernel(got)]
    assert (got.layout, got.dtype, got.shapes.tolist()) == (want.layout, want.dtype, want.shapes.tolist())
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def tensors(shapes: list[tuple[int, ...]], layout: str) -> Batch:
    """Of these shapes, not where words begin."""
    random = np.random.default_rng(9)
    whole = batch_of([random.integers(0, 256, shape, np.uint8) for shape in shapes], layout)
    return whole.replace(data=np.concatenate([np.zeros(5, np.uint8), whole.data]), offsets=whole.offsets + 5)


@pytest.mark.parametrize(
    ("name", "arguments", "layout", "shape"),
    [
        ("color_space_conversion", {"image_type": "RGB", "output_type": "BGR"}, "HWC", (5, 0, 3)),
        ("color_space_conversion", {"image_type": "GRAY", "output_type": "RGB"}, "HWC", (5, 0, 1)),
        ("color_space_conversion", {"image_type": "BGR", "output_type": "RGB"}, "FHWC", (2, 4, 0, 3)),
        ("transpose", {"perm": [1, 2, 0]}, "CHW", (3, 5, 0)),
        ("flip", {"horizontal": 1}, "CHW", (3, 5, 0)),
        ("flip", {"horizontal": 1}, "FHWC", (3, 5, 0, 3)),
        ("flip", {"horizontal": 1, "vertical": 1}, "FCHW", (2, 3, 4, 0)),
        ("crop_mirror_normalize", {"output_layout": "FCHW", "mirror": 1, **MEAN_STD}, "FHWC", (2, 5, 0, 3)),
        ("crop_mirror_normalize", {"output_layout": "FHWC", "dtype": "FLOAT16", **MEAN_STD}, "FCHW", (2, 3, 5, 0)),
        ("crop_mirror_normalize", {"output_layout": "FHWC", "dtype": "UINT8", "mean": 3.0}, "FHWC", (2, 3, 0, 3)),
        ("crop_mirror_normalize", {"output_layout": "HWC", "pad_output": True, **MEAN_STD}, "HWC", (5, 0, 3)),
        (
            "crop_mirror_normalize",
            {
                "output_layout": "HWC",
                "pad_output": True,
                "mirror": 1,
                "dtype": "FLOAT16",
                "out_of_bounds_policy": "pad",
                "fill_values": [1, 2, 3, 4],
            },
            "HWC",
            (5, 0, 3),
        ),
        (
            "crop_mirror_normalize",
            {
                "output_layout": "HWC",
                "pad_output": True,
                "dtype": "UINT8",
                "out_of_bounds_policy": "pad",
                "fill_values": [7],
            },
            "HWC",
            (5, 0, 3),
        ),
        (
            "crop_mirror_normalize",
            {"output_layout": "FHWC", "mirror": 1, "pad_output": True, "mean": 3.0},
            "FCHW",
            (2, 3, 5, 0),
        ),
        ("crop_mirror_normalize", {"output_layout": "FHWC", "dtype": "FLOAT", **MEAN_STD}, "FHWC", (2, 3, 0, 3)),
        ("flip", {"horizontal": 1, "vertical": 1}, "HWC", (5, 0, 3)),
    ],
    ids=str,
)
def test_channels_in_other_orders_and_sequences(
    name: str, arguments: dict[str, Any], layout: str, shape: tuple[int, ...]
) -> None:
    """Of all widths: lines begin at every byte of a word, and more or fewer frames than others have."""
    shapes = [tuple(k if d == 0 else d for d in shape) for k in range(1, 36)]
    if layout[0] == "F":
        shapes = [(shape[0] + k % 3, *given[1:]) for k, given in enumerate(shapes)]
    batch, lane, op = tensors(shapes, layout), EmulatedLane(), operator(name, **arguments)
    want, _ = apply(op, batch)
    got, rejects = apply(op, batch, lane=lane)
    assert not rejects
    assert [kernel.split("<")[0] for kernel in lane.launched] == [_kernel(got)]
    assert (got.layout, got.dtype, got.shapes.tolist()) == (want.layout, want.dtype, want.shapes.tolist())
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_values_of_each_sequence_are_those_of_its_frames() -> None:
    random = np.random.default_rng(10)
    batch = tensors([(1 + k % 3, 5, 17, 3) for k in range(6)], "FHWC")
    args = {"mean": batch_of(list(random.uniform(50, 150, (6, 3)).astype(np.float32))),
            "mirror": batch_of([np.int32(k % 2) for k in range(6)])}  # fmt: skip
    op, lane = (
        operator("crop_mirror_normalize", ("mean", "mirror"), output_layout="FCHW", std=[3.0, 4.0, 5.0]),
        EmulatedLane(),
    )
    want, _ = apply(op, batch, args=args)
    got, _ = apply(op, batch, args=args, lane=lane)
    assert [kernel.split("<")[0] for kernel in lane.launched] == ["pixels"]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_other_copies_go_the_general_way() -> None:
    """Four channels, places outside that are mirrored, pixels that do not lie next to each other."""
    random = np.random.default_rng(5)
    for shape, name, arguments in (
        ((6, 9, 4), "flip", {"horizontal": 1}),
        ((6, 9, 3), "crop", {"crop": [9, 9], "out_of_bounds_policy": "reflect"}),
        ((6, 9, 3), "transpose", {"perm": [1, 0, 2]}),
    ):
        batch, lane = batch_of([random.integers(0, 256, shape, np.uint8) for _ in range(2)], "HWC"), EmulatedLane()
        want, _ = apply(operator(name, **arguments), batch)
        got, _ = apply(operator(name, **arguments), batch, lane=lane)
        assert lane.launched[0].startswith("strided<")
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
