"""Small JPEGs of all kinds that the available encoders write, and variants derived from them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.jpeg.small_pictures import scan_each


def picture(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return an image of smooth colours with edges and noise, so that JPEG blocks of all kinds occur."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    waves = [np.sin(x / (7 + 5 * c)) * np.cos(y / (11 - 2 * c)) * 90 + 128 for c in range(3)]
    image = np.stack(waves, 2) + rng.normal(0, 12, (height, width, 3)) * (x > width / 2)[..., None]
    image[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, 3)
    return np.clip(image, 0, 255).astype(np.uint8)


def encode(width: int, height: int, seed: int = 0, gray: bool = False, **options: Any) -> bytes:
    image = Image.fromarray(picture(width, height, seed))
    stream = io.BytesIO()
    (image.convert("L") if gray else image).save(stream, "JPEG", **({"quality": 85} | options))
    return stream.getvalue()


def segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(payload) + 2).to_bytes(2, "big") + payload


def in_scans(width: int, height: int, h: int, v: int, *arguments: Any, **options: Any) -> bytes:
    """Return a JPEG with one scan per component; luma is sampled h x v times as often as chroma."""
    return scan_each(Image.fromarray(picture(width, height)), h, v, *arguments, **options)


def with_orientation(file: bytes, orientation: int) -> bytes:
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01" + bytes([0, orientation]) + bytes(6)
    return file[:2] + segment(0xE1, exif) + file[2:]
