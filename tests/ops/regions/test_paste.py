"""paste, multi_paste, bbox_paste and grid_mask against DALI's results (tests/golden/make_regions.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.errors import SpecError
from dali_run.ops.types import from_numpy

from ...kit.emulated_lane import EmulatedLane
from ...kit.golden import apply, batch_of, cases, operator

LANES = pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda on the cpu"])


@LANES
@pytest.mark.parametrize(("name", "least"), [("paste", 19), ("multi_paste", 9), ("grid_mask", 40)])
def test_equal_to_dali(name: str, least: int, lane: EmulatedLane | None) -> None:
    count = 0
    for case in cases(name):
        (layout, want), got = case.wanted[0], case.run(lane)[0]
        if want.dtype == np.float32 and case.op == "bbox_paste":
            np.testing.assert_allclose(got.sample(0), want, rtol=1e-6, atol=1e-6 * np.abs(want).max())
        else:
            np.testing.assert_array_equal(got.sample(0), want, err_msg=str(case))
        inputs = [Spec(tuple(b.shapes[0].tolist()), from_numpy(b.dtype), b.layout) for b in case.inputs]
        known = case.operator.infer(*inputs)
        assert known.dtype == from_numpy(want.dtype)
        assert all(a in (None, b) for a, b in zip(known.shape, want.shape, strict=True)), str(case)
        assert got.layout == layout
        count += 1
    assert count >= least


def images(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.default_rng(k).integers(0, 256, s).astype(np.uint8) for k, s in enumerate(shapes)]


@LANES
def test_paste_puts_each_frame_at_the_same_place(lane: EmulatedLane | None) -> None:
    movie = images((2, 5, 6, 3))[0]
    op = operator("paste", ratio=2, paste_x=1, paste_y=0, fill_value=[7])
    out, _ = apply(op, batch_of([movie], "FHWC"), lane=lane)
    want = np.full((2, 10, 12, 3), 7, np.uint8)
    want[:, :5, 6:] = movie
    np.testing.assert_array_equal(out[0].sample(0), want)


def test_paste_refuses_what_dali_refuses() -> None:
    batch = batch_of(images((4, 4, 3), (4, 4, 3), (4, 4, 3), (0, 4, 3)), "HWC")
    args = {
        "ratio": batch_of([np.float32(v) for v in (0.5, 1.5, np.nan, 2)]),
        "paste_x": batch_of([np.float32(v) for v in (0.5, 1.5, 0.5, 0.5)]),
    }
    out, rejects = apply(operator("paste", ("ratio", "paste_x"), fill_value=[1, 2, 3]), batch, args=args)
    assert sorted({r.slot for r in rejects}) == [0, 1, 2]
    assert out[0].shapes[3].tolist() == [0, 0, 0]
    with pytest.raises(SpecError, match="1 or n_channels"):
        operator("paste", ratio=1, fill_value=[1, 2])
    with pytest.raises(SpecError, match="takes layouts"):
        operator("paste", ratio=1, fill_value=[1]).infer(Spec((3, 4, 4), None, "CHW"))
    _, rejects = apply(operator("paste", ratio=1, fill_value=[1, 2, 3]), batch_of(images((4, 4, 1)), "HWC"))
    assert [r.code for r in rejects] == ["bad_argument"]


@LANES
def test_multi_paste_takes_parts_of_other_samples(lane: EmulatedLane | None) -> None:
    batch = images((4, 5, 3), (6, 3, 3), (5, 5, 3))
    ids = batch_of([np.array(v, np.int32) for v in ([1], [2, 0], [])])
    places = batch_of([np.array(v, np.int32).reshape(-1, 2) for v in ([[2, 3]], [[0, 0], [1, 2]], [])])
    op = operator("multi_paste", ("in_ids", "out_anchors"), output_size=[9, 9])
    assert op.per_batch
    out, rejects = apply(op, batch_of(batch, "HWC"), args={"in_ids": ids, "out_anchors": places}, lane=lane)
    assert not rejects
    wanted = np.zeros((3, 9, 9, 3), np.uint8)
    wanted[0, 2:8, 3:6] = batch[1]
    wanted[1, :5, :5] = batch[2]
    wanted[1, 1:5, 2:7] = batch[0]
    for got, want in zip(out[0], wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_multi_paste_writes_nothing_for_a_canvas_that_is_too_large() -> None:
    """Its place is the next sample's: both begin where the first would."""
    images = batch_of([np.full((1, 8, 3), 9, np.uint8), np.full((2, 2, 3), 5, np.uint8)], "HWC")
    sizes = batch_of([np.array(v, np.int32) for v in ([2**31 - 1, 8], [4, 4])])
    (out,), rejects = apply(operator("multi_paste", ("output_size",)), images, args={"output_size": sizes})
    assert [(r.slot, r.code) for r in rejects] == [(0, "too_large")]
    assert out.sample(1).sum() == 5 * 2 * 2 * 3


@LANES
def test_multi_paste_of_sequences(lane: EmulatedLane | None) -> None:
    movie, still = images((2, 4, 4, 3), (2, 3, 3, 3))
    op = operator("multi_paste", output_size=[6, 6])
    out, _ = apply(op, batch_of([movie], "FHWC"), batch_of([still], "FHWC"), lane=lane)
    want = np.zeros((2, 6, 6, 3), np.uint8)
    want[:, :4, :4] = movie
    want[:, :3, :3] = still
    np.testing.assert_array_equal(out[0].sample(0), want)


def test_multi_paste_loses_only_the_sample_whose_parts_do_not_fit() -> None:
    batch = batch_of(images((4, 4, 3), (4, 4, 3), (4, 4, 3), (4, 4, 3), (4, 4, 1)), "HWC")
    args = {
        "in_ids": batch_of([np.array(v, np.int32) for v in ([0], [9], [2], [3], [0, 4])]),
        "out_anchors": batch_of(
            [np.array(v, np.int32) for v in ([[0, 0]], [[0, 0]], [[-1, 0]], [[3, 3]], [[0, 0]] * 2)]
        ),
    }
    out, rejects = apply(operator("multi_paste", ("in_ids", "out_anchors"), output_size=[5, 5]), batch, args=args)
    assert sorted({(r.slot, r.code) for r in rejects}) == [
        (1, "bad_argument"),
        (2, "out_of_bounds"),
        (3, "out_of_bounds"),
        (4, "bad_shape"),
    ]
    np.testing.assert_array_equal(out[0].sample(0)[:4, :4], batch.sample(0))


def test_multi_paste_is_refused_before_anything_runs() -> None:
    with pytest.raises(SpecError, match="exclude each other"):
        operator("multi_paste", out_anchors=[0, 0], out_anchors_rel=[0, 0])
    with pytest.raises(SpecError, match="go with one input"):
        operator("multi_paste", in_ids=[0]).infer(Spec((4, 4, 3), None, "HWC"), Spec((4, 4, 3), None, "HWC"))
    same, other = batch_of(images((4, 4, 3), (5, 4, 3)), "HWC"), batch_of(images((4, 4, 3), (4, 4, 3)), "HWC")
    _, rejects = apply(operator("multi_paste"), same, other)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]


@LANES
def test_grid_mask_finds_rows_and_columns_by_the_layout(lane: EmulatedLane | None) -> None:
    image = images((12, 15, 3))[0] | 1
    op = operator("grid_mask", tile=4, angle=0.3, shift_x=1.5)
    want = apply(op, batch_of([image], "HWC"))[0][0].sample(0)
    assert 0.1 < (want == 0).mean() < 0.5
    planes, _ = apply(op, batch_of([np.ascontiguousarray(image.transpose(2, 0, 1))], "CHW"), lane=lane)
    np.testing.assert_array_equal(planes[0].sample(0).transpose(1, 2, 0), want)
    movie, _ = apply(op, batch_of([np.stack([image, image])], "FHWC"), lane=lane)
    np.testing.assert_array_equal(movie[0].sample(0), np.stack([want, want]))
    with pytest.raises(SpecError, match="HW"):
        op.infer(Spec((4, 4), None, "CD"))


def test_multi_paste_remembers_nothing_that_another_thread_lets_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share an operator: what was there when one looked may be gone when it asks."""

    class Fleeting(dict[Any, Any]):
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            self.clear()
            return found

    op = operator("multi_paste", output_size=[6, 6])
    monkeypatch.setitem(vars(op), "_known", Fleeting())
    batch = batch_of(images((4, 4, 3), (5, 4, 3)), "HWC")
    first, second = (apply(op, batch, batch)[0][0] for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
