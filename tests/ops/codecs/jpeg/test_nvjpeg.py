from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from benchmarks.jpeg.small_pictures import scan_each
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.decoder_table import DecodeJob
from dali_run.ops.codecs.decoders import Image
from dali_run.ops.codecs.headers import Rules, read_headers
from dali_run.ops.codecs.jpeg import nvjpeg
from dali_run.ops.context import Context
from dali_run.ops.types import DALIDataType, DALIImageType


def batch_of(blobs: list[bytes]) -> Batch:
    data = np.frombuffer(b"".join(blobs), np.uint8)
    sizes = np.array([len(b) for b in blobs], np.int64)
    offsets = np.cumsum(sizes) - sizes
    return Batch(data, offsets, sizes.astype(np.int32)[:, None], "", Samples.numbered(len(blobs)))


def encode(pixels: np.ndarray, format: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, format, **options)
    return buffer.getvalue()


def smooth(height: int, width: int) -> np.ndarray:
    """A picture without sharp edges, so that chroma upsampling hardly matters."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], 2).astype(np.uint8)


# -- without a GPU ----------------------------------------------------------------------------------------------------


def test_destinations_are_rows_of_nvjpeg_image_t() -> None:
    images = nvjpeg.destinations(1000, np.array([0, 50]), np.array([30, 60]))
    assert images.dtype == np.uint64
    assert images.tolist() == [[1000, 0, 0, 0, 30, 0, 0, 0], [1050, 0, 0, 0, 60, 0, 0, 0]]


def job_of(blobs: list[bytes], rules: Rules | None = None, windows: bool = False) -> DecodeJob:
    batch = batch_of(blobs)
    ctx = Context(op=Image(), stage="mixed", samples=batch.samples)
    rules = rules or Rules(jpeg_decoder="nvjpeg")
    headers = read_headers(ctx, batch, rules)
    job = DecodeJob(ctx, batch, headers, rules)
    job.anchors = np.zeros((len(blobs), 2), np.int64) if windows else None
    return job


class FakeDecoder:
    """Fails every batch that holds one of ``bad``, as nvJPEG does: without saying which."""

    def __init__(self, bad: set[int]) -> None:
        self.bad, self.decoded, self.calls = bad, list[int](), 0

    def batch(self, data: Any, lengths: Any, images: Any, output: Any, stream: int, threads: int = 1) -> None:
        self.calls += 1
        if self.bad & set(lengths.tolist()):
            raise nvjpeg.NvJpegError("nvjpegDecodeBatched", 3)
        self.decoded += lengths.tolist()


def test_a_failed_batch_is_narrowed_to_the_images_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = [encode(smooth(16, 16)) + bytes(k) + b"\xff\xd9" for k in range(64)]
    fake: Any = FakeDecoder({len(blobs[37]), len(blobs[38])})
    monkeypatch.setattr(nvjpeg, "_decoder_of", lambda *_: fake)
    lane: Any = SimpleNamespace(stream=SimpleNamespace(ptr=0), keep=lambda *_: None)
    job = job_of(blobs)
    out: Any = SimpleNamespace(
        data=SimpleNamespace(data=SimpleNamespace(ptr=0)), offsets=np.arange(64) * 768,
        shapes=np.tile(np.array([[16, 16, 3]], np.int32), (64, 1)),
    )  # fmt: skip
    assert sorted(nvjpeg.NvJpegWork(np.arange(64)).launch(job, lane, job.batch, out).tolist()) == [37, 38]
    assert sorted(fake.decoded) == [len(b) for k, b in enumerate(blobs) if k not in (37, 38)]
    assert fake.calls < 24


def test_what_nvjpeg_takes() -> None:
    """Whole baseline JPEGs of colour that are shown as they are stored; nothing unless it is asked for."""
    big, small = smooth(1000, 1000), smooth(64, 64)
    exif = Pillow.Exif()
    exif[0x0112] = 6
    blobs = {
        "420": encode(small, subsampling=2),
        "444": encode(small, subsampling=0),
        "turned": encode(small, exif=exif),
        "progressive": encode(big, progressive=True),
        "gray": encode(small[..., 0]),
        "cut off": encode(small)[:-2],
        "png": encode(small, "PNG"),
        "tiny": encode(small[:8, :8]),
        "scans": scan_each(Pillow.fromarray(small), 1, 1),
    }
    row, names, files = nvjpeg.NvJpeg(), np.array(list(blobs)), list(blobs.values())

    def taken(job: DecodeJob) -> set[str]:
        return set(names[row.takes(job, np.arange(len(files)))])

    assert taken(job_of(files)) == {"420", "444"}
    assert taken(job_of(files, Rules())) == set()
    assert taken(job_of(files, windows=True)) == set()
    assert taken(job_of(files, Rules(dtype=np.dtype(np.float32), jpeg_decoder="nvjpeg"))) == set()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvjpeg, "candidates", lambda: ["/nowhere/libnvjpeg.so.13"])
    with pytest.raises(nvjpeg.DeviceError, match="nvidia-nvjpeg"):
        nvjpeg.library.__wrapped__()


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lane() -> Any:
    from dali_run.ops.gpu.lane import Lane

    return Lane()


def on_gpu(op: Any, blobs: list[bytes], lane: Any, **context: Any) -> tuple[Batch, list[Any]]:
    encoded = batch_of(blobs)
    ctx = Context(op=op, stage="mixed", samples=encoded.samples, device=lane, **context)
    with lane:
        out = lane.to_host(op.mixed(ctx, encoded))
        lane.synchronize()
    return out, ctx.rejects


def on_cpu(op: Any, blobs: list[bytes], **context: Any) -> tuple[Batch, list[Any]]:
    encoded = batch_of(blobs)
    ctx = Context(op=op, stage="cpu", samples=encoded.samples, **context)
    return op.cpu(ctx, encoded), ctx.rejects


def assert_close(got: Batch, want: Batch, mean: float, level: float = 1.0) -> None:
    np.testing.assert_array_equal(got.shapes, want.shapes)
    assert got.dtype == want.dtype
    for k in range(len(want)):
        if want.sizes[k]:
            difference = np.abs(got.sample(k).astype(np.float64) - want.sample(k).astype(np.float64)) / level
            assert difference.mean() <= mean, k


@pytest.mark.gpu(emulated=False)
def test_imagenet_on_the_gpu(imagenet: list[Path], lane: Any) -> None:
    blobs = [f.read_bytes() for f in imagenet]
    op = Image(jpeg_decoder="nvjpeg", jpeg_fancy_upsampling=True)
    got, rejects = on_gpu(op, blobs, lane)
    assert not rejects
    assert_close(got, on_cpu(op, blobs)[0], mean=1.0)


@pytest.mark.gpu(emulated=False)
@pytest.mark.parametrize(
    ("output_type", "dtype", "level"),
    [
        (DALIImageType.BGR, DALIDataType.UINT8, 1.0),
        (DALIImageType.GRAY, DALIDataType.UINT8, 1.0),
        (DALIImageType.YCbCr, DALIDataType.UINT8, 1.0),
        (DALIImageType.ANY_DATA, DALIDataType.UINT8, 1.0),
        (DALIImageType.RGB, DALIDataType.FLOAT, 1 / 255),
        (DALIImageType.YCbCr, DALIDataType.FLOAT, 1 / 255),
        (DALIImageType.RGB, DALIDataType.FLOAT16, 1 / 255),
        (DALIImageType.GRAY, DALIDataType.UINT16, 257.0),
        (DALIImageType.RGB, DALIDataType.INT16, 128.5),
        (DALIImageType.RGB, DALIDataType.INT8, 0.5),
    ],
)
def test_colour_and_type_on_the_gpu(
    imagenet: list[Path], lane: Any, output_type: DALIImageType, dtype: DALIDataType, level: float
) -> None:
    blobs = [f.read_bytes() for f in imagenet[:24]]
    op = Image(output_type=output_type, dtype=dtype, jpeg_decoder="nvjpeg", jpeg_fancy_upsampling=True)
    got, rejects = on_gpu(op, blobs, lane)
    assert not rejects
    assert_close(got, on_cpu(op, blobs)[0], mean=1.5, level=level)


@pytest.mark.gpu(emulated=False)
def test_orientation_and_every_format_on_the_gpu(lane: Any) -> None:
    picture = smooth(48, 80)
    blobs = []
    for orientation in range(1, 9):
        exif = Pillow.Exif()
        exif[0x0112] = orientation
        blobs += [encode(picture, exif=exif, subsampling=0), encode(picture, "PNG", exif=exif)]
    blobs += [encode(picture, f) for f in ("BMP", "TIFF", "PPM", "WEBP")]
    blobs += [encode(smooth(1100, 1000), progressive=True), encode(picture[..., 0])]
    op = Image(jpeg_decoder="nvjpeg", jpeg_fancy_upsampling=True)
    got, rejects = on_gpu(op, blobs, lane)
    assert not rejects
    assert_close(got, on_cpu(op, blobs)[0], mean=1.0)


@pytest.mark.gpu(emulated=False)
def test_bad_images_on_the_gpu_cost_only_themselves(imagenet: list[Path], lane: Any) -> None:
    good = [f.read_bytes() for f in imagenet[:20]]
    blobs = [*good[:10], b"", good[3][:4000], b"GARBAGE", good[4][: len(good[4]) // 2] + b"\xff\xd9", *good[10:]]
    op = Image(jpeg_decoder="nvjpeg", jpeg_fancy_upsampling=True)
    got, rejects = on_gpu(op, blobs, lane)
    wrong = {r.slot for r in rejects}
    assert {10, 11, 12} <= wrong <= {10, 11, 12, 13}
    want = on_cpu(op, good)[0]
    rest = got.take(np.array([k for k in range(len(blobs)) if k not in (10, 11, 12, 13)]))
    assert_close(rest, want, mean=1.0)
    again, rejects = on_gpu(op, good, lane)
    assert not rejects
    assert_close(again, want, mean=1.0)


@pytest.mark.gpu(emulated=False)
def test_a_retry_is_left_to_the_cpu(imagenet: list[Path], lane: Any) -> None:
    blobs = [f.read_bytes() for f in imagenet[:4]]
    op = Image()
    got, _ = on_gpu(op, blobs, lane, attempt=1)
    assert_close(got, on_cpu(op, blobs)[0], mean=0.0)
