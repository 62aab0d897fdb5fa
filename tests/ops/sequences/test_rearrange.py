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
        ("no sequence", "per_frame", {}, Spec((), None, "")),
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
