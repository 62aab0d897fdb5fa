"""Encoded images decoded again by Pillow and OpenCV."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, features

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.encoders import EncodeImage
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType

SIZES = ((1, 1), (7, 13), (16, 16), (33, 64), (120, 67))


def photo(height: int, width: int, channels: int, seed: int = 0) -> np.ndarray:
    """Brightness that varies, colours that vary little, some grain."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(60, 190, (5, 7, 1)) + rng.integers(-20, 20, (1, 1, channels))
    smooth = cv2.resize(coarse.astype(np.float32), (width, height)).reshape(height, width, channels)
    return np.clip(smooth + rng.normal(0, 2, smooth.shape), 0, 255).astype(np.uint8)


def encode(images: list[np.ndarray], **arguments: Any) -> tuple[Context, Batch]:
    op = EncodeImage(**arguments)
    op.check()
    samples = Samples.numbered(len(images))
    ctx = Context(op, "cpu", samples)
    return ctx, op.cpu(ctx, Batch.from_list(images, "HWC", samples))


def open_image(data: np.ndarray) -> Image.Image:
    return Image.open(io.BytesIO(data.tobytes()))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("fast", [False, True])
def test_jpeg(channels: int, fast: bool) -> None:
    images = [photo(h, w, channels, k) for k, (h, w) in enumerate(SIZES)]
    ctx, encoded = encode(images, quality=95, fast_dct=fast)
    assert not ctx.rejects
    assert encoded.is_packed
    for image, data in zip(images, encoded, strict=True):
        with open_image(data) as found:
            assert found.format == "JPEG"
            assert found.mode == ("L" if channels == 1 else "RGB")
            assert "progressive" not in found.info
            decoded = np.asarray(found).reshape(image.shape).astype(int)
        assert np.abs(decoded - image).mean() < 4
        flag = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR_RGB
        np.testing.assert_array_equal(cv2.imdecode(data, flag).reshape(image.shape), decoded)


@pytest.mark.parametrize(("subsampling", "factors"), [
    ("4:4:4", (1, 1)), ("4:2:2", (2, 1)), ("4:2:0", (2, 2)),
])  # fmt: skip
@pytest.mark.parametrize("fast", [False, True])
def test_jpeg_subsampling(subsampling: str, factors: tuple[int, int], fast: bool) -> None:
    _, encoded = encode([photo(40, 40, 3)], subsampling=subsampling, fast_dct=fast)
    with open_image(encoded.sample(0)) as found:
        assert found.layer[0][1:3] == factors  # type: ignore[attr-defined]
        assert found.layer[1][1:3] == (1, 1)  # type: ignore[attr-defined]


def test_defaults_are_quality_95_and_420() -> None:
    image = photo(64, 64, 3)
    _, encoded = encode([image])
    reference = io.BytesIO()
    Image.fromarray(image).save(reference, "JPEG", quality=95, subsampling="4:2:0")
    assert encoded.sample(0).tobytes() == reference.getvalue()


def test_quality_trades_size_for_error() -> None:
    image = photo(100, 100, 3)
    results = []
    for quality in (10, 50, 90):
        _, encoded = encode([image], quality=quality)
        with open_image(encoded.sample(0)) as found:
            error = np.abs(np.asarray(found).astype(int) - image).mean()
        results.append((encoded.nbytes, -error))
    assert results == sorted(results)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_is_lossless(channels: int) -> None:
    images = [photo(h, w, channels, k) for k, (h, w) in enumerate(SIZES)]
    ctx, encoded = encode(images, format="png")
    assert not ctx.rejects
    for image, data in zip(images, encoded, strict=True):
        with open_image(data) as found:
            assert found.format == "PNG"
            np.testing.assert_array_equal(np.asarray(found).reshape(image.shape), image)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_webp(channels: int) -> None:
    images = [photo(h, w, channels, k) for k, (h, w) in enumerate(SIZES)]
    for quality, bound in ((100, 0.0), (90, 6.0)):
        ctx, encoded = encode(images, format="webp", quality=quality)
        assert not ctx.rejects
        for image, data in zip(images, encoded, strict=True):
            with open_image(data) as found:
                assert found.format == "WEBP"
                mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
                decoded = np.asarray(found.convert(mode)).reshape(image.shape).astype(int)
            assert np.abs(decoded - image).mean() <= bound


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_avif(channels: int) -> None:
    images = [photo(h, w, channels, k) for k, (h, w) in enumerate(SIZES)]
    sizes = []
    for quality, bound in ((90, 6.0), (50, 14.0)):
        ctx, encoded = encode(images, format="avif", quality=quality, subsampling="4:4:4", speed=8)
        assert not ctx.rejects
        _, again = encode(images[::-1], format="avif", quality=quality, subsampling="4:4:4", speed=8)
        assert [bytes(e) for e in encoded] == [bytes(e) for e in again][::-1]
        sizes.append(encoded.nbytes)
        for image, data in zip(images, encoded, strict=True):
            with open_image(data) as found:
                assert found.format == "AVIF"
                mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
                decoded = np.asarray(found.convert(mode)).reshape(image.shape).astype(int)
            assert np.abs(decoded - image).mean() <= bound
    assert sizes[1] < sizes[0]


def test_samples_do_not_touch_each_other() -> None:
    images = [photo(30, 20 + k, 3, k) for k in range(6)]
    _, together = encode(images)
    for k, image in enumerate(images):
        _, alone = encode([image])
        np.testing.assert_array_equal(alone.sample(0), together.sample(k))


def test_gaps_between_samples_are_skipped() -> None:
    images = [photo(8, 8, 3, k) for k in range(4)]
    op, samples = EncodeImage(), Samples.numbered(4)
    batch = Batch.from_list(images, "HWC", samples).take(np.array([2, 0]))
    encoded = op.cpu(Context(op, "cpu", batch.samples), batch)
    _, expected = encode([images[2], images[0]])
    assert encoded.data.tobytes() == expected.data.tobytes()


@pytest.mark.parametrize(("shape", "format_", "words"), [
    ((0, 5, 3), "jpeg", "empty"),
    ((5, 5, 4), "jpeg", "1 or 3 channels, the image has 4"),
    ((1, 65501, 1), "jpeg", "65500 pixels a side"),
    ((1, 16384, 3), "webp", "16383 pixels a side"),
    ((5, 5, 5), "png", "1, 2, 3 or 4 channels"),
])  # fmt: skip
def test_what_cannot_be_encoded_costs_one_sample(shape: tuple[int, int, int], format_: str, words: str) -> None:
    op, samples = EncodeImage(format=format_), Samples.numbered(3)
    good = photo(4, 4, shape[2], 1) if shape[2] != 5 else np.zeros((4, 4, 5), np.uint8)
    batch = Batch.from_list([good, np.zeros(shape, np.uint8), good], "HWC", samples)
    ctx = Context(op, "cpu", samples)
    encoded = op.cpu(ctx, batch)
    rejected = {r.slot: r for r in ctx.rejects}
    assert words in rejected[1].message
    assert rejected[1].code == "encode_failed"
    assert len(encoded) == 3
    if shape[2] in (1, 3):
        assert set(rejected) == {1}
        assert encoded.sample(0).tobytes() == encoded.sample(2).tobytes() != b""


@pytest.mark.parametrize(("spec", "words"), [
    (Spec((None, None, 3), DALIDataType.FLOAT, "HWC"), "cast"),
    (Spec((3, None, None), DALIDataType.UINT8, "CHW"), r"transpose, perm: \[1, 2, 0\]"),
    (Spec((None, None, None, 3), DALIDataType.UINT8, "FHWC"), "layout HWC"),
    (Spec((None, 3), DALIDataType.UINT8), "3 dimensions"),
    (Spec((None, None, 4), DALIDataType.UINT8, "HWC"), "1 or 3 channels"),
])  # fmt: skip
def test_impossible_inputs_are_refused_with_a_remedy(spec: Spec, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        EncodeImage().infer(spec)


def test_transpose_remedy_is_right() -> None:
    chw = np.zeros((3, 5, 7))
    assert chw.transpose(1, 2, 0).shape == (5, 7, 3)


def test_inference() -> None:
    out = EncodeImage().infer(Spec((None, None, 3), DALIDataType.UINT8, "HWC"))
    assert out == Spec((None,), DALIDataType.UINT8, "")


@pytest.mark.parametrize("arguments", [
    {"format": "png", "quality": 50}, {"format": "webp", "subsampling": "4:4:4"}, {"speed": 3}, {"compression": 9},
])  # fmt: skip
def test_arguments_of_other_formats_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="means nothing for"):
        EncodeImage(**arguments).check()


def test_real_photographs(imagenet: list[Path]) -> None:
    images = [np.asarray(Image.open(p).convert("RGB")) for p in imagenet[:4]]
    _, encoded = encode(images, quality=90)
    for image, data in zip(images, encoded, strict=True):
        with open_image(data) as found:
            assert np.abs(np.asarray(found).astype(int) - image).mean() < 5
