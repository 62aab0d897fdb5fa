"""Generate images as they are on the web from a folder of images: with the shares of formats and the sizes of scraped
data."""

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
"""Fraction of the files of each kind in a data set of images from the web."""
Sizes = Sequence[tuple[float, float]]
"""Table of the distribution of image sizes. Each row is (fraction of images that are smaller than a size, the size in
megapixels)."""
MEGAPIXELS: Sizes = ((0.0, 0.01), (0.05, 0.04), (0.5, 0.25), (0.9, 1.0), (0.99, 4.0), (1.0, 20.0))
"""Distribution of the sizes of images on the web; see `Sizes`."""
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
"""Names of the kinds of files, such as ``progressive``, as which an image can be encoded."""


def write_mix(
    pictures: Sequence[Path], folder: Path, *, count: int, nbytes: int = 0, shares: Mapping[str, float] = SHARES,
    variants: int = 1, megapixels: Sizes = MEGAPIXELS,
) -> dict[str, int]:  # fmt: skip
    """Write ``count`` files to ``folder``/0, and more until they hold about ``nbytes`` bytes; return the number of
    files of each kind.

    Every image is encoded ``variants`` times as every kind, each time cropped, mirrored, and with another quality and
    size (from ``megapixels``). Further files are copies of these, in turn, with the given shares. With ``variants`` 0,
    all files differ, as in real data sets; processes encode them on all cores. Raises SpecError if there are no
    images."""
    if not pictures:
        raise SpecError("there are no images to generate a mix from")
    variants_of_all = [(path, k) for k in range(max(1, variants)) for path in pictures]
    encoded_ones = variants_of_all if variants else variants_of_all[:: -(-len(variants_of_all) // _SIZE_SAMPLES)]
    files_of_kind = {kind: _all_encoded(kind, encoded_ones, megapixels) for kind in shares}
    with ThreadPoolExecutor(usable_cores()) as pool:
        sizes = sum(shares[kind] * sum(map(len, files)) / len(files) for kind, files in files_of_kind.items())
        count = max(count, -(-nbytes // max(1, int(sizes / sum(shares.values())))))
        (folder / "0").mkdir(parents=True)
        written: dict[str, int] = dict.fromkeys(shares, 0)
        jobs = []
        for number, kind in enumerate(in_turns(shares, count)):
            jobs.append((_name(folder, number, kind), kind, written[kind]))
            written[kind] += 1

        def write(job: tuple[Path, str, int]) -> None:
            path, kind, k = job
            path.write_bytes(files_of_kind[kind][k % len(variants_of_all)])

        for _ in pool.map(write, jobs) if variants else ():
            pass
    if not variants:
        _write_different(pictures, jobs, megapixels)
    return written


def _all_encoded(kind: str, ones: Sequence[tuple[Path, int]], megapixels: Sizes) -> list[bytes]:
    """Encode each of ``ones``, pairs of (image, variant), as a file of ``kind``, and return the files. If there are
    many, several processes encode, because Pillow's encoders hold the GIL."""
    if len(ones) <= _MAX_IN_PROCESS:
        return [encoded(kind, *one, pixels_of(k, megapixels)) for k, one in enumerate(ones)]
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) as pool:
        pixels = [pixels_of(k, megapixels) for k in range(len(ones))]
        return list(pool.map(encoded, repeat(kind), *zip(*ones, strict=True), pixels, chunksize=4))


_MAX_IN_PROCESS = 64
"""Maximum number of files that are encoded in this process, without starting others."""
_SIZE_SAMPLES = 24
"""Number of images that are encoded to estimate the mean size of a file."""
_FILES_PER_TASK = 16
"""Number of files that a process encodes from one opened image before it takes the next image."""


def _name(folder: Path, number: int, kind: str) -> Path:
    return folder / "0" / f"{number:07d}.{_WAYS[kind][0]}"


def _write_different(pictures: Sequence[Path], jobs: Sequence[tuple[Path, str, int]], megapixels: Sizes) -> None:
    """Write a different file for each of ``jobs``: (path, kind, number k of the file within its kind). The image is
    number k of ``pictures``, which start again after the last one."""
    jobs_of_image: list[list[tuple[Path, str, int]]] = [[] for _ in pictures]
    for path, kind, k in jobs:
        jobs_of_image[k % len(pictures)].append((path, kind, k // len(pictures)))
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) as pool:
        tasks = [
            pool.submit(_write_some, picture, rows[at : at + _FILES_PER_TASK], megapixels)
            for at in range(0, max(map(len, jobs_of_image)), _FILES_PER_TASK)
            for picture, rows in zip(pictures, jobs_of_image, strict=True)
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
    """Yield ``count`` kinds of files in an order in which every stretch has about the given ``shares`` of each kind."""
    owed = dict.fromkeys(shares, 0.0)
    total = sum(shares.values())
    for _ in range(count):
        for kind, share in shares.items():
            owed[kind] += share / total
        next_kind = max(owed, key=lambda kind: owed[kind])
        owed[next_kind] -= 1
        yield next_kind


def pixels_of(number: int, table: Sizes = MEGAPIXELS) -> int:
    """Return the number of pixels that generated image ``number`` gets. The sizes of consecutive images, however many,
    follow about the distribution in ``table``."""
    shares, megapixels = zip(*table, strict=True)
    share = (0.5 + number * (5**0.5 - 1) / 2) % 1  # multiples of the golden ratio fill the range evenly
    return int(1e6 * np.exp(np.interp(share, shares, np.log(megapixels))))


def encoded(kind: str, path: Path, variant: int, pixels: int) -> bytes:
    """Encode the image at ``path`` as a file of ``kind`` (one of KINDS) with about ``pixels`` pixels, and return its
    bytes. ``variant`` 0 shows the whole image, other variants are cropped and mirrored."""
    with Image.open(path) as opened:
        return _encoded(kind, opened.convert("RGB"), variant, pixels)


def _scaled(image: Image.Image, pixels: int) -> Image.Image:
    """Return the image, scaled to about ``pixels`` pixels."""
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
    """Return the image as a PNG with 16 bits per channel, which Pillow cannot write for colours. The low 4 bits are
    noise, and all lines have the filter "up"."""
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
    """Return the image cropped at the top and the left by up to a quarter, and mirrored, differently for each
    ``variant`` until all combinations are used. Variant 0 is the image unchanged."""
    mirrored, offset = variant % 2, variant // 2
    across, down = max(1, image.width // 4), max(1, image.height // 4)
    x, y = offset % across, offset // across % down
    if x or y:
        image = image.crop((x, y, image.width, image.height))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else image


def quality_change(variant: int) -> int:
    """Return the change of the encoder's quality for a ``variant``: 0 for the first, from -3 to 3 for others."""
    return (variant + 3) % 7 - 3
