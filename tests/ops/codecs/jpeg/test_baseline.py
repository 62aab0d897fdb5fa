"""Our decoder of baseline JPEGs on the CPU: the pixels of libjpeg-turbo to the bit, and only where they are wanted. It
takes no file that libjpeg-turbo warns about."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from dali_run.ops.codecs.jpeg import baseline_cpu as jpeg_baseline_cpu
from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.codecs.jpeg import turbo as jpeg_cpu
from dali_run.ops.errors import SampleError
from dali_run.ops.types import DALIImageType

KERNELS: Any = jpeg_baseline_cpu
UNTOUCHED = 77
SPACES = {"RGB": DALIImageType.RGB, "BGR": DALIImageType.BGR, "GRAY": DALIImageType.GRAY}


def decode(
    files: list[bytes], space: str = "RGB", windows: NDArray[np.int64] | None = None
) -> tuple[list[NDArray[np.uint8]], NDArray[np.int32]]:
    """Pictures, UNTOUCHED where nothing was written, and statuses. Checks that all that was written lies inside."""
    sizes = np.array([len(f) for f in files], np.int64)
    offsets = np.cumsum(sizes) - sizes
    raw = np.frombuffer(b"".join(files), np.uint8)
    headers = jpeg_header.read_headers(raw, offsets, sizes)
    taken = headers["status"] == jpeg_header.OK
    height, width = (np.where(taken, headers[k], 0).astype(np.int64) for k in ("height", "width"))
    if windows is None:
        windows = np.stack([0 * height, 0 * width, height, width], 1)
    channels = 1 if space == "GRAY" else 3
    pitches = width * channels
    room = 64
    starts = np.cumsum(height * pitches + room) - height * pitches
    out = np.full(int(starts[-1] + height[-1] * pitches[-1]) + room, UNTOUCHED, np.uint8)
    status = np.empty(len(files), np.int32)
    KERNELS.decode_images(
        raw, offsets, sizes, headers, windows, np.full(len(files), channels), space == "BGR", out, starts, pitches,
        status, np.empty(0, np.uint64), np.zeros((len(files), 3), np.int64),
    )  # fmt: skip
    pictures = []
    for at, h, w, (y0, x0, y1, x1) in zip(starts, height, width, windows, strict=True):
        assert (out[at - room : at] == UNTOUCHED).all()
        picture = out[at : at + h * w * channels].reshape(h, w, channels)
        around = picture.copy()
        around[y0:y1, x0:x1] = UNTOUCHED
        assert (around == UNTOUCHED).all()
        pictures.append(picture)
    assert (out[-room:] == UNTOUCHED).all()
    return pictures, status


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours, edges and noise: short and long codes, runs, saturation."""
    rng = np.random.default_rng([seed, width, height])
    y, x = np.mgrid[:height, :width]
    values = np.stack([x * 7 % 256, (y * 5 + x) % 256, 255 * ((x // 5 + y // 9) % 2)], -1).astype(np.float64)
    values += rng.normal(0, 30, values.shape) * (rng.random(values.shape[:2]) < 0.4)[..., None]
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def encode(width: int, height: int, *, gray: bool = False, seed: int = 0, **options: Any) -> bytes:
    image = picture(width, height, seed)
    out = io.BytesIO()
    (image.convert("L") if gray else image).save(out, "JPEG", **options)
    return out.getvalue()


SIZES = [(1, 1), (7, 9), (8, 8), (16, 16), (17, 31), (33, 8), (5, 40), (131, 75), (64, 100)]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("options", [
    {"subsampling": 0, "quality": 95},
    {"subsampling": 0, "quality": 100},
    {"subsampling": 1, "quality": 80, "optimize": True},
    {"subsampling": 2, "quality": 60},
    {"subsampling": 2, "quality": 98, "optimize": True, "restart_marker_blocks": 3},
    {"subsampling": 0, "quality": 5, "restart_marker_blocks": 1},
    {"gray": True, "quality": 90, "optimize": True},
], ids=str)  # fmt: skip
def test_pixels_are_libjpeg_turbos(space: str, options: dict[str, Any]) -> None:
    files = [encode(w, h, **options) for w, h in SIZES]
    pictures, status = decode(files, space)
    for (width, height), file, made, its in zip(SIZES, files, pictures, status.tolist(), strict=True):
        narrow = options.get("subsampling", 0) > 0 and width <= 4
        assert its == (KERNELS.OTHER if narrow else KERNELS.DONE), (width, height)
        if not narrow:
            np.testing.assert_array_equal(made, simplejpeg.decode_jpeg(file, space), err_msg=f"{width}x{height}")


def test_imagenet_files_are_all_taken(imagenet: list[Path]) -> None:
    files = [p.read_bytes() for p in imagenet]
    pictures, status = decode(files)
    assert not status.any()
    for path, file, made in zip(imagenet, files, pictures, strict=True):
        np.testing.assert_array_equal(made, simplejpeg.decode_jpeg(file, "RGB"), err_msg=path.name)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("space", SPACES)
def test_windows_are_cut_out_of_the_whole(subsampling: int, space: str) -> None:
    file = encode(90, 70, subsampling=subsampling, quality=90, restart_marker_blocks=4)
    (whole,), _ = decode([file], space)
    rng = np.random.default_rng(subsampling)
    rows, columns = np.sort(rng.integers(0, 71, (60, 2))), np.sort(rng.integers(0, 91, (60, 2)))
    windows = np.stack([rows[:, 0], columns[:, 0], rows[:, 1], columns[:, 1]], 1)
    pictures, status = decode([file] * 60, space, windows)
    assert not status.any()
    for made, (y0, x0, y1, x1) in zip(pictures, windows, strict=True):
        np.testing.assert_array_equal(made[y0:y1, x0:x1], whole[y0:y1, x0:x1])


def test_windows_outside_of_the_picture_are_not_decoded() -> None:
    file = encode(20, 20)
    for window in ([0, 0, 21, 20], [0, 0, 20, 21], [-1, 0, 20, 20], [5, 0, 4, 20]):
        sizes = np.array([len(file)])
        raw = np.frombuffer(file, np.uint8)
        header, status = jpeg_header.read_headers(raw, np.zeros(1, np.int64), sizes), np.zeros(1, np.int32)
        KERNELS.decode_images(
            raw, np.zeros(1, np.int64), sizes, header, np.array([window]), np.array([3]), False,
            np.empty(1200, np.uint8), np.zeros(1, np.int64), np.array([60]), status,
            np.empty(0, np.uint64), np.zeros((1, 3), np.int64),
        )  # fmt: skip
        assert status[0] == KERNELS.OTHER


def test_large_pictures_take_no_large_planes() -> None:
    """A huge one is decoded row of MCUs by row of MCUs, whole or in part."""
    y, x = np.mgrid[:3400, :3400]
    file = simplejpeg.encode_jpeg(
        np.stack([x // 14, y // 14, (x + y) // 28], 2).astype(np.uint8), colorsubsampling="444"
    )
    whole = simplejpeg.decode_jpeg(file)
    (made,), status = decode([file])
    assert status[0] == KERNELS.DONE
    np.testing.assert_array_equal(made, whole)
    (made,), status = decode([file], windows=np.array([[3000, 3000, 3010, 3010]]))
    assert status[0] == KERNELS.DONE
    np.testing.assert_array_equal(made[3000:3010, 3000:3010], whole[3000:3010, 3000:3010])


def test_files_for_other_decoders_are_left() -> None:
    cmyk = io.BytesIO()
    picture(40, 40).convert("CMYK").save(cmyk, "JPEG")
    rgb = simplejpeg.encode_jpeg(np.asarray(picture(40, 40)), colorsubsampling="440")
    files = [encode(40, 40, progressive=True), cmyk.getvalue(), rgb, b"\xff\xd8\xff", b"", encode(40, 40)]
    _, status = decode(files)
    assert status.tolist() == [KERNELS.OTHER] * 5 + [KERNELS.DONE]


def test_damage_outside_of_the_window_is_found() -> None:
    good = encode(64, 64, subsampling=0, quality=90)
    scan = good.rindex(b"\xff\xda") + 14
    window = np.array([[0, 0, 8, 8]])
    damaged = {
        "cut off": good[:-40],
        "no end": good[:-2],
        "bytes left": good[:-2] + b"\x00\x11" + good[-2:],
        "another marker": good[:-2] + b"\xff\xd8" + good[-2:],
        "fill bytes without a marker": good[: scan + 50] + b"\xff\xff\x00" + good[scan + 50 :],
        "a restart nobody announced": good[: scan + 50] + b"\xff\xd0" + good[scan + 50 :],
    }
    for what, file in damaged.items():
        assert decode([file], windows=window)[1][0] == KERNELS.OTHER, what
    assert decode([good], windows=window)[1][0] == KERNELS.DONE


def test_a_damaged_image_leaves_nothing_to_the_next() -> None:
    good = encode(64, 64, subsampling=0, quality=95)
    scan = good.rindex(b"\xff\xda") + 14
    rng = np.random.default_rng(3)
    for _ in range(20):
        bad = bytearray(good)
        bad[int(rng.integers(scan, len(bad) - 2))] ^= 0x55
        _, (picture, alone) = [None, None], decode([good])[0] * 2
        pictures, _ = decode([bytes(bad), good])
        np.testing.assert_array_equal(pictures[1], alone)
        np.testing.assert_array_equal(picture, alone)


def test_huffman_tables_that_are_kept_are_those_of_the_image() -> None:
    """Standard ones, others, and damaged ones, in any order: each image is decoded as it is alone."""
    rng = np.random.default_rng(5)
    kinds = [(k, gray, optimize) for k in range(2) for gray in (False, True) for optimize in (False, True)]
    files = [encode(24, 24, seed=k, gray=gray, optimize=optimize) for k, gray, optimize in kinds]
    for file in files[:4]:
        tables = file.index(b"\xff\xc4") + 5
        for at in (tables + 2, tables + 17, file.rindex(b"\xff\xc4") + 30):
            bad = bytearray(file)
            bad[at] ^= 1
            files.append(bytes(bad))
    alone = [decode([file]) for file in files]
    assert {int(status[0]) for _, status in alone} == {KERNELS.DONE, KERNELS.OTHER}
    for _ in range(8):
        order = rng.permutation(len(files)).repeat(rng.integers(1, 3))
        pictures, status = decode([files[k] for k in order])
        for k, made, its in zip(order, pictures, status, strict=True):
            assert its == alone[k][1][0]
            if its == KERNELS.DONE:
                np.testing.assert_array_equal(made, alone[k][0][0])


def test_coefficients_that_wrap_in_16_bits_are_left_to_libjpeg_turbo() -> None:
    file = bytearray(encode(32, 32, gray=True, quality=100))
    table = file.index(b"\xff\xdb") + 5
    file[table : table + 64] = b"\xff" * 64
    _, status = decode([bytes(file)])
    assert status[0] == KERNELS.OTHER


def mutations(count: int, seed: int) -> list[bytes]:
    """Small files, each damaged in one to three places: bits, bytes, markers, cuts."""
    rng = np.random.default_rng(seed)
    good = [
        encode(*size, gray=k % 5 == 4, seed=k, subsampling=k % 3, quality=(30, 75, 97)[k // 3 % 3],
               optimize=k % 2 == 1, **({"restart_marker_blocks": 1 + k % 5} if k % 4 == 0 else {}))
        for k, size in enumerate([(40, 30), (17, 50), (96, 24), (33, 33), (64, 16), (9, 70), (48, 48)] * 3)
    ]  # fmt: skip
    files = []
    for _ in range(count):
        file = bytearray(good[int(rng.integers(len(good)))])
        scan = bytes(file).rindex(b"\xff\xda") + 14
        kind = int(rng.integers(7))
        for _ in range(int(rng.integers(1, 4))):
            if len(file) < scan + 8:
                break
            at = int(rng.integers(scan if rng.random() < 0.75 else 2, len(file)))
            if kind == 0:
                file[at] ^= 1 << int(rng.integers(8))
            elif kind == 1:
                file[at] = int(rng.integers(256))
            elif kind == 2:
                del file[at : at + int(rng.integers(1, 5))]
            elif kind == 3:
                file[at:at] = rng.bytes(int(rng.integers(1, 5)))
            elif kind == 4:
                file[at:at] = bytes([255, int(rng.choice([0, 255, 0xD0, 0xD3, 0xD9, 0xDA, 1, 0xFE]))])
            elif kind == 5:
                del file[at:]
                file += b"\xff\xd9" if rng.random() < 0.5 else b""
            else:
                file[at : at + 2] = bytes([255, int(rng.choice([0, 0xD0, 0xD1, 0xD9]))])
        files.append(bytes(file))
    return files


@pytest.mark.parametrize("space", SPACES)
def test_what_is_taken_of_damaged_files_is_what_libjpeg_turbo_takes(space: str) -> None:
    files = mutations(1500, len(space))
    pictures, status = decode(files, space)
    taken = 0
    for k, (file, made, its) in enumerate(zip(files, pictures, status.tolist(), strict=True)):
        if its != KERNELS.DONE:
            continue
        taken += 1
        header = jpeg_header.read_headers(np.frombuffer(file, np.uint8), np.zeros(1, np.int64), np.array([len(file)]))
        expected = np.empty_like(made)
        try:
            jpeg_cpu.decode_into(memoryview(file), header[0], SPACES[space], False, expected.reshape(-1).data)
        except SampleError as e:
            pytest.fail(f"file {k} is taken, which libjpeg-turbo refuses: {e}")
        np.testing.assert_array_equal(made, expected, err_msg=str(k))
    assert taken > 150
