"""reductions.* against DALI's results (tests/golden/make_reductions.py) and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType, from_numpy
from tests.kit.long import LONG

from ...kit.emulated_lane import EmulatedLane
from ...kit.golden import apply, batch_of, cases, operator

LANES = pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda on the cpu"])
OVERFLOWED = ("UINT64",)
"""Means of squares that DALI cuts off."""


@LANES
def test_equal_to_dali(lane: EmulatedLane | None) -> None:
    count = 0
    for case in cases("reductions"):
        if lane is not None and case.number % (4 if LONG else 23):
            continue  # each type is compiled
        (layout, want), got = case.wanted[0], case.run(lane)[0]
        assert (got.sample(0).shape, got.dtype) == (want.shape, want.dtype), str(case)
        assert got.layout == layout or "*" in layout, str(case)
        if case.arguments.get("dtype") in OVERFLOWED and "square" in case.op:
            assert got.sample(0) - want in (0, 1)
        elif want.dtype.kind == "f":
            scale = np.abs(case.inputs[0].data.astype(float)).max() ** (
                2 if "var" in case.op or "square" in case.op else 1
            )
            np.testing.assert_allclose(got.sample(0), want, rtol=2e-5, atol=1e-6 * scale, err_msg=str(case))
        else:
            np.testing.assert_array_equal(got.sample(0), want, err_msg=str(case))
        inputs = [Spec(tuple(b.shapes[0].tolist()), from_numpy(b.dtype), b.layout) for b in case.inputs]
        assert case.operator.infer(*inputs) == Spec(want.shape, from_numpy(want.dtype), got.layout), str(case)
        count += 1
    assert count > (200 if lane is None else 50 if LONG else 8)


NUMPY: dict[str, Any] = {
    "sum": lambda a, axes: a.astype(np.float64).sum(axes), "mean": lambda a, axes: a.mean(axes, dtype=np.float64),
    "mean_square": lambda a, axes: (a.astype(np.float64) ** 2).mean(axes),
    "rms": lambda a, axes: np.sqrt((a.astype(np.float64) ** 2).mean(axes)), "min": np.min, "max": np.max,
}  # fmt: skip


@LANES
@pytest.mark.parametrize("name", sorted(NUMPY))
def test_ragged_batches_against_numpy(name: str, lane: EmulatedLane | None) -> None:
    arrays = [np.random.default_rng(k).normal(size=(3 + k, 70 - k, 4)).astype(np.float32) for k in range(3)]
    for axes in ((0, 1), (1,), (2,), (0, 2), ()):
        out, rejects = apply(operator(f"reductions.{name}", axes=list(axes)), batch_of(arrays), lane=lane)
        assert not rejects
        for got, a in zip(out[0], arrays, strict=True):
            np.testing.assert_allclose(got, NUMPY[name](a, axes), rtol=1e-5, atol=1e-5)


@LANES
@pytest.mark.parametrize(
    ("dtype", "shapes", "axis"),
    [
        ("uint8", [(1, 3), (7, 3), (66, 3)], 1),
        ("int8", [(9, 2), (5, 2)], 1),
        ("float32", [(6, 4), (3, 4)], 1),
        ("uint8", [(8, 21), (1, 9), (60, 4)], 0),
        ("uint8", [(8, 24), (5, 1024)], 0),
        ("float32", [(5, 12), (2, 7)], 0),
        ("int16", [(5, 12), (3, 4)], 0),
    ],
)
def test_a_few_or_layers_of_elements(dtype: str, shapes: list[tuple[int, int]], axis: int, lane: Any) -> None:
    """Four results of a kernel's thread, aligned and not, and fewer at the end."""
    random = np.random.default_rng(axis)
    arrays = [random.integers(0, 256, shape).astype(np.uint8).view("int8").astype(dtype) for shape in shapes]
    if dtype == "uint8":
        arrays[0][...] = 255
    for name, function in NUMPY.items():
        out, rejects = apply(operator(f"reductions.{name}", axes=[axis]), batch_of(arrays), lane=lane)
        assert not rejects
        for got, a in zip(out[0], arrays, strict=True):
            want = function(a, axis)
            if got.dtype.kind == "f":
                np.testing.assert_allclose(got, want, rtol=1e-6)
            else:
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("period", [1, 3, 5, 7, 16, 17])
def test_every_value_counts_once(dtype: str, period: int) -> None:
    """However many partial results lie side by side, and wherever blocks of them end; the last at the batch's end."""
    random = np.random.default_rng(period)
    arrays = [random.integers(0, 200, (n, period)).astype(dtype) for n in (1, 42, 43, 127, 128, 129, 161, 1000)]
    for name, function in NUMPY.items():
        out, _ = apply(operator(f"reductions.{name}", axes=[0]), batch_of(arrays))
        rows, _ = apply(operator(f"reductions.{name}", axes=[1]), batch_of([a.T.copy() for a in arrays]))
        for got, other, a in zip(out[0], rows[0], arrays, strict=True):
            np.testing.assert_allclose(got, function(a, 0), rtol=1e-6)
            np.testing.assert_array_equal(other, got)


def test_squares_of_many_bytes_do_not_overflow() -> None:
    values = np.full(40_000 * 32 + 5, 255, np.uint8)
    for name, want in (("mean_square", 255 * 255), ("sum", 255 * len(values)), ("rms", 255)):
        out, _ = apply(operator(f"reductions.{name}"), batch_of([values]))
        assert out[0].data.tolist() == [want]


def test_roots_on_a_gpu_are_rounded_once() -> None:
    """Of a few bytes, by half the digits and a correction (cuda/reductions.cu)."""
    values = np.random.default_rng(6).integers(0, 256, (5000, 3)).astype(np.uint8)
    values[:2] = [[0, 0, 0], [1, 0, 0]]
    out, _ = apply(operator("reductions.rms", axes=[1]), batch_of([values]), lane=EmulatedLane())
    want = np.sqrt((values.astype(np.float64) ** 2).sum(axis=1) * (1 / 3)).astype(np.float32)
    np.testing.assert_array_equal(out[0].sample(0), want)


@LANES
def test_large_integers_are_exact(lane: EmulatedLane | None) -> None:
    values = np.array([2**62, 2**61 + 1, -3, 7], np.int64)
    for name, want in (("sum", values.sum()), ("min", values.min()), ("max", values.max())):
        out, _ = apply(operator(f"reductions.{name}"), batch_of([values]), lane=lane)
        assert out[0].data.tolist() == [want]
    small = np.full(300, 250, np.uint8)
    for name, want in (("sum", 255), ("mean", 250), ("rms", 250)):
        out, _ = apply(operator(f"reductions.{name}", dtype="UINT8"), batch_of([small]), lane=lane)
        assert out[0].data.tolist() == [want]  # DALI adds up in uint8


@LANES
@pytest.mark.parametrize("shape", [(98, 1), (98, 5), (49, 300)])
def test_means_between_two_integers_are_rounded_as_such(shape: tuple[int, int], lane: EmulatedLane | None) -> None:
    """Times the inverse of 98, 49 is less than a half."""
    values = np.zeros(shape, np.uint8)
    values[:49] = np.arange(shape[1]) % 2 * 2 + 1
    out, _ = apply(operator("reductions.mean", axes=[0], dtype="UINT8"), batch_of([values]), lane=lane)
    exact = values.sum(0, dtype=np.int64) * 2 + shape[0]
    np.testing.assert_array_equal(out[0].data, exact // (2 * shape[0]))


@LANES
def test_extremes_of_floats_show_what_is_no_number(lane: EmulatedLane | None) -> None:
    for place in (0, 40, 99):
        values = np.arange(100, dtype=np.float32)
        values[place] = np.nan
        for name in ("min", "max"):
            out, _ = apply(operator(f"reductions.{name}"), batch_of([values]), lane=lane)
            assert np.isnan(out[0].data).all(), (name, place)


@LANES
def test_nothing_has_no_extremes(lane: EmulatedLane | None) -> None:
    arrays = batch_of([np.zeros((0, 3), np.float32), np.ones((2, 3), np.float32)])
    out, rejects = apply(operator("reductions.max", axes=[0]), arrays, lane=lane)
    assert [(r.slot, r.code) for r in rejects] == [(0, "bad_shape")]
    assert out[0].sample(1).tolist() == [1, 1, 1]
    for name in ("sum", "mean", "rms"):
        out, rejects = apply(operator(f"reductions.{name}", axes=[0]), arrays, lane=lane)
        assert not rejects
        assert out[0].sample(0).tolist() == [0, 0, 0]


def test_each_sample_has_its_mean() -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((1, 3), np.float32), np.ones((4, 3), np.float32)]
    means = batch_of([np.float32([1, 2, 3]), np.float32([0, 1, 2]), np.float32([0, 0, 5])])
    narrow = means.replace(shapes=np.array([[3], [1], [2]], np.int32))
    out, rejects = apply(operator("reductions.variance", axes=[0]), batch_of(arrays), narrow)
    assert [(r.slot, r.code) for r in rejects] == [(2, "bad_argument")]
    np.testing.assert_allclose(out[0].sample(0), ((arrays[0] - [1, 2, 3]) ** 2).mean(0))
    assert out[0].sample(1).tolist() == [1, 1, 1]


def test_refused_before_anything_runs() -> None:
    with pytest.raises(SpecError, match="exclude each other"):
        operator("reductions.sum", axes=[0], axis_names="H")
    with pytest.raises(SpecError, match="not in the layout"):
        operator("reductions.sum", axis_names="D").infer(Spec((2, 3), DALIDataType.UINT8, "HW"))
    with pytest.raises(SpecError):
        operator("reductions.sum", axes=[2]).infer(Spec((2, 3), DALIDataType.UINT8, "HW"))
