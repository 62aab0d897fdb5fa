"""coord_flip and coord_transform against DALI's results (tests/golden/make_geometry.py)."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.errors import SampleError, SpecError
from dali_run.ops.types import DALIDataType, from_numpy

from ...kit.emulated_lane import EmulatedLane
from ...kit.golden import apply, batch_of, cases, operator

LANES = pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda on the cpu"])


@LANES
def test_equal_to_dali(lane: EmulatedLane | None) -> None:
    count = 0
    for case in cases("coordinates"):
        (layout, want), got = case.wanted[0], case.run(lane)[0]
        assert (got.sample(0).shape, got.dtype, got.layout) == (want.shape, want.dtype, layout), str(case)
        scale = np.abs(want.astype(float)).max()
        tolerance = 2e-6 * scale if want.dtype.kind == "f" else 0
        np.testing.assert_allclose(got.sample(0), want, rtol=0, atol=tolerance, err_msg=str(case))
        spec = Spec(tuple(case.inputs[0].shapes[0].tolist()), from_numpy(case.inputs[0].dtype), case.inputs[0].layout)
        known = case.operator.infer(spec)
        assert known.dtype == from_numpy(want.dtype)
        assert all(a in (None, b) for a, b in zip(known.shape, want.shape, strict=True)), str(case)
        count += 1
    assert count > 40


@LANES
def test_each_sample_has_its_points_and_its_map(lane: EmulatedLane | None) -> None:
    points = [np.arange(2 * k, dtype=np.float32).reshape(k, 2) for k in (3, 0, 5)]
    matrices = batch_of([np.array([[k, 0, 1], [0, 1, -k]], np.float32) for k in range(3)])
    out, rejects = apply(operator("coord_transform", ("MT",)), batch_of(points), args={"MT": matrices}, lane=lane)
    assert not rejects
    for k, (got, p) in enumerate(zip(out[0], points, strict=True)):
        np.testing.assert_allclose(got, p * [k, 1] + [1, -k])
    flips = batch_of([np.int32(v) for v in (0, 1, 1)])
    out, _ = apply(
        operator("coord_flip", ("flip_x",), center_x=1.0), batch_of(points), args={"flip_x": flips}, lane=lane
    )
    np.testing.assert_array_equal(out[0].sample(0), points[0])
    np.testing.assert_array_equal(out[0].sample(2), points[2] * [-1, 1] + [2, 0])


@LANES
@pytest.mark.parametrize("dtype", [np.int32, np.float64])
@pytest.mark.parametrize("name", ["coord_flip", "coord_transform"])
def test_points_of_another_type_are_refused_or_computed(name: str, dtype: type, lane: EmulatedLane | None) -> None:
    """Of an input whose type is known only when it is there: coord_flip takes float32 alone."""
    points = [np.array([[1, 2], [3, 4]], dtype), np.array([[0.5, 1]]).astype(dtype)]
    flipped = operator(name) if name == "coord_flip" else operator(name, M=2.0)
    if name == "coord_flip":
        with pytest.raises(SampleError, match=f"takes points of float32, got {np.dtype(dtype)}, 2-D; cast them first"):
            apply(flipped, batch_of(points), lane=lane)
        return
    (out,), rejects = apply(flipped, batch_of(points), lane=lane)
    assert not rejects
    for got, p in zip(out, points, strict=True):
        np.testing.assert_array_equal(got, 2 * p)


def test_refused_before_anything_runs() -> None:
    pair, whole = Spec((4, 2), DALIDataType.FLOAT), Spec((4, 2), DALIDataType.INT32)
    for match, name, arguments, spec in (
        ("of FLOAT", "coord_flip", {}, whole),
        ("2 coordinates", "coord_flip", {"layout": "xyz"}, pair),
        ("3 numbers a row", "coord_transform", {"MT": [1, 2, 3, 4]}, pair),
        ("2 numbers a row", "coord_transform", {"M": [1, 2, 3]}, pair),
    ):
        with pytest.raises(SpecError, match=match):
            operator(name, **arguments).infer(spec)
    with pytest.raises(SpecError, match="letters"):
        operator("coord_flip", layout="ab")
    with pytest.raises(SpecError, match="give it alone"):
        operator("coord_transform", M=[1], MT=[1])
