"""Progressive JPEGs by our loops on the CPU: libjpeg-turbo's pixels to the bit, and nothing taken that it refuses."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from benchmarks.jpeg.small_pictures import mutated
from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.codecs.jpeg import progressive_cpu
from dali_run.ops.errors import SampleError
from dali_run.ops.types import DALIImageType
from tests.kit.files.progressive import AC, DEFAULT, Bits, Picture, Scan
from tests.kit.files.progressive_jpegs import (
    DEEP,
    ILL,
    SAMPLINGS,
    SHORT,
    SIZES,
    WHOLE,
    YCC420,
    damaged,
    encode,
    of_components,
    on_cpu,
    packed,
)

KERNELS: Any = progressive_cpu
SPACES = {"RGB": DALIImageType.RGB, "BGR": DALIImageType.BGR, "GRAY": DALIImageType.GRAY}
UNTOUCHED = 77


def decode(
    files: Sequence[bytes], space: str = "RGB", windows: NDArray[np.int64] | None = None
) -> tuple[list[NDArray[np.uint8]], NDArray[np.int32]]:
    """Pictures, UNTOUCHED where nothing was written, and statuses. Checks that all that was written lies inside."""
    raw, offsets, sizes = packed(files)
    headers, scans = jpeg_header.read_scans(raw, offsets, sizes)
    taken = headers["status"] == jpeg_header.MANY_SCANS
    height, width = (np.where(taken, headers[k], 0).astype(np.int64) for k in ("height", "width"))
    if windows is None:
        windows = np.stack([0 * height, 0 * width, height, width], 1)
    channels, room = 1 if space == "GRAY" else 3, 64
    pitches = width * channels
    starts = np.cumsum(height * pitches + room) - height * pitches
    out = np.full(int(starts[-1] + height[-1] * pitches[-1]) + room, UNTOUCHED, np.uint8)
    status = np.full(len(files), KERNELS.OTHER, np.int32)
    KERNELS.decode_images(
        raw, offsets, sizes, headers, scans, windows, np.full(len(files), channels), space == "BGR", out, starts,
        pitches, status,
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


def assert_exact(files: Sequence[bytes], space: str = "RGB") -> None:
    pictures, status = decode(files, space)
    for i, (file, made) in enumerate(zip(files, pictures, strict=True)):
        assert status[i] == KERNELS.DONE, f"file {i}"
        expected = on_cpu(file, SPACES["RGB" if space == "BGR" else space])
        np.testing.assert_array_equal(made, expected[..., ::-1] if space == "BGR" else expected, err_msg=f"file {i}")


def assert_honest(files: Sequence[bytes]) -> int:
    """Takes and refuses what libjpeg-turbo does, with the same pixels. Returns how many are taken."""
    pictures, status = decode(files)
    for i in np.flatnonzero(status == KERNELS.DONE).tolist():
        try:
            expected = on_cpu(files[i])
        except SampleError as e:
            pytest.fail(f"file {i} is taken, which libjpeg-turbo refuses: {e}")
        np.testing.assert_array_equal(pictures[i], expected, err_msg=f"file {i}")
    return int(np.count_nonzero(status == KERNELS.DONE))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "gray"])
def test_odd_sizes(subsampling: str, space: str) -> None:
    sizes = [(w, h) for w, h in SIZES if w > 4 or subsampling in ("4:4:4", "gray")]
    options: dict[str, Any] = {"gray": True} if subsampling == "gray" else {"subsampling": subsampling}
    assert_exact([encode(w, h, seed=w, **options) for w, h in sizes], space)


def test_qualities_and_restart_intervals() -> None:
    files = [encode(150, 90, quality=q) for q in (1, 20, 95, 100)]
    for subsampling in ("4:4:4", "4:2:0"):
        files += [encode(150, 90, subsampling=subsampling, restart_marker_blocks=n) for n in (1, 3, 7, 20, 50000)]
        files.append(encode(150, 90, subsampling=subsampling, restart_marker_rows=1))
    assert_exact(files)


@pytest.mark.parametrize("script", [DEFAULT, WHOLE, DEEP, SHORT])
@pytest.mark.parametrize("interval", [0, 5])
def test_scripts_of_scans(script: Sequence[Scan], interval: int) -> None:
    """Bands that end inside a block, several bits of refinement, intervals; other samplings are left."""
    files = []
    for i, sampling in enumerate(SAMPLINGS):
        made = Picture.random(67 + i, 43 - i, sampling, seed=i, scale=(5, 30, 80)[i % 3])
        files.append(made.encoded(of_components(script, len(sampling)), interval))
    assert_exact(files[:4])
    assert (decode(files[4:])[1] == KERNELS.OTHER).all()


def test_blocks_full_of_coefficients() -> None:
    """More bits of correction at once than a word of the scan has."""
    pixels = np.random.default_rng(4).integers(0, 256, (40, 48, 3)).astype(np.uint8)
    files = []
    for quality in (97, 100):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "JPEG", quality=quality, progressive=True, subsampling=0)
        files.append(out.getvalue())
    assert_exact(files)


def test_runs_of_ended_blocks() -> None:
    """Long ones, short ones, and those that end with an interval."""
    for made in (Picture.random(700, 500, YCC420, scale=0.2), Picture.random(300, 200, YCC420, scale=4)):
        assert_exact([made.encoded(DEEP, interval, run) for interval, run in ((0, 0x7FFF), (0, 3), (40, 0x7FFF))])


def test_real_pictures(imagenet: list[Path], tmp_path: Path) -> None:
    files = []
    for path in imagenet[::8]:
        with Image.open(path) as opened:
            opened.convert("RGB").save(tmp_path / "x.jpg", quality=88, progressive=True)
        files.append((tmp_path / "x.jpg").read_bytes())
    assert_exact(files)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_windows_are_cut_out_of_the_whole(subsampling: str) -> None:
    file = encode(90, 70, subsampling=subsampling)
    (whole,), _ = decode([file])
    rng = np.random.default_rng(5)
    rows, columns = np.sort(rng.integers(0, 71, (60, 2))), np.sort(rng.integers(0, 91, (60, 2)))
    windows = np.stack([rows[:, 0], columns[:, 0], rows[:, 1], columns[:, 1]], 1)
    pictures, status = decode([file] * 60, windows=windows)
    assert not status.any()
    for made, (y0, x0, y1, x1) in zip(pictures, windows, strict=True):
        np.testing.assert_array_equal(made[y0:y1, x0:x1], whole[y0:y1, x0:x1])


def test_windows_outside_of_the_picture_are_not_decoded() -> None:
    file = encode(20, 20)
    raw, offsets, sizes = packed([file])
    headers, scans = jpeg_header.read_scans(raw, offsets, sizes)
    for window in ([0, 0, 21, 20], [0, 0, 20, 21], [-1, 0, 20, 20], [5, 0, 4, 20]):
        status = np.full(1, KERNELS.OTHER, np.int32)
        KERNELS.decode_images(
            raw, offsets, sizes, headers, scans, np.array([window]), np.array([3]), False, np.empty(1200, np.uint8),
            np.zeros(1, np.int64), np.array([60]), status,
        )  # fmt: skip
        assert status[0] == KERNELS.OTHER


def test_what_others_did_already_is_left_alone() -> None:
    raw, offsets, sizes = packed([encode(20, 20)])
    headers, scans = jpeg_header.read_scans(raw, offsets, sizes)
    out, status = np.full(1200, UNTOUCHED, np.uint8), np.full(1, KERNELS.DONE, np.int32)
    KERNELS.decode_images(
        raw, offsets, sizes, headers, scans, np.array([[0, 0, 20, 20]]), np.array([3]), False, out,
        np.zeros(1, np.int64), np.array([60]), status,
    )  # fmt: skip
    assert status[0] == KERNELS.DONE
    assert (out == UNTOUCHED).all()


def test_files_for_other_decoders_are_left() -> None:
    files = [encode(40, 40, progressive=False), encode(40, 40, keep_rgb=True), b"\xff\xd8\xff", b"", encode(40, 40)]
    files += [Picture.random(40, 40, YCC420).encoded(script) for script in ILL.values()]
    _, status = decode(files)
    assert np.flatnonzero(status == KERNELS.DONE).tolist() == [4]


def test_damage_is_noticed_wherever_libjpeg_notices_it() -> None:
    files = [encode(60, 44), encode(60, 44, subsampling="4:4:4", restart_marker_blocks=4), encode(50, 70, gray=True)]
    files += [Picture.random(40, 40, YCC420).encoded(DEEP, interval) for interval in (0, 3)]
    bad = mutated(files, 600) + damaged(files, 900, 3)
    assert 50 < assert_honest(bad) < 1200


def test_a_damaged_image_leaves_nothing_to_the_next() -> None:
    good = encode(64, 64, subsampling="4:4:4")
    (alone,), _ = decode([good])
    for bad in damaged([good], 20, 4):
        pictures, status = decode([bad, good])
        assert status[1] == KERNELS.DONE
        np.testing.assert_array_equal(pictures[1], alone)


def test_a_run_of_ended_blocks_past_the_end_is_left() -> None:
    """It ends more blocks than there are: libjpeg drops what is left, and has the last word."""
    file = Picture.random(64, 64, YCC420, scale=0.2).encoded(WHOLE)
    run = Bits()
    run.code(AC, 0xE0)
    run.put(0x3FFF, 14)
    starts = [i for i in range(len(file)) if file[i : i + 2] == b"\xff\xda"]
    made = file[: starts[1] + 10] + run.bytes() + file[starts[2] :]
    assert decode([made, file])[1].tolist() == [KERNELS.OTHER, KERNELS.DONE]


def test_a_large_picture_of_a_small_file_takes_no_memory() -> None:
    file = bytearray(Picture.random(16, 16, YCC420).encoded())
    at = file.index(b"\xff\xc2") + 5
    file[at : at + 4] = b"\xff\xdc\xff\xdc"  # 65,500 x 65,500
    window = np.array([[0, 0, 16, 16]])
    raw, offsets, sizes = packed([bytes(file)])
    headers, scans = jpeg_header.read_scans(raw, offsets, sizes)
    assert headers["status"][0] == jpeg_header.MANY_SCANS
    status = np.full(1, KERNELS.OTHER, np.int32)
    KERNELS.decode_images(
        raw, offsets, sizes, headers, scans, window, np.array([3]), False, np.empty(768, np.uint8),
        np.zeros(1, np.int64), np.array([48]), status,
    )  # fmt: skip
    assert status[0] == KERNELS.OTHER


def test_corpus_and_its_mutations(shared_data: Path) -> None:
    paths = [p for folder in ("jpeg_odd", "jpeg_bad") for p in sorted((shared_data / "corpus" / folder).glob("*"))]
    files = [p.read_bytes() for p in paths]
    rows, _ = jpeg_header.read_scans(*packed(files))
    progressive = [f for f, sof in zip(files, rows["sof"], strict=True) if sof == 0xC2 and len(f) < 60_000]
    if not progressive:
        pytest.skip("no progressive files among them")
    assert_honest(progressive + damaged(progressive, 40, 5))
