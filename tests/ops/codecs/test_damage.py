"""Formats that can tell of damage are asked, also where their decoder goes on; odd depths fill their range."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.codecs.formats import BOMB_PIXELS, LARGEST, check_pixels, probe
from dali_run.ops.codecs.pillow import decode
from dali_run.ops.errors import SampleError
from tests.kit.files.bombs import chunk


def pixels(data: bytes) -> np.ndarray:
    return decode(memoryview(data), probe(memoryview(data)), True, 10**8)


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)  # type: ignore[arg-type]
    return file.getvalue()


def test_fax_data_with_bad_codes_is_refused() -> None:
    rng = random.Random(1)
    noise = np.random.default_rng(1).integers(0, 2, (100, 200)).repeat(3, 1).astype(bool)
    whole = saved(Image.fromarray(noise), "TIFF", compression="group4")
    assert (pixels(whole)[..., 0] == noise * 255).all()
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        data[rng.randrange(200, len(data) - 200)] ^= 1 << rng.randrange(8)
        try:
            pixels(bytes(data))
        except SampleError as e:
            refused += e.code == "corrupt_data" and "Fax" in str(e)
    assert refused > 45


def test_odd_tags_of_a_tiff_are_no_damage() -> None:
    whole = saved(Image.new("1", (64, 64)), "TIFF", compression="group4", tiffinfo={65000: "what is this", 700: b"x"})
    assert (pixels(whole) == 0).all()


@pytest.mark.parametrize("tag", [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"tEXt"])
def test_checksums_of_png_are_looked_at(tag: bytes) -> None:
    """Interlaced, so that Pillow decodes it, which does not look at those of pixels."""
    passes = ((1, 0), (1, 1), (2, 1), (2, 2), (2, 0), (4, 1), (4, 2), (8, 0), (8, 1), (8, 2), (8, 0))
    rows = b"".join(b"\0" + bytes([i] * n) for n, i in passes)
    header = struct.pack(">IIBBBBB", 8, 8, 8, 3, 0, 0, 1)
    parts = {b"IHDR": header, b"PLTE": bytes(range(9)), b"tRNS": b"\xff\x80", b"tEXt": b"k\0v",
             b"IDAT": zlib.compress(rows + bytes(64)), b"IEND": b""}  # fmt: skip
    made = {k: bytearray(chunk(k, v)) for k, v in parts.items()}
    made[tag][-1] ^= 1
    data = b"\x89PNG\r\n\x1a\n" + b"".join(map(bytes, made.values()))
    if tag == b"tEXt":
        return  # no pixel depends on it
    with pytest.raises(SampleError):
        pixels(data)


def gray_tiff(bits: int, values: list[int]) -> bytes:
    """One row of gray samples of any depth, packed without gaps (TIFF 6.0, FillOrder 1)."""
    text = "".join(f"{v:0{bits}b}" for v in values)
    text += "0" * (-len(text) % 8)
    data = bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
    tags = {256: len(values), 257: 1, 258: bits, 259: 1, 262: 1, 273: 8 + 2 + 9 * 12 + 4, 277: 1, 278: 1,
            279: len(data)}  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 12, 16])
def test_gray_tiffs_of_any_depth_fill_the_range(bits: int) -> None:
    most = (1 << bits) - 1
    values = [0, most, most // 2, 1, most - 1, most // 3, 0, most]
    data = gray_tiff(bits, values)
    found = pixels(data)[0, :, 0].astype(float) / np.iinfo(pixels(data).dtype).max
    if bits == 16:  # whose bytes are in the file's order
        values = [int.from_bytes(v.to_bytes(2, "big"), "little") for v in values]
    assert np.allclose(found, np.array(values) / most, atol=0.51 / 255 if bits <= 8 else 1e-4)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("bits", [1, 3, 5, 6, 7, 10, 12, 14])
def test_tiffs_of_odd_depths(bits: int, channels: int, deflated: bool, order: str) -> None:
    """Samples are packed in the order of their bits, whatever the order of bytes is; strips of three rows."""
    rng = np.random.default_rng(bits)
    stored = rng.integers(0, 1 << bits, (8, 5, channels))
    stored[0, 0], stored[-1, -1] = 0, (1 << bits) - 1
    strips = []
    for top in range(0, 8, 3):
        raw = b""
        for row in stored[top : top + 3].reshape(-1, 5 * channels).tolist():
            text = "".join(f"{v:0{bits}b}" for v in row)
            text += "0" * (-len(text) % 8)
            raw += bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
        strips.append(zlib.compress(raw) if deflated else raw)
    at = 8 + 2 + 9 * 12 + 4
    starts = [at + sum(map(len, strips[:k])) for k in range(3)]
    tables = at + sum(map(len, strips))
    values = {
        256: (4, 1, 5), 257: (4, 1, 8), 258: (3, channels, tables + 24), 259: (3, 1, 8 if deflated else 1),
        262: (3, 1, 1 if channels == 1 else 2), 273: (4, 3, tables), 277: (3, 1, channels), 278: (4, 1, 3),
        279: (4, 3, tables + 12),
    }  # fmt: skip
    entries = b""
    for tag, (kind, count, value) in sorted(values.items()):
        inline = kind == 3 and count == 1
        value = bits if tag == 258 and channels == 1 else value
        entries += struct.pack(order + ("HHIHH" if inline else "HHII"), tag, kind, count, value, *([0] * inline))
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HIH", 42, 8, len(values))
    data = head + entries + bytes(4) + b"".join(strips)
    data += struct.pack(order + "3I", *starts) + struct.pack(order + "3I", *map(len, strips))
    data += struct.pack(f"{order}{channels}H", *[bits] * channels)
    found = pixels(data)
    full = np.iinfo(found.dtype).max
    assert found.shape == stored.shape
    if (bits, channels) != (1, 1):
        assert np.array_equal(found, np.floor(stored * (full / ((1 << bits) - 1)) + 0.5).astype(found.dtype))
    for size in range(8, len(data), 11):  # whatever is missing
        with contextlib.suppress(SampleError):
            pixels(data[:size])


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_2000_of_few_bits_fills_the_range(mode: str) -> None:
    imagecodecs = pytest.importorskip("imagecodecs")
    stored = np.arange(32, dtype=np.uint8).repeat(2).reshape(8, 8)
    stored = np.stack([stored] * 3, -1) if mode == "RGB" else stored
    data = imagecodecs.jpeg2k_encode(stored, level=0, bitspersample=5, reversible=True, codecformat="jp2")
    assert probe(memoryview(data)).bits == 5
    assert np.array_equal(pixels(data).reshape(stored.shape), np.round(stored * (255 / 31)).astype(np.uint8))


# -- numbers in headers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("big", [False, True])
def test_numbers_of_a_tiff_header_are_bounded(big: bool) -> None:
    """Whatever fields of 64 bits hold, what comes out can be multiplied."""
    kinds = {1: ("B", 1), 3: ("H", 2), 4: ("I", 4), 16: ("Q", 8)}
    for tag in (256, 257, 258, 262, 274, 277):
        for kind, (code, width) in kinds.items():
            for power in range(0, 8 * width, 3):
                for value in {0, (1 << power) - 1, 1 << power, (1 << 8 * width) - 1}:
                    fields = {256: (4, "I", 1), 257: (4, "I", 1), tag: (kind, code, value)}
                    size, order = (8, "<HHQ") if big else (4, "<HHI")
                    if not big and width == 8:
                        continue
                    entries = b"".join(
                        struct.pack(order, t, k, 1) + struct.pack("<" + c, v).ljust(size, b"\0")
                        for t, (k, c, v) in sorted(fields.items())
                    )
                    head = (
                        struct.pack("<HHHQQ", 43, 8, 0, 16, len(fields))
                        if big
                        else struct.pack("<HIH", 42, 8, len(fields))
                    )
                    try:
                        header = probe(memoryview(b"II" + head + entries + bytes(8)))
                    except SampleError:
                        continue
                    assert 0 < header.width <= LARGEST
                    assert 0 < header.height <= LARGEST
                    assert 0 < header.channels < 1 << 16
                    assert 0 < header.bits <= 64


def test_bombs_by_their_ratio() -> None:
    check_pixels(BOMB_PIXELS, 1, 10**9, 100, 1000)  # an empty page may be packed as tightly as it likes
    check_pixels(10_000, 10_000, 10**9, 100_000, 1000)
    check_pixels(10_000, 10_000, 10**9, 100, 0)
    with pytest.raises(SampleError, match="bomb_ratio"):
        check_pixels(10_000, 10_000, 10**9, 99_999, 1000)
