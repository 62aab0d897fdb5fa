"""erase against DALI's results (tests/golden/make_regions.py), and where ours differ on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.errors import SpecError
from dali_run.ops.types import from_numpy

from ...kit.emulated_lane import EmulatedLane
from ...kit.golden import apply, batch_of, cases, operator

CASES = list(cases("erase"))


@pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda on the cpu"])
def test_equal_to_dali(lane: EmulatedLane | None) -> None:
    erased = 0
    for case in CASES:
        (layout, want), got = case.wanted[0], case.run(lane)[0]
        np.testing.assert_array_equal(got.sample(0), want, err_msg=str(case))
        assert got.layout == layout
        erased += int((want != case.inputs[0].sample(0)).sum())
        known = case.operator.infer(Spec(want.shape, from_numpy(want.dtype), layout))
        assert known == Spec(want.shape, from_numpy(want.dtype), layout)
    assert len(CASES) > 40
    assert erased > 1000


def test_samples_have_their_boxes_and_their_number_of_them() -> None:
    images = [np.full((6, 7, 3), 9, np.uint8), np.full((5, 8, 3), 9, np.uint8), np.full((4, 4, 3), 9, np.uint8)]
    anchors = batch_of([np.array(a, np.float32) for a in ([1, 2], [0, 0], [3, 3])])
    anchors = batch_of(
        [np.array([1, 2, 4, 5], np.float32), np.array([0, 0, 2, 1], np.float32), np.zeros(4, np.float32)]
    )
    ragged = anchors.replace(shapes=np.array([[2], [4], [0]], np.int32))
    extents = ragged.replace(data=np.full_like(ragged.data, 2))
    out, rejects = apply(
        operator("erase", ("anchor", "shape"), axis_names="HW"),
        batch_of(images, "HWC"),
        args={"anchor": ragged, "shape": extents},
    )
    assert not rejects
    wanted = [image.copy() for image in images]
    wanted[0][1:3, 2:4] = 0
    wanted[1][0:2, 0:2] = wanted[1][2:4, 1:3] = 0
    for got, want in zip(out[0], wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_input_is_left_alone() -> None:
    images = batch_of([np.full((6, 7, 3), 9, np.uint8)], "HWC")
    apply(operator("erase", anchor=[0, 0], shape=[3, 3]), images)
    assert (images.data == 9).all()


def test_fill_values_are_rounded_and_saturate() -> None:
    images = batch_of([np.full((2, 2, 3), 9, np.uint8)], "HWC")
    out, _ = apply(operator("erase", anchor=[0, 0], shape=[1, 1], fill_value=[300.7, -5, 2.5]), images)
    assert out[0].sample(0)[0, 0].tolist() == [255, 0, 3]  # DALI: 44, 251, 2


def test_arguments_that_do_not_go_together_cost_their_sample() -> None:
    images = batch_of([np.full((4, 4, 3), 9, np.uint8)] * 3, "HWC")
    lists = [np.zeros(n, np.float32) for n in (2, 4, 3)]
    args = {"anchor": batch_of([*lists[:1], lists[0], lists[2]]), "shape": batch_of([lists[0], lists[1], lists[2]])}
    _, rejects = apply(operator("erase", ("anchor", "shape"), axis_names="HW"), images, args=args)
    assert sorted((r.slot, r.code) for r in rejects) == [(1, "bad_argument"), (2, "bad_argument")]
    fills = batch_of([np.zeros(n, np.float32) for n in (3, 3, 3)])
    narrow = batch_of([np.full((4, 4, c), 9, np.uint8) for c in (3, 1, 3)], "HWC")
    _, rejects = apply(operator("erase", ("fill_value",), shape=[1, 1]), narrow, args={"fill_value": fills})
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument")]
    fills = batch_of([np.ones(2, np.float32)] * 3)  # there is no third value to be read
    out, rejects = apply(operator("erase", ("fill_value",), shape=[1, 1]), images, args={"fill_value": fills})
    assert len(rejects) == 3
    assert (out[0].data == 9).all()
    far = batch_of([np.array(v, np.float32) for v in ([np.nan, 0], [1e30, 0], [-np.inf, 0])])
    out, rejects = apply(operator("erase", ("anchor",), shape=[1, 1]), images, args={"anchor": far})
    assert not rejects
    assert (out[0].data == 9).all()


def test_refused_before_anything_runs() -> None:
    with pytest.raises(SpecError, match="exclude each other"):
        operator("erase", axes=[0], axis_names="H")
    with pytest.raises(SpecError, match="give it alone"):
        operator("erase", normalized=True, normalized_shape=True)
    with pytest.raises(SpecError, match="needs shape"):
        operator("erase", anchor=[1, 2])
    image = Spec((4, 4, 3), None, "HWC")
    for match, arguments in (
        ("needs 2 numbers", {"shape": [1, 2, 3]}),
        ("not in the layout", {"shape": [1], "axis_names": "D"}),
        ("needs 1 or 3", {"shape": [1, 2], "fill_value": [1, 2]}),
    ):
        with pytest.raises(SpecError, match=match):
            operator("erase", **arguments).infer(image)
    with pytest.raises(SpecError, match="needs axes"):
        operator("erase", shape=[1, 2]).infer(Spec((4, 4), None, ""))
