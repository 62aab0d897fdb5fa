"""AVIF, HEIC and JPEG XL: pixels against the libraries that wrote them, headers, verdicts, and damaged files."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import features

from dali_run.cli.main import main
from dali_run.ops.codecs.avif_heic_jxl import decoder
from dali_run.ops.codecs.decoders import Image, PeekImageShape
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.isolation.processes import Isolation
from dali_run.ops.errors import JobError, SampleError
from dali_run.ops.types import DALIDataType, DALIImageType
from dali_run.readers.file import File
from tests.kit.ops.decoding import run

imagecodecs = pytest.importorskip("imagecodecs")
pillow_heif = pytest.importorskip("pillow_heif")
if not features.check("avif"):
    pytest.skip("this Pillow has no AVIF", allow_module_level=True)

Y, X = np.mgrid[:45, :70]
RGB = np.stack([X * 3, Y * 4, 128 + 0 * X], -1).astype(np.uint8)
DEEP = RGB.astype(np.uint16) * 257
TURNED = {1: RGB, 3: RGB[::-1, ::-1], 6: np.rot90(RGB, 3), 8: np.rot90(RGB), 2: RGB[:, ::-1], 4: RGB[::-1],
          5: RGB.transpose(1, 0, 2), 7: np.rot90(RGB, 2).transpose(1, 0, 2)}  # fmt: skip
"""As a viewer shows RGB that is stored with an orientation."""


def avif(image: Any = RGB, **options: Any) -> bytes:
    out = io.BytesIO()
    Pillow.fromarray(image).save(out, "AVIF", quality=95, subsampling="4:4:4", **options)
    return out.getvalue()


def heic(image: Any = RGB) -> bytes:
    out = io.BytesIO()
    pillow_heif.from_pillow(Pillow.fromarray(image)).save(out, quality=95, chroma=444)
    return out.getvalue()


def jpeg_xl(image: Any = RGB, **options: Any) -> bytes:
    return bytes(imagecodecs.jpegxl_encode(image, lossless=True, **options))


MADE = {"avif": avif, "heic": heic, "jpegxl": jpeg_xl}


@pytest.mark.parametrize("format", MADE)
@pytest.mark.parametrize("output_type", [DALIImageType.RGB, DALIImageType.BGR, DALIImageType.GRAY])
def test_pixels(format: str, output_type: DALIImageType) -> None:
    out, rejects = run(Image(output_type=output_type), [MADE[format]()])
    assert not rejects
    wanted = {
        DALIImageType.RGB: RGB, DALIImageType.BGR: RGB[..., ::-1],
        DALIImageType.GRAY: (RGB @ np.array([[0.299], [0.587], [0.114]])),
    }[output_type]  # fmt: skip
    assert out.sample(0).shape == wanted.shape
    assert np.abs(out.sample(0).astype(float) - wanted).mean() < (0.51 if format == "jpegxl" else 3)


@pytest.mark.parametrize("format", MADE)
def test_alpha_and_gray_as_stored(format: str) -> None:
    alpha = np.dstack([RGB, (X * 2).astype(np.uint8)])
    header = probe(memoryview(MADE[format](alpha)))
    assert (header.format, header.width, header.height, header.channels) == (format, 70, 45, 4)
    out, rejects = run(Image(output_type=DALIImageType.ANY_DATA), [MADE[format](alpha)])
    assert not rejects
    assert out.sample(0).shape == (45, 70, 4)
    assert np.abs(out.sample(0).astype(float) - alpha).mean() < 3
    out, _ = run(Image(), [MADE[format](np.ascontiguousarray(RGB[..., 0]))])
    assert np.abs(out.sample(0).astype(float) - RGB[..., :1]).mean() < 3


@pytest.mark.parametrize("orientation", TURNED)
def test_avif_is_turned_as_its_boxes_say(orientation: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    data = avif(exif=exif)
    assert probe(memoryview(data)).orientation == orientation
    for adjust, wanted in ((True, TURNED[orientation]), (False, RGB)):
        out, _ = run(Image(adjust_orientation=adjust), [data])
        assert out.sample(0).shape == wanted.shape
        assert np.abs(out.sample(0).astype(float) - wanted).mean() < 3
        shapes, _ = run(PeekImageShape(adjust_orientation=adjust), [data])
        assert shapes.sample(0).tolist() == list(wanted.shape)


def test_deep_colour_keeps_its_bits() -> None:
    ten = np.asarray(RGB, np.uint16) * 4
    deep = io.BytesIO()
    pillow_heif.from_bytes("RGB;16", (70, 45), DEEP.tobytes()).save(deep, quality=-1, chroma=444)
    files = {
        "jpegxl": (jpeg_xl(DEEP), DEEP, 0.0),
        "avif": (bytes(imagecodecs.avif_encode(ten, bitspersample=10, level=100)), ten * (65535 / 1023), 400.0),
        "heic": (deep.getvalue(), DEEP, 600.0),
    }
    for format, (data, wanted, off) in files.items():
        assert probe(memoryview(data)).bits == (16 if format == "jpegxl" else 10)
        out, rejects = run(Image(dtype=DALIDataType.UINT16), [data])
        assert not rejects, format
        assert np.abs(out.sample(0).astype(float) - wanted).mean() <= off, format


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (256, 8), (9, 300), (640, 480), (33, 500)])
def test_sizes_of_jpeg_xl(size: tuple[int, int]) -> None:
    """Sizes are written in several ways: in eighths, and by the ratio of the sides."""
    for container in (False, True):
        header = probe(memoryview(jpeg_xl(np.zeros((size[1], size[0], 3), np.uint8), usecontainer=container)))
        assert (header.width, header.height) == size


@pytest.mark.parametrize("format", MADE)
def test_damage_is_a_verdict(format: str) -> None:
    """Cut short and changed anywhere: pixels of the size in the header's limits, or a reason, and never a crash."""
    data, rng = MADE[format](), np.random.default_rng(3)
    codes: set[str] = set()
    with Isolation() as isolation:
        for _ in range(60):
            at = int(rng.integers(0, len(data)))
            other = [data[:at], data[:at] + bytes([int(rng.integers(0, 256))]) + data[at + 1 :]][
                int(rng.integers(0, 2))
            ]
            try:
                header = probe(memoryview(other))
                if header.width * header.height > 10**7:
                    continue
                pixels = isolation.decode(memoryview(other), header, True, 10**7)
            except SampleError as e:
                codes.add(e.code)
                continue
            assert pixels.shape[0] * pixels.shape[1] <= 10**7
        assert codes <= {"truncated", "corrupt_data", "unsupported", "not_an_image", "too_large"}
        for cut in (1, 3):
            with pytest.raises(SampleError):
                probe(memoryview(data[:cut]))


@pytest.mark.parametrize("format", MADE)
def test_a_bomb_is_refused_by_its_header(format: str) -> None:
    _, rejects = run(Image(max_pixels=70 * 45 - 1), [MADE[format]()])
    assert [r.code for r in rejects] == ["too_large"]


@pytest.mark.parametrize("format", MADE)
def test_what_is_missing_is_named(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "missing", lambda format: f"{format}: {decoder.REMEDY}")
    _, rejects = run(Image(), [MADE[format]()])
    assert [r.code for r in rejects] == ["unsupported"]
    assert "dali-run[formats]" in rejects[0].message


def test_other_brands() -> None:
    def head(*brands: bytes) -> memoryview:
        body = b"ftyp" + brands[0] + bytes(4) + b"".join(brands[1:])
        return memoryview((4 + len(body)).to_bytes(4, "big") + body + bytes(99))

    for brands, message in (
        ((b"mif1", b"avif"), "primary"), ((b"msf1", b"hevc"), "primary"), ((b"isom", b"mp41"), "no known image"),
    ):  # fmt: skip
        with pytest.raises(SampleError, match=message):
            probe(head(*brands))


@pytest.mark.parametrize("source", ["files", "tar"])
def test_from_a_data_set_to_shards(source: str, tmp_path: Path) -> None:
    """Good ones are written, damaged ones are lines in the log of rejects, whatever they are read from."""
    (tmp_path / "files" / "a").mkdir(parents=True)
    with tarfile.open(tmp_path / "data.tar", "w") as tar:
        for format, make in MADE.items():
            for k in range(3):
                data = make(np.roll(RGB, 5 * k, 1))
                data = data[: len(data) // 2] if k == 2 else data
                (tmp_path / "files" / "a" / f"{format}{k}.{format}").write_bytes(data)
                info = tarfile.TarInfo(f"{format}{k}.jpg")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    filters = "['*.avif', '*.heic', '*.jpegxl']"
    reader = {
        "files": f"{{op: readers.file, file_root: {tmp_path}/files, file_filters: {filters}, out: [x, labels]}}",
        "tar": f"{{op: readers.webdataset, paths: [{tmp_path}/data.tar], ext: [jpg], out: [x]}}",
    }[source]
    spec = f"""version: 1
pipeline: {{device: cpu, batch_size: 4, num_threads: 1}}
graph:
  - {reader}
  - {{op: decoders.image, in: x, out: x}}
outputs: {{x: x}}
write: {{writer: webdataset, path: {tmp_path}/out, fields: {{x: {{encode: png}}}}}}
on_error: {{policy: skip, max_errors: 3}}
"""
    (tmp_path / "spec.yaml").write_text(spec)
    assert main(["run", str(tmp_path / "spec.yaml"), "--quiet"]) == 3
    with tarfile.open(next((tmp_path / "out").glob("*.tar"))) as tar:
        written = [Pillow.open(io.BytesIO(tar.extractfile(m).read())) for m in tar]  # type: ignore[union-attr]
    assert len(written) == 6
    for k, image in enumerate(written):
        off = np.abs(np.asarray(image).astype(float) - np.roll(RGB, 5 * (k % 2), 1)).mean()
        assert off < 3
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert len(rejects) == 3
    assert {r["operator"] for r in rejects} == {"decoders.image"}
    assert {r["code"] for r in rejects} <= {"truncated", "corrupt_data"}
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["decoders"] == {"other formats": 6}
    assert report["decoder_times"]["other formats"]["busy_seconds"] > 0


def test_a_folder_without_the_usual_endings_says_which_there_are(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for k in range(3):
        (tmp_path / "a" / f"{k}.{'jxl' if k else 'avif'}").write_bytes(b"")
    with pytest.raises(JobError, match=r"file_filters: \['\*\.jxl', '\*\.avif'\], or files"):
        File(file_root=str(tmp_path)).open()
