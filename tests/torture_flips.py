"""The part of `make torture` about one flipped bit in an encoded image: decoders here against the libraries' verdicts.

libjpeg-turbo tells what it warns of, and its word is the reference for JPEG. For other formats a file that neither
Pillow nor OpenCV decodes must be rejected here. Decoders on a GPU run on the stand-in for CuPy.
"""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from tests.kit.engine.decoding import graph, results
from tests.kit.fake_cupy import faked
from tests.kit.files import jpegs, tiffs
from tests.kit.files.progressive import Picture
from tests.kit.files.progressive_jpegs import DEEP, YCC420
from tests.kit.operators import operator
from tests.kit.ops.decoding import run
from tests.torture_isolation import Row

Pixels = NDArray[Any]
Decoded = list[Pixels | None]
"""Pixels of each file; None for a file that was rejected."""
Decoder = Callable[[list[bytes], Path], Decoded]
_HARMLESS = ("JFIF revision", "Adobe color transform", "Invalid SOS parameters")
"""Warnings of libjpeg about fields that no pixel depends on."""


def flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(2, len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def jpeg_files() -> dict[str, bytes]:
    """A small JPEG of each kind that this project's encoders at hand write."""
    files = {}
    for progressive in (False, True):
        for subsampling in (0, 1, 2):
            for more in ({}, {"restart_marker_blocks": 3}, {"optimize": True}):
                name = f"{'progressive' if progressive else 'baseline'} {subsampling} {' '.join(more)}"
                options = {"progressive": progressive, "subsampling": subsampling, **more}
                files[name] = jpegs.encode(45, 37, 1, quality=80, **options)
        files[f"gray {progressive}"] = jpegs.encode(45, 37, 1, gray=True, progressive=progressive)
        cmyk = io.BytesIO()
        Image.fromarray(jpegs.picture(45, 37)).convert("CMYK").save(cmyk, "JPEG", progressive=progressive)
        files[f"CMYK {progressive}"] = cmyk.getvalue()
    files["a scan for each component"] = jpegs.in_scans(45, 37, 2, 2)
    files["many scans"] = Picture.random(40, 40, YCC420).encoded(DEEP)
    return files


def other_files() -> dict[str, bytes]:
    """A small file of each kind of PNG, TIFF, WebP, BMP, PNM, GIF and JPEG 2000 that Pillow writes, and more TIFFs."""
    pixels = np.random.default_rng(1).integers(0, 256, (19, 31, 4), np.uint8)
    pixels[9:] &= 0xC0
    gray, rgb, rgba = (Image.fromarray(pixels[..., c]) for c in (0, slice(3), slice(4)))

    def saved(image: Image.Image, format: str, **options: Any) -> bytes:
        file = io.BytesIO()
        image.save(file, format, **options)
        return file.getvalue()

    files = {f"PNG {image.mode}": saved(image, "PNG") for image in (gray, rgb, rgba, rgb.convert("P"))}
    files |= {f"TIFF {name}": file for name, file in tiffs.good_files().items() if len(file) < 30_000}
    files |= {f"TIFF {c}": saved(gray.convert("1"), "TIFF", compression=c) for c in ("group3", "group4", "tiff_ccitt")}
    files |= {"TIFF JPEG": saved(rgb, "TIFF", compression="jpeg"), "PNM": saved(rgb, "PPM")}
    files |= {f"WebP {i.mode} {lossless}": saved(i, "WEBP", lossless=lossless) for i in (rgb, rgba)
              for lossless in (False, True)}  # fmt: skip
    files |= {"BMP": saved(rgb, "BMP"), "BMP P": saved(rgb.convert("P"), "BMP"), "GIF": saved(rgb.convert("P"), "GIF")}
    return files | {"JPEG 2000": saved(rgb, "JPEG2000")}


# -- decoders under test ----------------------------------------------------------------------------------------------


def on_host(files: list[bytes], _: Path) -> Decoded:
    op = operator("decoders.image", output_type="RGB", adjust_orientation=False)
    out, rejects = run(op, files)
    bad = {reject.slot for reject in rejects}
    return [None if i in bad else np.array(out.sample(i)) for i in range(len(files))]


def on_gpu(files: list[bytes], work: Path) -> Decoded:
    """By the `mixed` decoder of a whole job, on the stand-in for CuPy."""
    work.mkdir()
    paths = [work / f"{i:05}.jpg" for i in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    job = graph(paths, output_type="RGB", adjust_orientation=False)
    with faked(memory=True):
        found, _ = results(compile_graph(job, Target("gpu"), 7), len(files))
    return [found.get(path.stem) for path in paths]


# -- the libraries' verdicts ------------------------------------------------------------------------------------------


def jpeg_problem(whole: Pixels, data: bytes, found: Pixels | None) -> str:
    """The reason why ``found`` is the wrong outcome for the JPEG ``data``; empty if it is right. ``whole``: pixels of
    the file before its bit was flipped."""
    try:
        expected, warned = simplejpeg.decode_jpeg(data), ""
    except ValueError as e:
        expected, warned = None, str(e)
    if "determine subsampling" in warned:  # TurboJPEG has no verdict, and Pillow drops libjpeg's warnings
        return ""
    if expected is not None:
        if found is None:
            return "rejected, although libjpeg decodes it without a warning"
        return "" if np.array_equal(found, expected) else "pixels are not libjpeg's"
    if found is None:
        return f"rejected for '{warned}'" if any(word in warned for word in _HARMLESS) else ""
    return "" if np.array_equal(found, whole) else f"delivered with other pixels, although libjpeg warns: {warned}"


def other_problem(_: Pixels, data: bytes, found: Pixels | None) -> str:
    """`jpeg_problem` for the other formats."""
    if found is None or _decodes_by_pillow(data) or _decodes_by_opencv(data):
        return ""
    return "delivered, although neither Pillow nor OpenCV decodes it"


def _decodes_by_pillow(data: bytes) -> bool:
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data)) as image:
            warnings.simplefilter("ignore")
            image.load()
    except Exception:  # Pillow raises ten kinds on damaged files
        return False
    return True


def _decodes_by_opencv(data: bytes) -> bool:
    cv2.setLogLevel(0)
    try:
        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) is not None
    except cv2.error:
        return False


def rows(work: Path, times: int, seed: int = 1, gpu_times: int = 0) -> Iterator[Row]:
    """``times`` flips in each file of each kind on the host, and ``gpu_times`` by the decoders of a GPU."""
    for name, files, problem in (
        ("JPEG", jpeg_files(), jpeg_problem),
        ("PNG, TIFF, WebP, BMP, PNM, GIF, JPEG 2000", other_files(), other_problem),
    ):
        for where, decoder, count in (("host", on_host, times), ("emulated GPU", on_gpu, gpu_times)):
            tried, bad = judged(files, decoder, problem, count, work / f"{where} {len(files)}", seed)
            yield Row(f"{name}, one bit flipped, decoded on the {where}: verdicts of the libraries", tried, bad)


def judged(
    files: Mapping[str, bytes], decoder: Decoder, problem: Callable[[Pixels, bytes, Pixels | None], str], times: int,
    work: Path, seed: int,
) -> tuple[int, list[str]]:  # fmt: skip
    """How many flipped files were decoded, and what is wrong with the outcomes."""
    rng, bad = random.Random(seed), []
    names = [name for name in files for _ in range(times)]
    flips = [flipped(files[name], rng) for name in names]
    if not flips:
        return 0, bad
    good = dict(zip(files, on_host(list(files.values()), work), strict=True))
    for k, (name, data, found) in enumerate(zip(names, flips, decoder(flips, work), strict=True)):
        whole = good[name]
        assert whole is not None, name
        if why := problem(whole, data, found):
            bad.append(f"{name}, flip {k} of seed {seed}: {why}")
    return len(flips), bad
