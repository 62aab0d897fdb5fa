"""JPEGs of four components, CMYK and YCCK, by the CUDA decoder: what simplejpeg and TurboJPEG make of them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from benchmarks.jpeg.small_pictures import mutated
from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.images.resampling import resample
from dali_run.ops.types import DALIInterpType
from tests.kit.files.four_components import Factors, of_four
from tests.kit.ops.apart_decoder import ApartDecoder
from tests.kit.ops.jpeg_harness import EmulatedRuntime, GpuRuntime, Harness


@pytest.fixture(scope="module", params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu(emulated=False))])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness(EmulatedRuntime() if request.param == "emulated" else GpuRuntime())


def pixels(**options: Any) -> Any:
    return lambda plan: jpeg_gpu.pixel_output(plan, **({"orient": False} | options))


def sampled(h: int, v: int) -> Factors:
    return (h, v), (1, 1), (1, 1), (h, v)


SAMPLINGS = [sampled(h, v) for h, v in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))]
SIZES = [(1, 1), (3, 2), (8, 9), (17, 16), (33, 30), (70, 41)]


def gray(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).save(stream, "JPEG")
    return stream.getvalue()


@pytest.mark.parametrize("factors", SAMPLINGS, ids=[f"{f[0][0]}x{f[0][1]}" for f in SAMPLINGS])
def test_pixels_are_those_of_simplejpeg(harness: Harness, factors: Factors) -> None:
    """In a batch with others, in all sizes; CMYK and YCCK, with and without the marker, with restart markers."""
    ways: list[dict[str, Any]] = [
        {}, {"transform": 2}, {"transform": None}, {"transform": 2, "restart": 2}, {"table_of": (1, 0, 0, 0)},
    ]  # fmt: skip
    files = [gray(20, 30)]
    for k, (w, h) in enumerate(SIZES):
        files += [of_four(w, h, factors, seed=10 * k + j, **way) for j, way in enumerate(ways)]
        files.append(gray(5 + k, 9))
    results, status = harness.decode(files, pixels())
    assert not status.any(), status
    for i, (file, result) in enumerate(zip(files, results, strict=True)):
        np.testing.assert_array_equal(result, simplejpeg.decode_jpeg(file, "RGB"), err_msg=f"file {i}")
    results, _ = harness.decode(files, pixels(output_type=jpeg_gpu.BGR))
    for file, result in zip(files, results, strict=True):
        np.testing.assert_array_equal(result, simplejpeg.decode_jpeg(file, "BGR"))


def test_files_of_pillow(harness: Harness) -> None:
    rng, files = np.random.default_rng(3), []
    for quality in (30, 88, 100):
        image = Image.frombytes("CMYK", (11, 9), rng.bytes(9 * 11 * 4)).resize((150, 90))
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=quality)
        files.append(stream.getvalue())
    results, status = harness.decode(files, pixels())
    assert not status.any()
    for file, result in zip(files, results, strict=True):
        np.testing.assert_array_equal(result, simplejpeg.decode_jpeg(file, "RGB"))


def test_windows_and_resizing(harness: Harness) -> None:
    """Only the blocks of a window are computed; what is resized are the RGB picture's pixels."""
    files = [of_four(200, 150, factors, 2, seed=k) for k, factors in enumerate(SAMPLINGS)]
    windows = np.tile(np.array([[37, 61, 120, 90]], np.int32), (len(files), 1))
    results, status = harness.decode(files, pixels(windows=windows), windows=windows)
    assert not status.any()
    for file, result in zip(files, results, strict=True):
        np.testing.assert_array_equal(result, simplejpeg.decode_jpeg(file, "RGB")[61:90, 37:120])

    def resized(plan: jpeg_gpu.DecodePlan) -> jpeg_gpu.Output:
        n, interp = len(plan), np.full(len(plan), DALIInterpType.INTERP_TRIANGULAR, np.int64)
        hi = np.array([[150, 200]] * n, np.float32)
        sampling = resample.plan(np.zeros((n, 2), np.float32), hi, np.full((n, 2), 80), interp, interp, antialias=True)
        sampling = sampling.window(np.full((n, 2), 30), np.full((n, 2), 20))
        return jpeg_gpu.resize_output(plan, sampling)

    pictures = [simplejpeg.decode_jpeg(file, "RGB").astype(np.float64) for file in files]
    as_rgb = [_reduced(_reduced(p, 80, 0)[30:50], 80, 1)[:, 30:50] for p in pictures]
    results, status = harness.decode(files, resized, window=True)
    assert not status.any()
    for result, expected in zip(results, as_rgb, strict=True):
        assert np.abs(result.transpose(1, 2, 0) - expected).max() <= 1


def _reduced(picture: np.ndarray, size: int, axis: int) -> np.ndarray:
    """A triangular filter, widened, along an axis; borders repeat."""
    extent = picture.shape[axis]
    scale = extent / size
    middle = (np.arange(size) + 0.5) * scale - 0.5
    places = np.arange(int(-scale) - 2, extent + int(scale) + 2)
    weights = np.maximum(0, 1 - np.abs(places[None] - middle[:, None]) / scale)
    weights /= weights.sum(1, keepdims=True)
    taken = np.take(picture, np.clip(places, 0, extent - 1), axis)
    return np.moveaxis(np.tensordot(weights, taken, (1, axis)), 0, axis)


def test_odd_ones_are_for_other_decoders(harness: Harness) -> None:
    files = [
        of_four(20, 20, ((2, 2), (1, 1), (1, 1), (1, 1))),  # Pillow's way to RGB is another
        of_four(20, 20, ((1, 1), (1, 1), (1, 1), (2, 2))),
        of_four(20, 20, ((2, 1), (2, 1), (1, 1), (2, 1))),
        of_four(20, 20, transform=1),  # libjpeg warns
        of_four(20, 20)[:-40],
        of_four(20, 20)[:-2] + b"\xff\xd9\xff",
        of_four(20, 20, table_of=(0, 1, 1, 0)),
    ]
    _, status = harness.decode(files, pixels())
    assert [bool(s) for s in status] == [True, True, True, True, True, False, False]
    rows = jpeg_header.read_headers(*_packed(files))
    assert rows["status"].tolist() == [jpeg_header.UNSUPPORTED] * 4 + [jpeg_header.FOUR] * 3


def _packed(files: list[bytes]) -> tuple[Any, Any, Any]:
    sizes = np.array([len(f) for f in files], np.int64)
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum(sizes) - sizes, sizes


def test_what_is_accepted_of_damaged_ones_is_what_simplejpeg_accepts(harness: Harness) -> None:
    files = [of_four(50, 33, f, t, r, seed=9) for f in SAMPLINGS for t, r in ((0, 0), (2, 3))]
    bad = mutated(files, 400)
    guarded = Harness(harness.runtime, ApartDecoder)
    results, status = guarded.decode([*bad, *files], pixels())
    assert not status[len(bad) :].any()
    assert 20 < np.count_nonzero(status) < len(bad)
    for i in np.flatnonzero(status[: len(bad)] == 0).tolist():
        np.testing.assert_array_equal(results[i], simplejpeg.decode_jpeg(bad[i], "RGB"), err_msg=f"mutation {i}")
