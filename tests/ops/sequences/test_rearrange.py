"""sequence_rearrange, element_extract, per_frame against DALI's results (tests/golden/make_sequences.py), and
arguments that are given for each frame."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.errors import SpecError
from dali_run.ops.types import from_numpy

from ...kit.emulated_lane import EmulatedLane
from ...kit.golden import apply, batch_of, cases, operator

LANES = pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda on the cpu"])


@LANES
def test_equal_to_dali(lane: EmulatedLane | None) -> None:
    count = 0
    for case in cases("sequences"):
        spec = Spec(tuple(case.inputs[0].shapes[0].tolist()), from_numpy(case.inputs[0].dtype), case.inputs[0].layout)
        inferred = case.operator.infer(spec)
        specs = inferred if isinstance(inferred, tuple) else (inferred,)
        for got, (layout, want), known in zip(case.run(lane), case.wanted, specs, strict=True):
            np.testing.assert_array_equal(got.sample(0), want, err_msg=str(case))
            assert got.layout == layout, str(case)
            assert known.layout == layout
            assert all(a in (None, b) for a, b in zip(known.shape, want.shape, strict=True)), str(case)
            count += 1
    assert count >= 13


def movies(*frames: int) -> list[np.ndarray]:
    return [np.random.default_rng(k).integers(0, 256, (n, 3, 4 + k)).astype(np.uint8) for k, n in enumerate(frames)]


@LANES
def test_each_sequence_has_its_order(lane: EmulatedLane | None) -> None:
    sequences = movies(5, 3, 4, 2)
    orders = [np.array(o, np.int32) for o in ([4, 0, 4], [2], [0, 9], [])]
    out, rejects = apply(operator("sequence_rearrange", ("new_order",)), batch_of(sequences, "FHW"),
                         args={"new_order": batch_of(orders)}, lane=lane)  # fmt: skip
    assert [(r.slot, r.code) for r in rejects] == [(2, "bad_argument"), (3, "bad_argument")]
    for k in range(2):
        np.testing.assert_array_equal(out[0].sample(k), sequences[k][orders[k]])


def test_short_sequences_cost_themselves() -> None:
    sequences = movies(5, 3)
    out, rejects = apply(operator("element_extract", element_map=[0, 4]), batch_of(sequences, "FHW"))
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
    np.testing.assert_array_equal(out[1].sample(0), sequences[0][4])
    assert np.shares_memory(out[1].data, out[0].data)


def test_refused_before_anything_runs() -> None:
    for match, name, arguments, spec in (
        ("begins with F", "sequence_rearrange", {"new_order": [0]}, Spec((4, 4), None, "HW")),
        ("has 4", "sequence_rearrange", {"new_order": [4]}, Spec((4, 4), None, "FH")),
        ("two dimensions", "element_extract", {"element_map": [0]}, Spec((4,), None, "F")),
        ("has 4", "element_extract", {"element_map": [0, 4]}, Spec((4, 4), None, "")),
        ("does not begin with F", "per_frame", {}, Spec((4, 4), None, "WH")),
        ("not a sequence", "per_frame", {}, Spec((), None, "")),
    ):
        with pytest.raises(SpecError, match=match):
            operator(name, **arguments).infer(spec)
    for name, argument in (("sequence_rearrange", "new_order"), ("element_extract", "element_map")):
        with pytest.raises(SpecError, match="empty"):
            operator(name, **{argument: []})


def test_arguments_for_each_frame() -> None:
    points = [np.arange(12, dtype=np.float32).reshape(2, 3, 2), np.arange(6, dtype=np.float32).reshape(1, 3, 2)]
    shifts = [np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6]], np.float32)]
    op = operator("coord_transform", ("T",))
    out, rejects = apply(op, batch_of(points, "F**"), args={"T": batch_of(shifts, "F*")})
    assert not rejects
    for got, p, t in zip(out[0], points, shifts, strict=True):
        np.testing.assert_array_equal(got, p + t[:, None])
    assert out[0].layout == "F**"
    wrong = batch_of([shifts[0], shifts[0]], "F*")
    out, rejects = apply(op, batch_of(points, "F**"), args={"T": wrong})
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument")]
    np.testing.assert_array_equal(out[0].sample(0), points[0] + shifts[0][:, None])
    none = batch_of([np.zeros((0, 3, 2), np.float32)], "F**")
    _, rejects = apply(op, none, args={"T": batch_of([np.zeros((0, 2), np.float32)], "F*")})
    assert [r.code for r in rejects] == ["bad_shape"]


def test_each_frame_is_warped_by_its_own_arguments() -> None:
    movie = np.random.default_rng(1).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)
    angles = np.array([0, 90, 180], np.float32)
    out, rejects = apply(
        operator("rotate", ("angle",)), batch_of([movie], "FHWC"), args={"angle": batch_of([angles], "F")}
    )
    assert not rejects
    assert out[0].layout == "FHWC"
    for k, frame in enumerate(movie):
        np.testing.assert_array_equal(out[0].sample(0)[k], np.rot90(frame, k))
    maps = np.array([[[1, 0, 0], [0, 1, 0]], [[-1, 0, 8], [0, 1, 0]], [[1, 0, 0], [0, -1, 8]]], np.float32)
    for lane in (None, EmulatedLane()):
        out, _ = apply(operator("warp_affine"), batch_of([movie], "FHWC"), batch_of([maps], "F**"), lane=lane)
        wanted = [movie[0], movie[1][:, ::-1], movie[2][::-1]]
        np.testing.assert_array_equal(out[0].sample(0), np.stack(wanted))
    angles = np.array([0, 90, 45], np.float32)
    wide = batch_of([movie[:, :, :6] | 1], "FHWC")
    op = operator("rotate", ("angle",), fill_value=0)
    out, rejects = apply(op, wide, args={"angle": batch_of([angles], "F")})
    assert not rejects
    assert out[0].shapes.tolist() == [[3, 10, 10, 3]]  # DALI's: the largest of the frames' canvases
    np.testing.assert_array_equal(out[0].sample(0)[1, 2:8, 1:9], np.rot90(wide.sample(0)[1]))


def test_frames_that_come_out_of_different_sizes_cost_their_sequence() -> None:
    movies_ = [np.zeros((2, 4, 4, 3), np.uint8)] * 2
    sizes = [np.array(s, np.float32) for s in ([[3, 4], [3, 4]], [[3, 4], [5, 4]])]
    out, rejects = apply(
        operator("rotate", ("size",), angle=0), batch_of(movies_, "FHWC"), args={"size": batch_of(sizes, "F*")}
    )
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
    assert out[0].shapes[0].tolist() == [2, 3, 4, 3]
