"""image_scores against Pillow, OpenCV and imagehash; its kernels against its loop."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from dali_run.ops.base import Spec, parameter, type_name
from dali_run.ops.batch import Batch
from dali_run.ops.errors import SampleError, SpecError
from dali_run.ops.scores.image_scores import SCORES
from dali_run.ops.types import DALIDataType
from tests.kit.emulated_lane import EmulatedLane
from tests.kit.operators import apply, batch_of, operator

SIZES = [(7, 9), (1, 1), (1, 20), (20, 1), (2, 2), (32, 32), (50, 70), (33, 100)]


def drawn(rows: int, columns: int, seed: int = 0) -> Any:
    """A smooth image with noise, a bright square and gray pixels."""
    random = np.random.default_rng([rows, columns, seed])
    y, x = np.mgrid[0:rows, 0:columns]
    image = np.stack([x * 3 % 256, (y * 5 + x) % 256, (x * y) % 256], axis=2) * 0.7 + random.integers(0, 60, 3)
    image[rows // 3 : rows // 2, columns // 4 :] = random.integers(0, 256, 3)
    return (image + random.integers(0, 9, image.shape)).clip(0, 255).astype(np.uint8)


def framed(rows: int, columns: int, box: tuple[int, int, int, int]) -> Any:
    """A black image with noise in the rows and columns ``box``: top, bottom, left, right."""
    image = np.zeros((rows, columns, 3), np.uint8)
    top, bottom, left, right = box
    image[top:bottom, left:right] = np.random.default_rng(1).integers(60, 256, (bottom - top, right - left, 3))
    return image


def scores(images: list[Any], lane: Any = None, **arguments: Any) -> dict[str, Any]:
    op = operator("image_scores", scores=list(SCORES), **arguments)
    made, rejects = apply(op, batch_of(images, "HWC"), lane=lane)
    assert not rejects
    assert all(b.ndim == 0 and len(b) == len(images) for b in made)
    return {s: b.data for s, b in zip(SCORES, made, strict=True)}


def test_against_opencv_and_pillow() -> None:
    images = [drawn(*size) for size in SIZES]
    images += [i[:, :, :1].copy() for i in images]
    got = scores(images)
    for k, image in enumerate(images):
        picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).convert("L")
        gray = np.asarray(picture)
        assert got["sharpness"][k] == pytest.approx(cv2.Laplacian(gray, cv2.CV_64F).var(), rel=1e-6, abs=1e-6)
        assert got["entropy"][k] == pytest.approx(picture.entropy(), abs=1e-6)
        assert got["brightness"][k] == pytest.approx(gray.mean(), rel=1e-6)
        levels = image.astype(np.int64)
        most, least = levels.max(axis=2), levels.min(axis=2)
        exact = (510 * (most - least) + most) // (2 * np.maximum(most, 1))
        assert got["saturation"][k] == pytest.approx(exact.mean(), rel=1e-6)
        if image.shape[2] == 3:  # OpenCV's divisions are by a table of reciprocals
            assert np.abs(exact - cv2.cvtColor(image, cv2.COLOR_RGB2HSV)[:, :, 1].astype(int)).max() <= 1


IMAGEHASH = [
    ("8d1b565572ac6a55", "fefefefdfdfdfbfb"), ("8e010e39b3f65576", "fefdfbf7eeddbb77"),
    ("8f098f081ffc7932", "fefbeebd77eddbb6"), ("8f0a0d8f0f091ffc", "fef7ddf6ddb6ebb5"),
]  # fmt: skip
"""Made by imagehash 4.3.2: phash of `figure` k, and dhash of every fourth of its rows and every third column."""


def figure(k: int) -> Any:
    y, x = np.mgrid[0:32, 0:32]
    return ((x * (k + 3) + y * (7 * k + 1) + (x * y * (k + 1)) // 5 + (x - k) ** 2 // 3) % 256).astype(np.uint8)


def test_hashes_are_those_of_imagehash() -> None:
    """On images that have as many pixels as it shrinks them to."""
    large = scores([figure(k)[:, :, None] for k in range(4)])
    small = scores([figure(k)[::4, :27:3, None].copy() for k in range(4)])
    assert [(f"{p:016x}", f"{d:016x}") for p, d in zip(large["phash"], small["dhash"], strict=True)] == IMAGEHASH


def by_hand(image: Any, rows: int, columns: int) -> Any:
    """Mean gray level of each cell, rounded half up, of an image repeated to a multiple of the cells."""
    gray = np.asarray(Image.fromarray(image).convert("L")).astype(np.int64)
    height, width = gray.shape
    repeated = gray.repeat(rows, axis=0).repeat(columns, axis=1).reshape(rows, height, columns, width)
    return (2 * repeated.sum(axis=(1, 3)) + height * width) // (2 * height * width)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_hashes_of_images_of_any_size(size: tuple[int, int]) -> None:
    image = drawn(*size)
    got = scores([image])
    bits = np.diff(by_hand(image, 8, 9), axis=1) > 0
    assert int(got["dhash"][0]) == int("".join("01"[b] for b in bits.ravel().tolist()), 2)
    assert got["phash"][0] == scores([by_hand(image, 32, 32).astype(np.uint8)[:, :, None]])["phash"][0]
    if min(size) >= 32:
        k, x = np.arange(8)[:, None], np.arange(32)
        cosines = np.cos(np.pi * k * (2 * x + 1) / 64)
        low = cosines @ by_hand(image, 32, 32) @ cosines.T
        assert f"{got['phash'][0]:064b}" == "".join("01"[b] for b in (low > np.median(low)).ravel().tolist())


def test_hashes_outlast_small_changes() -> None:
    """Saved again as JPEG, and resized, an image has nearly the same hash; another image has not."""
    image, other = drawn(150, 200), drawn(150, 200, 3)[::-1].copy()
    again = cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 60])[1], cv2.IMREAD_COLOR)
    smaller = cv2.resize(image, (100, 75), interpolation=cv2.INTER_AREA)
    for name in ("phash", "dhash"):
        first, *changed, different = (int(h) for h in scores([image, again, smaller, other])[name])
        assert all((first ^ h).bit_count() <= 6 for h in changed)
        assert (first ^ different).bit_count() > 12


@pytest.mark.parametrize(
    ("box", "tolerance", "share"),
    [((10, 40, 0, 80), 10, 0.5), ((0, 60, 20, 60), 10, 0.5), ((15, 45, 20, 60), 10, 0.75), ((0, 60, 0, 80), 10, 0.0),
     ((0, 0, 0, 0), 0, 1.0), ((10, 40, 0, 80), 255, 1.0)],
)  # fmt: skip
def test_border(box: tuple[int, int, int, int], tolerance: int, share: float) -> None:
    assert scores([framed(60, 80, box)], tolerance=tolerance)["border"].tolist() == [pytest.approx(share)]


def test_border_goes_by_the_corners() -> None:
    """The sky above and the sea below differ; levels within the tolerance belong to the border."""
    image = framed(60, 80, (20, 50, 0, 80))
    image[:20], image[50:] = 200, 30
    image[5, 7] = 210
    assert scores([image])["border"][0] == pytest.approx(0.5)
    assert scores([image], tolerance=9)["border"][0] == pytest.approx(15 / 60)


def compared(lane: Any, to_device: Any, to_host: Any) -> None:
    images = [drawn(*size) for size in SIZES] + [framed(40, 60, (5, 30, 7, 50)), drawn(300, 230)]
    for given in (images, [i[:, :, :1].copy() for i in images]):
        for wanted in (SCORES, ("border", "dhash"), ("entropy",)):
            op = operator("image_scores", scores=list(wanted))
            expected, _ = apply(op, batch_of(given, "HWC"))
            got, rejects = apply(op, to_device(batch_of(given, "HWC")), lane=lane)
            assert not rejects
            for want, have in zip(expected, map(to_host, got), strict=True):
                assert want.dtype == have.dtype
                assert want.data.tobytes() == have.data.tobytes()


def test_kernels_give_the_bits_of_the_loop() -> None:
    compared(EmulatedLane(), lambda b: b, lambda b: b)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:

        def to_host(batch: Batch) -> Batch:
            host = lane.to_host(batch)
            lane.synchronize()
            return host

        compared(lane, lane.to_device, to_host)


def test_what_is_refused() -> None:
    with pytest.raises(SpecError, match="scores is empty"):
        operator("image_scores", scores=[])
    with pytest.raises(SpecError, match="names dhash twice"):
        operator("image_scores", scores=["dhash", "phash", "dhash"])
    with pytest.raises(ValueError, match="'blur' is not one of 'phash'"):
        operator("image_scores", scores=["blur"])
    op = operator("image_scores", scores=["phash", "border"])
    assert type_name(parameter(type(op), "scores").type).startswith("a list of any of 'phash', 'dhash', 'sharp")
    with pytest.raises(SpecError, match="takes uint8 images, got float"):
        op.infer(Spec((4, 4, 3), DALIDataType.FLOAT, "HWC"))
    with pytest.raises(SpecError, match="1 or 3 channels"):
        op.infer(Spec((4, 4, 2), DALIDataType.UINT8, "HWC"))
    with pytest.raises(SampleError, match="takes uint8 images, got float32"):
        apply(op, batch_of([np.zeros((4, 4, 3), np.float32)], "HWC"))
    good = drawn(40, 50)
    (phash, _), rejects = apply(op, batch_of([good, np.zeros((3, 4, 4), np.uint8), good], "HWC"))
    assert [(r.slot, r.code, r.message) for r in rejects] == [(1, "bad_shape", "takes 1 or 3 channels, got 4")]
    assert phash.data[0] == phash.data[2] == scores([good])["phash"][0]
