"""JPEG 2000 whose code blocks a GPU decodes: pixels and verdicts are OpenJPEG's."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.data.compare_kernels import differences
from benchmarks.data.jpeg2000_on_gpu import SMALL, by_cpu, by_gpu, small_files
from dali_run.ops.batch import I64, Batch, Samples
from dali_run.ops.codecs import pillow
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.headers import row_of
from dali_run.ops.codecs.jpeg2000 import codestream_cpu, on_gpu
from dali_run.ops.gpu.lane import Lane
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from tests.kit.emulated_lane import GuardedLane
from tests.kit.engine.decoding import graph, results


@pytest.fixture(params=["guarded", pytest.param("real", marks=pytest.mark.gpu(emulated=False))])
def lane(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "guarded":
        yield GuardedLane()
        return
    with Lane() as real:
        yield real
        real.close()


def picture(h: int, w: int, seed: int, channels: int = 3) -> np.ndarray:
    """Waves with noise; all contexts and all kinds of bands come up."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:h, :w]
    waves = np.stack([128 + 90 * np.sin(x / 5 + seed), 128 + 90 * np.cos(y / 7 + x / 11), x * 3 + y * 2], -1)
    noisy = np.clip(waves + rng.normal(0, rng.choice([1, 8, 40]), (h, w, 3)), 0, 255).astype(np.uint8)
    return noisy if channels == 3 else noisy[..., 0]


def encoded(pixels: np.ndarray, **how: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG2000", **how)
    return out.getvalue()


def by_openjpeg(data: bytes) -> np.ndarray:
    return pillow.decode(memoryview(data), probe(memoryview(data)), True, 1 << 28)


def read(files: Sequence[bytes]) -> tuple[Batch, on_gpu.Coded, np.ndarray]:
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))
    return batch, *on_gpu.read(batch, np.arange(len(files)), *sizes_of(files))


def made(
    lane: Any, files: Sequence[bytes], windows: I64 | None = None, channels: int = 3, bgr: bool = False, tasks: int = 1
) -> list[np.ndarray]:
    """Pictures, all of which must be taken, or ``windows`` (y0, x0, y1, x1) of them; read in so many ``tasks``."""
    batch, coded, taken = read(files)
    assert taken.all(), np.flatnonzero(~taken)
    if windows is None:
        headers = [probe(memoryview(f)) for f in files]
        windows = np.array([(0, 0, h.height, h.width) for h in headers])
    shapes = np.column_stack([windows[:, 2:] - windows[:, :2], np.full(len(files), channels)]).astype(np.int32)
    out = Batch.allocate(lane.empty, shapes, np.uint8, "HWC", batch.samples)
    cuts = np.array_split(np.arange(len(files)), tasks)
    parts = [coded] if tasks == 1 else [on_gpu.read(batch, k, *sizes_of(files)[:, k])[0] for k in cuts]
    on_gpu.decode(lane, lane.to_device(batch), parts, out, windows[:, :2], bgr)
    here = lane.to_host(out)
    lane.synchronize()
    return [np.array(here.sample(i)) for i in range(len(files))]


def check(lane: Any, files: Sequence[bytes]) -> None:
    for k, (data, got) in enumerate(zip(files, made(lane, files), strict=True)):
        wanted = by_openjpeg(data)
        np.testing.assert_array_equal(got, np.broadcast_to(wanted, got.shape), err_msg=str(k))


def all_kinds() -> list[bytes]:
    """Each way of saving, RGB and gray, of other sizes each."""
    files = []
    for k, how in enumerate(SMALL):
        files.append(encoded(picture(60 + 3 * k, 110 - 5 * k, k), **how))
        gray = {name: value for name, value in how.items() if name != "mct"}
        files.append(encoded(picture(50 + 7 * k, 95 - 2 * k, k, 1), **gray))
    return files


def test_every_way_of_saving(lane: Any) -> None:
    check(lane, all_kinds())


def test_nothing_is_coded(lane: Any) -> None:
    """A picture of one colour, the middle one."""
    check(lane, [encoded(np.full((9, 12, 3), 128, np.uint8), num_resolutions=2)])


@pytest.mark.parametrize("irreversible", [False, True])
def test_small_and_odd_sizes(irreversible: bool, lane: Any) -> None:
    """Bands without a coefficient, signals of one sample or two, and places that begin with a high frequency."""
    files = []
    for k, (h, w) in enumerate([(1, 1), (1, 9), (7, 1), (2, 2), (3, 5), (16, 17), (33, 4), (5, 64), (65, 66)]):
        how = {"num_resolutions": max(1, min(h, w).bit_length() - 1), "irreversible": irreversible}
        files.append(encoded(picture(h, w, k), **how))
        for offset in ((1, 1), (2, 3), (5, 4)):  # the encoder wants them to be less than a tile
            if min(h, w) > 15:
                one = {**how, "offset": offset, "num_resolutions": 3}
                files.append(encoded(picture(h, w, k), tile_size=(w + 8, h + 8), **one))
                files.append(encoded(picture(h, w, k), tile_size=(16, 19), **one))
    check(lane, files)


@pytest.mark.parametrize("size", [(4, 4), (4, 1024), (1024, 4), (64, 64), (8, 256), (32, 16)])
def test_sides_of_code_blocks(size: tuple[int, int], lane: Any) -> None:
    h, w = (1030, 20) if size[1] == 1024 else (20, 1030) if size[0] == 1024 else (150, 90)
    h, w = (60, 50) if size == (4, 4) else (h, w)
    check(lane, [encoded(picture(h, w, 3), codeblock_size=size, num_resolutions=2)])


def test_windows_and_colours(lane: Any) -> None:
    rng, files, windows = np.random.default_rng(1), all_kinds()[::3], []
    for data in files:
        header = probe(memoryview(data))
        y, x = int(rng.integers(0, header.height)), int(rng.integers(0, header.width))
        windows.append((y, x, int(rng.integers(y, header.height)) + 1, int(rng.integers(x, header.width)) + 1))
    for data, (y0, x0, y1, x1), got in zip(files, windows, made(lane, files, np.array(windows), 3, True), strict=True):
        np.testing.assert_array_equal(got, np.broadcast_to(by_openjpeg(data)[y0:y1, x0:x1, ::-1], got.shape))
    gray = [data for data in all_kinds() if probe(memoryview(data)).channels == 1]
    for data, got in zip(gray, made(lane, gray, channels=1), strict=True):
        np.testing.assert_array_equal(got, by_openjpeg(data))


def test_groups(lane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that do not fit into memory together, and those of several tasks."""
    files = all_kinds()
    whole = made(lane, files)
    for most in (on_gpu.SAMPLES, 40_000):
        monkeypatch.setattr(on_gpu, "SAMPLES", most)
        for one, other in zip(whole, made(lane, files, tasks=9), strict=True):
            np.testing.assert_array_equal(one, other)


def sizes_of(files: Sequence[bytes]) -> I64:
    return np.array([(h.height, h.width) for h in (probe(memoryview(f)) for f in files)], np.int64).T


# -- streams as Pillow does not write them -----------------------------------------------------------------------------


def parts(data: bytes) -> tuple[bytes, list[bytes]]:
    """Of a raw stream of one tile with PLT: the main header, and the packets by what PLT says."""
    begin = data.index(b"\xff\x90\0\x0a")
    at, lengths, value = begin + 12, [], 0
    while data[at : at + 2] == b"\xff\x58":
        (size,) = struct.unpack_from(">H", data, at + 2)
        for byte in data[at + 5 : at + 2 + size]:
            value = value << 7 | byte & 127
            if byte < 128:
                lengths.append(value)
                value = 0
        at += 2 + size
    assert data[at : at + 2] == b"\xff\x93"
    at += 2
    packets = []
    for length in lengths:
        packets.append(data[at : at + length])
        at += length
    assert data[at:] == b"\xff\xd9"
    return data[:begin], packets


def tile_part(packets: Sequence[bytes], number: int, count: int) -> bytes:
    body = b"\xff\x93" + b"".join(packets)
    return b"\xff\x90" + struct.pack(">HHIBB", 10, 0, 12 + len(body), number, count) + body


def with_style(header: bytes, style: int) -> bytes:
    at = header.index(b"\xff\x52") + 4
    return header[:at] + bytes([header[at] | style]) + header[at + 1 :]


def streams() -> list[tuple[bytes, list[bytes]]]:
    layers = {"quality_layers": [30, 10, 3], "precinct_size": (32, 32), "codeblock_size": (16, 16)}
    return [
        parts(encoded(picture(70, 90, 2), no_jp2=True, plt=True, progression=order, **layers))
        for order in ("LRCP", "RPCL")
    ]


def test_several_tile_parts(lane: Any) -> None:
    files = []
    for header, packets in streams():
        for cuts in ((len(packets) // 3, len(packets) // 2), (0, 5), (1, len(packets))):
            a, b = cuts
            some = [packets[:a], packets[a:b], packets[b:]]
            files.append(header + b"".join(tile_part(p, k, 3) for k, p in enumerate(some)) + b"\xff\xd9")
    check(lane, files)


def test_marked_packets(lane: Any) -> None:
    """SOP before each packet, and EPH behind its header: packets of a picture of one colour are nothing else."""
    files = []
    for header, packets in streams():
        marked = [b"\xff\x91\0\4" + struct.pack(">H", k & 0xFFFF) + packet for k, packet in enumerate(packets)]
        files.append(with_style(header, 2) + tile_part(marked, 0, 1) + b"\xff\xd9")
    plain = np.full((40, 50), 128, np.uint8)
    header, packets = parts(encoded(plain, no_jp2=True, plt=True, num_resolutions=3))
    assert all(len(packet) == 1 for packet in packets)
    marked = [packet + b"\xff\x92" for packet in packets]
    files.append(with_style(header, 4) + tile_part(marked, 0, 1) + b"\xff\xd9")
    both = [b"\xff\x91\0\4\0" + bytes([k]) + packet for k, packet in enumerate(marked)]
    files.append(with_style(header, 6) + tile_part(both, 0, 1) + b"\xff\xd9")
    check(lane, files)


def changed(data: bytes, marker: bytes, at: int, to: int) -> bytes:
    place = data.index(marker) + 2 + at
    return data[:place] + bytes([to]) + data[place + 1 :]


def test_what_is_left_to_openjpeg() -> None:
    """Streams that are not in order, or of kinds that the kernels do not know."""
    header, packets = streams()[0]
    sound = header + tile_part(packets, 0, 1) + b"\xff\xd9"
    marked = [b"\xff\x91\0\4" + struct.pack(">H", k) + packet for k, packet in enumerate(packets)]
    lost = [*marked[:7], packets[7], *marked[8:]]
    boxed = encoded(picture(40, 40, 1))
    begin = boxed.index(b"jp2c") - 4
    files = {
        "sound": sound,
        "cut": sound[:-200],
        "no end marker": sound[:-2],
        "bytes after the end": sound + b"\0\0",
        "a byte too many": header + tile_part([*packets, b"\0"], 0, 1) + b"\xff\xd9",
        "a packet too few": header + tile_part(packets[:-1], 0, 1) + b"\xff\xd9",
        "a part of three": header + tile_part(packets, 0, 3) + b"\xff\xd9",
        "parts in disorder": header + tile_part(packets[:9], 1, 2) + tile_part(packets[9:], 0, 2) + b"\xff\xd9",
        "a lost SOP": with_style(header, 2) + tile_part(lost, 0, 1) + b"\xff\xd9",
        "no EPH": with_style(header, 4) + tile_part(packets, 0, 1) + b"\xff\xd9",
        "bypass": changed(sound, b"\xff\x52", 10, 1),
        "high throughput": changed(sound, b"\xff\x52", 10, 64),
        "another marker": header + b"\xff\x63\0\4\0\0" + tile_part(packets, 0, 1) + b"\xff\xd9",
        "seven bits": changed(sound, b"\xff\x51", 38, 6),
        "signed": changed(sound, b"\xff\x51", 38, 0x87),
        "sampled": changed(sound, b"\xff\x51", 42, 2),
        "quantised integers": changed(sound, b"\xff\x5c", 2, 0x42),
        "another size": changed(boxed, b"ihdr", 7, 41),
        "another colour space": changed(boxed, b"colr", 8, 18),
        "another box": boxed[:begin] + b"\0\0\0\x09xml \0" + boxed[begin:],
    }
    assert by_openjpeg(sound).shape == (70, 90, 3)
    assert dict(zip(files, read(list(files.values()))[2].tolist(), strict=True)) == {
        name: name == "sound" for name in files
    }


@pytest.mark.parametrize(
    ("mode", "taken"), [("L", True), ("RGB", True), ("LA", False), ("RGBA", False), ("I;16", False)]
)
def test_modes(mode: str, taken: bool) -> None:
    out = io.BytesIO()
    Image.new(mode, (40, 40)).save(out, "JPEG2000")
    assert on_gpu.takes(np.array([row_of(probe(memoryview(out.getvalue())))]))[0] == taken


def test_mutations(tmp_path: Path, lane: Any) -> None:
    """Files that are taken give the pixels that OpenJPEG gives, whatever happened to them."""
    for k in range(4):
        Image.fromarray(picture(70, 80, k)).save(tmp_path / f"{k}.png")
    accepted, wrong = differences(lane, small_files(sorted(tmp_path.iterdir()), 500), 128, by_gpu, by_cpu)
    assert not wrong
    assert 120 < accepted < 400


def test_endless_tables_are_refused() -> None:
    """Files of a few bytes that claim countless tiles, layers, precincts or code blocks."""
    header, packets = streams()[0]
    sound = header + tile_part(packets, 0, 1) + b"\xff\xd9"
    size, coding = sound.index(b"\xff\x51") + 4, sound.index(b"\xff\x52") + 4
    wide = sound[: size + 2] + struct.pack(">II", 60000, 60000) + sound[size + 10 :]
    tiles = wide[: size + 18] + struct.pack(">II", 1, 1) + wide[size + 26 :]
    one = wide[: size + 18] + struct.pack(">II", 60000, 60000) + wide[size + 26 :]
    layers = one[: coding + 2] + b"\xff\xff" + one[coding + 4 :]
    blocks = one[: coding + 6] + b"\0\0" + one[coding + 8 :]
    assert not read([wide, tiles, one, layers, blocks])[2].any()


def test_a_table_without_a_byte_is_refused() -> None:
    """At the end of a file, nothing beyond it is looked at."""
    file, facts, steps = np.zeros(9, np.uint8), np.zeros(codestream_cpu.FACTS, np.int64), np.zeros((1, 2), np.int64)
    assert not codestream_cpu._quantisation.py_func(file, len(file), 2, facts, steps)


# -- jobs --------------------------------------------------------------------------------------------------------------


def written(folder: Path) -> int:
    """JPEG 2000, sound and others; how many are sound and plain."""
    (folder / "a").mkdir(parents=True)
    plain = all_kinds()[:20]
    whole = encoded(picture(80, 70, 5))
    at = len(whole) // 2
    rgba = io.BytesIO()
    Image.fromarray(picture(40, 50, 1)).convert("RGBA").save(rgba, "JPEG2000")
    odd = [whole[:100], whole[:at], whole[:-2], whole[:60] + bytes(60) + whole[120:], rgba.getvalue()]
    for k, data in enumerate([*plain, *odd]):
        (folder / "a" / f"{k:02d}.jp2").write_bytes(data)
    return len(plain)


@pytest.mark.parametrize("output_type", ["RGB", "BGR", "GRAY"])
@pytest.mark.parametrize("named", ["decoders.image", "decoders.image_random_crop"])
def test_jobs(tmp_path: Path, output_type: str, named: str, gpu: str) -> None:
    plain = written(tmp_path)
    job = graph(tmp_path, decoder=named, output_type=output_type)
    expected, here = results(compile_graph(job, Target(), 7), 30)
    found, report = results(compile_graph(job, Target("gpu"), 7), 30)
    assert list(found) == list(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert report["rejected"] == here["rejected"]
    assert sum(here["rejected"].values()) >= 2
    assert report["decoders"]["cuda jpeg2000"] == (plain // 2 if output_type == "GRAY" else plain)


def test_other_types_are_the_cpus(tmp_path: Path, gpu: str) -> None:
    written(tmp_path)
    for how in ({"output_type": "YCbCr"}, {"dtype": "FLOAT"}):
        job = graph(tmp_path, **how)
        expected, _ = results(compile_graph(job, Target(), 7), 30)
        found, report = results(compile_graph(job, Target("gpu"), 7), 30)
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)
        assert "cuda jpeg2000" not in report["decoders"]
