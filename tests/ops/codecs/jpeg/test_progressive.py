"""Progressive JPEGs by the CUDA decoder: libjpeg-turbo's pixels bit for bit, and nothing accepted that it refuses."""

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
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.headers import parsed_headers
from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.codecs.jpeg import scans as jpeg_scans
from dali_run.ops.types import DALIImageType
from tests.kit.files.progressive import DEFAULT, Picture, Scan, segment
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
from tests.kit.ops.apart_decoder import ApartDecoder
from tests.kit.ops.jpeg_harness import EmulatedRuntime, GpuRuntime, Harness


@pytest.fixture(scope="module", params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu(emulated=False))])
def harness(request: pytest.FixtureRequest) -> Harness:
    """Each buffer of the decoder is an allocation of its own, with a strip behind it that no kernel may write."""
    return Harness(EmulatedRuntime() if request.param == "emulated" else GpuRuntime(), ApartDecoder)


def pixels(**options: Any) -> Any:
    return lambda plan: jpeg_gpu.pixel_output(plan, **({"orient": False} | options))


def assert_exact(harness: Harness, files: list[bytes]) -> None:
    results, status = harness.decode(files, pixels())
    assert not status.any(), status
    for i, (file, result) in enumerate(zip(files, results, strict=True)):
        np.testing.assert_array_equal(result, on_cpu(file), err_msg=f"file {i}")


def assert_honest(harness: Harness, files: list[bytes]) -> NDArray[np.int32]:
    """Whatever is accepted is what the CPU accepts, with the same pixels; whether it is resized or not."""
    results, status = harness.decode(files, pixels())
    for i in np.flatnonzero(status == 0):
        np.testing.assert_array_equal(results[i], on_cpu(files[i]), err_msg=f"file {i}")
    return status


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "gray"])
def test_odd_sizes(harness: Harness, subsampling: str) -> None:
    gray = subsampling == "gray"
    options = {} if gray else {"subsampling": subsampling}
    assert_exact(harness, [encode(w, h, gray=gray, **options) for w, h in SIZES])


def test_qualities_and_restart_intervals(harness: Harness) -> None:
    files = [encode(150, 90, quality=q) for q in (1, 20, 95, 100)]
    for subsampling in ("4:4:4", "4:2:0"):
        files += [encode(150, 90, subsampling=subsampling, restart_marker_blocks=n) for n in (1, 3, 7, 20, 50000)]
        files.append(encode(150, 90, subsampling=subsampling, restart_marker_rows=1))
    files.append(encode(90, 70, keep_rgb=True))
    assert_exact(harness, files)


def test_among_others(harness: Harness) -> None:
    """A batch of all kinds: baseline files, a scan for each component, no pictures at all."""
    from tests.kit.files.jpegs import in_scans

    files = [
        encode(60, 44),
        encode(60, 44, progressive=False),
        b"",
        in_scans(60, 44, 2, 1),
        encode(31, 90),
        b"\xff\xd8",
    ]
    files += [encode(60, 44, progressive=False, gray=True), in_scans(20, 30, 1, 1), encode(64, 64, gray=True)]
    results, status = harness.decode(files, pixels())
    assert np.flatnonzero(status).tolist() == [2, 5]
    for i in np.flatnonzero(status == 0):
        np.testing.assert_array_equal(results[i], on_cpu(files[i]), err_msg=f"file {i}")


def test_real_pictures(harness: Harness, imagenet: list[Path]) -> None:
    files = []
    for path in imagenet[::40]:
        stream = io.BytesIO()
        Image.open(path).convert("RGB").save(stream, "JPEG", quality=88, progressive=True)
        files.append(stream.getvalue())
    assert_exact(harness, files)


@pytest.mark.parametrize("script", [DEFAULT, WHOLE, DEEP, SHORT])
@pytest.mark.parametrize("interval", [0, 5])
def test_scripts_of_scans(harness: Harness, script: Sequence[Scan], interval: int) -> None:
    files = []
    for i, sampling in enumerate(SAMPLINGS):
        made = Picture.random(67 + i, 43 - i, sampling, seed=i, scale=(5, 30, 200)[i % 3])
        files.append(made.encoded(of_components(script, len(sampling)), interval))
    assert_exact(harness, files)


def test_runs_of_ended_blocks(harness: Harness) -> None:
    """Long ones, short ones, and those that end with an interval."""
    empty = Picture.random(700, 500, YCC420, scale=0.2)
    sparse = Picture.random(300, 200, YCC420, scale=4)
    files = [
        p.encoded(DEEP, interval, run) for p in (empty, sparse) for interval, run in ((0, 0x7FFF), (0, 3), (40, 0x7FFF))
    ]
    assert_exact(harness, files)


def test_windows_and_gray(harness: Harness) -> None:
    files = [encode(200, 150, subsampling=s) for s in ("4:4:4", "4:2:2", "4:2:0")] + [encode(200, 150, gray=True)]
    windows = np.tile(np.array([[37, 61, 120, 90]], np.int32), (len(files), 1))
    results, status = harness.decode(files, pixels(windows=windows), windows=windows)
    assert not status.any()
    for file, result in zip(files, results, strict=True):
        np.testing.assert_array_equal(result, on_cpu(file)[61:90, 37:120])
    results, status = harness.decode(files, pixels(output_type=jpeg_gpu.GRAY), luma_only=True)
    assert not status.any()
    for file, result in zip(files, results, strict=True):
        np.testing.assert_array_equal(result, on_cpu(file, DALIImageType.GRAY))


@pytest.mark.parametrize("name", ILL)
def test_scripts_that_libjpeg_warns_about_or_guesses_for(harness: Harness, name: str) -> None:
    file = Picture.random(40, 40, YCC420).encoded(ILL[name])
    rows, _ = jpeg_header.read_scans(*packed([file]))
    assert rows["status"][0] == jpeg_header.UNSUPPORTED
    _, status = harness.decode([file, encode(20, 20)], pixels())
    assert status.tolist() == [jpeg_gpu.UNSUPPORTED, 0]


def test_too_many_scans_are_for_the_cpu() -> None:
    bands: list[Scan] = [((c,), k, k, 0, 0) for c in range(3) for k in range(1, 64)]
    assert len(bands) > jpeg_scans.MAX_SCANS
    made = Picture.random(16, 16, YCC420)
    few = made.encoded([*WHOLE[:1], *bands[:63], *WHOLE[2:]])
    rows, table = jpeg_header.read_scans(*packed([made.encoded([*WHOLE[:1], *bands]), few, few]))
    assert rows["status"].tolist() == [jpeg_header.UNSUPPORTED, jpeg_header.MANY_SCANS, jpeg_header.MANY_SCANS]
    assert rows["first_scan"].tolist() == [0, 0, 66]
    assert rows["scan_count"].tolist() == [0, 66, 66]
    assert len(table) == 132  # more than there was room for at first
    np.testing.assert_array_equal(table[:66], table[66:])


def test_many_bytes_are_walked_by_several_threads() -> None:
    """The same rows and scans as one by one, wherever the pieces begin."""
    kinds = [encode(40, 30), encode(30, 20, gray=True), encode(20, 20, progressive=False), b"", encode(50, 40)]
    padding = segment(0xFE, bytes(60_000)) * 4
    files = [kinds[i % 5][:2] + padding * (i % 3) + kinds[i % 5][2:] for i in range(90)]
    rows, table = jpeg_header.read_scans(*packed(files))
    apart = [jpeg_header.read_scans(*packed([f])) for f in files]
    assert sum(map(len, files)) > 3 * jpeg_header._BYTES_OF_A_WALK
    np.testing.assert_array_equal(table, np.concatenate([scans for _, scans in apart]))
    for row, (one, scans) in zip(rows, apart, strict=True):
        assert row["scan_count"] == len(scans)
        np.testing.assert_array_equal(table[row["first_scan"] :][: len(scans)], scans)
        for name in jpeg_header.HEADER.names or ():
            assert name == "first_scan" or (row[name] == one[0][name]).all()


def test_a_scan_waits_for_all_that_it_refines_and_for_nothing_after_it() -> None:
    """As planned: earlier in the order in which scans are taken, by the same picture's distances in its file."""
    files = [
        Picture.random(16, 16, YCC420).encoded(DEEP),
        encode(300, 200),
        Picture.random(40, 40, YCC420).encoded(DEEP),
    ]
    bands: list[Scan] = [((0,), k, k, 0, 1) for k in range(1, 64)]
    files.append(Picture.random(16, 16, YCC420).encoded([*WHOLE[:1], *bands, ((0,), 1, 63, 1, 0), *WHOLE[2:]]))
    buffer, offsets, sizes = packed(files)
    rows, table = jpeg_header.read_scans(buffer, offsets, sizes)
    plan = jpeg_gpu.plan_decode(rows, offsets, sizes, scans=table)
    taken = {int(scan["image"]): nth for nth, scan in enumerate(plan.scans)}
    assert len(taken) == len(table)
    for i, row in enumerate(rows):
        mine = table[row["first_scan"] :][: row["scan_count"]]
        for s, scan in enumerate(mine):
            at = plan.heads + int(row["first_scan"]) + s
            planned = plan.scans[taken[at]]
            bits = sum(int(word) << 32 * k for k, word in enumerate(planned["after"]))
            waits = {s - 1 - j for j in range(128) if bits >> j & 1}
            last: dict[tuple[int, int], int] = {}  # of each coefficient, the scan that said something about it last
            for t, other in enumerate(mine[:s]):
                for c in other["component"][: other["count"]].tolist():
                    last |= {(c, k): t for k in range(other["first"], other["last"] + 1)}
            own = [
                (c, k)
                for c in scan["component"][: scan["count"]].tolist()
                for k in range(scan["first"], scan["last"] + 1)
            ]
            assert {last[place] for place in own if place in last} <= waits <= set(range(s)), (i, s)
            assert bool(waits) == (scan["high"] > 0)
            assert all(taken[at - s + t] < taken[at] for t in waits)


@pytest.mark.gpu
def test_more_scans_than_a_gpu_holds_at_once() -> None:
    """Those that follow others wait for scans that have begun, wherever these are computed."""
    kinds = [Picture.random(150 + 40 * i, 120, YCC420, seed=i).encoded(DEEP, 7 * (i % 2)) for i in range(4)]
    kinds += [encode(100 + 90 * i, 300, seed=i, subsampling=i % 3) for i in range(6)]
    expected = [on_cpu(file) for file in kinds]
    harness = Harness(GpuRuntime())
    for files in (kinds * 120, sorted(kinds * 120, key=len)):
        results, status = harness.decode(files, pixels())
        assert not status.any()
        for file, result in zip(files, results, strict=True):
            np.testing.assert_array_equal(result, expected[kinds.index(file)])


def test_levels_follow_from_what_builds_on_what() -> None:
    file = Picture.random(16, 16, YCC420).encoded(DEEP)
    _, table = jpeg_header.read_scans(*packed([file]))
    assert table["level"].tolist() == [0, 0, 0, 0, 0, 1, 2, 2, 1, 2, 3, 0, 0, 4, 1, 2, 3, 3]


def test_damage_is_noticed_wherever_libjpeg_notices_it(harness: Harness) -> None:
    files = [encode(60, 44), encode(60, 44, subsampling="4:4:4", restart_marker_blocks=4), encode(50, 70, gray=True)]
    files += [Picture.random(40, 40, YCC420).encoded(DEEP, interval) for interval in (0, 3)]
    status = assert_honest(harness, mutated(files, 150) + damaged(files, 150, 3))
    assert 10 < np.count_nonzero(status == 0) < 200
    kinds = jpeg_gpu.BAD_CODE | jpeg_gpu.MISSING | jpeg_gpu.EXTRANEOUS | jpeg_gpu.BAD_RESTART
    assert np.bitwise_or.reduce(status) & kinds == kinds


def test_bytes_between_scans(harness: Harness) -> None:
    """Comments and fill bytes are nothing; anything else is libjpeg's to judge."""
    file = encode(40, 30)
    at = file.index(b"\xff\xda", file.index(b"\xff\xda") + 2)
    at = file.rindex(b"\xff\xc4", 0, at)
    same = [
        file[:at] + segment(0xFE, b"\xff\xda\0\x08") + file[at:],
        file[:at] + b"\xff\xff" + file[at:],
        file + b"\xff\xd8",
    ]
    results, status = harness.decode(same, pixels())
    assert not status.any()
    for result in results:
        np.testing.assert_array_equal(result, on_cpu(file))
    odd = [
        file[:at] + extra + file[at:]
        for extra in (b"\0", b"\x7f", segment(0xE0, b"JFIF\0\2\1\0\0\0\0\0\0\0"), b"\xff\xd8")
    ]
    odd += [file[:-2], file[:at], file[:at] + b"\xff\xd9", file[:-2] + b"\0\xff\xd9", file[:-2] + b"\xff\xd0\xff\xd9"]
    status = assert_honest(harness, odd)
    assert status.all()


def test_a_large_picture_of_a_small_file_takes_no_memory() -> None:
    file = bytearray(Picture.random(16, 16, YCC420).encoded())
    at = file.index(b"\xff\xc2") + 5
    file[at : at + 4] = b"\xff\xdc\xff\xdc"  # 65,500 x 65,500
    rows, scans = jpeg_header.read_scans(*packed([bytes(file)]))
    assert rows["status"][0] == jpeg_header.MANY_SCANS
    plan = jpeg_gpu.plan_decode(rows, np.zeros(1, np.int64), np.array([len(file)]), scans=scans)
    assert plan.status[0] == jpeg_gpu.UNSUPPORTED
    file[at : at + 4] = b"\x10\0\x10\0"  # 4096 x 4096
    rows, scans = jpeg_header.read_scans(*packed([bytes(file)]))
    plan = jpeg_gpu.plan_decode(rows, np.zeros(1, np.int64), np.array([len(file)]), scans=scans)
    assert plan.status[0] == jpeg_gpu.MISSING
    assert plan.coefficients == plan.planes == 0


def test_a_run_of_ended_blocks_past_the_end_is_refused(harness: Harness) -> None:
    """It ends more blocks than there are: libjpeg drops what is left, and has the last word."""
    sparse = Picture.random(64, 64, YCC420, scale=0.2)
    file = sparse.encoded(WHOLE)
    from tests.kit.files.progressive import AC, Bits

    run = Bits()
    run.code(AC, 0xE0)
    run.put(0x3FFF, 14)
    starts = [i for i in range(len(file)) if file[i : i + 2] == b"\xff\xda"]
    made = file[: starts[1] + 10] + run.bytes() + file[starts[2] :]
    status = assert_honest(harness, [made, file])
    assert status.tolist() == [jpeg_gpu.BAD_CODE, 0]


def test_in_the_table_there_is_one_entry_for_every_scan_and_batches_are_walked_once() -> None:
    files = [encode(20, 20), encode(20, 20, progressive=False), encode(20, 20, gray=True)]
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(3))
    rows, scans = jpeg_header.read_scans(batch.data, batch.offsets, batch.shapes[:, 0])
    assert parsed_headers(batch) is parsed_headers(batch)
    assert (parsed_headers(batch).scans == scans).all()
    assert rows["scan_count"].tolist() == [10, 0, 6]
    assert len(scans) == 16
    for row in rows[[0, 2]]:
        mine = scans[row["first_scan"] : row["first_scan"] + row["scan_count"]]
        assert (mine["begin"] < mine["end"]).all()
        assert (mine["begin"][1:] > mine["end"][:-1]).all()


def test_corpus_and_its_mutations(harness: Harness, shared_data: Path) -> None:
    paths = [p for folder in ("jpeg_odd", "jpeg_bad") for p in sorted((shared_data / "corpus" / folder).glob("*"))]
    files = [p.read_bytes() for p in paths]
    rows, _ = jpeg_header.read_scans(*packed(files))
    progressive = [f for f, sof in zip(files, rows["sof"], strict=True) if sof == 0xC2 and len(f) < 60_000]
    if not progressive:
        pytest.skip("no progressive files among them")
    assert_honest(harness, progressive + damaged(progressive, 20, 5))
