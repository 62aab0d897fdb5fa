"""jpeg_compression_distortion: DALI's results (golden/make_jpeg_distortion.py), and the CUDA kernels, to the bit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dali_run.ops.base import Spec
from dali_run.ops.distortions import jpeg  # noqa: F401  # declares the operator
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType

from ...kit.dali_cases import apply, batch_of, cases, operator, ours, source
from ...kit.emulated_lane import EmulatedLane

NAME = "jpeg_compression_distortion"


@pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda"])
def test_results_of_dali(lane: Any) -> None:
    compared = 0
    for case, inputs, wanted in cases("jpeg_distortion"):
        got, rejects = ours(case, inputs, lane)
        assert not rejects
        np.testing.assert_array_equal(got[0], wanted[0], err_msg=str(case))
        compared += 1
    assert compared > 30


def _through_a_file(picture: np.ndarray, quality: int) -> np.ndarray:
    """By libjpeg's encoder and its decoder."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=quality, subsampling="4:2:0")
    return simplejpeg.decode_jpeg(file.getvalue(), "RGB")


def _hard_pictures() -> list[np.ndarray]:
    """Noise, whole ranges of blocks' frequencies and of colours, and sides around those of blocks and vectors."""
    random = np.random.default_rng(11)
    found = [
        random.integers(0, 256, (h, w, 3)).astype(np.uint8) for h, w in ((1, 1), (2, 5), (3, 4), (33, 47), (70, 97))
    ]
    found += [(random.integers(0, 2, (h, w, 3)) * 255).astype(np.uint8) for h, w in ((64, 64), (17, 130), (48, 31))]
    cosines = np.cos(np.pi * np.arange(8)[:, None] * (2 * np.arange(8) + 1) / 16)
    waves = np.einsum("ux,vy->uyvx", cosines, cosines).reshape(64, 64) >= 0
    for turned in ([False] * 3, [True, False, True]):  # gray, and magenta where green is not
        found.append(np.where(waves[..., None] ^ np.array(turned), 255, 0).astype(np.uint8))
    colours = np.stack(np.meshgrid(*[np.arange(0, 256, 15)] * 3), axis=-1).astype(np.uint8).reshape(18, -1, 3)
    return [*found, np.repeat(np.repeat(colours, 4, axis=0), 4, axis=1)]


@pytest.mark.parametrize("quality", [1, 2, 7, 25, 50, 51, 80, 95, 99, 100])
def test_libjpeg(quality: int) -> None:
    """Whatever the picture: none of the sums between wraps, or is saturated, where libjpeg's does not."""
    pictures = _hard_pictures()
    got, rejects = apply(operator(NAME, quality=quality), batch_of(pictures, "HWC"))
    assert not rejects
    for k, (picture, found) in enumerate(zip(pictures, got, strict=True)):
        np.testing.assert_array_equal(found, _through_a_file(picture, quality), err_msg=f"{k}: {picture.shape}")


@pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda"])
def test_quality_by_sample(lane: Any) -> None:
    smooth = np.repeat(np.repeat(source(1, 0, 256, "uint8", [5, 7, 3]), 9, axis=0), 8, axis=1)
    images = [smooth[: 45 - k, : 56 - 3 * k].copy() for k in range(4)]
    args = {"quality": batch_of([np.int32(q) for q in (-3, 20, 95, 400)])}
    out, rejects = apply(operator(NAME, ("quality",)), batch_of(images, "HWC"), args=args, lane=lane)
    assert not rejects
    for got, image, quality in zip(out, images, (1, 20, 95, 100), strict=True):
        alone, _ = apply(operator(NAME, quality=quality), batch_of([image], "HWC"))
        np.testing.assert_array_equal(got, alone.sample(0))
    off = [np.abs(got.astype(int) - image).mean() for got, image in zip(out, images, strict=True)]
    assert off[0] > off[1] > off[2]


@pytest.mark.gpu
def test_gpu() -> None:
    from dali_run.ops.gpu.lane import Lane

    images = batch_of([source(k, 0, 256, "uint8", [40 + k, 60 - k, 3]) for k in range(4)], "HWC")
    want, _ = apply(operator(NAME), images)
    with Lane() as lane:
        out, _ = apply(operator(NAME), lane.to_device(images), lane=lane)
        got = lane.to_host(out)
        lane.synchronize()
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_others_than_rgb_images() -> None:
    with pytest.raises(SpecError, match="uint8"):
        operator(NAME).infer(Spec((4, 4, 3), DALIDataType.FLOAT, "HWC"))
    with pytest.raises(SpecError, match="3 channels"):
        operator(NAME).infer(Spec((4, 4, 1), DALIDataType.UINT8, "HWC"))
    images = batch_of([source(1, 0, 256, "uint8", [9, 8, c]) for c in (3, 1)] + [np.zeros((0, 4, 3), np.uint8)], "HWC")
    for lane in (None, EmulatedLane()):
        out, rejects = apply(operator(NAME), images, lane=lane)
        assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
        assert out.sample(2).shape == (0, 4, 3)


def test_pictures_of_few_pixels() -> None:
    """Libjpeg repeats colours that are one or two to a line, instead of taking values between them."""
    sides = [(h, w) for h in (1, 2, 3, 5, 17) for w in (1, 2, 3, 4, 5, 6, 17)]
    images = batch_of([source(k, 0, 256, "uint8", [*side, 3]) for k, side in enumerate(sides)], "HWC")
    want, _ = apply(operator(NAME), images)
    got, _ = apply(operator(NAME), images, lane=EmulatedLane())
    for a, b, side in zip(got, want, sides, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=str(side))
