"""Sample data: photo-like JPEGs in class folders, the training images also as LMDB and TFRecord files, annotated images
(sample_coco.py), and audio (sample_sounds.py). Used by `dali-run sample-data` and tests.

The images cover all kinds of JPEG that a decoder must support: three chroma subsamplings, gray, progressive and all
eight EXIF orientations. They depend only on (seed, number), so that tests and demos have the same data everywhere.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...ops.errors import JobError, SpecError
from ...writers.bytes.sidecar import read_json
from .sample_coco import write_coco
from .sample_sounds import SOUNDS, write_sounds

CLASSES = ("landscape", "shapes", "text", "texture")
"""Names of the class folders, in the order of their labels."""
MARKER = "sample-data.json"
"""Name of the file with the parameters of the sample data. It is written last: if it exists, the folder is complete."""

LEAST = 2 * len(CLASSES)
"""Smallest number of images that can be requested: for every class one for training and one for validation."""

_VERSION = 3
_SUBSAMPLING = ("4:2:0", "4:4:4", "4:2:2")
_TFRECORD_SHARDS = 2
_Array = NDArray[Any]

# The inverse of the EXIF orientation, which is applied to the upright image before it is stored.
_STORE_AS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
_ORIENTATION_TAG = 0x0112


@dataclass(frozen=True, slots=True)
class Picture:
    """Parameters of one generated sample image, such as size, and of its JPEG file."""

    number: int
    label: int
    width: int
    """Width of the upright image, in pixels."""
    height: int
    subsampling: str
    gray: bool
    progressive: bool
    orientation: int
    """EXIF orientation, 1 to 8; 1 writes no tag."""
    quality: int

    @property
    def name(self) -> str:
        return f"{CLASSES[self.label]}/{CLASSES[self.label]}_{self.number:05d}.jpg"


def make_sample_data(
    folder: Path, count: int = 96, seed: int = 0, progress: Callable[[int, int], None] = lambda *_: None
) -> dict[str, Any]:
    """Write ``count`` images under ``folder``, a quarter of them for validation, but at least one of each class. Return
    a summary as data for JSON. ``progress`` is called with the number of finished images, and ``count``.

    The images are ``train/<class>/*.jpg`` and ``val/<class>/*.jpg``. ``lmdb`` (values: Caffe Datum, encoded) and
    ``tfrecord/train-*.tfrecord`` (Example: image/encoded, image/class/label, ...) contain the training images too.
    ``coco`` (``images/*.jpg``, ``instances.json``) has other images, a quarter of ``count``, with boxes, polygons and
    masks. ``audio`` has as many recordings: ``<class>/*.wav``, and ``manifest.json`` in NVIDIA NeMo's format. A folder
    with exactly this data is left unchanged. Raises SpecError if it contains anything else, and for a ``count`` below
    `LEAST`; JobError if nothing can be written.
    """
    if count < LEAST:
        raise SpecError(
            f"count must be at least {LEAST}, one image per class for training and one for validation, got {count}"
        )
    parameters = {"version": _VERSION, "count": count, "seed": seed}
    with contextlib.suppress(OSError, ValueError):
        existing = read_json(folder / MARKER)
        if {k: existing.get(k) for k in parameters} == parameters:
            return {**existing, "already_there": True}
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"{folder} already exists and contains other data; use an empty or a new folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Written next to it and renamed, so that an interrupted run leaves nothing that looks complete.
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as e:
        raise JobError(f"{folder} cannot be created: {e.strerror}") from None
    try:
        summary = {**parameters, **_write(work, count, seed, progress)}
        (work / MARKER).write_text(json.dumps(summary, indent=2) + "\n")
        work.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        os.replace(work, folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return summary


def _write(root: Path, count: int, seed: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
    training: list[tuple[Picture, bytes]] = []
    splits = {"train": 0, "val": 0}
    pictures = plan_pictures(count, seed)
    for picture in pictures:
        split = "val" if _validates(picture.number // len(CLASSES), count) else "train"
        data = encode(draw(picture, seed), picture)
        path = root / split / picture.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        splits[split] += 1
        progress(sum(splits.values()), count)
        if split == "train":
            training.append((picture, data))
    training.sort(key=lambda item: item[0].name)  # in the order in which readers.file lists them
    _write_lmdb(root / "lmdb", training)
    _write_tfrecord(root / "tfrecord", training)
    coco = write_coco(root / "coco", count // 4, seed)
    sounds = write_sounds(root / "audio", max(count // 4, len(SOUNDS)), seed)
    return {
        "classes": list(CLASSES),
        **splits,
        "coco": coco,
        "sounds": sounds,
        "pictures": [{"name": p.name, **asdict(p)} for p in pictures],
    }


def _validates(turn: int, count: int) -> bool:
    """Return whether the images of round ``turn`` are for validation. A round makes one image per class. Every fourth
    round is for validation, or the last one if there are fewer than four."""
    turns = count // len(CLASSES)
    return turn % 4 == 3 if turns >= 4 else turn == turns - 1


def plan_pictures(count: int, seed: int) -> list[Picture]:
    """Return the parameters, such as size and encoding, of ``count`` images. The first 96 images have each encoding and
    orientation in every class."""
    rng = np.random.default_rng((seed, 1))
    pictures = []
    for number in range(count):
        turn, label = divmod(number, len(CLASSES))
        mix = turn + label  # so that no kind is limited to one class
        long, short = sorted(rng.integers(200, 901, 2).tolist(), reverse=True)
        short = max(short, long * 2 // 5)
        landscape = rng.random() < 0.7
        pictures.append(
            Picture(
                number=number,
                label=label,
                width=long if landscape else short,
                height=short if landscape else long,
                subsampling=_SUBSAMPLING[mix % 3],
                gray=mix % 9 == 5,
                progressive=mix % 7 == 4,
                orientation=1 + turn // 2 % 8 if mix % 2 else 1,
                quality=int(rng.integers(80, 96)),
            )
        )
    return pictures


# -- pictures ---------------------------------------------------------------------------------------------------------


def draw(picture: Picture, seed: int) -> Image.Image:
    """Return the image for ``picture``, drawn upright in RGB."""
    rng = np.random.default_rng((seed, 2, picture.number))
    painter: Callable[[Generator, int, int], Image.Image] = (_landscape, _shapes, _text, _texture)[picture.label]
    image = painter(rng, picture.width, picture.height)
    grain = rng.normal(0, 3, (picture.height, picture.width, 1)).astype(np.float32)  # like the noise of a sensor
    return Image.fromarray((np.asarray(image, np.float32) + grain).clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, picture: Picture) -> bytes:
    """Return ``image`` as the JPEG file that ``picture`` describes."""
    extra: dict[str, Any] = {}
    if picture.orientation != 1:
        image = image.transpose(_STORE_AS[picture.orientation])
        exif = Image.Exif()
        exif[_ORIENTATION_TAG] = picture.orientation
        extra["exif"] = exif.tobytes()
    if picture.gray:
        image = image.convert("L")
    else:
        extra["subsampling"] = picture.subsampling
    out = io.BytesIO()
    image.save(out, "JPEG", quality=picture.quality, progressive=picture.progressive, **extra)
    return out.getvalue()


def _noise(rng: Generator, width: int, height: int, octaves: Sequence[int], channels: int = 1) -> _Array:
    """Return smooth noise in -1..1, float32[height, width, channels]: the sum of random grids of ``octaves`` cells,
    enlarged; finer grids weigh less, as in photographs."""
    total = np.zeros((height, width, channels), np.float32)
    for cells in octaves:
        grid = rng.uniform(-1, 1, (cells, cells, channels)).astype(np.float32)
        for c in range(channels):
            layer = Image.fromarray(grid[:, :, c]).resize((width, height), Image.Resampling.BICUBIC)
            total[:, :, c] += np.asarray(layer) / np.float32(cells)
    return total / np.float32(sum(1 / c for c in octaves))


def _to_image(array: _Array) -> Image.Image:
    return Image.fromarray(array.clip(0, 255).astype(np.uint8))


def _color(rng: Generator, low: int = 0, high: int = 256) -> tuple[int, int, int]:
    r, g, b = rng.integers(low, high, 3).tolist()
    return r, g, b


def _gradient(rng: Generator, width: int, height: int) -> _Array:
    """Return a gradient between two colors in a random direction, float32[height, width, 3]."""
    angle = rng.uniform(0, 2 * np.pi)
    x, y = np.linspace(-1, 1, width), np.linspace(-1, 1, height)
    t = (np.cos(angle) * x[None, :] + np.sin(angle) * y[:, None] + 1.5) / 3
    a, b = np.array(_color(rng), np.float32), np.array(_color(rng), np.float32)
    blend: _Array = (a + (b - a) * t[:, :, None]).astype(np.float32)
    return blend


def _landscape(rng: Generator, width: int, height: int) -> Image.Image:
    """Draw a sky over two ranges of hills."""
    image = _gradient(rng, width, height) * 0.4 + np.array([90, 120, 160], np.float32)
    image += 25 * _noise(rng, width, height, (3, 7, 15))
    rows = np.arange(height)[:, None]
    for base, color in ((0.5, (70, 95, 80)), (0.7, (60, 75, 35))):
        ridge = height * (base + 0.15 * _noise(rng, width, 1, (4, 9, 21))[0, :, 0])
        ground = np.array(color, np.float32) + 45 * _noise(rng, width, height, (12, 40, 90))
        hill = rows > ridge[None, :]
        image[hill] = ground[hill]
    return _to_image(image)


def _shapes(rng: Generator, width: int, height: int) -> Image.Image:
    """Draw discs, boxes and lines on a gradient."""
    image = _to_image(_gradient(rng, width, height) + 10 * _noise(rng, width, height, (8, 30)))
    canvas = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(8, 20))):
        x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
        size = int(rng.integers(min(width, height) // 12, min(width, height) // 3))
        kind = int(rng.integers(0, 3))
        if kind == 0:
            canvas.ellipse((x, y, x + size, y + size), fill=_color(rng), outline=_color(rng), width=3)
        elif kind == 1:
            canvas.rectangle((x, y, x + size, y + size * 2 // 3), fill=_color(rng))
        else:
            canvas.line((x, y, int(rng.integers(0, width)), int(rng.integers(0, height))), fill=_color(rng), width=5)
    return image


def _text(rng: Generator, width: int, height: int) -> Image.Image:
    """Draw lines of letters on paper: hard edges everywhere, the worst case for chroma subsampling."""
    image = _to_image(225 + 15 * _noise(rng, width, height, (5, 60), 3))
    canvas = ImageDraw.Draw(image)
    line = int(rng.integers(14, 34))
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz      "))
    for top in range(line // 2, height - line, line + line // 3):
        words = "".join(rng.choice(letters, size=max(4, width * 2 // line)).tolist())
        canvas.text((line // 2, top), words, fill=_color(rng, 0, 110), font_size=line)
    return image


def _texture(rng: Generator, width: int, height: int) -> Image.Image:
    """Draw colored noise with coarse and fine grain, like leaves, gravel or cloth."""
    mean = np.array(_color(rng, 70, 190), np.float32)
    return _to_image(mean + 130 * _noise(rng, width, height, (4, 11, 37, 120), 3))


# -- containers -------------------------------------------------------------------------------------------------------


def _write_lmdb(folder: Path, pictures: Sequence[tuple[Picture, bytes]]) -> None:
    """Write one record per image: key ``<number>_<name>`` as in Caffe's tools, value a Datum."""
    import lmdb

    size = sum(len(data) for _, data in pictures) * 2 + (4 << 20)
    with lmdb.open(str(folder), map_size=size, lock=False) as env, env.begin(write=True) as txn:
        for i, (picture, data) in enumerate(pictures):
            txn.put(f"{i:08d}_{picture.name}".encode(), datum(data, picture))


def datum(data: bytes, picture: Picture) -> bytes:
    """Return an image as a Caffe Datum (caffe.proto: channels 1, height 2, width 3, data 4, label 5, encoded 7)."""
    stored = _stored_size(picture)
    return b"".join((_int(1, 1 if picture.gray else 3), _int(2, stored[1]), _int(3, stored[0]), _bytes(4, data),
                     _int(5, picture.label), _int(7, 1)))  # fmt: skip


def example(data: bytes, picture: Picture) -> bytes:
    """Return an image as a TensorFlow Example with the usual feature names (image/encoded, image/class/label, ...)."""
    width, height = _stored_size(picture)
    texts = {"image/encoded": data, "image/format": b"JPEG", "image/filename": picture.name.encode(),
             "image/class/text": CLASSES[picture.label].encode()}  # fmt: skip
    numbers = {"image/class/label": picture.label, "image/height": height, "image/width": width}
    features = {k: _bytes(1, _bytes(1, v)) for k, v in texts.items()}
    features |= {k: _bytes(3, _bytes(1, _varint(v))) for k, v in numbers.items()}
    entries = b"".join(_bytes(1, _bytes(1, k.encode()) + _bytes(2, v)) for k, v in sorted(features.items()))
    return _bytes(1, entries)


def _stored_size(picture: Picture) -> tuple[int, int]:
    sideways = picture.orientation >= 5
    return (picture.height, picture.width) if sideways else (picture.width, picture.height)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _write_tfrecord(folder: Path, pictures: Sequence[tuple[Picture, bytes]]) -> None:
    folder.mkdir()
    shards = min(_TFRECORD_SHARDS, max(1, len(pictures)))
    for k in range(shards):
        first, last = k * len(pictures) // shards, (k + 1) * len(pictures) // shards
        records = (example(data, picture) for picture, data in pictures[first:last])
        (folder / f"train-{k:05d}-of-{shards:05d}.tfrecord").write_bytes(b"".join(_framed(records)))


def _framed(records: Iterator[bytes]) -> Iterator[bytes]:
    """Yield records in TFRecord framing: length, its masked CRC-32C, data, its masked CRC-32C."""
    for record in records:
        length = struct.pack("<Q", len(record))
        yield length + _masked_crc(length) + record + _masked_crc(record)


def _masked_crc(data: bytes) -> bytes:
    from ...ops.storage.crc32c_cpu import masked_crc32c

    return struct.pack("<I", int(masked_crc32c(np.frombuffer(bytearray(data), np.uint8), 0, len(data))))
