"""The CUDA JPEG decoder against libjpeg-turbo: pixels bit for bit, damage noticed, resizes like DALI's."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageOps

from benchmarks.jpeg.small_pictures import mutated, small_pictures
from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.images.resampling import resample
from dali_run.ops.types import DALIInterpType
from tests.kit.files.jpegs import encode, in_scans, picture, segment, with_orientation
from tests.kit.ops.apart_decoder import ApartDecoder
from tests.kit.ops.jpeg_harness import EmulatedRuntime, GpuRuntime, Harness, assert_exact, pixels, reference


@pytest.fixture(scope="module", params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu(emulated=False))])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness(EmulatedRuntime() if request.param == "emulated" else GpuRuntime())


def reference_size(file: bytes) -> tuple[int, int]:
    """Height and width as shown."""
    width, height = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).size
    return height, width


SIZES = [(1, 1), (2, 3), (3, 2), (8, 8), (9, 17), (16, 16), (17, 15), (33, 70), (64, 64), (130, 61), (257, 131)]


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_odd_sizes(harness: Harness, subsampling: str) -> None:
    assert_exact(harness, [encode(w, h, subsampling=subsampling) for w, h in SIZES])


def test_gray(harness: Harness) -> None:
    assert_exact(harness, [encode(w, h, gray=True) for w, h in SIZES])


@pytest.mark.parametrize("subsampling", ["411", "440", "422", "420", "444"])
def test_samplings_of_libjpeg_turbo(harness: Harness, subsampling: str) -> None:
    files = [
        simplejpeg.encode_jpeg(picture(w, h), quality=80, colorspace="RGB", colorsubsampling=subsampling)
        for w, h in SIZES
    ]
    assert_exact(harness, files)


@pytest.mark.parametrize("quality", [1, 20, 95, 100])
def test_qualities_and_optimised_tables(harness: Harness, quality: int) -> None:
    assert_exact(harness, [encode(150, 90, quality=quality, optimize=o) for o in (False, True)])


def test_a_block_with_tables_of_different_numbers(harness: Harness) -> None:
    """The symbol after a DC is looked up with it only where the tables of a block have the same number."""
    files = []
    for quality in (30, 90):
        file = bytearray(encode(150, 90, gray=True, quality=quality))
        scan = file.index(b"\xff\xda")
        file[scan + 6] = 0x01  # DC table 0, AC table 1
        table = next(at for at in range(len(file)) if file[at : at + 2] == b"\xff\xc4" and file[at + 4] == 0x10)
        file[table + 4] = 0x11
        files.append(bytes(file))
    assert_exact(harness, files)


def test_flat_pictures_and_bare_blocks(harness: Harness) -> None:
    """Blocks of two symbols, and of coefficients that no short code holds."""
    flat = np.full((120, 200, 3), 90, np.uint8)
    flat[40:80, 60:140] = 200
    checked = np.where(np.indices((64, 96)).sum(axis=0)[..., None] % 2, 255, 0).astype(np.uint8).repeat(3, axis=2)
    files = []
    for picture_of in (flat, checked):
        for quality in (1, 75, 100):
            out = io.BytesIO()
            Image.fromarray(picture_of).save(out, "JPEG", quality=quality)
            files.append(out.getvalue())
    assert_exact(harness, files)


def test_restart_intervals(harness: Harness) -> None:
    intervals: list[dict[str, int]] = [{"restart_marker_blocks": n} for n in (1, 2, 3, 7, 20, 100000 // 2)]
    intervals += [{"restart_marker_rows": n} for n in (1, 2)]
    files = [encode(150, 90, subsampling=s, **i) for i in intervals for s in ("4:4:4", "4:2:0")]
    assert_exact(harness, files)


def test_noise_that_barely_synchronises(harness: Harness) -> None:
    """Hardly any structure: long chains, many subsequences, several chunks of one image."""
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 256, (500, 600, 3), dtype=np.uint8)
    flat = np.full((700, 900, 3), 77, np.uint8)
    files = [
        simplejpeg.encode_jpeg(noise, quality=q, colorspace="RGB", colorsubsampling=s)
        for q, s in ((100, "444"), (90, "420"))
    ]
    files.append(simplejpeg.encode_jpeg(flat, quality=90, colorspace="RGB", colorsubsampling="420"))
    assert_exact(harness, files)


def test_real_pictures(harness: Harness, imagenet: list[Path]) -> None:
    assert_exact(harness, [p.read_bytes() for p in imagenet[::5]])


def test_noise_around_the_scan(harness: Harness) -> None:
    file = encode(70, 50)
    head, scan = file[:2], file[2:]
    files = [
        head + segment(0xEB, b"\xff\xda\xff\xd9 thumbnail") + segment(0xFE, b"comment \xff\xc0") + scan,
        head + b"\xff\xff\xff" + scan,  # fill bytes
        file + b"junk \xff\xd8\xff" + bytes(300),
        file[:-2],  # no EOI
        file[:-2] + b"\xff\xff\xff\xd9",
    ]
    results, status = harness.decode(files, pixels())
    assert not status.any()
    for result in results:
        np.testing.assert_array_equal(result, reference(file))


@pytest.mark.parametrize("size", [(70, 50), (320, 250)])
def test_only_eoi_may_end_the_scan(harness: Harness, size: tuple[int, int]) -> None:
    """libjpeg reads on, and refuses most other markers: the other decoder has the last word."""
    file = encode(*size)
    markers = [0xD9, 0x01, 0x59, 0x94, 0xC0, 0xCF, 0xD8, 0xDA, 0xF9, 0xFE]
    files = [file[:-1] + bytes([m]) for m in markers] + [file[:-2] + b"\xff\x94\xff\xd9", file + b"\xff\x94"]
    results, status = harness.decode(files, pixels())
    assert status.tolist() == [0] + [jpeg_gpu.EXTRANEOUS] * 10 + [0]
    np.testing.assert_array_equal(results[0], reference(file))
    np.testing.assert_array_equal(results[-1], reference(file))


def test_fill_bytes_before_data(harness: Harness) -> None:
    """FF FF 00: libjpeg-turbo leaves coefficients of a first attempt in the block. At any place in a thread's bytes."""
    file = encode(320, 250, quality=98)
    start = file.index(b"\xff\xda") + 14
    places = [i for i in range(start, len(file) - 1) if file[i : i + 2] == b"\xff\0"][:40]
    assert len({(i - start) % 16 for i in places}) > 12
    files = [file[:i] + b"\xff" + file[i:] for i in places]
    _, status = harness.decode(files, pixels())
    assert (status & jpeg_gpu.EXTRANEOUS).all()


def test_fill_bytes_before_restart_markers(harness: Harness) -> None:
    file = encode(90, 60, restart_marker_blocks=5)
    start = file.index(b"\xff\xda")
    scan = file[start:]
    for n in range(8):
        scan = scan.replace(bytes([0xFF, 0xD0 + n]), bytes([0xFF, 0xFF, 0xD0 + n]))
    results, status = harness.decode([file[:start] + scan], pixels())
    assert not status.any()
    np.testing.assert_array_equal(results[0], reference(file))


SAMPLED = [(1, 1), (2, 1), (2, 2), (1, 2), (4, 1)]


@pytest.mark.parametrize(("h", "v"), SAMPLED)
def test_a_scan_for_each_component(harness: Harness, h: int, v: int) -> None:
    orders = itertools.cycle([(0, 1, 2), (2, 0, 1), (1, 2, 0)])
    files = [in_scans(*size, h, v, next(orders)) for size in [*SIZES, (400, 300)]]
    files += [in_scans(130, 61, h, v, restart_marker_blocks=n) for n in (1, 7)]
    files += [in_scans(90, 70, h, v, sof=0xC1), encode(90, 70)]
    files.insert(3, encode(64, 70))
    headers = jpeg_header.read_headers(*packed(files))
    assert headers["scans"].tolist() == [1 if i in (3, len(files) - 1) else 3 for i in range(len(files))]
    assert_exact(harness, files)
    windows = np.tile(np.array([[5, 3, 40, 50]], np.int32), (3, 1))
    some = [files[-1], in_scans(257, 131, h, v), in_scans(90, 70, h, v)]
    results, status = harness.decode(some, pixels(windows=windows), windows=windows)
    assert not status.any()
    for file, result in zip(some, results, strict=True):
        np.testing.assert_array_equal(result, reference(file)[3:50, 5:40])


def packed(files: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    sizes = np.array([len(f) for f in files], np.int64)
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum(sizes) - sizes, sizes


def test_scans_of_components_are_resized_and_luma_alone_is_read(harness: Harness) -> None:
    files = [in_scans(120, 90, 2, 2), encode(120, 90), in_scans(120, 90, 2, 1, (2, 1, 0))]

    def output(plan: jpeg_gpu.DecodePlan) -> jpeg_gpu.Output:
        whole = sampling(3, (0, 0), (90, 120), (24, 20), resample.TRIANGULAR)
        return jpeg_gpu.resize_output(plan, whole, round_to_uint8=False)

    results, status = harness.decode(files, output, window=True)
    assert not status.any()
    for file, result in zip(files, results, strict=True):
        expected = expected_resize(reference(file), (0, 120, 20), (0, 90, 24), resample.TRIANGULAR)
        np.testing.assert_allclose(result.transpose(1, 2, 0), expected, atol=0.02)
    gray, _ = harness.decode(files, pixels(output_type=jpeg_gpu.GRAY), luma_only=True)
    for file, result in zip(files, gray, strict=True):
        np.testing.assert_array_equal(result, reference(file, "GRAY"))


def test_damage_in_any_scan_is_noticed(harness: Harness) -> None:
    """And costs nobody else his picture."""
    good = encode(60, 44)
    rng = np.random.default_rng(3)
    files = [good]
    for h, v in SAMPLED[:3]:
        file = in_scans(60, 44, h, v, restart_marker_blocks=5 * (h == 2))
        files += [file, *mutated([file], 60), good]
        ends = [i for i in range(len(file) - 1) if file[i : i + 2] == b"\xff\xda"]
        files += [file[:at] + bytes(rng.integers(0, 256, 3, np.uint8)) + file[at:] for at in ends]  # behind a scan
        files += [file[: ends[2]], file[: ends[2]] + b"\xff\xd9", file[:-200]]
    results, status = Harness(harness.runtime, ApartDecoder).decode(files, pixels())
    assert (status != 0).sum() > 100
    for i, (file, result) in enumerate(zip(files, results, strict=True)):
        if file == good:
            assert status[i] == 0
        if status[i] == 0:
            expected = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
            np.testing.assert_array_equal(result, expected, err_msg=f"file {i}")


@pytest.mark.parametrize("scans", [[(0,), (0,), (1,), (2,)], [(0,), (1,)], [(0, 1), (2,)], [(0,), (1, 2)]])
def test_other_divisions_into_scans_are_for_other_decoders(scans: list[tuple[int, ...]]) -> None:
    file = in_scans(40, 30, 1, 1)
    heads = [i for i in range(len(file)) if file[i : i + 4] == b"\xff\xda\0\x08"]
    begin = file.index(b"\xff\xdb")
    head, ends = file[:begin], [*heads[1:], len(file) - 2]
    made = head
    for which in scans:
        tables = file[begin : heads[0]]
        made += tables + segment(0xDA, bytes([len(which)]) + b"".join(bytes([c + 1, 0]) for c in which) + b"\0\x3f\0")
        made += file[heads[which[0]] + 10 : ends[which[0]]]
    row = jpeg_header.read_headers(*packed([made + b"\xff\xd9"]))[0]
    assert row["status"] == jpeg_header.UNSUPPORTED
    assert row["scans"] == 0


def test_rgb_and_gray_outputs(harness: Harness) -> None:
    file = encode(61, 37)
    stream = io.BytesIO()
    Image.fromarray(picture(61, 37)).save(stream, "JPEG", keep_rgb=True)
    rgb_file = stream.getvalue()
    assert_exact(harness, [rgb_file])
    (luma, converted), status = harness.decode([file, rgb_file], pixels(output_type=jpeg_gpu.GRAY))
    assert not status.any()
    np.testing.assert_array_equal(luma, reference(file, "GRAY"))
    np.testing.assert_array_equal(converted, reference(rgb_file, "GRAY"))
    (bgr,), _ = harness.decode([file], pixels(output_type=jpeg_gpu.BGR))
    np.testing.assert_array_equal(bgr, reference(file)[..., ::-1])
    gray_file = encode(61, 37, gray=True)
    (luma,), _ = harness.decode([file], pixels(output_type=jpeg_gpu.GRAY), luma_only=True)
    np.testing.assert_array_equal(luma, reference(file, "GRAY"))
    (replicated,), _ = harness.decode([gray_file], pixels())
    np.testing.assert_array_equal(replicated, reference(gray_file))


def test_orientation_and_windows(harness: Harness) -> None:
    file = encode(75, 43)
    files = [with_orientation(file, o) for o in range(1, 9)]
    shown = [np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(f)))) for f in files]
    results, status = harness.decode(files, pixels(orient=True))
    assert not status.any()
    for result, expected in zip(results, shown, strict=True):
        np.testing.assert_array_equal(result, expected)
    windows = np.tile(np.array([[5, 9, 31, 40]], np.int32), (8, 1))
    results, _ = harness.decode(files, pixels(orient=True, windows=windows))
    for result, expected in zip(results, shown, strict=True):
        np.testing.assert_array_equal(result, expected[9:40, 5:31])


def test_only_blocks_of_the_window(harness: Harness) -> None:
    files = [encode(200, 150, subsampling=s) for s in ("4:4:4", "4:2:2", "4:2:0")]
    windows = np.tile(np.array([[37, 61, 120, 90]], np.int32), (3, 1))
    results, status = harness.decode(files, pixels(windows=windows), windows=windows)
    assert not status.any()
    for file, result in zip(files, results, strict=True):
        np.testing.assert_array_equal(result, reference(file)[61:90, 37:120])


def test_what_belongs_to_other_decoders(harness: Harness) -> None:
    cmyk = io.BytesIO()
    Image.new("CMYK", (20, 20)).save(cmyk, "JPEG", progressive=True)
    good = encode(20, 20)
    files = [encode(40, 40, progressive=True)[:-2], cmyk.getvalue(), b"", b"\xff\xd8", b"no picture", good, good[:200]]
    results, status = harness.decode(files, pixels())
    assert [bool(s) for s in status] == [True, True, True, True, True, False, True]
    np.testing.assert_array_equal(results[5], reference(good))


def test_damage_is_noticed(harness: Harness) -> None:
    """Whatever is accepted must be what libjpeg-turbo makes of the file without a complaint."""
    rng = np.random.default_rng(5)
    base = [
        encode(60, 44, subsampling="4:2:0"),
        encode(60, 44, subsampling="4:4:4", restart_marker_blocks=4),
        encode(50, 70, gray=True, optimize=True),
    ]
    files = []
    for file in base:
        for _ in range(150):
            data = bytearray(file)
            for at in rng.integers(0, len(data), rng.integers(1, 4)):
                data[at] = rng.integers(0, 256)
            if rng.random() < 0.2:
                del data[rng.integers(2, len(data)) :]
            if rng.random() < 0.2:
                at = int(rng.integers(2, len(data)))
                data[at:at] = rng.integers(0, 256, 5, dtype=np.uint8).tobytes()
            files.append(bytes(data))
    results, status = harness.decode(files, pixels())
    assert (status == 0).any()
    assert (status != 0).any()
    for i in np.flatnonzero(status == 0):
        expected = np.asarray(Image.open(io.BytesIO(files[i])).convert("RGB"))  # TurboJPEG refuses odd samplings
        np.testing.assert_array_equal(results[i], expected, err_msg=f"mutation {i}")


def test_small_pictures_of_all_kinds_and_their_mutations(tmp_path: Path, harness: Harness) -> None:
    """A few runs of `make sanitize`: every buffer is an allocation of its own, followed by a strip that no
    kernel may write; and the same is accepted where the picture is resized."""
    (tmp_path / "one.jpg").write_bytes(encode(200, 170))
    files = small_pictures(tmp_path, 32)
    assert any(b"\xff\xc1\0" in f for f in files)
    assert any(b"\xff\xdd\0" in f for f in files)
    rows, _ = jpeg_header.read_scans(*packed(files))
    assert 3 in rows["scans"]
    assert np.count_nonzero(rows["status"] == jpeg_header.MANY_SCANS) == len(files) // 3
    split_job = Harness(harness.runtime, ApartDecoder)
    assert_exact(split_job, files)
    damaged = mutated(files, 280)
    results, status = split_job.decode(damaged, pixels())
    assert 0 < np.count_nonzero(status) < len(status)
    for i in np.flatnonzero(status == 0):
        expected = np.asarray(Image.open(io.BytesIO(damaged[i])).convert("RGB"))
        np.testing.assert_array_equal(results[i], expected, err_msg=f"mutation {i}")

    def resized(plan: jpeg_gpu.DecodePlan) -> jpeg_gpu.Output:
        whole = sampling(len(plan), (0, 0), (64, 64), (40, 40), resample.TRIANGULAR)
        return jpeg_gpu.resize_output(plan, whole.window(np.full((len(plan), 2), 3), np.full((len(plan), 2), 30)))

    _, again = split_job.decode(damaged, resized, window=True)
    late = jpeg_gpu.OUT_OF_RANGE  # is found in the blocks that are computed
    # Not which bits: behind its end a scan is what memory has left there.
    np.testing.assert_array_equal(again & ~late != 0, status & ~late != 0)


Span = tuple[float, float, int]  # lo, hi, size
INTERP = {
    resample.NEAREST: DALIInterpType.INTERP_NN,
    resample.TRIANGULAR: DALIInterpType.INTERP_LINEAR,
    resample.CUBIC: DALIInterpType.INTERP_CUBIC,
    resample.LANCZOS3: DALIInterpType.INTERP_LANCZOS3,
}


def sampling(n: int, lo: Any, hi: Any, size: Any, kind: int) -> resample.ResamplePlan:
    """The same for all pictures; (y, x) each."""
    lo, hi, size = (np.tile(np.asarray(a, t), (n, 1)) for a, t in ((lo, "f4"), (hi, "f4"), (size, "i8")))
    interp = np.full(n, INTERP[kind], np.int64)
    return resample.plan(lo, hi, size, interp, interp, antialias=True)


def expected_taps(lo: float, hi: float, size: int, extent: int, kind: int) -> NDArray[np.float64]:
    """A matrix [size, extent] of DALI's weights, in float64."""
    scale = (hi - lo) / size
    matrix = np.zeros((size, extent))
    table = resample.TABLE[resample.TABLE_START[kind] :][: resample.TABLE_SIZE[kind]].astype(np.float64)
    width = {resample.TRIANGULAR: 2, resample.CUBIC: 4, resample.LANCZOS3: 6}.get(kind, 1) * max(scale, 1)
    for i in range(size):
        if kind == resample.NEAREST:
            matrix[i, min(max(int(np.floor(lo + (i + 0.5) * scale)), 0), extent - 1)] = 1
            continue
        centre = lo + (i + 0.5) * scale - 0.5
        at = np.arange(np.ceil(centre - width / 2), np.ceil(centre - width / 2) + max(1, np.ceil(width)))
        position = (at - centre + width / 2) * (len(table) - 1) / width
        weights = np.interp(position, np.arange(-1, len(table) + 1), np.concatenate([[0], table, [0]]))
        np.add.at(matrix[i], np.clip(at, 0, extent - 1).astype(int), weights / weights.sum())
    return matrix


def expected_resize(image: NDArray[np.uint8], x: Span, y: Span, kind: int) -> NDArray[np.float64]:
    h, w = image.shape[:2]
    rows, columns = expected_taps(*y, h, kind), expected_taps(*x, w, kind)
    return np.stack([rows @ image[..., c].astype(np.float64) @ columns.T for c in range(3)], 2)


@pytest.mark.parametrize("kind", [resample.NEAREST, resample.TRIANGULAR, resample.CUBIC, resample.LANCZOS3])
@pytest.mark.parametrize("size", [(24, 20), (300, 170), (9, 7)])
def test_resize(harness: Harness, kind: int, size: tuple[int, int]) -> None:
    files = [encode(120, 90, subsampling=s) for s in ("4:4:4", "4:2:0")] + [encode(120, 90, gray=True)]
    w, h = size

    def output(plan: jpeg_gpu.DecodePlan) -> jpeg_gpu.Output:
        return jpeg_gpu.resize_output(plan, sampling(3, (0, 0), (90, 120), (h, w), kind), round_to_uint8=False)

    results, status = harness.decode(files, output)
    assert not status.any()
    for file, result in zip(files, results, strict=True):
        expected = expected_resize(reference(file), (0, 120, w), (0, 90, h), kind)
        np.testing.assert_allclose(result.transpose(1, 2, 0), expected, atol=0.02)


def test_crop_mirror_normalise(harness: Harness) -> None:
    """As resize -> round -> crop -> mirror -> normalise, from a window, for every orientation, in all dtypes."""
    base = encode(121, 85, subsampling="4:2:0")
    files = [with_orientation(base, o) for o in range(1, 9)]
    mirror = np.arange(8) % 3 == 1
    mean, std = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)

    def output(plan: jpeg_gpu.DecodePlan, **options: Any) -> jpeg_gpu.Output:
        whole = sampling(8, (10.0, 4.0), (80.0, 76.5), (36, 40), resample.TRIANGULAR)
        crop = whole.window(np.full((8, 2), (3, 5)), np.full((8, 2), (30, 28)))
        return jpeg_gpu.resize_output(plan, crop, mirror=mirror, mean=mean, std=std, **options)

    results, status = harness.decode(files, output, window=True)
    split_plans, _ = harness.decode(files, lambda p: output(p, dtype=jpeg_gpu.FLOAT16, layout="HWC"), window=True)
    assert not status.any()
    for i, (file, result) in enumerate(zip(files, results, strict=True)):
        image = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))))
        resized = expected_resize(image, (4.0, 76.5, 40), (10.0, 80.0, 36), resample.TRIANGULAR)
        near_tie = np.abs(resized % 1 - 0.5) < 0.01
        rounded = np.clip(np.floor(resized + 0.5), 0, 255)[3:33, 5:33]
        near_tie = near_tie[3:33, 5:33]
        if mirror[i]:
            rounded, near_tie = rounded[:, ::-1], near_tie[:, ::-1]
        expected = (rounded - mean) / std
        difference = np.abs(result.transpose(1, 2, 0) - expected)
        assert difference[~near_tie].max() < 1e-4
        assert difference.max() < 1.01 / min(std)
        np.testing.assert_allclose(split_plans[i], result.transpose(1, 2, 0), atol=2e-3)


def test_large_scale(harness: Harness) -> None:
    """More taps than registers and rows than the ring holds, and rows longer than a segment."""
    file = encode(1300, 700, subsampling="4:4:4", quality=60)

    def output(plan: jpeg_gpu.DecodePlan) -> jpeg_gpu.Output:
        whole = sampling(1, (0, 0), (700, 1300), (40, 23), resample.LANCZOS3)
        return jpeg_gpu.resize_output(plan, whole, round_to_uint8=False, layout="HWC")

    (result,), status = harness.decode([file], output)
    assert not status.any()
    expected = expected_resize(reference(file), (0, 1300, 23), (0, 700, 40), resample.LANCZOS3)
    np.testing.assert_allclose(result, expected, atol=0.03)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_few_outputs_of_a_large_picture(harness: Harness, subsampling: str) -> None:
    """Rows of several segments, many taps, tiles of few rows, windows that begin anywhere."""
    file = encode(1903, 1111, subsampling=subsampling, quality=60)

    def output(plan: jpeg_gpu.DecodePlan) -> jpeg_gpu.Output:
        whole = sampling(1, (3.3, 5.7), (1109.0, 1901.5), (70, 33), resample.TRIANGULAR)
        return jpeg_gpu.resize_output(plan, whole, round_to_uint8=False, layout="HWC")

    (result,), status = harness.decode([file], output, window=True)
    assert not status.any()
    expected = expected_resize(reference(file), (5.7, 1901.5, 33), (3.3, 1109.0, 70), resample.TRIANGULAR)
    np.testing.assert_allclose(result, expected, atol=0.03)


def test_strips_are_filtered_to_the_same_bits(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of strips and the other one add the same taps in the same order, beside pictures that become larger,
    whichever way a picture lies, in a window, mirrored."""
    files = [encode(1400, 700, subsampling="4:2:0", quality=60), encode(60, 40), encode(900, 1500, quality=50)]
    files = [with_orientation(file, o) for file, o in zip(files * 2, (1, 3, 6, 2, 1, 8), strict=True)]
    shown = np.array([reference_size(file) for file in files], np.float32)

    def output(plan: jpeg_gpu.DecodePlan) -> jpeg_gpu.Output:
        lo, hi, interp = shown * np.float32(0.02), shown * np.float32(0.97), np.full(6, DALIInterpType.INTERP_LINEAR)
        whole = resample.plan(lo, hi, np.full((6, 2), (60, 70)), interp, interp, antialias=True)
        crop = whole.window(np.full((6, 2), (4, 3)), np.full((6, 2), (50, 61)))
        return jpeg_gpu.resize_output(plan, crop, mirror=np.arange(6) % 2 == 1, round_to_uint8=False)

    assert_strips(harness, monkeypatch, files, output, [True, False, True] * 2)


SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "gray", "4:4:0")


@pytest.mark.parametrize("output_type", [jpeg_gpu.RGB, jpeg_gpu.BGR, jpeg_gpu.GRAY, jpeg_gpu.YCBCR])
def test_strips_of_all_samplings_and_colours(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, output_type: int
) -> None:
    """At every border, beyond it, and where a region ends within four pixels; in all types and layouts."""
    rng = np.random.default_rng(output_type)
    files, shapes = [], []
    for i in range(20):
        w, h = rng.integers(33, 170, 2).tolist()
        kind = SAMPLINGS[i % len(SAMPLINGS)]
        if kind == "4:4:0":
            files.append(in_scans(w, h, 1, 2))
        else:
            files.append(encode(w, h, i, gray=True) if kind == "gray" else encode(w, h, i, subsampling=kind))
        shapes.append((h, w))
    n, whole = len(files), np.array(shapes)
    lo = (whole * rng.uniform(-0.1, 0.2, (n, 2))).astype(np.float32)
    hi = (whole * rng.uniform(0.8, 1.1, (n, 2))).astype(np.float32)
    scales = rng.choice([1.05, 1.3, 1.5, 1.97, 2.4, 5.3], (n, 2))
    size = np.maximum((np.abs(hi - lo) / scales).astype(np.int64), 1)
    begin = (whole * rng.uniform(0, 0.1, (n, 2))).astype(np.int64)
    domain = np.stack([begin, whole - begin], 2)
    interp = np.full(n, DALIInterpType.INTERP_TRIANGULAR)

    def output(plan: jpeg_gpu.DecodePlan) -> jpeg_gpu.Output:
        return jpeg_gpu.resize_output(
            plan, resample.plan(lo, hi, size, interp, interp, antialias=True), domain=domain,
            mirror=np.arange(n) % 3 == 0, output_type=output_type,
            dtype=(jpeg_gpu.FLOAT32, jpeg_gpu.FLOAT16)[output_type % 2],
            layout=("CHW", "HWC")[output_type // 2], mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 6.0),
        )  # fmt: skip

    luma_alone = output_type == jpeg_gpu.GRAY
    strips = [output_type != jpeg_gpu.YCBCR and (luma_alone or SAMPLINGS[i % 5] != "4:4:0") for i in range(n)]
    assert_strips(harness, monkeypatch, files, output, strips)


def assert_strips(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, files: list[bytes], output: Any, expected: list[bool]
) -> None:
    """The pictures that jpeg_strips makes, and that they are the same where it makes none."""
    strips = []

    def counted(plan: jpeg_gpu.DecodePlan) -> jpeg_gpu.Output:
        made = output(plan)
        assert made.strips_first is not None
        strips.append(np.diff(made.strips_first[: len(files) + 1]) > 0)
        return made

    results, status = harness.decode(files, counted, window=True)
    monkeypatch.setattr(jpeg_gpu, "STRIP_COLUMNS", 0)
    others, _ = harness.decode(files, counted, window=True)
    assert not status.any()
    np.testing.assert_array_equal(strips, [expected, [False] * len(files)])
    for result, other in zip(results, others, strict=True):
        np.testing.assert_array_equal(result, other)


def dense(side: int) -> bytes:
    """A gray JPEG whose coefficients are nearly all 1 or -1, of two bits each: more than four bits leave room for."""
    rng = np.random.default_rng(3)
    basis = np.array([[np.cos((2 * x + 1) * u * np.pi / 16) * (0.5 if u else np.sqrt(0.125)) for x in range(8)]
                      for u in range(8)])  # fmt: skip
    blocks = 9.0 * rng.choice([-1, 1], (side // 8, side // 8, 8, 8))
    values = np.einsum("ux,ijuv,vy->ixjy", basis, blocks, basis).reshape(side, side) + 128
    out = io.BytesIO()
    image = Image.fromarray(values.round().clip(0, 255).astype(np.uint8))
    image.save(out, "JPEG", qtables=[[9] * 64], optimize=True)
    return out.getvalue()


def test_more_coefficients_than_there_is_room_for_are_left_to_another_decoder(harness: Harness) -> None:
    small = [encode(90, 70, seed=i) for i in range(2)]
    results, status = harness.decode([small[0], dense(256), small[1]], pixels())
    assert status.tolist() == [0, jpeg_gpu.UNSUPPORTED, 0]
    for file, result in zip(small, results[::2], strict=True):
        np.testing.assert_array_equal(result, reference(file))


def test_workspace_is_reused(harness: Harness) -> None:
    """Stale data of a larger batch must not leak into a smaller one."""
    big, small = [encode(300, 200, seed=i) for i in range(4)], [encode(30, 20, seed=9)]
    assert_exact(harness, big)
    assert_exact(harness, small)
    assert_exact(harness, big[:2])


def test_records_match_the_sources(harness: Harness) -> None:
    owner, at = harness.runtime.allocate(4096)
    batch = np.zeros(1, jpeg_gpu.BATCH)
    batch["status"] = at + 2048
    harness.upload(at, batch.view(np.uint8))
    work = harness.runtime.work()
    work.launch("jpeg_layout", 1, 32, at)
    work.submit()
    sizes = harness.runtime.read(at + 2048, 60).view(np.int32).tolist()
    del owner
    records = (jpeg_gpu.COMPONENT, jpeg_gpu.IMAGE, jpeg_gpu.AXIS, jpeg_gpu.RESIZE, jpeg_gpu.PIXELS, jpeg_gpu.BATCH)
    assert sizes == [r.itemsize for r in records] + [
        jpeg_gpu.TABLE_BYTES,
        jpeg_gpu.ENTROPY_THREADS,
        jpeg_gpu.SUBSEQUENCE_BITS,
        jpeg_gpu.ENTRIES_EACH,
        jpeg_gpu.UNSTUFF_CHUNK,
        jpeg_gpu.IDCT_GROUPS,
        jpeg_gpu.PIXEL_CHUNK,
        jpeg_gpu.PIXEL_SPAN,
        jpeg_gpu.SCAN.itemsize,
    ]


@pytest.mark.parametrize("options", [("-DSUBSEQUENCE_BITS=1024", "-DSTEP_BITS=256", "-DENTROPY_THREADS=64")])
def test_other_sizes_of_subsequences(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Small subsequences reach every branch of the synchronisation with small files."""
    monkeypatch.setattr(jpeg_gpu, "SUBSEQUENCE_BITS", 1024)
    monkeypatch.setattr(jpeg_gpu, "ENTRIES_EACH", 1024 // 4 + 128)
    monkeypatch.setattr(jpeg_gpu, "ENTROPY_THREADS", 64)
    harness = Harness(EmulatedRuntime(*options))
    files = [encode(310, 240, subsampling=s, quality=q) for s in ("4:2:0", "4:4:4") for q in (30, 95)]
    files += [encode(310, 240, restart_marker_blocks=n, quality=95) for n in (1, 10, 33)]
    assert_exact(harness, files)
