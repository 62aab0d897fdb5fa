"""TIFFs whose strips a GPU unpacks: pixels and verdicts are the CPU's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import I64, Batch, Samples
from dali_run.ops.codecs import costs, native_loops
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.gpu_streams import planes
from dali_run.ops.codecs.gpu_streams import streams as unpacking
from dali_run.ops.codecs.png import decoder as png
from dali_run.ops.codecs.tiff import decoder, on_gpu
from dali_run.ops.errors import SampleError
from dali_run.ops.gpu.lane import Lane
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from tests.kit.emulated_lane import GuardedLane
from tests.kit.engine.decoding import graph, results
from tests.kit.files.tiffs import deep, good_files, literal, lzw, packed, picture, plain_tags, saved
from tests.kit.long import LONG, thinned
from tests.kit.ops.inflating import inflated


@pytest.fixture(params=["guarded", pytest.param("real", marks=pytest.mark.gpu(emulated=False))])
def lane(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "guarded":
        yield GuardedLane()
        return
    with Lane() as real:
        yield real
        real.close()


def codes_of(codes: Sequence[int]) -> tuple[bytes, bytes | None]:
    """LZW codes as section 13 of TIFF 6.0 packs them, and what they stand for by a table of strings; None where one is
    not defined. Behind a clear code comes one of the first 256."""
    bits, out, table, last, width = "", b"", dict[int, bytes](), b"", 9
    sound = codes[0] == 256
    for code in codes:
        bits += f"{code:0{width}b}"
        if code == 256:
            table, last, width = {k: bytes([k]) for k in range(256)}, b"", 9
            continue
        if code not in table and (code != len(table) + 2 or not last):
            sound = False
            code = 0  # what comes after it does not count
        string = table[code] if code in table else last + last[:1]
        if last:
            table[len(table) + 2] = last + string[:1]
        out, last = out + string, string
        free = len(table) + 2
        width = 9 if free < 511 else 10 if free < 1023 else 11 if free < 2047 else 12
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big"), out if sound else None


def drawn(rng: np.random.Generator, count: int, likes: str) -> list[int]:
    """Codes as no encoder writes them: of any string that is defined, now and then with a clear code."""
    found, defined = [256, int(rng.integers(0, 256))], 0
    while len(found) < count:
        newest = 258 + defined
        draw = rng.random()
        if defined == 3836 or (draw < 0.002 and likes != "full"):
            found += [256, int(rng.integers(0, 256))]
            defined = 0
            continue
        if draw < (0.9 if likes == "runs" else 0.05):
            found.append(newest)
        elif draw < 0.4 and likes != "runs":
            found.append(int(rng.integers(max(258, newest - 20), newest + 1)))
        elif draw < 0.7:
            found.append(int(rng.integers(258, newest + 1)))
        else:
            found.append(int(rng.integers(0, 256)))
        defined += 1
    return found


@pytest.mark.parametrize("likes", ["any", "runs", "full"])
def test_lzw_of_any_codes(likes: str, lane: Any) -> None:
    rng = np.random.default_rng(len(likes))
    counts = [2, 3, 33, 34, 35, 66, 300, 900, 2000, 4000, 9000] if likes != "runs" else [2, 40, 300, 700]
    given = [codes_of(drawn(rng, count, likes)) for count in counts]
    wanted = [data for _, data in given]
    assert None not in wanted
    room = [len(data or b"") for data in wanted]
    assert inflated(lane, [s for s, _ in given], room, unpacking.LZW) == wanted
    # what comes after the last byte is not looked at; one byte more or less is another matter
    longer = [s + b"\xff\xff" for s, _ in given]
    assert inflated(lane, longer, room, unpacking.LZW) == wanted
    for change in (1, -1):
        found = inflated(lane, [s for s, _ in given], [n + change for n in room], unpacking.LZW)
        assert [f is None or f == w[: n + change] for f, w, n in zip(found, wanted, room, strict=True) if w]
        assert found.count(None) >= len(found) // 2


@pytest.mark.parametrize("sizes", [(65535, 65536), (70000, 40)])
def test_lzw_of_as_much_as_16_bits_tell_places_in(sizes: tuple[int, int], lane: Any) -> None:
    rng = np.random.default_rng(3)
    wanted = [np.repeat(rng.integers(0, 9, n, np.uint8), rng.integers(1, 9, n))[:n].tobytes() for n in sizes]
    assert inflated(lane, [lzw(data) for data in wanted], list(sizes), unpacking.LZW) == wanted


LITERALS = [k % 256 for k in range(5000)]
BY_HAND: dict[str, tuple[list[int], bool]] = {
    "one": ([256, 7], True),
    "no clear code first": ([7, 7], False),
    "two clear codes": ([256, 256, 7], False),
    "a string first": ([256, 258, 7], False),
    "the string before": ([256, 7, 258, 259, 260], True),
    "not yet defined": ([256, 7, 259], False),
    "the end too early": ([256, 7, 257, 8], False),
    "3,838 codes": ([256, *LITERALS[:3838]], True),
    "and a clear code": ([256, *LITERALS[:3838], 256, 7], False),
    "a clear code in time": ([256, *LITERALS[:3837], 256, *LITERALS[:3838]], True),
    "the last string": ([256, *LITERALS[:3837], 258 + 3835], True),
    "32 codes, a clear code": ([256, *LITERALS[:32], 256, 7, 258], True),
    "31 codes, a clear code": ([256, *LITERALS[:31], 256, 7, 258], True),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_lzw_by_hand(name: str, lane: Any) -> None:
    """The kernel takes exactly those that the decoder of the CPU takes."""
    codes, taken = BY_HAND[name]
    stream, holds = codes_of(codes)
    wanted = holds if taken else None
    assert not taken or wanted is not None
    room = len(holds) if holds else len(codes) - 1
    assert inflated(lane, [stream], [room], unpacking.LZW) == [wanted]
    assert of_cpu(stream, room, 5) == wanted
    assert inflated(lane, [stream[:-1], b"", b"\x80"], [room] * 3, unpacking.LZW) == [None] * 3


def of_cpu(stream: bytes, room: int, coding: int) -> bytes | None:
    """A strip by the decoder of the CPU; None where it is refused."""
    if not stream:
        return None
    data = packed([stream], {**plain_tags(1, room, 1, coding), 278: 1}, "<")
    data += bytes(room // 1000)  # so that it could hold them
    pixels = decoder.stored(memoryview(data), probe(memoryview(data)))
    return None if pixels is None else pixels.tobytes()


@pytest.mark.parametrize("seed", range(6))
def test_mutated_strips(seed: int, lane: Any) -> None:
    """Each is taken if the CPU takes it, with the same bytes, between sound ones that keep theirs."""
    rng = np.random.default_rng(seed)
    coding, tag = ((unpacking.LZW, 5), (unpacking.PACK_BITS, 32773))[seed % 2]
    bases = []
    for k in range(3):
        raw = picture(k, 3, 20, 30 + 20 * k).tobytes()
        bases.append((lzw(raw) if tag == 5 else pack_bits(raw), len(raw)))
    assert all(of_cpu(*base, tag) is not None for base in bases)
    streams, room, wanted = [], [], []
    for k in range(400):
        stream, n = bases[k % 3]
        if k % 10:
            data, kind, at = bytearray(stream), int(rng.integers(0, 5)), int(len(stream) * rng.random() ** 2)
            if kind == 0:
                data[at] ^= 1 << int(rng.integers(0, 8))
            elif kind == 1:
                data[at] = int(rng.integers(0, 256))
            elif kind == 2:
                del data[at : at + int(rng.integers(1, 9))]
            elif kind == 3:
                data[at:at] = bytes(rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8))
            else:
                data = data[:at]
            n = n if k % 3 else int(rng.integers(1, n))
            stream = bytes(data)
        streams.append(stream)
        room.append(n)
        wanted.append(of_cpu(stream, n, tag))
    assert inflated(lane, streams, room, coding) == wanted
    assert sum(w is not None for w in wanted) > 60
    assert sum(w is None for w in wanted) > 100


def pack_bits(raw: bytes) -> bytes:
    """Runs of three bytes and more, and the rest as it is."""
    out, k = b"", 0
    while k < len(raw):
        n = 1
        while n < 128 and k + n < len(raw) and raw[k + n] == raw[k]:
            n += 1
        if n < 3:
            n = min(2 + k % 120, len(raw) - k)
            out += bytes([n - 1]) + raw[k : k + n]
        else:
            out += bytes([257 - n]) + raw[k : k + 1]
        out += b"\x80" * (k % 7 == 0)
        k += n
    return out


def test_strips_of_countless_rounds_are_refused(lane: Any) -> None:
    """Each round costs a step of 32 codes, whatever it holds."""
    stream, holds = codes_of([256, 7] * 20000)
    assert holds == b"\x07" * 20000
    assert of_cpu(stream, 20000, 5) == holds
    assert inflated(lane, [stream], [20000], unpacking.LZW) == [None]


# -- files -------------------------------------------------------------------------------------------------------------


def all_kinds() -> dict[str, bytes]:
    """Files of every kind that the decoder takes, 8 and 16 bits."""
    files = good_files()
    for coding in (1, 5, 8, 32773):
        for channels in (1, 3, 4):
            for k, order in enumerate("<>"):
                for tiled in (False, True):
                    if coding == 32773:
                        data, pixels = deep(k, channels, 1, order)
                        data = literal(pixels, channels, order)
                    else:
                        data, _ = deep(k, channels, coding, order, tiled=tiled, predictor=1 + (coding > 1 and k))
                    files[f"16 bits, {coding} {channels} {order} {tiled}"] = data
    return files


def made(
    lane: Any, files: Sequence[bytes], windows: I64, channels: Sequence[int], bgr: bool
) -> tuple[list[Any], list[Any]]:
    """The windows (y0, x0, y1, x1) of TIFFs as the kernels make them, with so many channels, and as the CPU does; None
    for those refused."""
    n = len(files)
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(n))
    which, there = np.arange(n), lane.to_device(batch)
    shapes = np.column_stack([windows[:, 2:] - windows[:, :2], channels]).astype(np.int32)
    out = Batch.allocate(lane.empty, shapes, np.uint8, "HWC", batch.samples)
    strips, taken = on_gpu.strips(batch, which)
    checks: list[Any] = []
    if taken.any():
        where = planes.Where(out.offsets, shapes, windows[:, :2], bgr)
        rows, bad = unpacking.unpack(lane, there, planes.unpacking(strips, where))
        ctx: Any = SimpleNamespace(decoded_by=lambda *_: None, check_later=checks.append)
        planes.restore(ctx, lane, strips, rows, out, "", bad)
    here = lane.to_host(out)
    lane.synchronize()
    wrong = checks[0]().tolist() if checks else []
    by_gpu = [None if not taken[i] or i in wrong else here.sample(i).copy() for i in range(n)]
    cpu = Batch.allocate(np.empty, shapes, np.uint8, "HWC", batch.samples)
    pitches = shapes[:, 1].astype(np.int64) * shapes[:, 2]
    origins = cpu.offsets - windows[:, 0] * pitches - windows[:, 1] * shapes[:, 2]
    wanted = windows, shapes[:, 2].astype(np.int64), bgr, cpu.data, origins, pitches
    status = native_loops.decode_into(decoder._decoder.decode_images, batch, which, *wanted)
    return by_gpu, [cpu.sample(i) if status[i] == 0 else None for i in range(n)]


def windows_of(rng: np.random.Generator, files: Sequence[bytes]) -> I64:
    found = []
    for data in files:
        header = probe(memoryview(data))
        y, x = int(rng.integers(0, header.height)), int(rng.integers(0, header.width))
        bottom, right = int(rng.integers(y + 1, header.height + 1)), int(rng.integers(x + 1, header.width + 1))
        found.append((y, x, bottom, right))
    return np.array(found)


@pytest.mark.parametrize("bgr", [False, True])
def test_every_kind(bgr: bool, lane: Any) -> None:
    """In one launch: strips and tiles of all codings, whole and windows."""
    files = dict(thinned(list(all_kinds().items()), 3))
    if not png.available():  # the CPU's decoder, which is compared with, needs libdeflate
        files = {name: data for name, data in files.items() if "deflate" not in name and ", 8 " not in name}
    rng, data = np.random.default_rng(bgr), list(files.values())
    headers = [probe(memoryview(f)) for f in data]
    whole = np.array([(0, 0, h.height, h.width) for h in headers])
    for windows in (whole, windows_of(rng, data)):
        for three in (True, False):
            if bgr and not three:
                continue
            channels = [3 if three else h.channels for h in headers]
            found, expected = made(lane, data, windows, channels, bgr)
            for name, got, wanted in zip(files, found, expected, strict=True):
                assert got is not None, name
                np.testing.assert_array_equal(got, wanted, name)


def test_pixels_that_were_written(lane: Any) -> None:
    """Independent of any decoder: what went into the files, 16 bits rounded."""
    data, pixels = deep(1, 3, 5, "<", tiled=True, predictor=2)
    gray = picture(2, 1)
    files = [data, saved(gray, "packbits"), saved(picture(1, 4), "tiff_lzw", tiffinfo={317: 2, 278: 9})]
    windows = np.array([(0, 0, 70, 90), (0, 0, 61, 83), (3, 5, 40, 70)])
    found, _ = made(lane, files, windows, [3, 1, 4], False)
    np.testing.assert_array_equal(found[0], np.rint(pixels / 257))
    np.testing.assert_array_equal(found[1], gray)
    np.testing.assert_array_equal(found[2], picture(1, 4)[3:40, 5:70])


def test_changed_files_get_the_same_verdict(lane: Any) -> None:
    """Directories and data; bytes that are changed, that are missing, and files that are cut."""
    rng, taken, refused = np.random.default_rng(3), 0, 0
    files = []
    for name, data in thinned(list(all_kinds().items()), 3):
        if "16 bits" in name and "4" in name:
            continue
        for n in range(8):
            at, byte = int(rng.integers(4, len(data))), bytes([int(rng.integers(0, 256))])
            if n % 2:  # the directory is the last part, but for Pillow's
                at = int(rng.integers(max(4, len(data) - 200), len(data)))
            changed = (data[:at] + byte + data[at + 1 :], data[:at] + data[at + 1 :], data[:at])[n // 2 % 3]
            try:
                header = probe(memoryview(changed))
            except SampleError:
                continue
            if header.width * header.height > 10**6 or not 1 <= header.channels <= 4:
                continue
            if decoder._plain(np.frombuffer(changed, np.uint8), np.zeros(1, np.int64), np.array([len(changed)]))[0]:
                files.append(changed)
    headers = [probe(memoryview(f)) for f in files]
    windows = np.array([(0, 0, h.height, h.width) for h in headers])
    found, expected = made(lane, files, windows, [h.channels for h in headers], False)
    for got, wanted in zip(found, expected, strict=True):
        assert got is None or wanted is not None
        if got is not None:
            np.testing.assert_array_equal(got, wanted)
            taken += 1
        refused += got is None
        assert (got is None) == (wanted is None)
    assert taken > (60 if LONG else 20)
    assert refused > (20 if LONG else 5)


def test_corpus(shared_data: Path, lane: Any) -> None:
    plain = []
    for path in sorted((shared_data / "corpus" / "tiff").iterdir()):
        data = path.read_bytes()
        if decoder._plain(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)]))[0]:
            plain.append(data)
    headers = [probe(memoryview(f)) for f in plain]
    windows = np.array([(0, 0, min(h.height, 200), min(h.width, 200)) for h in headers])
    found, expected = made(lane, plain, windows, [h.channels for h in headers], False)
    assert sum(got is not None for got in found) > 0
    for got, wanted in zip(found, expected, strict=True):
        assert (got is None) == (wanted is None)
        if got is not None:
            np.testing.assert_array_equal(got, wanted)


# -- jobs --------------------------------------------------------------------------------------------------------------


def written(folder: Path) -> int:
    """TIFFs, sound ones and others; how many."""
    (folder / "a").mkdir(parents=True)
    files = list(all_kinds().values())
    whole = saved(picture(1, 3), "tiff_lzw", tiffinfo={317: 2})
    at = len(whole) // 3
    files += [
        whole[:60], whole[:at] + bytes(40) + whole[at + 40 :], whole[:-60], whole[:8] + bytes(8) + whole[16:],
        saved(picture(1, 3), "tiff_lzw", tiffinfo={274: 6}), saved(picture(1, 3), "jpeg"),
        packed([lzw(picture(0, 1, 64, 4).tobytes()[:-1])], {**plain_tags(64, 4, 1, 5), 278: 64}, "<"),
    ]  # fmt: skip
    for k, data in enumerate(files):
        (folder / "a" / f"{k:02d}.tiff").write_bytes(data)
    return len(files)


@pytest.mark.parametrize(
    ("output_type", "by", "named"),
    [
        ("RGB", "threads", "decoders.image"),
        ("RGB", "warps", "decoders.image_random_crop"),
        ("BGR", "threads", "decoders.image_random_crop"),
        ("BGR", "warps", "decoders.image"),
        ("GRAY", "threads", "decoders.image"),
        ("GRAY", "warps", "decoders.image_random_crop"),
    ],
)  # every pair of two of them
def test_jobs(tmp_path: Path, output_type: str, by: str, named: str, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "stragglers", lambda gpu, *_: (gpu > 0) & (by == "threads"))
    n = written(tmp_path)
    job = graph(tmp_path, decoder=named, output_type=output_type)
    expected, here = results(compile_graph(job, Target(), 7), n)
    found, report = results(compile_graph(job, Target("gpu"), 7), n)
    assert list(found) == list(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert report["rejected"] == here["rejected"]
    assert sum(here["rejected"].values()) >= 3
    ours, there = here["decoders"]["tiff"], report["decoders"]
    assert ours > 20
    assert there.get("tiff", 0) + there.get("cuda tiff", 0) == ours
    stored = there.get("cuda tiff", 0)
    assert stored == ours if by == "warps" else 0 < stored < ours  # those without a packing are copied


def test_who_takes_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of countless strips, nor of tiles beyond the picture, nor those that are large beside the others, nor
    those of odd kinds."""
    few, gray = plain_tags(300, 20, 1, 5), picture(0, 1, 300, 20)
    single = packed([lzw(gray.tobytes())], {**few, 278: 300}, "<")
    rows = packed([lzw(row.tobytes()) for row in gray], {**few, 278: 1}, "<")  # 20 bytes each
    odd = packed([lzw(gray.tobytes())], {**few, 278: 300, 266: 2}, "<")
    stored = packed([gray.tobytes()], {**plain_tags(300, 20, 1, 1), 278: 300}, "<")

    def taken(files: list[bytes]) -> list[bool]:
        batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))
        return list(on_gpu.takes(batch, np.arange(len(files))))

    assert taken([single, rows, odd, stored]) == [True, False, False, True]
    for side, is_taken in ((1024, True), (1040, False)):
        tile = {**plain_tags(10, 10, 1, 1), 322: side, 323: side}
        assert taken([packed([bytes(side * side)], tile, "<")]) == [is_taken]
    monkeypatch.setattr(on_gpu, "MOST", 5999)
    assert taken([stored]) == [False]
