"""tensor_resize against DALI's results (tests/golden/make_tensor_resize.py)."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.errors import SampleError, SpecError
from dali_run.ops.types import DALIDataType, from_numpy

from ...kit.emulated_lane import EmulatedLane
from ...kit.golden import apply, batch_of, cases, operator
from ...kit.ops.neighbours import Case, outcome

LANES = pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda on the cpu"])


@LANES
def test_at_most_one_level_from_dali(lane: EmulatedLane | None) -> None:
    count = differing = total = 0
    for case in cases("tensor_resize"):
        (layout, want), got = case.wanted[0], case.run(lane)[0]
        assert (got.sample(0).shape, got.dtype, got.layout) == (want.shape, want.dtype, layout), str(case)
        off = np.abs(got.sample(0).astype(np.float64) - want)
        if want.dtype == np.float32:
            assert off.max() <= 2e-4 * np.abs(want).max(), (str(case), off.max())
        else:
            # A nearest neighbour may be the other one of a tie.
            assert off.max() <= 1 or (case.arguments.get("interp_type") == "INTERP_NN" and (off > 1).mean() < 0.02), (
                str(case),
                off.max(),
            )
            differing, total = differing + np.count_nonzero(off), total + off.size
        spec = Spec(tuple(case.inputs[0].shapes[0].tolist()), from_numpy(case.inputs[0].dtype), case.inputs[0].layout)
        known = case.operator.infer(spec)
        assert known.dtype == from_numpy(want.dtype)
        assert all(a in (None, b) for a, b in zip(known.shape, want.shape, strict=True)), str(case)
        count += 1
    assert count > 60
    assert differing < 0.01 * total


def test_images_are_those_of_resize() -> None:
    images = batch_of(
        [np.random.default_rng(k).integers(0, 256, (20 + k, 31 - k, 3)).astype(np.uint8) for k in range(3)], "HWC"
    )
    want = apply(operator("resize", size=[9, 14]), images)[0][0]
    got = apply(operator("tensor_resize", sizes=[14, 9], axis_names="WH"), images)[0][0]
    np.testing.assert_array_equal(got.data, want.data)
    for kept in ([0, 14], [9, 0]):  # DALI's tensor_resize takes the square root of the scale that is given
        want = apply(operator("resize", size=kept), images)[0][0]
        got = apply(operator("tensor_resize", sizes=kept, axis_names="HW"), images)[0][0]
        np.testing.assert_array_equal(got.data, want.data)
    for mode in ("not_larger", "not_smaller"):  # DALI's changes the channels, too
        want = apply(operator("resize", size=[9, 14], mode=mode), images)[0][0]
        got = apply(operator("tensor_resize", sizes=[9, 14], axis_names="HW", mode=mode), images)[0][0]
        np.testing.assert_array_equal(got.data, want.data)
    want = apply(operator("resize", size=[9, 14]), images)[0][0]
    again = apply(operator("experimental.resize", size=[9, 14]), images)[0][0]
    np.testing.assert_array_equal(again.data, want.data)


def test_what_has_no_size_costs_its_sample() -> None:
    images = batch_of([np.zeros((8, 8, 3), np.uint8)] * 3, "HWC")
    sizes = batch_of([np.float32(v) for v in ([4, 4], [np.nan, 4], [4, 1e30])])
    out, rejects = apply(operator("tensor_resize", ("sizes",), axis_names="HW"), images, args={"sizes": sizes})
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument"), (2, "bad_argument")]
    assert out[0].shapes[0].tolist() == [4, 4, 3]


@LANES
def test_axes_that_keep_their_length_do_not_count(lane: EmulatedLane | None) -> None:
    """Each sample may change other axes."""
    x = np.arange(288, dtype=np.float32).reshape(2, 6, 8, 3)
    every = [[1, 0.5, 0.5, 1], [2, 1, 0.5, 1], [1, 0.5, 1, 2], [1, 1, 1, 1]]
    wanted = []
    for scales in every:
        axes = [k for k in range(4) if scales[k] != 1] or [0]
        op = operator("tensor_resize", scales=[scales[k] for k in axes], axes=axes)
        wanted.append(apply(op, batch_of([x]), lane=lane)[0][0].sample(0))
        got = apply(operator("tensor_resize", scales=scales), batch_of([x]), lane=lane)[0][0].sample(0)
        np.testing.assert_array_equal(got, wanted[-1])
    case = Case(
        operator("tensor_resize", ("scales",)),
        (x,),
        (x,),
        "",
        {"scales": (np.float32(every[0]), np.float32(every[1]))},
        "",
    )
    found = outcome(case, 1, range(3))
    alone = apply(operator("tensor_resize", scales=every[1]), batch_of([x]))[0][0].sample(0)
    np.testing.assert_array_equal(found[1][0][2], alone)
    with pytest.raises(SampleError, match="three neighbouring"):
        apply(operator("tensor_resize", scales=[2, 1, 1, 2]), batch_of([x]), lane=lane)


def test_refused_before_anything_runs() -> None:
    for match, arguments in (
        ("sizes or scales", {}),
        ("sizes or scales", {"sizes": [1], "scales": [1]}),
        ("exclude each other", {"sizes": [1], "axes": [0], "axis_names": "H"}),
        ("go together", {"sizes": [1], "roi_start": [0]}),
        ("twice", {"sizes": [1, 1], "axes": [0, 0]}),
    ):
        with pytest.raises(SpecError, match=match):
            operator("tensor_resize", **arguments)
    image = Spec((2, 4, 4, 3), DALIDataType.UINT8, "FHWC")
    for match, arguments in (
        ("three neighbouring", {"sizes": [1, 1, 1, 1]}),
        ("three neighbouring", {"sizes": [4, 4], "axes": [0, 3]}),
        ("needs 2 numbers", {"sizes": [1, 2, 3], "axis_names": "HW"}),
        ("not in the layout", {"sizes": [1], "axis_names": "D"}),
    ):
        with pytest.raises(SpecError, match=match):
            operator("tensor_resize", **arguments).infer(image)
    with pytest.raises(SpecError, match="cannot resample"):
        operator("tensor_resize", sizes=[1, 1], axis_names="HW").infer(Spec((4, 4, 3), DALIDataType.INT64, "HWC"))
