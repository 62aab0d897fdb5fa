"""Small JPEGs of every kind that the CUDA decoder supports, valid and damaged, for tools that slow kernels down a lot.

Thumbnails of a folder's images, 64 x 64 to 160 x 120 pixels: gray, every chroma subsampling, RGB; standard and
optimised tables, qualities from 20 to 98; with and without restart intervals; one scan, one per component, or many;
baseline, extended sequential and progressive.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

KINDS = ("444", "422", "420", "440", "411", "gray", "rgb", "scans")
PROGRESSIVE = ("444", "422", "420", "gray", "rgb")  # a third of the files


def small_pictures(pictures: Path, count: int) -> list[bytes]:
    """Make ``count`` JPEGs; equal images give equal files, with the same libjpeg-turbo."""
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
        if i % 3 == 2:
            kind = PROGRESSIVE[i // 3 % len(PROGRESSIVE)]
            files.append(_encoded(small, kind, quality, restart, progressive=True))
            continue
        file = _encoded(small, KINDS[(i - i // 3) % len(KINDS)], quality, restart, optimize=bool(rng.integers(2)))
        files.append(as_extended(file) if rng.random() < 0.2 else file)
    return files


def _encoded(picture: Image.Image, sampling: str, quality: int, restart: int, **how: bool) -> bytes:
    if sampling == "scans":
        h, v = 1 + quality % 2, 1 + quality // 2 % 2
        return scan_each(picture, h, v, quality=quality, restart_marker_blocks=restart)
    if sampling in ("440", "411"):  # Pillow cannot write these, libjpeg-turbo's interface no intervals
        return bytes(simplejpeg.encode_jpeg(np.asarray(picture), quality, "RGB", sampling))
    stream = io.BytesIO()
    options: dict[str, Any] = {} if sampling in ("gray", "rgb") else {"subsampling": ":".join(sampling)}
    (picture.convert("L") if sampling == "gray" else picture).save(
        stream, "JPEG", quality=quality, restart_marker_blocks=restart, keep_rgb=sampling == "rgb", **options, **how,
    )  # fmt: skip
    return stream.getvalue()


def scan_each(
    picture: Image.Image, h: int, v: int, order: tuple[int, ...] = (0, 1, 2), sof: int = 0xC0, **options: Any
) -> bytes:
    """Return a JPEG with one scan per component, in this order, each after its own tables and restart interval; luma is
    sampled h x v times as often as chroma."""
    width, height = picture.size
    parts = []
    for c, plane in enumerate(picture.convert("YCbCr").split()):
        stream = io.BytesIO()
        small = plane.resize((-(-width // h), -(-height // v))) if c else plane
        small.save(stream, "JPEG", **({"quality": 80 - 10 * c, "optimize": True} | options))
        parts.append(_segments(stream.getvalue()))
    file = b"\xff\xd8" + _segment(sof, struct.pack(">BHHB", 8, height, width, 3) + b"".join(
        bytes([c + 1, (h << 4 | v) if c == 0 else 0x11, c]) for c in range(3)
    ))  # fmt: skip
    for c in order:
        found, scan = parts[c]
        quant = found[0xDB][0]
        interval = found.get(0xDD, [_segment(0xDD, b"\0\0")])
        file += quant[:4] + bytes([c]) + quant[5:] + b"".join(found[0xC4] + interval) + _segment(0xFE, b"\xff\xda")
        file += _segment(0xDA, bytes([1, c + 1, 0, 0, 63, 0])) + scan
    return file + b"\xff\xd9"


def _segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def _segments(file: bytes) -> tuple[dict[int, list[bytes]], bytes]:
    """Return the marker segments of a JPEG with one scan, by marker, and its entropy-coded bytes."""
    found: dict[int, list[bytes]] = {}
    at, marker = 2, 0
    while marker != 0xDA:
        marker, end = file[at + 1], at + 2 + int.from_bytes(file[at + 2 : at + 4], "big")
        found.setdefault(marker, []).append(file[at:end])
        at = end
    return found, file[at:-2]


def as_extended(file: bytes) -> bytes:
    """Return a baseline JPEG marked as extended sequential, which allows a superset."""
    return file.replace(b"\xff\xc0\x00", b"\xff\xc1\x00", 1)


def mutated(files: list[bytes], count: int) -> list[bytes]:
    """Return copies of files with bytes overwritten, cut off or inserted; equal files give equal copies."""
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
