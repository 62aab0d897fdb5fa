"""Pictures as they lie about on the web, made of a folder of pictures: the shares of formats that scraped data have."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...ops.errors import SpecError
from ..cores import usable_cores

SHARES: Mapping[str, float] = {"baseline": 0.62, "progressive": 0.25, "png": 0.06, "webp": 0.05, "cmyk": 0.02}
"""Parts of a scraped data set, by number of files."""
Sizes = Sequence[tuple[float, float]]
"""Rows of a table of image sizes: the share of images that are smaller, and megapixels."""
MEGAPIXELS: Sizes = ((0.0, 0.01), (0.05, 0.04), (0.5, 0.25), (0.9, 1.0), (0.99, 4.0), (1.0, 20.0))
"""Sizes of images on the web."""
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
    "png16": ("png", "", {}),
}
KINDS = tuple(_WAYS)
"""The kinds of file that a picture can be written as."""


def write_mix(
    pictures: Sequence[Path], folder: Path, *, count: int, nbytes: int = 0, shares: Mapping[str, float] = SHARES,
    variants: int = 1, megapixels: Sizes = MEGAPIXELS,
) -> dict[str, int]:  # fmt: skip
    """Write ``count`` files to ``folder``/0, and more until they hold about ``nbytes``; the files of each kind.

    Every picture is encoded in every kind, in sizes drawn from ``megapixels``, ``variants`` times: cut, turned over and
    of another quality each time. Further files are copies of these, in turns, in the shares given. With ``variants`` 0
    each file is a variant of its own, which processes make on all cores: all bytes are different, as those of real data
    sets are. Raises SpecError where there are no pictures.
    """
    if not pictures:
        raise SpecError("there are no pictures to make a mix of")
    many = [(path, k) for k in range(max(1, variants)) for path in pictures]
    some = many if variants else many[:: -(-len(many) // _SIZED)]
    known = {kind: _all_encoded(kind, some, megapixels) for kind in shares}
    with ThreadPoolExecutor(usable_cores()) as pool:
        sizes = sum(shares[kind] * sum(map(len, files)) / len(files) for kind, files in known.items())
        count = max(count, -(-nbytes // max(1, int(sizes / sum(shares.values())))))
        (folder / "0").mkdir(parents=True)
        written: dict[str, int] = dict.fromkeys(shares, 0)
        jobs = []
        for number, kind in enumerate(in_turns(shares, count)):
            jobs.append((_name(folder, number, kind), kind, written[kind]))
            written[kind] += 1

        def write(job: tuple[Path, str, int]) -> None:
            path, kind, k = job
            path.write_bytes(known[kind][k % len(many)])

        for _ in pool.map(write, jobs) if variants else ():
            pass
    if not variants:
        _write_different(pictures, jobs, megapixels)
    return written


def _all_encoded(kind: str, ones: Sequence[tuple[Path, int]], megapixels: Sizes) -> list[bytes]:
    """`encoded` of all ``ones``: by processes where there are many, since Pillow's encoders hold the GIL."""
    if len(ones) <= _FEW:
        return [encoded(kind, *one, pixels_of(k, megapixels)) for k, one in enumerate(ones)]
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) as pool:
        pixels = [pixels_of(k, megapixels) for k in range(len(ones))]
        return list(pool.map(encoded, repeat(kind), *zip(*ones, strict=True), pixels, chunksize=4))


_FEW = 64
"""Files that are made without processes of their own."""
_SIZED = 24
"""Pictures that tell how large files become."""
_AT_ONCE = 16
"""Files of a picture that a process makes before the next one."""


def _name(folder: Path, number: int, kind: str) -> Path:
    return folder / "0" / f"{number:07d}.{_WAYS[kind][0]}"


def _write_different(pictures: Sequence[Path], jobs: Sequence[tuple[Path, str, int]], megapixels: Sizes) -> None:
    """Write file k of each kind as a variant of picture k modulo their number."""
    of_each: list[list[tuple[Path, str, int]]] = [[] for _ in pictures]
    for path, kind, k in jobs:
        of_each[k % len(pictures)].append((path, kind, k // len(pictures)))
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) as pool:
        tasks = [
            pool.submit(_write_some, picture, rows[at : at + _AT_ONCE], megapixels)
            for at in range(0, max(map(len, of_each)), _AT_ONCE)
            for picture, rows in zip(pictures, of_each, strict=True)
            if at < len(rows)
        ]
        for task in tasks:
            task.result()


def _write_some(picture: Path, rows: Sequence[tuple[Path, str, int]], megapixels: Sizes) -> None:
    with Image.open(picture) as opened:
        image = opened.convert("RGB")
    for path, kind, variant in rows:
        path.write_bytes(_encoded(kind, image, variant, pixels_of(int(path.stem), megapixels)))


def in_turns(shares: Mapping[str, float], count: int) -> Iterator[str]:
    """``count`` kinds, so that any stretch of them has about the shares."""
    owed = dict.fromkeys(shares, 0.0)
    total = sum(shares.values())
    for _ in range(count):
        for kind, share in shares.items():
            owed[kind] += share / total
        most = max(owed, key=lambda kind: owed[kind])
        owed[most] -= 1
        yield most


def pixels_of(number: int, table: Sizes = MEGAPIXELS) -> int:
    """Pixels of image ``number``: images in a row have the sizes of ``table``, however many they are."""
    shares, megapixels = zip(*table, strict=True)
    share = (0.5 + number * (5**0.5 - 1) / 2) % 1  # multiples of the golden ratio fill the range evenly
    return int(1e6 * np.exp(np.interp(share, shares, np.log(megapixels))))


def encoded(kind: str, path: Path, variant: int, pixels: int) -> bytes:
    """The picture at ``path`` as a file of one of KINDS, with about ``pixels``; ``variant`` 0 shows all of it."""
    with Image.open(path) as opened:
        return _encoded(kind, opened.convert("RGB"), variant, pixels)


def _scaled(image: Image.Image, pixels: int) -> Image.Image:
    """Scale the image to about ``pixels`` pixels."""
    scale = (pixels / (image.width * image.height)) ** 0.5
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))


def _encoded(kind: str, image: Image.Image, variant: int, pixels: int) -> bytes:
    _, format, options = _WAYS[kind]
    image = _scaled(varied(image, variant), pixels)
    if "quality" in options:
        options = {**options, "quality": options["quality"] + quality_change(variant)}
    if kind == "png16":
        return _png_of_16_bits(image, variant)
    out = io.BytesIO()
    (image.convert("CMYK") if kind == "cmyk" else image).save(out, format, **options)
    return out.getvalue()


def _png_of_16_bits(image: Image.Image, seed: int) -> bytes:
    """A PNG of 16 bits a channel, which Pillow does not write for colours: ``image`` with noise of 4 bits below, its
    filters all "up"."""
    pixels = np.asarray(image)
    noise = np.random.default_rng(seed).integers(0, 16, pixels.shape, np.uint16)
    rows = (pixels.astype(np.uint16) * 257 ^ noise).astype(">u2").view(np.uint8).reshape(image.height, -1)
    up = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1]))  # modulo 256, as bytes are
    data = zlib.compress(np.pad(up, ((0, 0), (1, 0)), constant_values=2).tobytes())
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", image.width, image.height, 16, 2, 0, 0, 0)),
        (b"IDAT", data),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def varied(image: Image.Image, variant: int) -> Image.Image:
    """``image``, cut above and to the left by up to a quarter and turned over: otherwise for each ``variant``, until
    all ways are used up; as it is for 0."""
    turned, left = variant % 2, variant // 2
    across, down = max(1, image.width // 4), max(1, image.height // 4)
    x, y = left % across, left // across % down
    if x or y:
        image = image.crop((x, y, image.width, image.height))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if turned else image


def quality_change(variant: int) -> int:
    """The number that is added to the quality of ``variant``: 0 for the first, and up to 3 more or less."""
    return (variant + 3) % 7 - 3
