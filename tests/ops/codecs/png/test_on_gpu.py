"""PNGs whose filters a GPU undoes: pixels and verdicts are the CPU's."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import I64, Batch, Samples
from dali_run.ops.codecs import costs, threaded_decode
from dali_run.ops.codecs.gpu_streams import planes
from dali_run.ops.codecs.gpu_streams import streams as unpacking
from dali_run.ops.codecs.png import decoder as png
from dali_run.ops.codecs.png import on_gpu
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from tests.kit.emulated_lane import GuardedLane
from tests.kit.engine.decoding import graph, results
from tests.kit.fake_cupy import faked
from tests.kit.files.pngs import CHANNELS, KINDS, chunk, encoded, filtered, picture

pytestmark = pytest.mark.skipif(not png.available(), reason="no libdeflate here")

SIZES = [(1, 1), (2, 1), (1, 40), (31, 33), (32, 5), (33, 32), (64, 3), (65, 70), (100, 31)]
GPUS = ["emulated", pytest.param("real", marks=pytest.mark.gpu(emulated=False))]


@pytest.fixture(params=GPUS)
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    with faked(memory=True) if request.param == "emulated" else nullcontext():
        yield request.param


def found(batch: Batch, which: I64, heights: I64, widths: I64, bgr: bool) -> Any:
    """The streams of PNGs, which are looked through in two parts, the last one first."""
    streams, half = on_gpu.Streams(batch, which, heights, widths, bgr), len(which) // 2
    streams.look(half, len(which))
    if half:
        streams.look(0, half)
    return streams.found()


def by_gpu(lane: Any, files: list[bytes], windows: I64, channels: list[int], bgr: bool) -> list[Any]:
    """The windows (y0, x0, y1, x1) of PNGs as the kernels make them, with so many channels; None for those refused."""
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))
    sizes = np.array([struct.unpack_from(">II", f, 16) for f in files], np.int64)
    widths, heights = sizes[:, 0], sizes[:, 1]
    which = np.arange(len(files))
    shapes = np.column_stack([windows[:, 2:] - windows[:, :2], channels]).astype(np.int32)
    out = Batch.allocate(lane.empty, shapes, np.uint8, "HWC", batch.samples)
    where = planes.Where(out.offsets, shapes, windows[:, :2], bgr)
    packed, taken = found(batch, which, heights, widths, bgr)
    rows, bad = unpacking.unpack(lane, batch, planes.unpacking(packed, where))
    checks: list[Any] = []
    told: list[int] = []
    ctx: Any = SimpleNamespace(decoded_by=lambda _, n: told.append(n), check_later=checks.append)
    planes.restore(ctx, lane, packed, rows, out, "", bad)
    wrong = checks[0]().tolist() if checks else []
    assert told == ([-len(wrong)] if checks else [])
    return [None if not taken[i] or i in wrong else out.sample(i).copy() for i in which.tolist()]


@pytest.mark.parametrize(("bits", "kind"), KINDS)
def test_filters_and_windows(bits: int, kind: int) -> None:
    """Rows of all filters in any order, in pictures of all sizes, some interlaced, in one launch; windows, and BGR."""
    rng = np.random.default_rng(kind)
    stored = 3 if kind == 3 else CHANNELS[kind]
    for bgr in (False, True):
        files, windows, channels, expected = [], [], [], []
        for k, (h, w) in enumerate(SIZES):
            values, palette, wanted = picture(bits, kind, h, w, k)
            filters = rng.integers(0, 5, 37).tolist()
            more = {"before": palette, "interlaced": k % 3 == 1, "pieces": 1 + k % 2}
            files.append(encoded(values, bits, kind, filters=filters, **more))
            y, x = int(rng.integers(0, h)), int(rng.integers(0, w))
            windows.append((y, x, int(rng.integers(y + 1, h + 1)), int(rng.integers(x + 1, w + 1))))
            three = bgr or k % 2 == 1
            channels.append(3 if three else stored)
            pixels = np.rint(wanted / 257).astype(np.uint8) if bits == 16 else wanted.astype(np.uint8)
            if three:
                pixels = pixels[..., :3] if stored > 2 else pixels[..., :1].repeat(3, 2)
            expected.append(pixels[..., ::-1] if bgr else pixels)
        found = by_gpu(GuardedLane(), files, np.array(windows), channels, bgr)
        for pixels, wanted, (y0, x0, y1, x1) in zip(found, expected, windows, strict=True):
            assert pixels is not None
            np.testing.assert_array_equal(pixels, wanted[y0:y1, x0:x1])


def test_colours_that_a_palette_does_not_have() -> None:
    """Refused where they are in the window, as on the CPU; and palettes stay with their pictures where others are
    left out."""
    values = np.zeros((20, 30, 1), np.int64)
    values[15, 20] = 7
    values[3, 3] = 2
    palettes = [chunk(b"PLTE", bytes(range(k, k + 21))) for k in range(5)]
    files = [encoded(values, 8, 3, before=p) for p in palettes]
    files[1] = encoded(values, 8, 3)  # has none
    files[3] = encoded(np.zeros((20, 30, 1)), 8, 0)
    whole, part = (0, 0, 20, 30), (2, 2, 10, 30)
    windows = np.array([whole, part, part, part, part])
    found = by_gpu(GuardedLane(), files, windows, [3, 3, 3, 1, 3], False)
    assert [f is None for f in found] == [True, True, False, False, False]
    for k in (2, 4):
        assert found[k][1, 1].tolist() == [k + 6, k + 7, k + 8]
        assert found[k][0, 0].tolist() == [k, k + 1, k + 2]
        assert len(np.unique(found[k].reshape(-1, 3), axis=0)) == 2
    assert not found[3].any()


N_WRITTEN = 2 * len(KINDS) + 11
"""Files of `written`."""


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
    for k, (bits, kind) in enumerate(KINDS):
        values, palette, _ = picture(bits, kind, 41 + k, 39 - k, k)
        for interlaced in (False, True):
            files.append(encoded(values, bits, kind, interlaced=interlaced, before=palette))
    values, _, _ = picture(8, 2, 50, 40)
    sound = encoded(values, 8, 2, pieces=5)
    flipped = bytearray(sound)
    flipped[-30] ^= 1  # the checksum of the pixels
    files += [
        sound, bytes(flipped), sound[:-40], encoded(values, 8, 2, cut=7), encoded(values, 8, 2, more=b"more"),
        unknown_filter(2), unknown_filter(6), unknown_filter(0), encoded(values, 8, 2, end=b""),
        encoded(picture(4, 3, 30, 30)[0], 4, 3, before=chunk(b"PLTE", bytes(range(30)))),  # 10 colours
        encoded(picture(4, 3, 30, 30)[0], 4, 3),
    ]  # fmt: skip
    for k, data in enumerate(files):
        (folder / "a" / f"{k:02d}.png").write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("decoder", "output_type", "block", "inflated_by"),
    [
        ("decoders.image", "RGB", 8 << 20, "threads"),
        ("decoders.image", "BGR", 9000, "warps"),
        ("decoders.image", "GRAY", 9000, "threads"),
        ("decoders.image_random_crop", "RGB", 9000, "warps"),
        ("decoders.image_random_crop", "BGR", 8 << 20, "threads"),
        ("decoders.image_random_crop", "GRAY", 8 << 20, "warps"),
    ],
)  # every pair of two of them
def test_jobs(
    tmp_path: Path, decoder: str, output_type: str, block: int, inflated_by: str, gpu: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(threaded_decode, "BLOCK", block)
    moved = np.zeros if inflated_by == "warps" else np.ones
    monkeypatch.setattr(costs, "stragglers", lambda gpu, *_: moved(len(gpu), np.bool_))
    where = written(tmp_path)
    expected, here = results(
        compile_graph(graph(where, decoder=decoder, output_type=output_type), Target(), 7), N_WRITTEN
    )
    plan = compile_graph(graph(where, decoder=decoder, output_type=output_type), Target("gpu"), 7)
    found, report = results(plan, N_WRITTEN)
    assert list(found) == list(expected)
    assert len(found) >= 30
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert report["rejected"] == here["rejected"]
    assert sum(here["rejected"].values()) >= 6
    there = report["decoders"]
    name, other = ("cuda png", "png") if inflated_by == "warps" else ("png", "cuda png")
    assert there[name] == here["decoders"]["png"] >= 14
    assert other not in there


def test_streams_in_pieces() -> None:
    """Those of files are found in order, whatever pieces they are in; a file of countless ones is left to the CPU, and
    the next one is found all the same."""
    values, _, _ = picture(8, 2, 40, 30)
    files = [encoded(values, 8, 2, pieces=n) for n in (1, 2, 7, 400, 3, 1)] + [encoded(values, 8, 2, cut=7)[:-13]]
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))
    which = np.array([1, 0, 3, 2, 6, 4, 5])
    sizes = np.full(len(which), 40), np.full(len(which), 30)
    packed, taken = found(batch, which, *sizes, False)
    assert taken.tolist() == [True, True, False, True, False, True, True]
    assert packed.owner.tolist() == [1, 0, 2, 4, 5]
    assert (packed.room == 40 * (1 + 30 * 3)).all()
    for k, (i, length) in enumerate(zip(packed.owner.tolist(), packed.lengths.tolist(), strict=True)):
        mine = packed.pieces[packed.pieces[:, 1] == k]
        assert (mine[:, 0] == i).all()
        assert mine[:, 4].sum() == length
        assert mine[:, 3].tolist() == unpacking.before(mine[:, 4]).tolist()
        stream = b"".join(files[i][at : at + n] for at, n in mine[:, [2, 4]].tolist())
        assert len(zlib.decompress(stream)) == 40 * (1 + 30 * 3)


def test_who_takes_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU makes pixels of all kinds, but for what the CPU sees to be out of order, and what is too large."""
    launched: list[int] = []
    restore = planes.restore

    def noted(ctx: Any, lane: Any, packed: Any, *args: Any) -> None:
        launched.append(len(packed.owner))
        restore(ctx, lane, packed, *args)

    monkeypatch.setattr(planes, "restore", noted)
    monkeypatch.setattr(costs, "stragglers", lambda gpu, *_: np.zeros(len(gpu), np.bool_))
    where = written(tmp_path)
    with faked(memory=True):
        results(compile_graph(graph(where), Target("gpu"), 7), N_WRITTEN)
        # all kinds, the one in pieces, those whose filters, sum or end only the GPU sees, and the one whose colours
        assert launched == [2 * len(KINDS) + 1 + 5 + 1]
        monkeypatch.setattr(on_gpu, "MOST", 5000)
        results(compile_graph(graph(where), Target("gpu"), 7), N_WRITTEN)
    sound = sorted(where.rglob("*.png"))[: 2 * len(KINDS)]
    room = [len(zlib.decompress(b"".join(bodies(f.read_bytes())))) for f in sound]
    assert launched[1] == sum(nbytes <= 5000 for nbytes in room) + 3 + 1
    assert 10 < launched[1] < launched[0] - 5


def bodies(data: bytes) -> Iterator[bytes]:
    """The pieces of a PNG's stream."""
    at = 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if data[at + 4 : at + 8] == b"IDAT":
            yield data[at + 8 : at + 8 + length]
        at += 12 + length
