"""Data sets in natural sizes for benchmarks: images like ImageNet's and the web's, clips, a video, corrupt files.

`gate.py` and the programs in benchmarks/jobs use them through `data_sets`. Every file has different content: images are
cropped, mirrored and scaled to sizes drawn from the distribution of ImageNet, then encoded on all cores. If more bytes
are needed than can be encoded in a few seconds, further files are copies with changed quantisation tables (JPEG) or
text (PNG). The same source images give the same files with the same Pillow.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import wave
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, JpegImagePlugin

ROOT = Path(__file__).resolve().parents[1]
IMAGENET_SIZES = ((0, 0.02), (0.05, 0.05), (0.5, 0.19), (0.9, 0.27), (0.95, 0.43), (0.99, 0.88), (1, 3.84))
"""Quantiles of image sizes: (share of smaller images, megapixels)."""
WEB_SIZES = ((0, 0.01), (0.05, 0.04), (0.5, 0.25), (0.9, 1.0), (0.99, 4.0), (1, 20.0))
MIX = {"baseline": 0.62, "progressive": 0.25, "png": 0.06, "webp": 0.05, "cmyk": 0.02}
"""Shares of formats in scraped data, by number of files."""
IMAGE_SETS: Mapping[str, Mapping[str, float]] = {
    "val": {"baseline": 1},
    "mix": MIX,
    "thumbnails": {"thumbnail": 1},
    "photos": {"photo": 1},
    **{kind: {kind: 1} for kind in ("progressive", "png", "webp")},
}
"""Name of an image set -> shares of kinds of files."""
_SUFFIX = {"png": "png", "webp": "webp"}
_BYTES = {"baseline": 80e3, "progressive": 70e3, "cmyk": 90e3, "png": 330e3, "webp": 28e3, "photo": 4.2e6,
          "thumbnail": 1e3}  # fmt: skip
"""Bytes of an average file, which determine the number of files."""
_ENCODED = {"baseline": 6000, "progressive": 4000, "cmyk": 1000, "png": 2500, "webp": 4000, "photo": 160,
            "thumbnail": 20000}  # fmt: skip
"""Number of files of a kind that are encoded; further ones are changed copies. WebP files and thumbnails have no
copies."""
_TASK = 16
"""Number of files that a process encodes or copies per task."""


def sizes(count: int, table: Sequence[tuple[float, float]] = IMAGENET_SIZES, seed: int = 0) -> list[int]:
    """Return the pixels of ``count`` images: evenly spaced quantiles of ``table``, shuffled."""
    shares, megapixels = zip(*table, strict=True)
    quantiles = (np.arange(count) + 0.5) / count
    pixels = np.exp(np.interp(quantiles, shares, np.log(megapixels))) * 1e6
    random.Random(seed).shuffle(drawn := pixels.astype(int).tolist())
    return drawn


@lru_cache(maxsize=256)
def _source(path: Path) -> tuple[Image.Image, dict[str, Any]]:
    """Load the image at ``path``. Return it with Pillow's options that encode a JPEG with its tables and
    subsampling."""
    with Image.open(path) as opened:
        if opened.format != "JPEG" or opened.mode not in ("RGB", "L"):
            return opened.convert("RGB"), {"quality": 90}
        sampling = JpegImagePlugin.get_sampling(opened)
        options: dict[str, Any] = {"qtables": opened.quantization}
        if opened.mode == "RGB" and sampling >= 0:
            options["subsampling"] = sampling
        return opened.convert("RGB") if opened.mode != "L" else opened.copy(), options


def encoded(kind: str, path: Path, pixels: int, variant: int) -> bytes:
    """Encode a file of ``kind`` with about ``pixels`` pixels: variant ``variant`` of the image at ``path``."""
    draw = random.Random(variant * 7919 + len(path.name))
    image, options = _source(path)
    left, up = draw.randrange(1 + image.width // 5), draw.randrange(1 + image.height // 5)
    box = (left, up, image.width - draw.randrange(1 + image.width // 9), image.height)
    image = image.crop(box)
    if kind == "photo":
        image, options = ImageOps.fit(image.convert("RGB"), (4000, 3000)), {"quality": 90}
    elif kind == "thumbnail":
        image, options = ImageOps.fit(image.convert("RGB"), (32, 32)), {"quality": 90}
    else:
        scale = (pixels / (image.width * image.height)) ** 0.5
        image = image.resize((max(8, round(image.width * scale)), max(8, round(image.height * scale))))
    if draw.random() < 0.5:
        image = ImageOps.mirror(image)
    if kind in ("photo", "png", "webp"):  # scaled-up images have no detail: add a little noise
        noise = np.random.default_rng(variant).integers(-3, 4, (256, 256, 1), np.int8)
        array = np.asarray(image.convert("RGB")).astype(np.int16)
        tiled = np.tile(noise, (-(-array.shape[0] // 256), -(-array.shape[1] // 256), 1))
        image = Image.fromarray(np.clip(array + tiled[: array.shape[0], : array.shape[1]], 0, 255).astype(np.uint8))
    out = io.BytesIO()
    if kind == "png":
        image.save(out, "PNG")
    elif kind == "webp":
        image.save(out, "WEBP", quality=85)
    elif kind == "cmyk":
        image.convert("CMYK").save(out, "JPEG", quality=88)
    else:
        image.save(out, "JPEG", progressive=kind == "progressive", **options)
    return out.getvalue()


def changed(data: bytes, number: int) -> bytes:
    """Change two quantisation steps of a JPEG by 1 and 2, or the text of a PNG: other content with the same decoding
    cost. Other formats are returned unchanged."""
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        body = b"tEXtComment\0" + b"%016d" % number
        return data[:33] + struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) + data[33:]
    at = data.find(b"\xff\xdb")
    if data[:2] != b"\xff\xd8" or at < 0 or data[at + 4] >> 4:
        return data
    made = bytearray(data)
    for step, change in ((1 + number % 63, 1), (1 + number // 63 % 63, 2)):
        place = at + 5 + step
        made[place] += change if made[place] + change < 256 else -change
    return bytes(made)


def _encode_task(task: Sequence[tuple[str, str, Path, int, int]]) -> None:
    for target, kind, path, pixels, variant in task:
        Path(target).write_bytes(encoded(kind, path, pixels, variant))


def _copy_task(task: Sequence[tuple[str, str, int]]) -> None:
    for source, target, number in task:
        Path(target).write_bytes(changed(Path(source).read_bytes(), number))


def _clip_task(task: Sequence[tuple[str, int]]) -> None:
    for target, number in task:
        write_clip(Path(target), number)


def _on_all_cores(function: Callable[[Any], None], tasks: Sequence[Any], at_once: int = _TASK) -> None:
    with get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        for _ in pool.imap_unordered(function, [tasks[k : k + at_once] for k in range(0, len(tasks), at_once)]):
            pass


@lru_cache(maxsize=1)
def _voice() -> np.ndarray:
    """Return noise with the spectrum and pauses of speech, 130 s at 16 kHz, int16."""
    draw = np.random.default_rng(0)
    noise = np.convolve(draw.standard_normal(130 * 16000), np.hanning(12), "same")
    noise *= np.interp(np.arange(noise.size), np.arange(0, noise.size, 4000), draw.random(-(-noise.size // 4000)) ** 2)
    return (noise * (20000 / np.abs(noise).max())).astype(np.int16)


def write_clip(path: Path, number: int) -> None:
    """Write a clip of ten seconds, 16 bits at 16 kHz, as WAV or (with soundfile) FLAC."""
    start = number * 7919 % (16000 * 120)
    clip = (_voice()[start : start + 160000].astype(np.int32) * (500 + number % 499) // 1000).astype(np.int16)
    if path.suffix == ".flac":
        import soundfile

        soundfile.write(path, clip, 16000, subtype="PCM_16")
        return
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(clip.tobytes())


def _in_turns(shares: Mapping[str, float], count: int) -> Iterator[str]:
    """Yield ``count`` kinds of files in such an order that every stretch has about the given shares."""
    owed = dict.fromkeys(shares, 0.0)
    for _ in range(count):
        for kind, share in shares.items():
            owed[kind] += share / sum(shares.values())
        due = max(owed, key=lambda kind: owed[kind])
        owed[due] -= 1
        yield due


class DataSets:
    """Data sets below one folder, each made when it is first needed; used by one thread.

    ``images`` are the source images; ``nbytes`` is the size of each image set. ``command`` runs `dali-run`.
    """

    def __init__(self, root: Path, images: Sequence[Path], nbytes: int, command: Callable[..., Any]) -> None:
        self.root, self.images, self.nbytes, self.command = root, list(images), nbytes, command

    def path(self, name: str) -> Path:
        """Return the folder of the data set ``name``: a key of IMAGE_SETS, wav, flac, video, or NAME.tfrecord (with an
        index)."""
        place = self.root / name
        if not (self.root / f"{name}.done").exists():
            shutil.rmtree(place, ignore_errors=True)  # left by a run that was ended
            if name.endswith(".tfrecord"):
                self._tfrecord(place, self.path(name.removesuffix(".tfrecord")))
            else:
                place.mkdir(parents=True)
                makers = {"wav": self._clips, "flac": self._clips, "video": self._video}
                makers.get(name, self._images)(place, name)
            (self.root / f"{name}.done").touch()
        return place

    def files(self, name: str) -> list[Path]:
        """Return the files of the data set ``name``, in the order of their numbers."""
        return sorted((p for p in self.path(name).rglob("*") if p.is_file()), key=lambda p: p.name)

    def _images(self, place: Path, name: str, table: Sequence[tuple[float, float]] = IMAGENET_SIZES) -> None:
        shares = IMAGE_SETS[name]
        count = max(16, round(self.nbytes / sum(share * _BYTES[kind] for kind, share in shares.items())))
        if name in ("webp", "thumbnails"):  # these have no changed copies
            limit = _ENCODED[next(iter(shares))]
            count = min(count, limit if self.nbytes >= 1e9 else limit // 4)
        for folder in range(10):
            (place / f"{folder:03d}").mkdir()
        written: dict[str, list[str]] = {kind: [] for kind in shares}
        drawn = {kind: sizes(max(2, min(count, _ENCODED[kind])), table) for kind in shares}
        encode, copies = [], []
        for number, kind in enumerate(_in_turns(shares, count)):
            target = str(place / f"{number % 10:03d}" / f"{number:07d}.{_SUFFIX.get(kind, 'jpg')}")
            if (k := len(written[kind])) < _ENCODED[kind] or kind == "webp":
                pixels = drawn[kind][k % len(drawn[kind])]
                encode.append((target, kind, self.images[k % len(self.images)], pixels, k))
            else:
                copies.append((written[kind][k % _ENCODED[kind]], target, k // _ENCODED[kind] * 11 + k % 11))
            written[kind].append(target)
        encode.sort(key=lambda row: self.images.index(row[2]))  # so that each process decodes few source images
        _on_all_cores(_encode_task, encode, 2 if name == "photos" else _TASK)
        _on_all_cores(_copy_task, copies)

    def _clips(self, place: Path, name: str) -> None:
        count = max(64, min(round(self.nbytes / 320044), 12000 if name == "wav" else 4000))
        for folder in range(10):
            (place / f"{folder:03d}").mkdir()
        _on_all_cores(_clip_task, [(str(place / f"{k % 10:03d}" / f"{k:06d}.{name}"), k) for k in range(count)])

    def _tfrecord(self, place: Path, source: Path) -> None:
        """Write one TFRecord file with all samples, and its index for DALI: ``data-000000.tfrecord`` and ``index``."""
        self.command("convert", source, place, "--to", "tfrecord", "--size", "999GB", "--quiet")
        (record,) = sorted(place.glob("*.tfrecord"))
        record.rename(place / "images.tfrecord")
        lines, at = [], 0
        with (place / "images.tfrecord").open("rb") as records:
            while header := records.read(8):
                size = 16 + struct.unpack("<Q", header)[0]
                lines.append(f"{at} {size}\n")
                at += size
                records.seek(at)
        (place / "index").write_text("".join(lines))

    def _video(self, place: Path, name: str) -> None:
        """Write eight H.264 clips of 128 frames of 1280 x 720 that pan over images; needs PyAV."""
        import av

        for clip in range(8):
            wide = ImageOps.fit(Image.open(self.images[clip % len(self.images)]).convert("RGB"), (1536, 864))
            pixels = np.asarray(wide)
            with av.open(str(place / f"{clip}.mp4"), "w") as out:
                stream = out.add_stream("libx264", rate=30, options={"preset": "veryfast", "g": "16"})
                stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
                for k in range(128):
                    frame = np.ascontiguousarray(pixels[k : k + 720, 2 * k : 2 * k + 1280])
                    out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
                out.mux(stream.encode())


def add_data_arguments(parser: argparse.ArgumentParser, gigabytes: float | None) -> None:
    """Add the options that `data_sets` and `measuring` need; ``gigabytes``: default size of each data set."""
    parser.add_argument("--gigabytes", type=float, default=gigabytes, help="size of each data set")
    parser.add_argument("--images", type=Path, help="folder of JPEGs from which data sets are made")
    parser.add_argument("--data", type=Path, help="folder that keeps data sets for later runs")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--child", help=argparse.SUPPRESS)


@contextlib.contextmanager
def data_sets(args: argparse.Namespace, folder: Path | None = None) -> Iterator[tuple[Path, DataSets]]:
    """Context manager that yields a scratch folder (below ``folder``) and the data sets of the options ``args``. It
    compiles loops first, so that no measurement does."""
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=folder, ignore_cleanup_errors=True) as work:
        scratch, command = Path(work), dali_run(ROOT)
        if getattr(args, "warm", True):
            command("warm", "--quiet")
        images = source_images(args.images, scratch, command)
        data = DataSets(args.data or scratch / "data", images, int(args.gigabytes * 1e9), command)
        data.root.mkdir(parents=True, exist_ok=True)
        yield scratch, data


def save(path: Path | None, result: object) -> None:
    """Write a result as JSON, if there is a ``path``."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


def source_images(folder: Path | None, scratch: Path, command: Callable[..., Any]) -> list[Path]:
    """Return images from which data sets are made: those of ``folder``; else the ImageNet sample next to the checkout;
    else images that `dali-run sample-data` draws."""
    for place in (folder, shared("imagenet_sample")):
        if place and place.is_dir():
            return sorted(p for p in place.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    command("sample-data", scratch / "sample", "--count", "96")
    return sorted((scratch / "sample" / "train").rglob("*.jpg"))


def shared(name: str) -> Path | None:
    """Return the folder ``name`` of the test data, if it is in or next to the checkout; else None."""
    places = (ROOT / "shared" / "data" / name, ROOT.parent / "shared" / "data" / name)
    return next((place for place in places if place.is_dir()), None)


def mixed_corpus(place: Path, images: Sequence[Path], corpus: Path | None, mutations: int = 200) -> Path:
    """Make a folder of valid, unusual and corrupt image files in ``place``: ``images``, the image files of ``corpus``,
    and ``mutations`` of them with bytes changed, cut off or doubled; the same files every time."""
    place.mkdir(parents=True)
    suffixes = {
        ".jpg",
        ".jpeg",
        ".png",
        ".webp",
        ".bmp",
        ".gif",
        ".jp2",
        ".j2k",
        ".pnm",
        ".ppm",
        ".pgm",
        ".tif",
        ".tiff",
    }
    odd = sorted(p for p in corpus.rglob("*") if p.suffix.lower() in suffixes) if corpus else []
    bodies = [(p.suffix.lower(), p.read_bytes()) for p in (*images, *odd)]
    for k, path in enumerate(images[:8]):
        bodies += [(f".{_SUFFIX.get(kind, 'jpg')}", encoded(kind, path, 60_000 + 977 * k, k)) for kind in MIX]
    draw = random.Random(1)
    for _ in range(mutations):
        suffix, body = bodies[draw.randrange(len(bodies))]
        data = bytearray(body)
        for _ in range(draw.randrange(1, 9)):
            if data:
                data[draw.randrange(len(data))] = draw.randrange(256)
        if draw.random() < 0.3:
            del data[draw.randrange(len(data) + 1) :]
        elif draw.random() < 0.2:
            at = draw.randrange(len(data) + 1)
            data[at:at] = data[at : at + draw.randrange(4096)]
        bodies.append((suffix, bytes(data)))
    for number, (suffix, body) in enumerate(bodies):
        (place / f"{number:05d}{suffix}").write_bytes(body)
    return place


def dali_run(package: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the command `dali-run` of the checkout ``package`` with its arguments. The function
    raises RuntimeError with the last lines of standard error if the exit status is neither 0 nor 3."""
    program = "import sys; sys.argv[0] = 'dali-run'; from dali_run.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        filter(None, (str(package), os.environ.get("PYTHONPATH"))))}  # fmt: skip

    def command(*arguments: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", program, *map(str, arguments)]
        done = subprocess.run(line, env=environment, cwd=package, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 3):
            raise RuntimeError(" | ".join((done.stderr or done.stdout).strip().splitlines()[-4:]))
        return done

    return command
