from __future__ import annotations

import csv
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from PIL import ImageOps
from PIL import __version__ as pillow_version

from dali_run.ops.base import Spec, find
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.decoders import Image, ImageCrop, ImageRandomCrop, ImageSlice, Numpy, PeekImageShape, ReadFile
from dali_run.ops.context import Context
from dali_run.ops.errors import REJECT_CODES, Reject, SpecError
from dali_run.ops.images.random_window import WINDOW_SALT, random_windows
from dali_run.ops.types import DALIDataType, DALIImageType
from tests.kit.ops.decoding import batch_of, run

GOLDEN = Path(__file__).parents[2] / "golden" / "decoders.npz"
ORIENTATION = 0x0112


def decode(blob: bytes, **args: Any) -> np.ndarray:
    out, rejects = run(Image(**args), [blob])
    assert not rejects, rejects
    return out.sample(0)


def refusal(blob: bytes, **args: Any) -> Reject:
    out, rejects = run(Image(**args), [blob])
    assert len(rejects) == 1
    assert out.sample(0).size == 0 or out.sample(0).ndim == 3
    return rejects[0]


def encode(pixels: np.ndarray, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, format, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def rgb() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (13, 21, 3), np.uint8)


# -- JPEG -------------------------------------------------------------------------------------------------------------


def test_jpeg_equals_pillow_to_the_bit(imagenet: list[Path]) -> None:
    files = imagenet[:48]
    out, rejects = run(Image(), [f.read_bytes() for f in files], gap=7)
    assert not rejects
    assert out.layout == "HWC"
    for file, got in zip(files, out, strict=True):
        np.testing.assert_array_equal(got, np.asarray(ImageOps.exif_transpose(Pillow.open(file)).convert("RGB")))


def test_gray_of_a_jpeg_is_its_y_plane(imagenet: list[Path]) -> None:
    for file in imagenet[:8]:
        image = Pillow.open(file)
        image.draft("L", image.size)
        np.testing.assert_array_equal(decode(file.read_bytes(), output_type=DALIImageType.GRAY)[..., 0], image)


def test_bgr_is_rgb_backwards(imagenet: list[Path]) -> None:
    blob = imagenet[0].read_bytes()
    np.testing.assert_array_equal(decode(blob, output_type=DALIImageType.BGR), decode(blob)[..., ::-1])


def test_fast_idct_is_close_but_not_equal(imagenet: list[Path]) -> None:
    blob = imagenet[0].read_bytes()
    difference = np.abs(decode(blob).astype(int) - decode(blob, use_fast_idct=True))
    assert 0 < difference.max() < 40
    assert difference.mean() < 2


def test_a_bad_image_leaves_its_neighbours_alone(imagenet: list[Path]) -> None:
    good = [f.read_bytes() for f in imagenet[:3]]
    out, rejects = run(Image(), [good[0], good[1][:5000], good[1], b"", b"not an image", good[2]])
    assert [(r.slot, r.code) for r in rejects] == [(3, "not_an_image"), (4, "not_an_image"), (1, "truncated")]
    for place, blob in ((0, good[0]), (2, good[1]), (5, good[2])):
        np.testing.assert_array_equal(out.sample(place), decode(blob))


def test_rejects_say_what_is_wrong(imagenet: list[Path]) -> None:
    blob = imagenet[0].read_bytes()
    assert "empty" in refusal(b"").message
    assert "no known image format (JPEG, PNG" in refusal(b"GARBAGE!" * 9).message
    assert refusal(blob[:200]).code == "truncated"
    assert refusal(b"\x89PNG").code == "truncated"
    twelve_bit = bytearray(blob)
    sof = blob.find(b"\xff\xc0")
    twelve_bit[sof + 4] = 12
    reject = refusal(bytes(twelve_bit))
    assert reject.code == "unsupported"
    assert "12 bits" in reject.message


def test_a_jpeg_whose_first_marker_is_damaged_is_refused(rgb: np.ndarray) -> None:
    """libjpeg would look for the next marker and go on; Pillow and OpenCV refuse such a file."""
    blob = bytearray(encode(rgb, "JPEG"))
    blob[2] = 0x0D
    assert refusal(bytes(blob)).code == "not_an_image"


def test_an_attack_by_progressive_scans_is_refused(rgb: np.ndarray) -> None:
    blob = encode(rgb, "JPEG", progressive=True)
    assert decode(blob).shape == rgb.shape
    start = blob.rfind(b"\xff\xda")
    many = blob[:start] + blob[start:-2] * 600 + b"\xff\xd9"
    assert refusal(many).code == "too_large"
    assert "scans" in refusal(many).message


def test_padding_before_eoi_is_no_damage(rgb: np.ndarray) -> None:
    blob = encode(rgb, "JPEG")
    np.testing.assert_array_equal(decode(blob[:-2] + bytes(5) + blob[-2:]), decode(blob))
    np.testing.assert_array_equal(decode(blob + b"trailing bytes"), decode(blob))


# -- other formats, against Pillow and DALI ---------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "JPEG2000", "WEBP"])
def test_lossless_formats_keep_every_pixel(rgb: np.ndarray, format: str) -> None:
    options = {"lossless": True} if format == "WEBP" else {}
    np.testing.assert_array_equal(decode(encode(rgb, format, **options)), rgb)


def test_first_frame_of_a_gif() -> None:
    frames = [Pillow.new("RGB", (9, 7), c) for c in ("#ff0000", "#00ff00")]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode(buffer.getvalue()), np.asarray(frames[0]))


def golden_cases() -> list[str]:
    with np.load(GOLDEN) as arrays:
        return [name for name in arrays.files if name.startswith("output/")]


LEVELS = {  # where libraries round otherwise, in levels of 8 bits
    "jpeg cmyk": 1.0,  # simplejpeg rounds c * k / 255, DALI truncates
    "png rgb/GRAY": 1.0,  # DALI has OpenCV make PNGs gray, in fixed point
    "png rgba/GRAY": 1.0,
    "png palette/GRAY": 1.0,
    "png palette transparent/GRAY": 1.0,
    "jpeg cmyk/GRAY": 2.0,
}


@pytest.mark.parametrize("case", golden_cases())
def test_pixels_equal_dali(case: str) -> None:
    _, name, output_type, dtype = case.split("/")
    with np.load(GOLDEN) as arrays:
        want, blob = arrays[case], arrays[f"input/{name}"].tobytes()
    got = decode(blob, output_type=DALIImageType[output_type], dtype=DALIDataType[dtype])
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    level = {"UINT8": 1.0, "UINT16": 257.0, "FLOAT": 1 / 255}[dtype]
    allowed = LEVELS.get(f"{name}/{output_type}", LEVELS.get(name, 0.0)) * level
    rounding = {"UINT8": 0.0, "UINT16": 1.0 if output_type == "YCbCr" else 0.0, "FLOAT": 1e-6}[dtype]
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=0, atol=allowed + rounding)


def test_formats_that_dali_refuses_with_any_data(rgb: np.ndarray) -> None:
    gray_alpha = np.dstack([rgb[..., 0], rgb[..., 1]])
    buffer = io.BytesIO()
    Pillow.merge("LA", [Pillow.fromarray(rgb[..., k]) for k in (0, 1)]).save(buffer, "PNG")
    np.testing.assert_array_equal(decode(buffer.getvalue(), output_type=DALIImageType.ANY_DATA), gray_alpha)


# -- orientation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(rgb: np.ndarray, format: str, orientation: int) -> None:
    exif = Pillow.Exif()
    exif[ORIENTATION] = orientation
    options = {"lossless": True} if format == "WEBP" else {}
    blob = encode(rgb, format, exif=exif, **options)
    stored = decode(blob, adjust_orientation=False)
    assert stored.shape == rgb.shape
    if format != "JPEG":
        np.testing.assert_array_equal(stored, rgb)
    # Pillow's own transposition of the stored pixels is the reference (a TIFF's are turned when they are loaded).
    plain = Pillow.fromarray(stored)
    plain.getexif()[ORIENTATION] = orientation
    want = np.asarray(ImageOps.exif_transpose(plain))
    np.testing.assert_array_equal(decode(blob), want)
    (shape,), _ = run(PeekImageShape(), [blob])
    assert tuple(shape) == want.shape
    (shape,), _ = run(PeekImageShape(adjust_orientation=False, dtype=DALIDataType.INT32), [blob])
    assert tuple(shape) == rgb.shape
    assert shape.dtype == np.int32


# -- windows ----------------------------------------------------------------------------------------------------------


def test_random_crop_is_a_window_of_the_whole_image(imagenet: list[Path]) -> None:
    blobs = [f.read_bytes() for f in imagenet[:6]]
    op = ImageRandomCrop()
    out, rejects = run(op, blobs, seed=99)
    assert not rejects
    whole = [decode(b) for b in blobs]
    streams = Context(op=op, stage="cpu", samples=Samples.numbered(6), seed=99).streams(WINDOW_SALT)
    heights, widths = np.array([w.shape[0] for w in whole]), np.array([w.shape[1] for w in whole])
    anchors, sizes = random_windows(streams, heights, widths)
    for k, image in enumerate(whole):
        (y, x), (h, w) = anchors[k], sizes[k]
        np.testing.assert_array_equal(out.sample(k), image[y : y + h, x : x + w])


def test_random_crop_takes_every_format_and_skips_bad_ones(rgb: np.ndarray) -> None:
    out, rejects = run(ImageRandomCrop(), [encode(rgb, "PNG"), b"junk", encode(rgb, "JPEG")], seed=3)
    assert [r.slot for r in rejects] == [1]
    assert out.sample(0).size > 0
    assert out.sample(2).size > 0


def test_crop_is_a_window_of_the_whole_image(imagenet: list[Path], rgb: np.ndarray) -> None:
    blobs = [imagenet[0].read_bytes(), imagenet[1].read_bytes(), b"", encode(rgb, "PNG")]
    op = ImageCrop(crop=(100, 120), crop_pos_x=0.25, crop_pos_y=0.9, output_type=DALIImageType.BGR)
    assert str(op.infer(Spec())) == "uint8[100x120x3] HWC"
    out, rejects = run(op, blobs)
    assert [(r.slot, r.code) for r in rejects] == [(2, "not_an_image"), (3, "out_of_bounds")]
    for k in (0, 1):
        whole = decode(blobs[k])[..., ::-1]
        y, x = round((whole.shape[0] - 100) * 0.9), round((whole.shape[1] - 120) * 0.25)
        np.testing.assert_array_equal(out.sample(k), whole[y : y + 100, x : x + 120])


def test_crop_of_a_turned_image(rgb: np.ndarray) -> None:
    exif = Pillow.Exif()
    exif[ORIENTATION] = 6
    for format in ("JPEG", "PNG"):
        blob = encode(rgb, format, exif=exif)
        out, rejects = run(ImageCrop(crop=(9, 5), crop_pos_x=0.0, crop_pos_y=1.0), [blob])
        assert not rejects
        np.testing.assert_array_equal(out.sample(0), decode(blob)[-9:, :5])


def test_crop_takes_its_place_from_an_input(rgb: np.ndarray) -> None:
    blob = encode(rgb, "JPEG")
    samples = Samples.numbered(2)
    position = Batch.from_dense(np.array([0.0, 1.0], np.float32), "", samples)
    out, _ = run(ImageCrop(crop_h=13, crop_w=8, per_sample=frozenset({"crop_pos_x"})), [blob, blob],
                 args={"crop_pos_x": position})  # fmt: skip
    np.testing.assert_array_equal(out.sample(0), decode(blob)[:, :8])
    np.testing.assert_array_equal(out.sample(1), decode(blob)[:, -8:])


def test_slice_by_arguments_and_by_inputs(imagenet: list[Path]) -> None:
    blob = imagenet[2].read_bytes()
    whole = decode(blob)
    h, w = whole.shape[:2]
    want = whole[h // 4 : h // 4 + 50, w // 2 : w // 2 + 30]
    start, size = (w // 2, h // 4), (30, 50)
    out, rejects = run(ImageSlice(start=start, shape=size), [blob])
    assert not rejects
    np.testing.assert_array_equal(out.sample(0), want)
    out, _ = run(ImageSlice(rel_start=(0.5, 0.0), rel_end=(1.0, 1.0)), [blob])
    np.testing.assert_array_equal(out.sample(0), whole[:, int(w / 2 + 0.5) :])
    op = ImageSlice(normalized_anchor=False, normalized_shape=False)
    op.infer(Spec(), Spec((2,)), Spec((2,)))
    encoded = batch_of([blob])
    ctx = Context(op=op, stage="cpu", samples=encoded.samples)
    given = [Batch.from_dense(np.array([v], np.float32), "", encoded.samples) for v in (start, size)]
    np.testing.assert_array_equal(op.cpu(ctx, encoded, *given).sample(0), want)


def test_slice_outside_or_along_channels_is_refused(rgb: np.ndarray) -> None:
    blob = encode(rgb, "JPEG")
    _, rejects = run(ImageSlice(start=(0, 0), shape=(500, 5)), [blob])
    assert [r.code for r in rejects] == ["out_of_bounds"]
    with pytest.raises(SpecError, match="H and W"):
        ImageSlice(axes=(2,), start=(0,), shape=(1,)).infer(Spec())
    with pytest.raises(SpecError, match="exclude"):
        ImageSlice(start=(0, 0), rel_start=(0.0, 0.0)).check()


# -- hostile input ----------------------------------------------------------------------------------------------------


def png_header(width: int, height: int) -> bytes:
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + bytes(60)


def test_decompression_bombs_are_refused_from_the_header(rgb: np.ndarray) -> None:
    bomb = refusal(png_header(50_000, 50_000))
    assert bomb.code == "too_large"
    assert "50000 x 50000" in bomb.message
    assert "max_pixels" in bomb.message
    jpeg = bytearray(encode(rgb, "JPEG"))
    at = jpeg.find(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 60_000, 60_000)
    assert refusal(bytes(jpeg)).code == "too_large"
    assert refusal(encode(rgb, "BMP"), max_pixels=100).code == "too_large"


FOLDERS = ("jpeg_bad", "jpeg_odd", "png", "tiff", "webp", "bmp", "pnm", "jp2", "gif")


def test_corpus(shared_data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every file is decoded or refused with a code and words; what three libraries decode is decoded."""
    with (shared_data / "corpus" / "MANIFEST.csv").open(newline="") as f:
        manifest = {row["path"]: row for row in csv.DictReader(f)}
    sure = refused = 0
    for folder in FOLDERS:
        for file in sorted((shared_data / "corpus" / folder).iterdir()):
            out, rejects = run(Image(), [file.read_bytes()])
            row = manifest[f"{folder}/{file.name}"]
            decodes = all((row[k] or "ok").startswith("ok") for k in ("pillow", "opencv", "libjpeg_turbo"))
            sure += decodes
            if not rejects:
                assert out.sample(0).size > 0, file
                assert out.shapes[0, 2] == 3
                (shape,), _ = run(PeekImageShape(), [file.read_bytes()])
                assert tuple(shape) == out.sample(0).shape, file
                continue
            assert len(rejects) == 1
            assert rejects[0].code in REJECT_CODES
            assert len(rejects[0].message) > 15, file
            refused += decodes
    assert sure > 100
    newest = int(pillow_version.split(".")[0]) >= 13  # older versions do not decode two TIFFs
    assert refused <= (0.005 if newest else 0.011) * sure
    assert capfd.readouterr().err == ""


@pytest.fixture(scope="module")
def samples_of_all_formats() -> list[bytes]:
    with np.load(GOLDEN) as arrays:
        return [arrays[n].tobytes() for n in arrays.files if n.startswith("input/")]


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_files_never_raise(samples_of_all_formats: list[bytes], data: st.DataObject) -> None:
    blob = bytearray(data.draw(st.sampled_from(samples_of_all_formats)))
    for _ in range(data.draw(st.integers(0, 6))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(blob)))
    out, rejects = run(Image(max_pixels=1_000_000), [bytes(blob[:cut]), bytes(blob)])
    assert len(rejects) == len({r.slot for r in rejects})
    for k in range(2):
        assert (out.sample(k).size == 0) <= (k in {r.slot for r in rejects})
    run(PeekImageShape(), [bytes(blob)])


# -- arrays and files -------------------------------------------------------------------------------------------------


def npy(array: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def test_numpy_arrays() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3) * 50 - 20
    wild = [npy(a), npy(np.asfortranarray(a)), npy(a.astype(">f4")), npy(a[:1]), npy(a[:0])]
    out, rejects = run(Numpy(), wild, gap=3)
    assert not rejects
    for got, want in zip(out, [a, a, a, a[:1], a[:0]], strict=True):
        np.testing.assert_array_equal(got, want)
    out, rejects = run(Numpy(dtype=DALIDataType.UINT8), [npy(a), npy(np.array([[-5.0, 2.5, 300.0]]))])
    assert not rejects
    np.testing.assert_array_equal(out.sample(1), [[0, 3, 255]])
    out, _ = run(Numpy(), [npy(np.float32(3))])
    assert out.sample(0).shape == ()


def test_bad_numpy_files_are_refused() -> None:
    good = npy(np.ones((3, 4), np.int32))
    bad = {
        b"": "corrupt_record",
        good[:-1]: "truncated",
        good[:40]: "corrupt_record",
        npy(np.array([{"a": 1}], object), allow_pickle=True): "unsupported",
        npy(np.array(["text"])): "unsupported",
        npy(np.ones(3, np.int32)): "bad_shape",
        npy(np.ones((1, 1), np.float64)): "bad_shape",
        good.replace(b"(3, 4)", b"(-3,4)"): "corrupt_record",
    }
    out, rejects = run(Numpy(), [good, *bad], kind=Spec((None, None), DALIDataType.INT32))
    assert {r.slot - 1: r.code for r in rejects} == dict(enumerate(bad.values()))
    np.testing.assert_array_equal(out.sample(0), np.ones((3, 4)))


def test_files_by_path(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    (tmp_path / "b").write_bytes(b"")
    paths = [str(tmp_path / n).encode() for n in ("a", "missing", "b")]
    out, rejects = run(ReadFile(), [*paths, str(tmp_path).encode()])
    assert [(r.slot, r.code) for r in rejects] == [(1, "read_failed"), (3, "read_failed")]
    assert "missing cannot be read: No such file" in rejects[0].message
    assert out.sample(0).tobytes() == b"hello"
    assert out.sample(2).size == 0


# -- declaration ------------------------------------------------------------------------------------------------------


def test_infer_and_checks() -> None:
    assert str(Image().infer(Spec((None,), DALIDataType.UINT8))) == "uint8[?x?x3] HWC"
    gray = Image(output_type=DALIImageType.GRAY, dtype=DALIDataType.FLOAT)
    assert str(gray.infer(Spec())) == "float[?x?x1] HWC"
    with pytest.raises(SpecError, match="encoded files"):
        Image().infer(Spec((None, None, 3), DALIDataType.UINT8, "HWC"))
    with pytest.raises(SpecError, match="INT64"):
        Image(dtype=DALIDataType.INT64).check()
    with pytest.raises(SpecError, match="STRING"):
        PeekImageShape(dtype=DALIDataType.STRING).check()
    assert find("image_decoder") is Image
    assert find("experimental.peek_image_shape") is PeekImageShape
