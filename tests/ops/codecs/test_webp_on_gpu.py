"""Lossy WebPs that a GPU decodes: pixels and verdicts are libwebp's."""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.webp import decoder as webp
from dali_run.ops.codecs.webp import on_gpu
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from tests.kit.engine.decoding import graph, results
from tests.kit.fake_cupy import faked

pytestmark = pytest.mark.skipif(webp._library() is None, reason="no libwebp here")


def picture(h: int, w: int, seed: int) -> np.ndarray:
    """Waves with noise, noise alone, squares, or one colour."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:h, :w]
    if seed % 4 == 0:
        waves = [128 + 100 * np.sin(x / 9 + seed), 128 + 100 * np.cos(y / 7), x * 3 + y * 2]
        values = np.stack(waves, -1) + rng.normal(0, 15, (h, w, 3))
    elif seed % 4 == 1:
        values = rng.integers(0, 256, (h, w, 3))
    elif seed % 4 == 2:
        values = rng.integers(0, 256, (h // 8 + 1, w // 8 + 1, 3)).repeat(8, 0).repeat(8, 1)[:h, :w]
    else:
        values = np.broadcast_to(rng.integers(0, 256, 3), (h, w, 3))
    return np.clip(values, 0, 255).astype(np.uint8)


def encoded(pixels: np.ndarray, **how: Any) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "WEBP", **how)
    return data.getvalue()


class Bools:
    """Writes bools (RFC 6386, 7.3)."""

    def __init__(self) -> None:
        self._out, self._range, self._low, self._bits = bytearray(), 255, 0, 24

    def write(self, value: int, probability: int = 128) -> None:
        split = 1 + ((self._range - 1) * probability >> 8)
        self._low += split if value else 0
        self._range = self._range - split if value else split
        while self._range < 128:
            self._range <<= 1
            if self._low & 1 << 31:
                at = len(self._out) - 1
                while self._out[at] == 255:
                    self._out[at] = 0
                    at -= 1
                self._out[at] += 1
            self._low = self._low << 1 & 0xFFFFFFFF
            self._bits -= 1
            if self._bits == 0:
                self._out.append(self._low >> 24)
                self._low &= 0xFFFFFF
                self._bits = 8

    def number(self, value: int, bits: int) -> None:
        for k in reversed(range(bits)):
            self.write(value >> k & 1)

    def signed(self, value: int, bits: int) -> None:
        self.write(1)
        self.number(abs(value), bits)
        self.write(value < 0)

    def bytes(self) -> bytes:
        self.number(0, 32)
        return bytes(self._out)


def frame(w: int, h: int, seed: int, large: int = 3, room: int = 200) -> bytes:
    """A picture of noise that says so: each field of its header drawn, then modes and coefficients that nobody wrote,
    for any bytes are some. ``large``: one in 256 how often a value is above 1, and above that, at most. ``room``: bytes
    for each macroblock."""
    draw = random.Random(seed)
    macroblocks = -(-w // 16) * -(-h // 16)
    b = Bools()
    b.number(draw.getrandbits(2), 2)
    segments, by_map = draw.random() < 0.6, draw.random() < 0.8
    b.write(segments)
    if segments:
        b.write(by_map)
        b.write(1)
        b.write(draw.getrandbits(1))
        for bits in (7, 6):
            for _ in range(4):
                b.write(0) if draw.random() < 0.2 else b.signed(draw.randint(-20, 60), bits)
        for _ in range(3 * by_map):
            b.write(1)
            b.number(draw.getrandbits(8), 8)
    b.write(draw.random() < 0.3)  # the simple filter
    b.number(draw.choice([0, 5, 20, 63]), 6)
    b.number(draw.choice([0, 0, *range(1, 8)]), 3)
    changes = draw.random() < 0.4
    b.write(changes)
    if changes:
        b.write(1)
        for _ in range(8):
            b.signed(draw.randint(-63, 63), 6) if draw.random() < 0.7 else b.write(0)
    partitions = draw.randint(0, 3)
    b.number(partitions, 2)
    b.number(draw.choice([0, 10, 40]), 7)
    for _ in range(5):
        b.signed(draw.randint(-15, 15), 4) if draw.random() < 0.4 else b.write(0)
    b.write(0)
    for k, update in enumerate(_UPDATES):
        node = k % 11
        b.write(1, update)
        b.number(draw.choice([30, 120, 200]) if node < 2 else 256 - max(1, draw.randint(1, large)), 8)
    skips = draw.random() < 0.7
    b.write(skips)
    if skips:
        b.number(draw.choice([0, 60, 200]), 8)
    noise = draw.randbytes(macroblocks * 20 + 40)
    for byte in noise:
        b.number(byte, 8)
    first = b.bytes()
    parts = [draw.randbytes(room * macroblocks + 60) for _ in range(1 << partitions)]
    tag = draw.randint(0, 3) << 1 | 1 << 4 | len(first) << 5
    data = tag.to_bytes(3, "little") + b"\x9d\x01\x2a" + struct.pack("<HH", w, h) + first
    data += b"".join(len(p).to_bytes(3, "little") for p in parts[:-1]) + b"".join(parts)
    return riff((b"VP8 ", data))


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) & 1) for name, data in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def _updates() -> list[int]:
    text = (Path(webp.__file__).parents[2] / "cuda" / "vp8_tables.cuh").read_text()
    return [int(n) for n in text.split("VP8_UPDATES[] = {")[1].split("}")[0].split(",")]


_UPDATES = _updates()


def decoded(lane: Any, files: list[bytes], windows: Any = None, bgr: bool = False) -> tuple[Any, list[np.ndarray]]:
    """Marks, and pixels; ``windows``: y, x, rows, columns of each."""
    pictures, at, to = np.zeros(len(files), on_gpu.PICTURE), 0, 0
    for k, data in enumerate(files):
        header = probe(memoryview(data))
        y, x, rows, columns = (0, 0, header.height, header.width) if windows is None else windows[k]
        pictures[k] = (at, len(data), 0, to, header.width, header.height, y, x, rows, columns, bgr, 0)
        at, to = at + len(data), to + 3 * rows * columns
    (stored,) = lane.upload(np.frombuffer(b"".join(files), np.uint8))
    out = lane.empty(to, np.uint8)
    marks, found = on_gpu.launch(lane, stored, pictures, out)(), lane.download(out)
    lane.synchronize()
    starts, rows, columns = pictures["destination"], pictures["shown_rows"], pictures["shown_columns"]
    return np.array(marks), [
        np.array(found[s : s + 3 * h * w]).reshape(h, w, 3) for s, h, w in zip(starts, rows, columns, strict=True)
    ]


def by_libwebp(data: bytes) -> np.ndarray:
    found = webp.decode(memoryview(data), probe(memoryview(data)))
    assert found is not None
    return found


def check(lane: Any, files: list[bytes]) -> int:
    """Pixels are libwebp's, but for what the CPU is to decode; how many that are not."""
    marks, found = decoded(lane, files)
    for k, data in enumerate(files):
        if not marks[k]:
            np.testing.assert_array_equal(found[k], by_libwebp(data), err_msg=str(k))
    return int(np.count_nonzero(marks == 0))


SIZES = [(1, 1), (2, 3), (16, 16), (17, 1), (1, 40), (31, 33), (48, 49), (64, 80), (15, 130)]


@pytest.mark.parametrize("method", [0, 3, 6])
def test_encoded_pictures(lane: Any, method: int) -> None:
    qualities = (0, 20, 60, 85, 100)
    files = [
        encoded(picture(h, w, k + q), quality=q, method=method) for k, (h, w) in enumerate(SIZES) for q in qualities
    ]
    assert check(lane, files) == len(files)


@pytest.mark.parametrize("large", [2, 12])
def test_any_header(lane: Any, large: int) -> None:
    """Filters, segments, partitions, steps and probabilities that encoders seldom write."""
    files = [frame(1 + 7 * k % 75, 1 + 11 * k % 70, k, large) for k in range(60)]
    assert check(lane, files) >= 50


def test_coefficients_beyond_16_bits_are_the_cpus(lane: Any) -> None:
    files = [frame(50, 40, k, 200) for k in range(12)]
    assert check(lane, files) < 12


def test_windows_and_bgr(lane: Any) -> None:
    files, windows = [], []
    draw = random.Random(3)
    for k, (h, w) in enumerate(SIZES):
        files.append(encoded(picture(h, w, k), quality=70))
        y, x = draw.randrange(h), draw.randrange(w)
        windows.append((y, x, draw.randint(1, h - y), draw.randint(1, w - x)))
    marks, found = decoded(lane, files, windows, bgr=True)
    assert not marks.any()
    for data, (y, x, rows, columns), pixels in zip(files, windows, found, strict=True):
        np.testing.assert_array_equal(pixels, by_libwebp(data)[y : y + rows, x : x + columns, ::-1])


def damaged(count: int, seed: int) -> list[bytes]:
    """Files of which bytes were changed, inserted, or cut off; their first chunk's header tells the old size."""
    draw = random.Random(seed)
    sound = [encoded(picture(33, 50, k), quality=q) for k in range(4) for q in (10, 75)] + [frame(40, 40, 5, 6, 30)]
    found = []
    for _ in range(count):
        data = bytearray(draw.choice(sound))
        for _ in range(draw.choice([1, 1, 2, 8])):
            at = min(
                draw.choice([draw.randrange(30, 60), 30 + int(draw.random() ** 3 * 5000), draw.randrange(12, 26)]),
                len(data) - 1,
            )
            how = draw.randrange(4)
            if how == 0:
                data[at] ^= 1 << draw.randrange(8)
            elif how == 1:
                data[at] = draw.choice([0, 255, draw.randrange(256)])
            elif how == 2:
                del data[at : at + draw.randint(1, 40)]
            else:
                data[at:at] = draw.randbytes(draw.randint(1, 9))
        if len(data) < 30:
            continue
        if draw.random() < 0.6:  # the container is in order
            struct.pack_into("<I", data, 4, len(data) - 8 + (len(data) & 1))
            struct.pack_into("<I", data, 16, len(data) - 20)
            data += b"\0" * (len(data) & 1)
        elif draw.random() < 0.3:
            del data[draw.randint(31, 3000) :]
        width, height = struct.unpack_from("<HH", data, 26)
        if bytes(data[12:16]) == b"VP8 " and 0 < (width & 0x3FFF) < 300 and 0 < (height & 0x3FFF) < 300:
            found.append(bytes(data))
    return found


def test_damaged_files(lane: Any) -> None:
    """Files that the kernels accept libwebp accepts, too, with these pixels; the rest is for the CPU to judge."""
    files = damaged(250, 9)
    assert len(files) > 100
    assert 20 < check(lane, files) < len(files)


def test_data_that_no_encoder_begins(lane: Any) -> None:
    """A value above the range, and a last partition of no bytes: only libwebp knows what it makes of them."""
    whole = bytearray(encoded(picture(40, 40, 0), quality=60))  # one partition of coefficients
    (first,) = struct.unpack_from("<I", bytes(whole[20:23]) + b"\0")
    tokens = 30 + (first >> 5)
    for at in (30, tokens):
        changed = whole.copy()
        changed[at] = 255
        marks, _ = decoded(lane, [bytes(whole), bytes(changed)])
        assert marks.tolist() == [0, 1]
    (size,) = struct.unpack_from("<I", whole, 16)
    changed = riff((b"VP8 ", bytes(whole[20 : 20 + size])[: tokens - 20]))
    assert decoded(lane, [changed])[0].tolist() == [1]


def test_nothing_behind_the_files_is_read(lane: Any) -> None:
    """A file that ends early is not gone on with in the next one."""
    whole = encoded(picture(40, 40, 1), quality=90)
    files = []
    for cut in range(1, 40):
        data = bytearray(whole[:-cut])
        struct.pack_into("<I", data, 4, len(data) - 8)
        struct.pack_into("<I", data, 16, len(data) - 20)
        if not len(data) & 1:
            files += [bytes(data), whole]
    check(lane, files)


def written(folder: Path) -> Path:
    """WebPs of all kinds, sound ones and others, and pictures of other formats."""
    (folder / "a").mkdir(parents=True)
    rgb, alpha = picture(45, 61, 4), np.dstack([picture(45, 61, 4), picture(45, 61, 1)[..., :1]])
    exif = Image.Exif()
    exif[0x0112] = 6
    straight = Image.Exif()
    straight[0x010E] = "a picture"
    lossy = encoded(rgb, quality=80)
    chunk = lossy[20 : 20 + struct.unpack_from("<I", lossy, 16)[0]]
    frames = io.BytesIO()
    more = [Image.fromarray(picture(45, 61, 8))]
    Image.fromarray(rgb).save(frames, "WEBP", save_all=True, append_images=more, quality=80)
    files = [
        *(encoded(picture(20 + 9 * k, 70 - 8 * k, k), quality=60 + 5 * k) for k in range(5)),
        encoded(rgb, quality=70, exif=straight.tobytes()), encoded(rgb, quality=70, exif=exif.tobytes()),
        encoded(rgb, lossless=True), encoded(rgb, lossless=True, exif=straight.tobytes()),
        encoded(alpha, quality=80), frames.getvalue(), frame(40, 50, 1), frame(40, 50, 1, 250),
        lossy[:-30], lossy[:200], lossy + b"more", lossy[:4] + b"\xff\xff\0\0" + lossy[8:],
        riff((b"VP8 ", chunk), (b"XMP ", b"text")), riff((b"VP8 ", chunk[:-40])), riff((b"VP8 ", b"\0" + chunk[1:])),
        riff((b"VP8X", b"\x04\0\0\0" + b"\x63\0\0\x63\0\0"), (b"VP8 ", chunk)),
    ]  # fmt: skip
    for k, data in enumerate(files):
        (folder / "a" / f"{k:02d}.webp").write_bytes(data)
    Image.fromarray(rgb).save(folder / "a" / "90.jpg")
    Image.fromarray(rgb).save(folder / "a" / "91.png")
    return folder


@pytest.mark.parametrize("decoder", ["decoders.image", "decoders.image_random_crop"])
@pytest.mark.parametrize("fused", [False, True])
def test_jobs(tmp_path: Path, decoder: str, fused: bool, gpu: str) -> None:
    where = written(tmp_path)
    expected, here = results(compile_graph(graph(where, decoder=decoder, output_type="BGR"), Target(), 7), 12)
    found, report = results(compile_graph(graph(where, fused, decoder, output_type="BGR"), Target("gpu"), 7), 12)
    assert list(found) == list(expected)
    assert len(found) >= 14
    if not fused:
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert report["rejected"] == here["rejected"]
    assert sum(here["rejected"].values()) >= 3
    assert report["decoders"]["cuda webp"] >= 8


@pytest.mark.parametrize("output_type", ["GRAY", "ANY_DATA", "YCbCr"])
def test_other_colours_are_the_cpus(tmp_path: Path, output_type: str) -> None:
    where = written(tmp_path)
    expected, _ = results(compile_graph(graph(where, output_type=output_type), Target(), 7), 12)
    with faked(memory=True):
        found, report = results(compile_graph(graph(where, output_type=output_type), Target("gpu"), 7), 12)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert "cuda webp" not in report["decoders"]
