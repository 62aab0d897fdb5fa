"""Damage that libjpeg only warns of is found in JPEGs of every sampling, also where nobody can see its warnings."""

from __future__ import annotations

import io
import random
from collections import Counter

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dali_run.ops.codecs.jpeg.damage_cpu import CANNOT_TELL, CLEAN, damage
from dali_run.ops.codecs.jpeg.header import read_headers
from dali_run.ops.codecs.jpeg.turbo import decode_into
from dali_run.ops.errors import SampleError
from dali_run.ops.types import DALIImageType
from tests.kit.golden import FOLDER


def found(data: bytes | bytearray) -> int:
    return int(damage(np.frombuffer(bytearray(data), np.uint8)))


def decoded(data: bytes) -> np.ndarray:
    row = read_headers(np.frombuffer(data, np.uint8), np.array([0]), np.array([len(data)]))[0]
    out = np.zeros((int(row["height"]), int(row["width"]), 3), np.uint8)
    decode_into(memoryview(data), row, DALIImageType.RGB, False, out.reshape(-1).data)
    return out


def picture(rng: random.Random) -> Image.Image:
    y, x = np.mgrid[: rng.randint(17, 60), : rng.randint(17, 90)]
    noise = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 60, (*x.shape, 3))
    return Image.fromarray(((x * 3 + y * 5)[..., None] % 190 + noise).astype(np.uint8))


def damaged(data: bytes, rng: random.Random) -> bytes:
    out, start = bytearray(data), data.find(b"\xff\xda") + 14
    at, kind = rng.randrange(start, len(out) - 2), rng.randrange(4)
    if kind < 2:
        out[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del out[at : at + rng.randint(1, 9)]
    else:
        out[at:at] = rng.randbytes(rng.randint(1, 5))
    return bytes(out)


WARNINGS = ("Corrupt JPEG data", "Premature end", "Inconsistent progression")


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_what_libjpeg_turbo_warns_of_is_found(progressive: bool, subsampling: int) -> None:
    """Of samplings that TurboJPEG has names for, its own word is the reference."""
    rng = random.Random(f"{progressive} {subsampling}")
    counts: Counter[str] = Counter()
    for _ in range(12):
        file = io.BytesIO()
        options = {"restart_marker_blocks": rng.choice((1, 5))} if rng.random() < 0.4 else {}
        image = picture(rng) if rng.random() < 0.8 else picture(rng).convert("L")
        image.save(file, "JPEG", quality=rng.choice((10, 75, 95)), subsampling=subsampling, progressive=progressive,
                   optimize=rng.random() < 0.5, **options)  # fmt: skip
        assert found(file.getvalue()) == CLEAN
        for _ in range(20):
            data = damaged(file.getvalue(), rng)
            try:
                simplejpeg.decode_jpeg(data)
                warned = ""
            except ValueError as e:
                warned = str(e)
            if warned.startswith(WARNINGS):
                counts["missed" if found(data) == CLEAN else "found"] += 1
            elif not warned:
                counts["stricter" if found(data) else "clean"] += 1
    assert counts["found"] > 60
    assert counts["missed"] <= 2  # a zero too many before EOI is padding
    assert counts["stricter"] <= counts["found"] // 10  # bytes too many before a restart marker


with np.load(FOLDER / "arithmetic_jpegs.npz") as _files:
    ARITHMETIC = {name: file.tobytes() for name, file in _files.items()}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_damage_of_arithmetic_coding_is_found_where_libjpeg_finds_it(name: str) -> None:
    whole, rng = ARITHMETIC[name], random.Random(name)
    assert found(whole) == CLEAN
    np.testing.assert_array_equal(decoded(whole), np.asarray(Image.open(io.BytesIO(whole)).convert("RGB")))
    counts: Counter[str] = Counter()
    for _ in range(60):
        data = damaged(whole, rng)
        if "4:1:0" in name:  # TurboJPEG has no verdict
            counts["found" if found(data) else "clean"] += 1
            continue
        try:
            simplejpeg.decode_jpeg(data)
            warned = ""
        except ValueError as e:
            warned = str(e)
        counts["found" if warned else "clean"] += 1
        assert (found(data) != CLEAN) == bool(warned) or (warned and not warned.startswith(WARNINGS)), warned
    assert counts["found"] > 20


def test_bytes_of_any_kind_are_walked() -> None:
    rng = random.Random(1)
    file = io.BytesIO()
    picture(rng).save(file, "JPEG", progressive=True)
    for size in range(0, len(file.getvalue()), 7):
        assert found(file.getvalue()[:size]) != CLEAN
    for _ in range(300):
        assert 0 <= found(b"\xff\xd8" + rng.randbytes(200)) <= CANNOT_TELL


# -- 4:1:0, which no encoder here makes --------------------------------------------------------------------------------


class Bits:
    def __init__(self) -> None:
        self.text: list[str] = []

    def put(self, value: int, size: int) -> None:
        if size:
            self.text.append(f"{value:0{size}b}")

    def data(self) -> bytes:
        text = "".join(self.text)
        text += "1" * (-len(text) % 8)
        raw = bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
        return raw.replace(b"\xff", b"\xff\x00")


def codes(counts: bytes, symbols: bytes) -> dict[int, tuple[int, int]]:
    table, code, at = {}, 0, 0
    for size, count in enumerate(counts, 1):
        for _ in range(count):
            table[symbols[at]] = (code, size)
            code, at = code + 1, at + 1
        code <<= 1
    return table


def four_one_zero(rng: random.Random, width: int = 96, height: int = 64) -> bytes:
    """A JPEG whose luma has 4 x 2 blocks for one of each chroma: DC and a few AC coefficients, the usual tables."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG", subsampling=2)
    plain = file.getvalue()
    scan = plain.find(b"\xff\xda")
    header = bytearray(plain[: scan + 14])
    frame = header.find(b"\xff\xc0")
    header[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    header[frame + 11] = 0x42
    tables, at = {}, 0
    while (at := header.find(b"\xff\xc4", at)) >= 0:
        p, end = at + 4, at + 2 + int.from_bytes(header[at + 2 : at + 4], "big")
        while p < end:
            counts = bytes(header[p + 1 : p + 17])
            tables[header[p]] = codes(counts, bytes(header[p + 17 : p + 17 + sum(counts)]))
            p += 17 + sum(counts)
        at = end
    bits = Bits()

    def number(table: dict[int, tuple[int, int]], zeros: int, value: int) -> None:
        size = abs(value).bit_length()
        bits.put(*table[zeros << 4 | size])
        bits.put(value if value > 0 else value + (1 << size) - 1, size)

    for _ in range(-(-width // 32) * -(-height // 16)):
        for block in range(10):
            chroma = block >= 8
            number(tables[0x01 if chroma else 0x00], 0, rng.randint(-9, 9))
            for _ in range(rng.randint(0, 6)):
                number(tables[0x11 if chroma else 0x10], rng.randint(0, 5), rng.choice((-7, -2, -1, 1, 3, 9)))
            bits.put(*tables[0x11 if chroma else 0x10][0])
    return bytes(header) + bits.data() + b"\xff\xd9"


def test_damage_in_unusual_sampling_is_refused() -> None:
    rng = random.Random(4)
    whole = four_one_zero(rng)
    with pytest.raises(ValueError, match="subsampling"):
        simplejpeg.decode_jpeg(whole)  # that is why Pillow decodes it
    reference = decoded(whole)
    assert np.array_equal(reference, np.asarray(Image.open(io.BytesIO(whole)).convert("RGB")))
    refused = 0
    for _ in range(100):
        data = bytearray(whole)
        data[rng.randrange(whole.find(b"\xff\xda") + 14, len(data) - 2)] ^= 1 << rng.randrange(8)
        try:
            decoded(bytes(data))
        except SampleError as e:
            assert e.code in ("corrupt_data", "truncated")  # noqa: PT017
            refused += 1
    assert refused >= 30, refused  # a flipped sign gives another picture, which nobody can tell
    with pytest.raises(SampleError, match=r"premature|Truncated|truncated"):
        decoded(whole[: len(whole) // 2] + b"\xff\xd9")
