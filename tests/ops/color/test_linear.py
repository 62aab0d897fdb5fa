"""brightness, contrast, hsv, color_twist and their kin: DALI's results (golden/make_linear.py) and definitions."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.color import linear  # noqa: F401  # declares the operators
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType

from ...kit.dali_cases import (
    agrees_with_dali,
    apply,
    batch_of,
    kernels_agree,
    largest_difference,
    operator,
    source,
)
from ...kit.emulated_lane import EmulatedLane

NAMES = ("brightness", "contrast", "brightness_contrast", "hsv", "hue", "saturation", "color_twist")
IMAGE = source(7, 0, 256, "uint8", [9, 11, 3])


@pytest.mark.parametrize("name", NAMES)
def test_results_of_dali(name: str) -> None:
    agrees_with_dali("linear", name, 2000)


@pytest.mark.parametrize("name", NAMES)
def test_cuda_run_on_the_cpu(name: str) -> None:
    kernels_agree("linear", name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_gpu(name: str) -> None:
    from dali_run.ops.gpu.lane import Lane

    op = operator(name)
    argument = next(n for n in ("contrast", "saturation", "hue", "brightness") if hasattr(op, n))
    images = [source(k, 0, 256, "uint8", [9 + k, 12, 3]) for k in range(5)]
    values = {argument: batch_of([np.float32(0.3 * k + 0.2) for k in range(5)])}
    op = operator(name, (argument,))
    want, _ = apply(op, batch_of(images, "HWC"), args=values)
    with Lane() as lane:
        out, _ = apply(op, lane.to_device(batch_of(images, "HWC")), args=values, lane=lane)
        got = lane.to_host(out)
        lane.synchronize()
    for a, b in zip(got, want, strict=True):
        assert largest_difference(a, b) <= 1


def test_each_sample_has_its_own_arguments_and_place_in_memory() -> None:
    images = [source(k, 0, 256, "uint8", [5 + k, 7 + 3 * k, 3]) for k in range(4)]
    factors = [0.0, 0.5, 1.0, 3.0]
    for lane in (None, EmulatedLane()):
        for name, argument in (("brightness", "brightness"), ("color_twist", "brightness")):
            args = {argument: batch_of([np.float32(f) for f in factors])}
            out, rejects = apply(operator(name, (argument,)), batch_of(images, "HWC"), args=args, lane=lane)
            assert not rejects
            for got, image, factor in zip(out, images, factors, strict=True):
                want = np.clip(np.floor(image * np.float64(factor) + 0.5), 0, 255)
                assert np.abs(got - want).max() <= (0 if name == "brightness" else 1)


def test_neutral_arguments_change_nothing() -> None:
    for name in NAMES:
        out, _ = apply(operator(name), batch_of([IMAGE], "HWC"))
        np.testing.assert_array_equal(out.sample(0), IMAGE)


def test_bgr_is_rgb_turned_around() -> None:
    for name in ("hue", "saturation", "color_twist"):
        argument = "hue" if name == "hue" else "saturation"
        rgb, _ = apply(operator(name, **{argument: 1.7}), batch_of([IMAGE], "HWC"))
        turned = batch_of([np.ascontiguousarray(IMAGE[..., ::-1])], "HWC")
        bgr, _ = apply(operator(name, **{argument: 1.7, "image_type": "BGR"}), turned)
        np.testing.assert_array_equal(bgr.sample(0)[..., ::-1], rgb.sample(0))


def test_pictures_without_three_channels_are_rejected_alone() -> None:
    images = batch_of([IMAGE, IMAGE[..., :1], IMAGE], "HWC")
    for name in ("hsv", "hue", "saturation", "color_twist"):
        out, rejects = apply(operator(name), images)
        assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
        np.testing.assert_array_equal(out.sample(2), IMAGE)
    out, rejects = apply(operator("brightness", brightness=2.0), batch_of([IMAGE, IMAGE[..., :1]], "HWC"))
    assert not rejects


def test_frames_need_as_many_values() -> None:
    frames = batch_of([np.stack([IMAGE] * 3)] * 2, "FHWC")
    args = {"brightness": batch_of([np.float32([1, 2]), np.float32([2])], "F")}
    out, rejects = apply(operator("brightness", ("brightness",)), frames, args=args)
    assert [(r.slot, r.code) for r in rejects] == [(0, "bad_argument")]
    np.testing.assert_array_equal(out.sample(1)[2], np.minimum(IMAGE.astype(int) * 2, 255))


def test_refused_before_anything_runs() -> None:
    with pytest.raises(SpecError, match="3 channels"):
        operator("hsv").infer(Spec((4, 4, 1), DALIDataType.UINT8, "HWC"))
    with pytest.raises(SpecError, match="RGB or BGR"):
        operator("color_twist", image_type="GRAY")
    with pytest.raises(SpecError, match="BOOL"):
        operator("brightness", dtype="BOOL")
    assert operator("hsv").infer(Spec((4, 4, 3), DALIDataType.FLOAT, "HWC")).dtype is DALIDataType.UINT8
