"""The kernel for copies whose lines are runs of bytes, against the loops of the CPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.copies.strided import Border, Target, filled, mirror, pad, row_major, run, run_into, whole, window
from dali_run.pipelines.plugins import load_operators

from ...kit.emulated_lane import EmulatedLane
from ...kit.operators import apply, batch_of, operator

load_operators()


def stages() -> tuple[Any, Any, EmulatedLane]:
    """Contexts of the CPU and of a GPU that is none, and its lane."""
    lane = EmulatedLane()
    rejects: list[Any] = []
    contexts = [
        SimpleNamespace(stage=stage, device=lane, empty=empty, reject=lambda *a: rejects.append(a))
        for stage, empty in (("cpu", lane.empty), ("gpu", lane.empty))
    ]
    return contexts[0], contexts[1], lane


def batch_of_widths(dtype: str, channels: int, random: np.random.Generator) -> Batch:
    """Of lines that end and begin at every byte of a word, from a place that is no word's."""
    shapes = np.array([[2 + k % 3, 6 + k, channels] for k in range(40)], np.int32)
    batch = Batch.allocate(np.empty, shapes, np.dtype(dtype), "HWC", Samples.numbered(len(shapes)))
    data = random.integers(0, 256, (batch.data.size + 3) * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    return batch.replace(data=data, offsets=batch.offsets + 3)


@pytest.mark.parametrize("values", [1, 3])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint64"])
def test_windows_that_reach_outside(dtype: str, values: int) -> None:
    random = np.random.default_rng(3)
    batch = batch_of_widths(dtype, 3, random)
    n = len(batch)
    anchor = np.column_stack([random.integers(-3, 3, n), random.integers(-30, 30, n), np.zeros(n, np.int64)])
    shape = np.column_stack([random.integers(0, 5, n), random.integers(20, 60, n), np.full(n, 3)])
    fill = np.arange(7, 7 + values) if values == 3 else 9
    plan = pad(window(whole(batch), anchor, shape), Border.FILL, fill, 2)
    cpu, gpu, lane = stages()
    want, got = run(cpu, plan, batch), run(gpu, plan, batch)
    assert lane.launched == (["rows"] if values == 1 or (shape[:, 0] > 0).all() else lane.launched)
    assert got.data.tobytes() == want.data.tobytes()
    each = replace(plan, fill=random.integers(0, 99, (n, values)).astype(np.float64))
    assert run(gpu, each, batch).data.tobytes() == run(cpu, each, batch).data.tobytes()


def test_a_value_for_each_channel_wherever_channels_stand() -> None:
    random = np.random.default_rng(4)
    for layout, shape, larger, before in (
        ("HWC", (6, 41, 3), (9, 60, 3), (-1, -13, 0)),
        ("CHW", (3, 6, 41), (3, 9, 60), (0, -2, -13)),
        ("FHWC", (2, 6, 41, 5), (2, 9, 60, 5), (0, -1, -13, 0)),
        ("HCW", (6, 3, 41), (9, 3, 60), (-1, 0, -7)),
    ):
        batch = batch_of([random.integers(0, 256, shape, np.uint8) for _ in range(3)], layout)
        c = layout.index("C")
        plan = pad(
            window(whole(batch), np.tile(np.array(before), (3, 1)), np.tile(np.array(larger), (3, 1))),
            Border.FILL, np.arange(11, 11 + shape[c]), c,
        )  # fmt: skip
        cpu, gpu, lane = stages()
        want, got = run(cpu, plan, batch), run(gpu, plan, batch)
        assert lane.launched == ["rows"]
        np.testing.assert_array_equal(got.data, want.data)


def test_long_lines_are_cut_up_and_what_lies_outside_is_not_read() -> None:
    random = np.random.default_rng(5)
    guarded = np.zeros(50_000 + 64, np.uint8)
    guarded[16:-48] = random.integers(1, 255, 50_000)
    batch = Batch(
        guarded, np.array([16, 17, 40]), np.array([[49_999], [40_001], [3]], np.int32), "", Samples.numbered(3)
    )
    plan = pad(
        window(whole(batch), np.array([[-20_000], [3], [-5]]), np.array([[100_003], [33_333], [17]])), Border.FILL, 7
    )
    cpu, gpu, lane = stages()
    want, got = run(cpu, plan, batch), run(gpu, plan, batch)
    assert lane.launched == ["rows"]
    np.testing.assert_array_equal(got.data, want.data)


def test_lines_upside_down_and_targets_with_gaps() -> None:
    """Neighbours of what is written keep their bytes."""
    random = np.random.default_rng(6)
    batch = batch_of_widths("uint8", 3, random)
    shape = batch.shapes.astype(np.int64)
    plan = mirror(whole(batch), 0, np.arange(len(batch)) % 2 == 0)
    wide = shape + np.array([0, 5, 0])
    canvas = Batch.allocate(np.zeros, wide.astype(np.int32), np.uint8, "HWC", batch.samples)
    at = canvas.offsets + 2 * 3
    made = []
    cpu, gpu, lane = stages()
    for ctx in (cpu, gpu):
        own = canvas.replace(data=np.full(canvas.data.size, 0x3C, np.uint8))
        run_into(ctx, plan, batch, Target(own, at, row_major(wide)))
        made.append(own.data)
    assert lane.launched == ["rows"]
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize("channel", [-1, 0, 2])
def test_boxes_that_are_filled(channel: int) -> None:
    random = np.random.default_rng(9)
    shape = np.column_stack([random.integers(0, 4, 20), random.integers(1, 50, 20), np.full(20, 3)])
    shape[0] = 3, 50, 3
    if channel == 0:
        shape[:, 0] = 3
    wide = shape + np.array([0, 5, 0])
    canvas = Batch.allocate(np.zeros, wide.astype(np.int32), np.uint8, "HWC", Samples.numbered(20))
    plan = filled(shape, np.uint8, "HWC", np.arange(1, 4) if channel >= 0 else 7, channel)
    made = []
    cpu, gpu, lane = stages()
    for ctx in (cpu, gpu):
        own = canvas.replace(data=np.full(canvas.data.size, 0x3C, np.uint8))
        run_into(ctx, plan, own, Target(own, canvas.offsets + 2 * 3, row_major(wide)))
        made.append(own.data)
    assert lane.launched == ["rows"]
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize("values", [1, 3])
def test_bytes_that_become_floats(values: int) -> None:
    random = np.random.default_rng(11)
    batch = batch_of_widths("uint8", 3, random)
    n = len(batch)
    anchor = np.column_stack([random.integers(-3, 3, n), random.integers(-30, 30, n), np.zeros(n, np.int64)])
    shape = np.column_stack([random.integers(1, 5, n), random.integers(20, 60, n), np.full(n, 3)])
    plan = pad(window(whole(batch), anchor, shape), Border.FILL, np.arange(7, 7 + values) if values == 3 else 9.5, 2)
    plan = replace(plan, dtype=np.dtype(np.float32))
    cpu, gpu, lane = stages()
    want, got = run(cpu, plan, batch), run(gpu, plan, batch)
    assert lane.launched == ["rows_of_floats"]
    np.testing.assert_array_equal(got.data, want.data)


def test_other_borders_and_short_lines_go_the_general_way() -> None:
    random = np.random.default_rng(7)
    batch = batch_of([random.integers(0, 256, (6, 9, 3), np.uint8) for _ in range(2)], "HWC")
    zero = np.zeros((2, 3), np.int64)
    for plan in (
        pad(window(whole(batch), zero - 2, zero + np.array([9, 20, 3])), Border.EDGE),
        window(whole(batch), zero + np.array([0, 0, 1]), zero + np.array([6, 9, 2])),
    ):
        cpu, gpu, lane = stages()
        want, got = run(cpu, plan, batch), run(gpu, plan, batch)
        assert "rows" not in lane.launched
        np.testing.assert_array_equal(got.data, want.data)


def test_operators_made_of_lines() -> None:
    random = np.random.default_rng(8)
    images = batch_of([random.integers(0, 256, (5 + k, 20 + 3 * k, 3), np.uint8) for k in range(6)], "HWC")
    for name, arguments in (
        ("copy", {}),
        ("paste", {"ratio": 1.7, "fill_value": [1, 2, 3], "paste_x": 0.3}),
        ("paste", {"ratio": 1.2, "fill_value": [200]}),
        ("slice", {"rel_start": [0.1, 0.1], "rel_shape": [0.8, 0.8], "axis_names": "HW"}),
        ("pad", {}),
        ("pad", {"axis_names": "HW", "align": [16, 16], "fill_value": 5}),
        ("crop", {"crop": [40, 50], "out_of_bounds_policy": "pad", "fill_values": [3, 2, 1]}),
        ("tensor_subscript", {"kinds": "ss", "start": [1, 2], "stop": [-1, -2]}),
    ):
        lane, op = EmulatedLane(), operator(name, **arguments)
        want, _ = apply(op, images)
        got, rejects = apply(op, images, lane=lane)
        assert not rejects
        assert lane.launched == ["rows"], name
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
