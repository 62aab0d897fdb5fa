"""Pictures as they lie about on the web, made of a folder of pictures: the shares of formats that scraped data have."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from ...ops.errors import SpecError

SHARES: Mapping[str, float] = {"baseline": 0.62, "progressive": 0.25, "png": 0.06, "webp": 0.05, "cmyk": 0.02}
"""Parts of a scraped data set, by number of files."""
PIXELS = 200_000
"""Of a picture, about as many as ImageNet's have."""
_WAYS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "baseline": ("jpg", "JPEG", {"quality": 88, "subsampling": "4:2:0"}),
    "progressive": ("jpg", "JPEG", {"quality": 88, "subsampling": "4:2:0", "progressive": True}),
    "cmyk": ("jpg", "JPEG", {"quality": 88}),
    "png": ("png", "PNG", {}),
    "webp": ("webp", "WEBP", {"quality": 85}),
    "tiff": ("tiff", "TIFF", {"compression": "tiff_lzw"}),
    "jpeg2000": ("jp2", "JPEG2000", {"quality_mode": "dB", "quality_layers": [42]}),
    "bmp": ("bmp", "BMP", {}),
    "pnm": ("ppm", "PPM", {}),
    "gif": ("gif", "GIF", {}),
}
KINDS = tuple(_WAYS)
"""The kinds of file that a picture can be written as."""


def write_mix(
    pictures: Sequence[Path], folder: Path, *, count: int, nbytes: int = 0, shares: Mapping[str, float] = SHARES,
    variants: int = 1,
) -> dict[str, int]:  # fmt: skip
    """Write ``count`` files to ``folder``/0, and more until they hold ``nbytes``; the files of each kind.

    Every picture is encoded in every kind, with about PIXELS pixels, ``variants`` times: cut and turned over otherwise
    each time. Then the files are copied in turns, in the shares given, each to a file of its own: a benchmark reads as
    many bytes from memory as it would of different pictures. Raises SpecError where there are no pictures.
    """
    if not pictures:
        raise SpecError("there are no pictures to make a mix of")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        many = [(path, k) for k in range(variants) for path in pictures]
        encoded = {kind: list(pool.map(partial(_encoded, kind), many)) for kind in shares}
        sizes = sum(shares[kind] * sum(map(len, files)) / len(files) for kind, files in encoded.items())
        count = max(count, -(-nbytes // max(1, int(sizes / sum(shares.values())))))
        (folder / "0").mkdir(parents=True)
        written: dict[str, int] = dict.fromkeys(shares, 0)
        jobs = []
        for number, kind in enumerate(_in_turns(shares, count)):
            data = encoded[kind][written[kind] % len(many)]
            jobs.append((folder / "0" / f"{number:07d}.{_WAYS[kind][0]}", data))
            written[kind] += 1
        for _ in pool.map(lambda job: job[0].write_bytes(job[1]), jobs):
            pass
    return written


def _in_turns(shares: Mapping[str, float], count: int) -> Iterator[str]:
    """``count`` kinds, so that any stretch of them has about the shares."""
    owed = dict.fromkeys(shares, 0.0)
    total = sum(shares.values())
    for _ in range(count):
        for kind, share in shares.items():
            owed[kind] += share / total
        most = max(owed, key=lambda kind: owed[kind])
        owed[most] -= 1
        yield most


def _encoded(kind: str, picture: tuple[Path, int]) -> bytes:
    path, variant = picture
    _, format, options = _WAYS[kind]
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    if variant:
        image = image.crop((min(8 * variant, image.width // 4), 0, image.width, image.height))
    if variant % 2:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    scale = (PIXELS / (image.width * image.height)) ** 0.5
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    out = io.BytesIO()
    (image.convert("CMYK") if kind == "cmyk" else image).save(out, format, **options)
    return out.getvalue()
