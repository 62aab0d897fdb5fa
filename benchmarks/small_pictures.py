"""Small JPEGs of every kind that the CUDA decoder takes, whole and damaged, for tools that slow kernels down a lot.

Thumbnails of a folder's pictures, 64 x 64 to 160 x 120 pixels: gray, every chroma subsampling, RGB; standard and
optimised tables, qualities from 20 to 98; with and without restart intervals; baseline and extended sequential.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

SAMPLINGS = ("444", "422", "420", "440", "411", "gray", "rgb")


def small_pictures(pictures: Path, count: int) -> list[bytes]:
    """``count`` JPEGs; the same pictures give the same files, with the same libjpeg-turbo."""
    paths = sorted(p for p in pictures.iterdir() if p.is_file())
    if not paths:
        raise SystemExit(f"{pictures}: no pictures to make small ones of")
    rng = np.random.default_rng(11)
    files = []
    for i in range(count):
        size = (int(rng.integers(64, 161)), int(rng.integers(64, 121)))
        with Image.open(paths[i % len(paths)]) as picture:
            small = picture.convert("RGB").resize(size, reducing_gap=2.0)
        quality, restart = int(rng.integers(20, 99)), int(rng.choice([0, 0, 1, 2, 5, 17]))
        file = _encoded(small, SAMPLINGS[i % len(SAMPLINGS)], quality, restart, optimize=bool(rng.integers(2)))
        files.append(as_extended(file) if rng.random() < 0.2 else file)
    return files


def _encoded(picture: Image.Image, sampling: str, quality: int, restart: int, *, optimize: bool) -> bytes:
    if sampling in ("440", "411"):  # Pillow does not write them, and libjpeg-turbo's own interface no restart intervals
        return bytes(simplejpeg.encode_jpeg(np.asarray(picture), quality, "RGB", sampling))
    stream = io.BytesIO()
    options = {} if sampling in ("gray", "rgb") else {"subsampling": ":".join(sampling)}
    (picture.convert("L") if sampling == "gray" else picture).save(
        stream, "JPEG", quality=quality, optimize=optimize, restart_marker_blocks=restart, keep_rgb=sampling == "rgb",
        **options,
    )  # fmt: skip
    return stream.getvalue()


def as_extended(file: bytes) -> bytes:
    """A baseline JPEG as an extended sequential one: what is allowed there is a superset."""
    return file.replace(b"\xff\xc0\x00", b"\xff\xc1\x00", 1)


def mutated(files: list[bytes], count: int) -> list[bytes]:
    """Copies with bytes overwritten, cut off or inserted; the same for the same files."""
    rng = np.random.default_rng(7)
    result = []
    for i in range(count):
        data = bytearray(files[i % len(files)])
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            data[at] = rng.integers(0, 256)
        if rng.random() < 0.1:
            del data[rng.integers(2, len(data)) :]
        if rng.random() < 0.1:
            at = int(rng.integers(2, len(data)))
            data[at:at] = rng.integers(0, 256, 5, dtype=np.uint8).tobytes()
        result.append(bytes(data))
    return result
