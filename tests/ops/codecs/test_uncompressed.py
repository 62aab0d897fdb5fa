"""BMP and PNM that are copied, on the CPU and by a kernel: Pillow's pixels and verdicts."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import pillow
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.uncompressed import decoder as plain
from dali_run.ops.codecs.uncompressed import on_gpu
from dali_run.ops.errors import SampleError
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from tests.kit.engine.decoding import graph, results
from tests.kit.files.plain import KINDS, encoded

SIZES = [(1, 1), (3, 2), (5, 9), (17, 8), (40, 31), (9, 67), (33, 64)]


def by_pillow(data: bytes) -> Any:
    """The pixels, or None."""
    try:
        header = probe(memoryview(data))
        return pillow.decode(memoryview(data), header, True, 10**6)
    except SampleError:
        return None


def batch_of(files: list[bytes]) -> tuple[Batch, np.ndarray]:
    """A batch, with other bytes between the files, and the extents that their headers tell."""
    spaced = [part for f in files for part in (f, b"P6 1 1 255 abc")]
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in spaced], "", Samples.numbered(len(spaced)))
    headers = [probe(memoryview(f)) for f in files]
    return batch.take(np.arange(0, len(spaced), 2)), np.array([(h.height, h.width) for h in headers], np.int64)


def copy(lane: Any, batch: Batch, bgr: bool, *where: Any) -> None:
    """The row of the table for which, rows, corners and output."""
    which, rows, corners, out = where
    ctx = SimpleNamespace(decoded_by=lambda *_: None)
    job: Any = SimpleNamespace(ctx=ctx, anchors=corners, bgr=bgr)
    on_gpu.CopyWork(which, rows).launch(job, lane, lane.to_device(batch), out)


@pytest.mark.parametrize("bgr", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_windows(kind: str, bgr: bool, lane: Any) -> None:
    """Of pictures of many sizes, in RGB and BGR, and gray ones in as many channels, by loops and by the kernel."""
    rng = np.random.default_rng(4)
    files = [encoded(kind, h, w, k) for k, (h, w) in enumerate(SIZES)]
    for counts in (1, 3) if kind == "P5" else (3,):
        batch, extents = batch_of(files)
        which = np.array([2, 0, 3, 1, 6, 5, 4])
        rows = plain.find(batch, which, extents[which])
        assert (rows[:, plain.STEP] > 0).all()
        lows = np.array([[rng.integers(0, n) for n in SIZES[i]] for i in range(len(files))], np.int64)
        lows[3] = 0
        sizes = np.array([[rng.integers(1, n - a + 1) for n, a in zip(SIZES[i], lows[i], strict=True)]
                          for i in range(len(files))])  # fmt: skip
        shapes = np.column_stack([sizes, np.full(len(files), counts)]).astype(np.int32)
        out = Batch.allocate(np.zeros, shapes, np.dtype(np.uint8), "HWC", batch.samples)
        there = Batch.allocate(lane.empty, shapes, np.dtype(np.uint8), "HWC", batch.samples)
        origins = out.offsets - (lows[:, 0] * sizes[:, 1] + lows[:, 1]) * counts
        plain.copy_into(batch, which, rows, np.column_stack([lows, lows + sizes])[which], np.full(len(which), counts),
                        bgr, out.data, origins[which], (sizes[:, 1] * counts)[which])  # fmt: skip
        copy(lane, batch, bgr, which, rows, lows, there)
        made = lane.to_host(there)
        lane.synchronize()
        for i, data in enumerate(files):
            (y, x), (h, w) = lows[i], sizes[i]
            expected = np.broadcast_to(by_pillow(data)[y : y + h, x : x + w], (h, w, counts))
            expected = expected[..., ::-1] if bgr else expected
            np.testing.assert_array_equal(out.sample(i), expected)
            np.testing.assert_array_equal(made.sample(i), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_16_bits(channels: int, lane: Any) -> None:
    """As they are stored, and rounded, by loops and by the kernel."""
    pixels = np.random.default_rng(channels).integers(0, 1 << 16, (9, 13, channels), np.uint16)
    data = b"P%d 13 # a comment\n9\n65535\n" % (5 if channels == 1 else 6) + pixels.astype(">u2").tobytes()
    header = probe(memoryview(data))
    got = plain.view(memoryview(data), header)
    assert got is not None
    np.testing.assert_array_equal(got, pixels)
    assert plain.view(memoryview(data[:-1]), header) is None
    assert plain.view(memoryview(data.replace(b"65535", b"65534")), header) is None
    rounded = ((pixels.astype(np.int64) * 2 + 257) // 514).astype(np.uint8)
    batch, extents = batch_of([data])
    rows, one = plain.find(batch, np.zeros(1, np.int64), extents), np.ones(1, np.int64)
    for counts, bgr in ((channels, False), (3, False), (3, True)):
        out = np.zeros(5 * 7 * counts, np.uint8)
        pitch = 7 * counts
        plain.copy_into(batch, 0 * one, rows, np.array([[2, 3, 7, 10]]), one * counts, bgr, out,
                        one * -(2 * pitch + 3 * counts), one * pitch)  # fmt: skip
        wanted = np.broadcast_to(rounded[2:7, 3:10], (5, 7, counts))
        wanted = wanted[..., ::-1] if bgr else wanted
        np.testing.assert_array_equal(out.reshape(5, 7, counts), wanted)
        there = Batch.allocate(
            lane.empty, np.array([[5, 7, counts]], np.int32), np.dtype(np.uint8), "HWC", batch.samples
        )
        copy(lane, batch, bgr, 0 * one, rows, np.array([[2, 3]]), there)
        made = lane.to_host(there)
        lane.synchronize()
        np.testing.assert_array_equal(made.sample(0), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_damage(kind: str) -> None:
    """Whatever is changed in a header, or cut off: what is taken has Pillow's pixels, and much is not taken."""
    rng = np.random.default_rng(KINDS.index(kind))
    taken = []
    for k in range(600):
        data = encoded(kind, 5 + k % 3, 6 + k % 7, k)
        at = int(rng.integers(2, 56 if kind[0] != "P" else 12))
        value = int(rng.choice([0, 1, 9, 10, 32, 35, 50, 53, 127, 128, 255, int(rng.integers(0, 256))]))
        data = [data[:at] + bytes([value]) + data[at + 1 :], data[:at] + data[at + 1 :], data[: -1 - at],
                data[:at] + bytes([value]) + data[at:], data + b"more"][k % 5]  # fmt: skip
        try:
            header = probe(memoryview(data))
        except SampleError:
            continue
        if header.width * header.height > 10**6 or header.format not in plain.FORMATS:
            continue
        pixels = plain.view(memoryview(data), header)
        taken.append(pixels is not None)
        if pixels is not None:
            np.testing.assert_array_equal(pixels, by_pillow(data))
    assert 100 < sum(taken) < len(taken) - 50


def written(folder: Path) -> Path:
    """Plain files of all kinds, and others: palettes, few bits, masks, runs, text, other depths, cut off."""
    (folder / "a").mkdir(parents=True)
    files = [encoded(kind, 20 + k, 31 - k, k) for k, kind in enumerate(KINDS)]
    for mode in ("P", "1", "L"):
        out = io.BytesIO()
        Image.fromarray(np.random.default_rng(3).integers(0, 256, (19, 23, 3), np.uint8)).convert(mode).save(out, "BMP")
        files.append(out.getvalue())
    bitmap = encoded("32", 20, 21, 3)
    masked = bytearray(bitmap[:14] + (108).to_bytes(4, "little") + bitmap[18:54] + bytes(68) + bitmap[54:])
    masked[10:14], masked[30] = (122).to_bytes(4, "little"), 3
    for k, mask in enumerate((0xFF, 0xFF00, 0xFF0000, 0xFF000000)):
        masked[54 + 4 * k : 58 + 4 * k] = mask.to_bytes(4, "little")
    text = b"P3 2 2 255\n1 2 3 4 5 6 7 8 9 10 11 12\n"
    deep, scaled = b"P5 7 5 65535\n" + bytes(range(70)), b"P5 7 5 100\n" + bytes(range(35))
    files += [bytes(masked), text, deep, scaled, files[0][:-5], files[4][:-1], files[5] + b"tail", bitmap[:54]]
    for k, data in enumerate(files):
        (folder / "a" / f"{k:02d}.{'ppm' if data[:1] == b'P' else 'bmp'}").write_bytes(data)
    return folder


@pytest.mark.parametrize("decoder", ["decoders.image", "decoders.image_random_crop"])
@pytest.mark.parametrize("output_type", ["RGB", "BGR", "GRAY", "ANY_DATA"])
def test_jobs(
    tmp_path: Path, decoder: str, output_type: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Pixels and verdicts are those of a run without copies, on the CPU and on a GPU."""
    where, arguments = written(tmp_path), {"decoder": decoder, "output_type": output_type}
    with monkeypatch.context() as patched:
        patched.setattr(plain, "makes", lambda rows, _: np.zeros(len(rows), np.bool_))
        patched.setattr(plain, "view", lambda *_: None)
        expected, without = results(compile_graph(graph(where, **arguments), Target(), 7), 25)
    assert "plain" not in without["decoders"]
    for target, name in (("cpu", "plain"), ("gpu", "cuda plain")):
        found, report = results(compile_graph(graph(where, **arguments), Target(target), 7), 25)
        assert list(found) == list(expected)
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)
        assert report["rejected"] == without["rejected"]
        assert report["decoders"][name] == (2 if output_type == "GRAY" else 8)
    assert len(expected) >= 12
    assert sum(without["rejected"].values()) >= 3


def test_fused_on_a_gpu(tmp_path: Path, gpu: str) -> None:
    """With resizing in the same step, and pictures in between that threads decode."""
    where = written(tmp_path)
    expected, _ = results(compile_graph(graph(where, fused=True), Target(), 7), 25)
    found, report = results(compile_graph(graph(where, fused=True), Target("gpu"), 7), 25)
    assert list(found) == list(expected)
    assert report["decoders"]["cuda plain"] == 8
