"""warp_perspective, water and sphere against DALI's results (tests/golden/make_geometry.py), remap against OpenCV."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType, from_numpy

from ...kit.emulated_lane import EmulatedLane
from ...kit.golden import Case, apply, batch_of, cases, operator

LANES = pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda on the cpu"])


def compare(case: Case, lane: EmulatedLane | None) -> tuple[int, int]:
    """How many elements differ from DALI's (by one level), of how many."""
    (layout, want), got = case.wanted[0], case.run(lane)[0]
    assert (got.sample(0).shape, got.dtype) == (want.shape, want.dtype), str(case)
    assert got.layout == layout or layout == "", str(case)
    spec = [Spec(tuple(b.shapes[0].tolist()), from_numpy(b.dtype), b.layout) for b in case.inputs]
    known = case.operator.infer(*spec)
    assert known.dtype == from_numpy(want.dtype)
    assert all(a in (None, b) for a, b in zip(known.shape, want.shape, strict=True)), str(case)
    off = np.abs(got.sample(0).astype(np.float64) - want)
    if want.dtype == np.float32:
        assert off.max() <= 1e-4 * np.abs(case.inputs[0].data).max() * 4, (str(case), off.max())
        return 0, 0
    if case.arguments.get("interp_type") == "INTERP_NN":
        assert np.count_nonzero(off) <= 0.005 * off.size, (str(case), np.count_nonzero(off))
    elif want.dtype in (np.int16, np.uint16) or (layout == "HWC" and want.shape[-1] == 2):
        # OpenCV, and so DALI, rounds coordinates to 1/32 for these.
        spread = float(np.ptp(case.inputs[0].data))
        assert off.max() <= spread / 24, (str(case), off.max())
        assert off.mean() <= spread / 100
        return 0, 0
    else:
        assert off.max() <= 1, (str(case), off.max())
    return np.count_nonzero(off), off.size


@LANES
@pytest.mark.parametrize(("name", "least"), [("perspective", 50), ("displacement", 30)])
def test_at_most_one_level_from_dali(name: str, least: int, lane: EmulatedLane | None) -> None:
    found = [compare(case, lane) for case in cases(name)]
    differing, total = np.sum(found, axis=0)
    assert len(found) >= least
    assert differing <= 0.01 * total


def images(*shapes: tuple[int, ...], dtype: str = "uint8") -> list[np.ndarray]:
    made = [np.random.default_rng(k).integers(0, 256, s) for k, s in enumerate(shapes)]
    return [cv2.GaussianBlur(m.astype(np.float32), (0, 0), 1.5).reshape(m.shape).astype(dtype) for m in made]


BIG = [(60, 80, 3), (51, 33, 3), (7, 5, 3), (1, 9, 3), (40, 41, 3)]


@LANES
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(("interp", "flag"), [("NN", cv2.INTER_NEAREST), ("LINEAR", cv2.INTER_LINEAR)])
def test_perspective_of_ragged_batches_against_opencv(
    interp: str, flag: int, dtype: str, lane: EmulatedLane | None
) -> None:
    pictures = images(*BIG, dtype=dtype)
    matrix = np.array([[1.1, 0.2, -3.3], [-0.15, 0.9, 4.1], [1e-3, -7e-4, 1.0]])
    op = operator(
        "experimental.warp_perspective", matrix=matrix.reshape(-1).tolist(), pixel_origin="center", interp_type=interp
    )
    out, rejects = apply(op, batch_of(pictures, "HWC"), lane=lane)
    assert not rejects
    for got, picture in zip(out[0], pictures, strict=True):
        height, width = picture.shape[:2]
        want = cv2.warpPerspective(picture, matrix, (width, height), flags=flag | cv2.WARP_INVERSE_MAP).reshape(
            got.shape
        )
        off = np.abs(got.astype(float) - want)
        assert np.count_nonzero(off > (0.1 if dtype == "float32" else 1)) <= 0.01 * off.size
        assert off.mean() < 0.1 if interp == "LINEAR" else np.count_nonzero(off) <= 0.01 * off.size


def maps(height: int, width: int, rows: int, columns: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    mapx, mapy = random.uniform(-3, columns + 3, (height, width)), random.uniform(-3, rows + 3, (height, width))
    return mapx.astype(np.float32), mapy.astype(np.float32)


@LANES
@pytest.mark.parametrize(
    ("interp", "flag"), [("NN", cv2.INTER_NEAREST), ("LINEAR", cv2.INTER_LINEAR), ("CUBIC", cv2.INTER_CUBIC)]
)
@pytest.mark.parametrize("origin", ["corner", "center"])
def test_remap_against_opencv(origin: str, interp: str, flag: int, lane: EmulatedLane | None) -> None:
    pictures = images(*BIG, dtype="float32")
    pairs = [maps(20 + k, 30 - k, *p.shape[:2], k) for k, p in enumerate(pictures)]
    op = operator("experimental.remap", interp=interp, pixel_origin=origin)
    xs, ys = (batch_of([pair[d] for pair in pairs], "HW") for d in range(2))
    out, rejects = apply(op, batch_of(pictures, "HWC"), xs, ys, lane=lane)
    assert not rejects
    shift = 0.5 if origin == "corner" else 0
    for got, picture, (mapx, mapy) in zip(out[0], pictures, pairs, strict=True):
        want = cv2.remap(picture, mapx - np.float32(shift), mapy - np.float32(shift), flag)
        off = np.abs(got - want.reshape(got.shape))
        # OpenCV may round coordinates to 1/32, and one nearest pixel of a tie is as near as the other.
        assert np.quantile(off, 0.98) < (0.01 if interp == "NN" else 6), np.quantile(off, 0.98)
        assert off.mean() < 1.5


def test_remap_takes_maps_for_each_frame_or_for_all() -> None:
    movie = np.stack(images((12, 14, 3), (12, 14, 3)))
    mapx, mapy = np.meshgrid(np.arange(14, dtype=np.float32), np.arange(12, dtype=np.float32))
    op = operator("experimental.remap", pixel_origin="center")
    mirrored, still = np.stack([mapx, 13 - mapx]), np.stack([mapy, mapy])
    out, _ = apply(op, batch_of([movie], "FHWC"), batch_of([mirrored], "FHW"), batch_of([still], "FHW"))
    np.testing.assert_array_equal(out[0].sample(0), np.stack([movie[0], movie[1][:, ::-1]]))
    out, _ = apply(op, batch_of([movie], "FHWC"), batch_of([13 - mapx], "HW"), batch_of([mapy], "HW"))
    np.testing.assert_array_equal(out[0].sample(0), movie[:, :, ::-1])
    assert out[0].layout == "FHWC"


@LANES
def test_masked_images_stay_as_they_are(lane: EmulatedLane | None) -> None:
    pictures = images(*BIG)
    masks = batch_of([np.int32(k % 2) for k in range(len(pictures))])
    for name in ("water", "sphere"):
        for interp in ("NN", "LINEAR"):
            op = operator(name, ("mask",), interp_type=interp)
            out, _ = apply(op, batch_of(pictures, "HWC"), args={"mask": masks}, lane=lane)
            whole, _ = apply(operator(name, interp_type=interp), batch_of(pictures, "HWC"), lane=lane)
            for k, picture in enumerate(pictures):
                np.testing.assert_array_equal(out[0].sample(k), whole[0].sample(k) if k % 2 else picture)
            out, _ = apply(operator(name, mask=0), batch_of(pictures, "HWC"), lane=lane)
            np.testing.assert_array_equal(out[0].sample(0), pictures[0])


@LANES
def test_no_byte_beside_the_output_is_written(lane: EmulatedLane | None) -> None:
    pictures = images((9, 11, 3), (9, 11, 3), (8, 4, 3))
    whole = batch_of(pictures, "HWC")
    matrix = [1.01, 0.02, 0.3, -0.01, 0.99, 0.2, 0, 0, 1]
    op = operator("experimental.warp_perspective", matrix=matrix)
    together = apply(op, whole, lane=lane)[0][0]
    for k, picture in enumerate(pictures):  # a fast path reads and writes four bytes a pixel
        np.testing.assert_array_equal(
            together.sample(k), apply(op, batch_of([picture], "HWC"), lane=lane)[0][0].sample(0)
        )


@pytest.mark.parametrize("border", ["constant", "replicate", "reflect", "reflect_101", "wrap"])
@pytest.mark.parametrize("size", [(28, 28), (70, 45), (1, 1), (3, 700)])
def test_one_channel_is_sampled_as_each_of_several(size: tuple[int, int], border: str) -> None:
    """Rows of small images are computed together, and single channels by a loop of their own."""
    colours = np.random.default_rng(2).random((*size, 3)).astype(np.float32)
    matrix = [0.9, 0.3, -2.5, -0.2, 1.1, 1.5, 0, 0, 1]
    op = operator("experimental.warp_perspective", matrix=matrix, border_mode=border, fill_value=0.3)
    several = apply(op, batch_of([colours], "HWC"))[0][0].sample(0)
    for c in range(3):
        one = apply(op, batch_of([np.ascontiguousarray(colours[:, :, c : c + 1])], "HWC"))[0][0].sample(0)
        np.testing.assert_array_equal(one[:, :, 0], several[:, :, c])
    rows = apply(operator("rotate", angle=180.0, keep_size=True), batch_of([colours], "HWC"))[0][0].sample(0)
    np.testing.assert_allclose(rows, colours[::-1, ::-1], atol=1e-3)


@LANES
def test_what_cannot_be_sampled_costs_its_sample(lane: EmulatedLane | None) -> None:
    pictures = batch_of(images((6, 6, 3), (6, 6, 3), (6, 6, 3), (6, 6, 3)), "HWC")
    rows = [np.eye(3), np.full((3, 3), np.nan), np.zeros((3, 3)), np.diag([1, 1, 0])]
    matrices = batch_of([m.astype(np.float32) for m in rows])
    out, rejects = apply(operator("warp_perspective", ("matrix",)), pictures, args={"matrix": matrices}, lane=lane)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument")]
    np.testing.assert_array_equal(out[0].sample(0), pictures.sample(0))
    _, rejects = apply(
        operator("warp_perspective", ("matrix",), inverse_map=False), pictures, args={"matrix": matrices}
    )
    assert [r.slot for r in rejects] == [1, 2, 3]
    sizes = batch_of([np.float32(v) for v in ([3, 4], [-1, 4], [0, 4], [np.nan, 1])])
    op = operator("warp_perspective", ("size",), matrix=np.eye(3).reshape(-1).tolist())
    out, rejects = apply(op, pictures, args={"size": sizes}, lane=lane)
    assert [r.slot for r in rejects] == [1, 3]
    assert out[0].shapes[[0, 2]].tolist() == [[3, 4, 3], [1, 4, 3]]
    narrow = batch_of([np.zeros((3, 4), np.float32)] * 4)
    other = batch_of([np.zeros((3, 4), np.float32)] * 3 + [np.zeros((3, 5), np.float32)])
    _, rejects = apply(operator("remap"), pictures, narrow, other, lane=lane)
    assert [(r.slot, r.code) for r in rejects] == [(3, "bad_shape")]


def test_refused_before_anything_runs() -> None:
    picture = Spec((4, 4, 3), DALIDataType.UINT8, "HWC")
    for match, name, arguments in (
        ("9 values", "warp_perspective", {"matrix": [1, 2]}),
        ("NN, LINEAR or CUBIC", "warp_perspective", {"matrix": [1] * 9, "interp_type": "LANCZOS3"}),
        ("NN or LINEAR", "water", {"interp_type": "CUBIC"}),
        ("NN, LINEAR or CUBIC", "remap", {"interp": "GAUSSIAN"}),
    ):
        with pytest.raises(SpecError, match=match):
            operator(name, **arguments)
    for match, name, arguments, specs in (
        ("needs a matrix", "warp_perspective", {}, [picture]),
        ("takes layouts", "warp_perspective", {"matrix": [1] * 9}, [Spec((2, 3, 4, 5), None, "DHWC")]),
        ("1 or 3", "warp_perspective", {"matrix": [1] * 9, "fill_value": [1, 2]}, [picture]),
        ("takes layouts", "sphere", {}, [Spec((2, 3, 4, 5), None, "DHWC")]),
        ("maps of FLOAT", "remap", {}, [picture, Spec((4, 4), DALIDataType.INT32), Spec((4, 4), DALIDataType.FLOAT)]),
        (
            "a number for each pixel",
            "remap",
            {},
            [picture, Spec((4, 4, 2), DALIDataType.FLOAT), Spec((4, 4), DALIDataType.FLOAT)],
        ),
    ):
        with pytest.raises(SpecError, match=match):
            operator(name, **arguments).infer(*specs)
