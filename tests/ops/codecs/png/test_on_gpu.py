"""PNGs whose filters a GPU undoes: pixels and verdicts are the CPU's."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import on_threads
from dali_run.ops.codecs.png import decoder as png
from dali_run.ops.codecs.png import on_gpu
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from tests.kit.emulated_lane import EmulatedLane
from tests.kit.fake_cupy import faked
from tests.ops.codecs.png.test_decoder import CHANNELS, chunk, encoded, filtered, picture, stored
from tests.pipelines.engine.test_which_decoder import graph, results

pytestmark = pytest.mark.skipif(not png.available(), reason="no libdeflate here")

SIZES = [(1, 1), (2, 1), (1, 40), (31, 33), (32, 5), (33, 32), (64, 3), (65, 70), (100, 31)]
GPUS = ["emulated", pytest.param("real", marks=pytest.mark.gpu(emulated=False))]


@pytest.fixture(params=GPUS)
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    with faked(memory=True) if request.param == "emulated" else nullcontext():
        yield request.param


@pytest.mark.parametrize("kind", [0, 2, 4, 6])
def test_filters_and_windows(kind: int) -> None:
    """Rows of all filters in any order, in pictures of all sizes, some of them in one launch; windows, and BGR."""
    rng = np.random.default_rng(kind)
    lane: Any = EmulatedLane()
    files, pictures, expected, at, to = [], np.zeros(len(SIZES), on_gpu.PICTURE), [], 0, 0
    for k, (h, w) in enumerate(SIZES):
        data = encoded(picture(8, kind, h, w, k)[0], 8, kind, filters=rng.integers(0, 5, 37).tolist())
        (length,) = struct.unpack_from(">I", data, 33)
        rows = np.frombuffer(zlib.decompress(data[41 : 41 + length]), np.uint8)
        y, x = int(rng.integers(0, h)), int(rng.integers(0, w))
        bottom, right = int(rng.integers(y + 1, h + 1)), int(rng.integers(x + 1, w + 1))
        channels = CHANNELS[kind] if k % 2 else 1 if kind == 0 else 3 if kind != 4 else 2
        bgr = kind in (2, 6) and k % 3 == 0 and channels == 3
        pixels = stored(data)[y:bottom, x:right, :channels]
        expected.append(pixels[..., ::-1] if bgr else pixels)
        pictures[k] = (at, to, w, h, CHANNELS[kind], channels, y, x, bottom - y, right - x, bgr, 0)
        files.append(rows)
        at, to = at + len(rows), to + expected[-1].size
    rows, table = np.concatenate(files), lane.upload(pictures.view(np.uint8))[0]
    bad, out = np.zeros(len(SIZES), np.int32), lane.empty(to, np.uint8)
    lane.launch("png.cu", "png_unfilter", len(SIZES), 32, rows, table, bad)
    lane.launch("png.cu", "png_pixels", (2, len(SIZES)), 64, rows, table, out)
    assert not bad.any()
    for row, pixels in zip(pictures, expected, strict=True):
        start = row["destination"]
        np.testing.assert_array_equal(out[start : start + pixels.size], pixels.reshape(-1))


def unknown_filter(kind: int) -> bytes:
    """A PNG that is in order but for one row's filter."""
    rows = bytearray(filtered(picture(8, kind, 40, 30)[0].reshape(40, -1), CHANNELS[kind], (4, 1, 2)))
    rows[36 * (1 + 30 * CHANNELS[kind])] = 5
    head = struct.pack(">IIBBBBB", 30, 40, 8, kind, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(rows)))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def written(folder: Path) -> Path:
    """PNGs of all kinds, sound ones and others."""
    (folder / "a").mkdir(parents=True)
    files = []
    for k, (bits, kind) in enumerate([(8, 2), (8, 6), (8, 0), (8, 4), (8, 3), (4, 3), (16, 2), (2, 0)]):
        for interlaced in (False, True):
            values, palette, _ = picture(bits, kind, 41 + k, 39 - k, k)
            files.append(encoded(values, bits, kind, interlaced=interlaced, before=palette))
    values, _, _ = picture(8, 2, 50, 40)
    sound = encoded(values, 8, 2, pieces=5)
    flipped = bytearray(sound)
    flipped[-30] ^= 1  # the checksum of the pixels
    files += [
        sound, bytes(flipped), sound[:-40], encoded(values, 8, 2, cut=7), encoded(values, 8, 2, more=b"more"),
        unknown_filter(2), unknown_filter(6), unknown_filter(0), encoded(values, 8, 2, end=b""),
    ]  # fmt: skip
    for k, data in enumerate(files):
        (folder / "a" / f"{k:02d}.png").write_bytes(data)
    return folder


@pytest.mark.parametrize("decoder", ["decoders.image", "decoders.image_random_crop"])
@pytest.mark.parametrize("output_type", ["RGB", "BGR", "GRAY"])
@pytest.mark.parametrize("block", [8 << 20, 9000])
@pytest.mark.parametrize("inflated_by", ["threads", "warps"])
def test_jobs(
    tmp_path: Path, decoder: str, output_type: str, block: int, inflated_by: str, gpu: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(on_threads, "BLOCK", block)
    monkeypatch.setattr(on_gpu, "SHARE", 0 if inflated_by == "warps" else 1 << 30)
    where = written(tmp_path)
    expected, here = results(compile_graph(graph(where, decoder=decoder, output_type=output_type), Target(), 7), 25)
    plan = compile_graph(graph(where, decoder=decoder, output_type=output_type), Target("gpu"), 7)
    found, report = results(plan, 25)
    assert list(found) == list(expected)
    assert len(found) >= 16
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert report["rejected"] == here["rejected"]
    assert sum(here["rejected"].values()) >= 6
    there = report["decoders"]
    assert there["png"] + there.get("cuda png", 0) == here["decoders"]["png"]
    assert there.get("cuda png", 0) == (0 if inflated_by == "threads" else 2 if output_type == "GRAY" else 5)


def test_streams_in_pieces() -> None:
    """Those of files are found in order, whatever pieces they are in; a file of countless ones is left to the CPU, and
    the next one is found all the same."""
    values, _, _ = picture(8, 2, 40, 30)
    files = [encoded(values, 8, 2, pieces=n) for n in (1, 2, 7, 400, 3, 1)] + [encoded(values, 8, 2, cut=7)[:-13]]
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))
    which = np.array([1, 0, 3, 2, 6, 4, 5])
    lengths, pieces = on_gpu.streams(batch, which, np.full(len(which), 40 * (1 + 30 * 3)))
    assert (lengths > 0).tolist() == [True, True, False, True, False, True, True]
    for i, length in zip(which.tolist(), lengths.tolist(), strict=True):
        mine = pieces[pieces[:, 0] == i]
        assert mine[:, 3].sum() == length
        stream = b"".join(files[i][at : at + n] for _, at, _, n in mine.tolist())
        assert mine[:, 2].tolist() == (np.cumsum(mine[:, 3]) - mine[:, 3]).tolist()
        if length:
            assert len(zlib.decompress(stream)) == 40 * (1 + 30 * 3)


def test_who_takes_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU undoes the filters of what has 8 bits, no palette, and one pass; other PNGs the CPU decodes whole."""
    launched: list[int] = []
    restore = on_gpu.restore

    def noted(ctx: Any, lane: Any, rows: Any, pictures: Any, *args: Any) -> None:
        launched.append(len(pictures))
        restore(ctx, lane, rows, pictures, *args)

    monkeypatch.setattr(on_gpu, "restore", noted)
    monkeypatch.setattr(on_gpu, "SHARE", 1 << 30)
    with faked(memory=True):
        results(compile_graph(graph(written(tmp_path)), Target("gpu"), 7), 25)
    assert launched == [4 + 1 + 3]  # the kinds, the one in pieces, and those whose filters only the GPU sees
