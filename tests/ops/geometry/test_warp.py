"""rotate and warp_affine against DALI's results (tests/golden/make_warp.py), OpenCV and plain definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch
from dali_run.ops.errors import SpecError
from dali_run.ops.geometry.warp import Rotate, WarpAffine
from dali_run.ops.types import DALIInterpType, from_numpy
from tests.kit.long import LONG

from ...kit.emulated_lane import EmulatedLane
from ...kit.operators import apply, batch_of, operator

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "warp.npz")
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))


def source(seed: int, dtype: str, shape: list[int]) -> np.ndarray:
    low, high = {"uint8": (0, 256)}.get(dtype, (-1000, 1000))
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


@pytest.mark.parametrize("name", ["rotate", "warp_affine"])
def test_results_are_at_most_one_level_from_dali(name: str) -> None:
    at = dict.fromkeys(GOLDEN.files, 0)
    differing = total = 0
    for number, case in enumerate(CASES):
        kind, size = case["out_dtype"], int(np.prod(case["out_shape"]))
        want = GOLDEN[kind][at[kind] : at[kind] + size].reshape(case["out_shape"])
        at[kind] += size
        if case["op"] != name or (not LONG and {case["dtype"], kind} not in ({"uint8"}, {"float32"})):
            continue  # each pair of types is compiled
        op = operator(name, **case["arguments"])
        image = source(number, case["dtype"], case["shape"])
        out, rejects = apply(op, batch_of([image], case["layout"]))
        assert not rejects, case
        got = out.sample(0)
        assert got.shape == want.shape, case
        assert got.dtype == want.dtype, case
        known = op.infer(Spec(image.shape, from_numpy(image.dtype), case["layout"]))
        assert known.dtype == from_numpy(want.dtype)
        assert all(a in (None, b) for a, b in zip(known.shape, want.shape, strict=True)), case
        off = np.abs(got.astype(np.float64) - want)
        if kind == "float32":
            assert off.max() <= 1e-4 * max(1.0, float(np.abs(image).max())), (case, off.max())
        else:
            # A nearest neighbour may be the other one where the place is a tie (multiples of 0.1 make many).
            nearest = case["arguments"].get("interp_type") == "INTERP_NN"
            assert off.max() <= 1 or (nearest and np.count_nonzero(off) <= 0.02 * off.size), (case, off.max())
            differing, total = differing + np.count_nonzero(off), total + off.size
    assert total > 10_000
    assert differing <= 0.01 * total


def test_linear_against_opencv() -> None:
    image = cv2.GaussianBlur(source(1, "uint8", [60, 80, 3]), (0, 0), 2).astype(np.float32)
    matrix = np.array([[0.9, -0.3, 10], [0.2, 1.1, -5]], np.float64)
    out, _ = apply(operator("warp_affine", matrix=matrix.reshape(-1).tolist(), fill_value=0), batch_of([image], "HWC"))
    moved = matrix.copy()  # OpenCV's coordinates are those of pixel centres
    moved[:, 2] += matrix[:, :2] @ [0.5, 0.5] - 0.5
    want = cv2.warpAffine(image, moved, (80, 60), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
    inner = (slice(2, -2), slice(2, -2))
    assert np.abs(out.sample(0) - want)[inner].mean() < 0.1  # OpenCV rounds coordinates to 1/32


def test_quarter_turns_are_exact() -> None:
    images = [source(k, "uint8", shape) for k, shape in enumerate(([4, 6, 3], [5, 5, 1], [7, 2, 3]))]
    for turns in range(4):
        out, _ = apply(operator("rotate", angle=90 * turns), batch_of(images, "HWC"))
        for got, image in zip(out, images, strict=True):
            np.testing.assert_array_equal(got, np.rot90(image, turns))


def test_each_sample_has_its_angle_and_its_canvas() -> None:
    images = [source(k, "uint8", [10 + k, 20 - k, 3]) for k in range(4)]
    angles = batch_of([np.float32(a) for a in (0, 90, 30, np.nan)])
    out, rejects = apply(operator("rotate", ("angle",), fill_value=0), batch_of(images, "HWC"), args={"angle": angles})
    assert [(r.slot, r.code) for r in rejects] == [(3, "bad_argument")]
    np.testing.assert_array_equal(out.sample(0), images[0])
    np.testing.assert_array_equal(out.sample(1), np.rot90(images[1]))
    alone, _ = apply(operator("rotate", angle=30.0, fill_value=0), batch_of(images[2:3], "HWC"))
    np.testing.assert_array_equal(out.sample(2), alone.sample(0))


def test_maps_that_cannot_be_inverted_are_rejected() -> None:
    images = batch_of([source(0, "uint8", [5, 5, 1])] * 2, "HWC")
    matrices = batch_of([np.array([[1, 0, 0], [0, 1, 0]], np.float32), np.array([[1, 2, 0], [2, 4, 0]], np.float32)])
    out, rejects = apply(operator("warp_affine", inverse_map=False), images, matrices)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument")]
    np.testing.assert_array_equal(out.sample(0), images.sample(0))


def test_far_away_is_border_or_fill() -> None:
    images = batch_of([source(0, "uint8", [5, 5, 1])], "HWC")
    for shift in (1e3, 1e20, -1e20, 3.4e38):
        filled, _ = apply(operator("warp_affine", matrix=[1, 0, shift, 0, 1, 0], fill_value=9), images)
        assert (filled.sample(0) == 9).all()
        edge, _ = apply(operator("warp_affine", matrix=[1, 0, shift, 0, 1, 0]), images)
        column = images.sample(0)[:, -1:] if shift > 0 else images.sample(0)[:, :1]
        np.testing.assert_array_equal(edge.sample(0), np.broadcast_to(column, (5, 5, 1)))


def test_refused_before_anything_runs() -> None:
    with pytest.raises(SpecError, match="NN or LINEAR"):
        operator("rotate", angle=1, interp_type="CUBIC")
    with pytest.raises(SpecError, match="6 values"):
        operator("warp_affine", matrix=[1, 0, 0])
    with pytest.raises(SpecError, match="needs a matrix"):
        WarpAffine().infer(Spec((4, 4, 3), None, "HWC"))
    with pytest.raises(SpecError, match="need axis, the axis of rotation"):
        Rotate(angle=1.0).infer(Spec((4, 4, 4, 3), None, "DHWC"))
    with pytest.raises(SpecError, match="depth, height, width"):
        Rotate(angle=1.0, axis=(0, 0, 1), size=(3, 3)).infer(Spec((4, 4, 4, 3), None, "DHWC"))
    with pytest.raises(SpecError, match="3 x 4 values here, got 6"):
        WarpAffine(matrix=(1, 0, 0, 0, 1, 0)).infer(Spec((4, 4, 4, 3), None, "DHWC"))


def test_a_volume_turned_around_z_is_its_slices_turned() -> None:
    volume = source(1, "uint8", [3, 6, 8, 2])
    turned, _ = apply(operator("rotate", angle=-40.0, axis=[0, 0, 2], fill_value=5), batch_of([volume], "DHWC"))
    slices, _ = apply(operator("rotate", angle=40.0, fill_value=5), batch_of([volume], "FHWC"))
    assert turned.shapes.tolist() == slices.shapes.tolist()
    assert np.abs(turned.sample(0).astype(int) - slices.sample(0)).max() <= 1


def test_an_axis_without_direction_is_rejected() -> None:
    volumes = batch_of([source(1, "uint8", [3, 3, 3, 1])] * 2, "DHWC")
    axes = batch_of([np.array([0, 0, 0], np.float32), np.array([0, 0, 1], np.float32)])
    _, rejects = apply(operator("rotate", ("axis",), angle=90.0), volumes, args={"axis": axes})
    assert [(r.slot, r.code) for r in rejects] == [(0, "bad_argument")]


GPU = [
    ("rotate", {"angle": 33.0, "fill_value": 4}, "uint8"),
    ("rotate", {"angle": -120.0}, "float32"),
    ("rotate", {"angle": 45.0, "interp_type": DALIInterpType.INTERP_NN, "fill_value": 4}, "uint8"),
    ("warp_affine", {"matrix": [0.9, -0.3, 4, 0.2, 1.1, -2.5], "size": [9, 7], "dtype": "FLOAT"}, "uint8"),
    ("rotate", {"angle": 33.0, "axis": [1, 2, 3], "fill_value": 4}, "uint8"),
    ("rotate", {"angle": 70.0, "axis": [1, 2, 3], "interp_type": DALIInterpType.INTERP_NN}, "uint8"),
    ("warp_affine", {"matrix": [0.9, -0.3, 0.1, 2, 0.2, 1.1, 0.2, -1.5, 0.1, -0.1, 0.8, 0.6]}, "float32"),
]


def compare(name: str, arguments: dict[str, Any], dtype: str, lane: Any, there: Any, back: Any) -> None:
    volumes = "axis" in arguments or len(arguments.get("matrix", ())) == 12
    depth, layout = ([4], "DHWC") if volumes else ([], "HWC")
    images = batch_of([source(k, dtype, [*depth, 6 + 3 * k, 14 - k, 3]) for k in range(3)], layout)
    op = operator(name, **arguments)
    expected, _ = apply(op, images)
    got, rejects = apply(op, there(images), lane=lane)
    assert not rejects
    assert got.shapes.tolist() == expected.shapes.tolist()
    for want, have in zip(expected, back(got), strict=True):
        off = np.abs(want.astype(np.float64) - have)
        assert np.count_nonzero(off > (0.1 if want.dtype == np.float32 else 0)) <= 0.01 * off.size


@pytest.mark.parametrize(("name", "arguments", "dtype"), GPU)
def test_cuda_run_on_the_cpu(name: str, arguments: dict[str, Any], dtype: str) -> None:
    compare(name, arguments, dtype, EmulatedLane(), lambda b: b, lambda b: b)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "arguments", "dtype"), GPU)
def test_gpu(name: str, arguments: dict[str, Any], dtype: str) -> None:
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:

        def back(batch: Batch) -> Batch:
            host = lane.to_host(batch)
            lane.synchronize()
            return host

        compare(name, arguments, dtype, lane, lane.to_device, back)
