"""WebP by libwebp itself, and formats that need no decoder: Pillow's pixels, and never more than Pillow takes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.codecs import pillow
from dali_run.ops.codecs.format import Header
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.uncompressed import decoder as plain
from dali_run.ops.codecs.webp import decoder as webp
from dali_run.ops.errors import SampleError

Decoder = Callable[[memoryview, Header], Any]


def agrees(decoder: Decoder, data: bytes, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the decoder takes the file; then Pillow does, too, with the same pixels."""
    try:
        header = probe(memoryview(data))
    except SampleError:
        return False
    if header.width * header.height > 10**7 or (got := decoder(memoryview(data), header)) is None:
        return False
    with monkeypatch.context() as m:
        m.setattr(webp, "decode", lambda data, header, empty: None)
        np.testing.assert_array_equal(got, pillow.decode(memoryview(data), header, False, 10**9))
    return True


def mutated(data: bytes, rng: np.random.Generator, count: int) -> Sequence[bytes]:
    made = []
    for _ in range(count):
        at, byte = int(rng.integers(4, len(data))), bytes([int(rng.integers(0, 256))])
        changed = data[:at] + byte + data[at + 1 :]
        made.append([changed, data[:at] + data[at + 1 :], data[:at], data + byte][int(rng.integers(0, 4))])
    return made


def written(format: str, k: int, **options: Any) -> bytes:
    rng = np.random.default_rng(k)
    channels = {"WEBP": 3 + k % 2, "BMP": 3, "PPM": (3, 1)[k % 2]}[format]
    pixels = rng.integers(0, 256, (9 + k, 31 - k, channels), np.uint8)
    if k % 3 == 0:
        pixels[...] = k
    out = io.BytesIO()
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(out, format, **options)
    return out.getvalue()


@pytest.mark.parametrize("k", range(16))
def test_webp(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if webp._library() is None:
        pytest.skip("Pillow has libwebp where it is not found")
    options: dict[str, Any] = {"lossless": k % 4 == 0, "quality": 60}
    if k % 5 == 0:
        options["exif"] = b"Exif\0\0" + bytes(20)
    if k % 7 == 0:
        options["icc_profile"] = b"y" * 33
    data = written("WEBP", k, **options)
    assert agrees(webp.decode, data, monkeypatch)
    for other in mutated(data, np.random.default_rng(k), 150):
        agrees(webp.decode, other, monkeypatch)


def test_animations_are_for_pillow() -> None:
    out = io.BytesIO()
    frames = [Image.new("RGB", (8, 9), (100 * k, 0, 0)) for k in range(3)]
    frames[0].save(out, "WEBP", save_all=True, append_images=frames[1:])
    assert webp.decode(memoryview(out.getvalue()), probe(memoryview(out.getvalue()))) is None


@pytest.mark.parametrize("format", ["BMP", "PPM"])
@pytest.mark.parametrize("k", range(4))
def test_plain(format: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(format, k)
    assert agrees(plain.view, data, monkeypatch)
    for other in mutated(data[:90], np.random.default_rng(k), 200):
        agrees(plain.view, other + data[90:], monkeypatch)


def test_a_comment_and_a_bmp_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agrees(plain.view, b"P6 # a picture\n2 #two\n1\n255\n" + bytes(range(6)), monkeypatch)
    bottom_up = written("BMP", 1)
    top_down = bottom_up[:22] + (-10).to_bytes(4, "little", signed=True) + bottom_up[26:]
    assert agrees(plain.view, top_down, monkeypatch)


def test_files_of_others(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    for folder, decoder in (("webp", webp.decode), ("bmp", plain.view), ("pnm", plain.view)):
        for path in sorted((shared_data / "corpus" / folder).iterdir()):
            taken += agrees(decoder, path.read_bytes(), monkeypatch)
    assert taken > 5
