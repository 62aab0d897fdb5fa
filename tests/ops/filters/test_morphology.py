"""dilate, erode and median_blur against OpenCV and NumPy (DALI has them on a GPU only), and the CUDA kernels."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.errors import SpecError
from dali_run.ops.filters import morphology  # noqa: F401  # declares the operators
from dali_run.ops.types import DALIDataType
from tests.kit.long import thinned

from ...kit.dali_cases import apply, batch_of, operator, source
from ...kit.emulated_lane import EmulatedLane

LANES = pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda"])
IMAGES = [source(k, 0, 256, "uint8", [9 + 3 * k, 20 - 2 * k, 3]) for k in range(4)]


@LANES
@pytest.mark.parametrize("name", ["dilate", "erode"])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"mask_size": [5, 1]},
        {"mask_size": [2, 4]},
        {"mask_size": [3, 5], "anchor": [0, 4]},
        {"iterations": 3},
        {"mask_size": [4, 2], "anchor": [1, 0], "iterations": 2},
        {"mask_size": 3, "border_mode": "replicate"},
        {"mask_size": [5, 3], "border_mode": "reflect_101"},
        {"mask_size": [5, 3], "border_mode": "reflect"},
    ],
)
def test_results_of_opencv(name: str, arguments: dict[str, Any], lane: Any) -> None:
    out, rejects = apply(operator(f"experimental.{name}", **arguments), batch_of(IMAGES, "HWC"), lane=lane)
    assert not rejects
    size = arguments.get("mask_size", 3)
    mask = np.ones((size, size) if isinstance(size, int) else size[::-1], np.uint8)
    borders = {"replicate": cv2.BORDER_REPLICATE, "reflect_101": cv2.BORDER_REFLECT_101, "reflect": cv2.BORDER_REFLECT}
    for got, image in zip(out, IMAGES, strict=True):
        want = getattr(cv2, name)(
            image, mask, anchor=tuple(arguments.get("anchor", (-1, -1))), iterations=arguments.get("iterations", 1),
            borderType=borders.get(arguments.get("border_mode", ""), cv2.BORDER_CONSTANT),
        )  # fmt: skip
        np.testing.assert_array_equal(got, want)


@LANES
@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_medians_of_opencv(size: int, lane: Any) -> None:
    out, rejects = apply(operator("experimental.median_blur", window_size=size), batch_of(IMAGES, "HWC"), lane=lane)
    assert not rejects
    for got, image in zip(out, IMAGES, strict=True):
        np.testing.assert_array_equal(got, cv2.medianBlur(image, size))


@LANES
@pytest.mark.parametrize("dtype", thinned(["int16", "int8", "uint16", "float32", "int32", "float16"], 5))
def test_every_type(dtype: str, lane: Any) -> None:
    images = [(source(k, -99, 99, "int16", [7, 8 + k, 2]) / 4).astype(dtype) for k in range(2)]
    for name, function in (("dilate", np.max), ("erode", np.min), ("median_blur", np.median)):
        argument = "window_size" if name == "median_blur" else "mask_size"
        op = operator(f"experimental.{name}", **{argument: [5, 3]})
        out, _ = apply(op, batch_of(images, "HWC"), lane=lane)
        for got, image in zip(out, images, strict=True):
            padded = np.pad(image, ((1, 1), (2, 2), (0, 0)), "edge")
            views = np.lib.stride_tricks.sliding_window_view(padded, (3, 5), axis=(0, 1))
            np.testing.assert_array_equal(got, function(views, axis=(-2, -1)).astype(dtype))


@LANES
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_medians_of_nine_bytes(dtype: str, lane: Any) -> None:
    shapes = [(1, 1, 3), (2, 5, 1), (9, 7, 3), (8, 4, 4), (19, 3, 2)]
    random = np.random.default_rng(4)
    images = [random.integers(0, 256, shape).astype(np.uint8).view(dtype) for shape in shapes]
    out, _ = apply(operator("experimental.median_blur"), batch_of(images, "HWC"), lane=lane)
    for got, image in zip(out, images, strict=True):
        padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), "edge")
        views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(0, 1))
        np.testing.assert_array_equal(got, np.median(views, axis=(-2, -1)).astype(dtype))


@LANES
def test_layouts_and_arguments_by_sample_and_frame(lane: Any) -> None:
    chw = np.ascontiguousarray(IMAGES[0].transpose(2, 0, 1))
    for name in ("dilate", "median_blur"):
        op = operator(f"experimental.{name}")
        flat, _ = apply(op, batch_of([IMAGES[0]], "HWC"), lane=lane)
        planes, _ = apply(op, batch_of([chw], "CHW"), lane=lane)
        np.testing.assert_array_equal(planes.sample(0).transpose(1, 2, 0), flat.sample(0))
        single, _ = apply(op, batch_of([chw[0]], "HW"), lane=lane)
        np.testing.assert_array_equal(single.sample(0), flat.sample(0)[..., 0])
    frames = batch_of([np.stack([IMAGES[0]] * 2)], "FHWC")
    args = {"mask_size": batch_of([np.array([[1, 1], [5, 5]])], "FX")}
    out, _ = apply(operator("experimental.erode", ("mask_size",)), frames, args=args, lane=lane)
    np.testing.assert_array_equal(out.sample(0)[0], IMAGES[0])
    np.testing.assert_array_equal(out.sample(0)[1], cv2.erode(IMAGES[0], np.ones((5, 5))))
    args = {"window_size": batch_of([np.array([3, 3]), np.array([4, 3]), np.array([5, 5])])}
    out, rejects = apply(
        operator("experimental.median_blur", ("window_size",)), batch_of(IMAGES[:3], "HWC"), args=args, lane=lane
    )
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument")]
    np.testing.assert_array_equal(out.sample(2), cv2.medianBlur(IMAGES[2], 5))


@LANES
def test_wrap_goes_around(lane: Any) -> None:
    image = np.zeros((5, 6, 1), np.uint8)
    image[0, 0] = 9
    out, _ = apply(operator("experimental.dilate", border_mode="wrap"), batch_of([image], "HWC"), lane=lane)
    assert out.sample(0)[[0, 1, 4]][:, [0, 1, 5]].min() == 9
    assert out.sample(0).sum() == 81


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dilate", "erode", "median_blur"])
def test_gpu(name: str) -> None:
    from dali_run.ops.gpu.lane import Lane

    op = operator(f"experimental.{name}")
    want, _ = apply(op, batch_of(IMAGES, "HWC"))
    with Lane() as lane:
        out, _ = apply(op, lane.to_device(batch_of(IMAGES, "HWC")), lane=lane)
        got = lane.to_host(out)
        lane.synchronize()
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_refused() -> None:
    with pytest.raises(SpecError, match="odd"):
        operator("experimental.median_blur", window_size=[3, 4])
    with pytest.raises(SpecError, match="32 bits"):
        operator("experimental.dilate").infer(Spec((4, 4, 3), DALIDataType.INT64, "HWC"))
    with pytest.raises(SpecError, match="takes layouts"):
        operator("experimental.dilate").infer(Spec((4, 4, 3, 3), DALIDataType.UINT8, "DHWC"))
    args = {"anchor": batch_of([np.array([0, 0]), np.array([3, 0])])}
    _, rejects = apply(operator("experimental.dilate", ("anchor",)), batch_of(IMAGES[:2], "HWC"), args=args)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument")]
