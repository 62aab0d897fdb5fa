"""Colour of 16 bits a channel: every value as it was stored, or a word about what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from dali_run.ops.codecs import deep_colour as deep_decode
from dali_run.ops.codecs import headers
from dali_run.ops.codecs.decoders import Image
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.png import decoder as png
from dali_run.ops.errors import Reject
from dali_run.ops.types import DALIDataType, DALIImageType
from tests.kit.ops.decoding import run

imagecodecs = pytest.importorskip("imagecodecs")  # extra formats

SHAPE = (5, 7)


def decoded(blob: bytes, **arguments: Any) -> tuple[np.ndarray[Any, Any], list[Reject]]:
    out, rejects = run(Image(**arguments), [blob])
    return out.sample(0), rejects


def values(channels: int, most: int = 65535) -> np.ndarray[Any, np.dtype[np.uint16]]:
    return np.random.default_rng(channels).integers(0, most + 1, (*SHAPE, channels), np.uint16)


def encode(kind: str, pixels: np.ndarray[Any, Any]) -> bytes:
    if kind == "png":
        return bytes(imagecodecs.png_encode(pixels))
    if kind == "tiff":
        order = [2, 1, 0, 3][: pixels.shape[2]]
        return cv2.imencode(".tiff", np.ascontiguousarray(pixels[..., order]))[1].tobytes()
    if kind == "jp2":
        return bytes(imagecodecs.jpeg2k_encode(pixels, reversible=True, level=0))
    return b"P6\n# a comment\n7 5\n65535\n" + pixels.astype(">u2").tobytes()


@pytest.mark.parametrize(
    ("kind", "channels"), [("png", 2), ("png", 3), ("png", 4), ("tiff", 3), ("tiff", 4), ("jp2", 3), ("ppm", 3)]
)
def test_every_value_arrives(kind: str, channels: int) -> None:
    pixels = values(channels)
    image, rejects = decoded(encode(kind, pixels), output_type=DALIImageType.ANY_DATA, dtype=DALIDataType.UINT16)
    assert not rejects
    assert np.array_equal(image, pixels)
    small, _ = decoded(encode(kind, pixels), output_type=DALIImageType.ANY_DATA)
    assert np.array_equal(small, np.floor(pixels * (255 / 65535) + 0.5))  # semantics of DALI: rounded, not cut
    real, _ = decoded(encode(kind, pixels), output_type=DALIImageType.ANY_DATA, dtype=DALIDataType.FLOAT)
    assert np.allclose(real, pixels / 65535, atol=1e-7)


def test_fewer_bits_fill_the_range() -> None:
    pixels = values(3, 1023)
    data = b"P6 7 5 1023\n" + pixels.astype(">u2").tobytes()
    image, _ = decoded(data, dtype=DALIDataType.UINT16)
    assert np.array_equal(image, np.floor(pixels * (65535 / 1023) + 0.5))
    twelve = values(3, 4095)
    encoded = bytes(imagecodecs.jpeg2k_encode(twelve, reversible=True, level=0, bitspersample=12))
    image, _ = decoded(encoded, dtype=DALIDataType.UINT16)
    assert np.array_equal(image, np.floor(twelve * (65535 / 4095) + 0.5))


@pytest.mark.parametrize("kind", ["png", "tiff", "jp2", "ppm"])
def test_damage_is_judged_as_ever(kind: str) -> None:
    data = encode(kind, values(3))
    _, rejects = decoded(data[: len(data) * 2 // 3], dtype=DALIDataType.UINT16)
    assert rejects
    assert rejects[0].code in ("truncated", "corrupt_data")


def test_without_imagecodecs_depth_is_refused_and_eight_bits_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (deep_decode, headers):
        monkeypatch.setattr(module, "available", lambda: False)
    pixels = values(3)
    if png.available():
        image, _ = decoded(encode("png", pixels), dtype=DALIDataType.UINT16)
        assert np.array_equal(image, pixels)
    monkeypatch.setattr(png, "available", lambda: False)
    _, rejects = decoded(encode("png", pixels), dtype=DALIDataType.UINT16)
    assert [r.code for r in rejects] == ["unsupported"]
    assert "dali-run[formats]" in rejects[0].message
    small, rejects = decoded(encode("png", pixels))
    assert not rejects
    assert np.abs(small.astype(int) - np.floor(pixels * (255 / 65535) + 0.5)).max() <= 1
    image, _ = decoded(encode("ppm", pixels), dtype=DALIDataType.UINT16)
    assert np.array_equal(image, pixels)


def test_the_decoder_says_so_too() -> None:
    assert "dali-run[formats]" in (Image.__doc__ or "")


def test_files_of_the_corpus_keep_their_pixels(shared_data: Path) -> None:
    """Deep values are Pillow's 8 bits, within its rounding."""
    from PIL import Image as Pillow

    seen = 0
    for folder in ("png", "tiff", "jp2", "pnm"):
        for file in sorted((shared_data / "corpus" / folder).iterdir()):
            try:
                header = probe(memoryview(file.read_bytes()))
                with Pillow.open(file) as opened:
                    opened.load()
            except Exception:  # no picture: not of interest here
                continue
            if not deep_decode.is_deep(header) or opened.mode not in ("RGB", "RGBA"):
                continue
            image, rejects = decoded(file.read_bytes(), output_type=DALIImageType.RGB, adjust_orientation=True)
            assert not rejects, file.name
            assert np.abs(image.astype(int) - np.asarray(opened)[..., :3]).max() <= 1, file.name
            seen += 1
    assert seen >= 3
