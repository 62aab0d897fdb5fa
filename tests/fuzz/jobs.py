"""Whole jobs on mutated pictures, sounds and videos: spec, readers, decoders, engine and writer, as a user runs them.

Of every format a few good files are mutated and lie among good ones. What must hold, whatever the bytes are: the job
ends with 0 or 3; every good file's record is what it is without the others; every bad one is in the output or in
exactly one line of the reject log, which names it; nothing is left behind. `python -m tests.fuzz.jobs --seconds 600`.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dali_run.pipelines.job.run import run_job
from dali_run.writers.shards.verify import verify

from ..kit.files.videos import make_video

GOOD, BAD = 6, 24
"""Files of a job, of one format."""


def picture(rng: random.Random, mode: str = "RGB") -> Image.Image:
    """A few shapes: neither flat nor noise."""
    width, height = rng.randint(9, 70), rng.randint(9, 70)
    y, x = np.mgrid[:height, :width]
    planes = [(x * rng.randint(1, 9) + y * rng.randint(1, 9) + 40 * ((x // 7 + y // 5) % 2)) % 256 for _ in range(3)]
    return Image.fromarray(np.stack(planes, -1).astype(np.uint8)).convert(mode)


def _saved(mode: str, format: str, **options: Any) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        file = io.BytesIO()
        image = picture(rng, mode)
        if mode == "I;16":
            image = Image.fromarray(np.asarray(picture(rng, "L")).astype(np.uint16) * 257)
        image.save(file, format, **options)
        return file.getvalue()

    return make


def big_tiff(rng: random.Random) -> bytes:
    """BigTIFF, whose fields have 64 bits."""
    side = rng.randint(4, 20)
    tags = {256: side, 257: side, 258: 8, 259: 1, 262: 1, 273: 8 + 8 + 8 + 20 * 9 + 8, 277: 1, 278: side, 279: side**2}
    entries = b"".join(struct.pack("<HHQQ", tag, 16, 1, value) for tag, value in sorted(tags.items()))
    head = b"II" + struct.pack("<HHHQQ", 43, 8, 0, 16, len(tags))
    return head + entries + bytes(8) + rng.randbytes(side**2)


IMAGES: Mapping[str, Callable[[random.Random], bytes]] = {
    "jpeg": _saved("RGB", "JPEG"),
    "jpeg-progressive": _saved("RGB", "JPEG", progressive=True),
    "jpeg-gray": _saved("L", "JPEG"),
    "jpeg-cmyk": _saved("CMYK", "JPEG"),
    "jpeg-restarts": _saved("RGB", "JPEG", restart_marker_blocks=2, subsampling=2),
    "png": _saved("RGB", "PNG"),
    "png-palette": _saved("P", "PNG"),
    "png-16": _saved("I;16", "PNG"),
    "bmp": _saved("RGB", "BMP"),
    "gif": _saved("P", "GIF"),
    "tiff": _saved("RGB", "TIFF"),
    "tiff-lzw": _saved("RGB", "TIFF", compression="tiff_lzw"),
    "tiff-fax": _saved("1", "TIFF", compression="group4"),
    "tiff-16": _saved("I;16", "TIFF"),
    "tiff-big": big_tiff,
    "ppm": _saved("RGB", "PPM"),
    "webp": _saved("RGB", "WEBP"),
    "webp-lossless": _saved("RGB", "WEBP", lossless=True),
    "jpeg2000": _saved("RGB", "JPEG2000"),
}


def _sound(format: str, subtype: str) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        import soundfile

        file, frames = io.BytesIO(), rng.randint(300, 4000)
        tone = np.sin(np.arange(frames) * rng.uniform(0.01, 0.5))[:, None] * np.ones((1, rng.randint(1, 2)))
        soundfile.write(file, tone * 0.7, rng.choice((8000, 16000)), format=format, subtype=subtype)
        return file.getvalue()

    return make


SOUNDS: Mapping[str, Callable[[random.Random], bytes]] = {
    "wav": _sound("WAV", "PCM_16"),
    "wav-24": _sound("WAV", "PCM_24"),
    "wav-float": _sound("WAV", "FLOAT"),
    "wav-ulaw": _sound("WAV", "ULAW"),
    "flac": _sound("FLAC", "PCM_16"),
    "flac-24": _sound("FLAC", "PCM_24"),
    "ogg": _sound("OGG", "VORBIS"),
    "aiff": _sound("AIFF", "PCM_16"),
}


def _video(suffix: str, codec: str) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        with tempfile.TemporaryDirectory() as there:
            path = Path(there) / f"v.{suffix}"
            make_video(path, rng.randint(2, 9), codec, gop=rng.randint(1, 6))
            return path.read_bytes()

    return make


VIDEOS: Mapping[str, Callable[[random.Random], bytes]] = {
    "mp4-h264": _video("mp4", "libx264"),
    "mkv-h264": _video("mkv", "libx264"),
    "mkv-vp9": _video("mkv", "libvpx-vp9"),
    "avi-mpeg4": _video("avi", "mpeg4"),
}
ENDS = (0, 1, 0x7F, 0x80, 0xFF)
WORDS = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """``data`` with bits flipped, numbers at their limits, parts cut, doubled or made of others."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not out:
            break
        near = rng.random() < 0.6  # most of what can go wrong is in the first bytes
        at = rng.randrange(min(len(out), 100) if near else len(out))
        kind = rng.randrange(8)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice(ENDS)
        elif kind == 2:
            size = rng.choice((2, 4, 8))
            word = (rng.choice(WORDS) & ((1 << 8 * size) - 1)).to_bytes(size, rng.choice(("little", "big")))
            out[at : at + size] = word
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            del out[at : at + rng.randint(1, 20)]
        elif kind == 5:
            out[at:at] = out[at : at + rng.randint(1, 40)]
        elif kind == 6:
            out[at : at + 8] = rng.randbytes(8)
        else:
            out[at:at] = bytes([rng.choice(ENDS)]) * rng.randint(1, 300)
    return bytes(out)


SPEC = """\
version: 1
name: fuzz
pipeline: {{batch_size: {batch}, num_threads: 2, device: {device}, seed: 1, memory: {{host: 512MiB}}}}
graph:
  - {{op: readers.file, name: Reader, file_root: "{data}", file_filters: ["*"], out: [encoded, label]}}
{chain}
outputs: {{image: image, label: label}}
write: {{writer: files, path: "{out}", fields: {{image: {{encode: npy}}, label: {{}}}}}}
on_error: {{policy: skip}}
"""

_RESIZED = """\
  - {{op: {decoder}, in: encoded, out: image, max_pixels: 4000000}}
  - {{op: resize, in: image, size: [16, 16], out: image}}"""
CHAINS = {
    "decoders.image": _RESIZED.format(decoder="decoders.image"),
    "decoders.image_random_crop": _RESIZED.format(decoder="decoders.image_random_crop"),
    "decoders.audio": "  - {op: decoders.audio, in: encoded, downmix: true, sample_rate: 8000, max_samples: 1000000, "
                      "out: [image, rate]}",
    "decoders.video": _RESIZED.format(decoder="decoders.video"),
}  # fmt: skip
"""From files to what is written, by the decoder."""
FAMILIES = ((IMAGES, ("decoders.image", "decoders.image_random_crop")), (SOUNDS, ("decoders.audio",)),
            (VIDEOS, ("decoders.video",)))  # fmt: skip
MAKERS = {**IMAGES, **SOUNDS, **VIDEOS}


def run(folder: Path, name: str, batch: int, device: str, decoder: str) -> tuple[int, str, dict[str, bytes], list[str]]:
    """Exit code, message, the records by the key of their file, and the keys of the reject log, of the files in
    ``folder/name``."""
    spec, out = folder / f"{name}.yaml", folder / f"out-{name}"
    spec.write_text(SPEC.format(batch=batch, device=device, chain=CHAINS[decoder], data=folder / name, out=out))
    result = run_job(spec)
    records = {}
    for listing in sorted(out.glob("fuzz-*.jsonl")):
        for row in map(json.loads, listing.read_text().splitlines()):
            records[row["key"]] = (out / row["files"][0]).read_bytes()
    log = out / "rejects.jsonl"
    rejects = [json.loads(line)["key"] for line in log.read_text().splitlines()] if log.exists() else []
    if result.exit_code in (0, 3):
        verdict = verify(out)
        assert verdict.sound, verdict.problems
    return result.exit_code, result.message, records, rejects


def check(format: str, seed: int, device: str = "cpu", decoder: str = "decoders.image") -> int:
    """One job on mutations of one format, or of ``all``; how many files it had. Raises AssertionError."""
    rng = random.Random(f"{format} {seed}")
    makes = (
        list(next(f for f, decoders in FAMILIES if decoder in decoders).values())
        if format == "all"
        else [MAKERS[format]]
    )
    batch = rng.choice((1, 4, 7, 64))
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        good = {f"class/g{i:02d}": makes[i % len(makes)](rng) for i in range(max(GOOD, len(makes)))}
        bad = {f"class/{'afz'[i % 3]}{i:02d}": mutated(makes[i % len(makes)](rng), rng) for i in range(BAD)}
        for name, files in {"alone": good, "mixed": good | bad}.items():
            (folder / name / "class").mkdir(parents=True)
            for key, data in files.items():
                (folder / name / key).write_bytes(data)
        code, message, expected, rejects = run(folder, "alone", batch, device, decoder)
        assert (code, rejects) == (0, []), (format, seed, message, rejects)
        code, message, made, rejects = run(folder, "mixed", batch, device, decoder)
        said = (format, seed, batch, code, message)
        assert code == (3 if rejects else 0), said
        if "random" in decoder:  # drawn by the place of the file, which others change
            made, expected = dict.fromkeys(made, b""), dict.fromkeys(expected, b"")
        assert {k: made[k] for k in good if k in made} == expected, said
        assert sorted([*made, *rejects]) == sorted(good | bad), said
        assert all(n == 1 for n in Counter(rejects).values()), said
        assert not list(folder.rglob("*.tmp-*")), said
        shutil.rmtree(folder / "mixed")
    return len(good) + len(bad)


def main() -> None:
    """Fuzz for a while; a line of a table at the end, and 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formats", nargs="*", default=[*MAKERS, "all"])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--first", type=int, default=0, help="number of the first seed")
    parser.add_argument("--device", default="cpu", help="cpu, null, or gpu")
    asked = parser.parse_args()
    end, seed, files, jobs, found = time.monotonic() + asked.seconds, asked.first, 0, 0, 0
    while time.monotonic() < end:
        for format in asked.formats:
            for decoder in [d for makers, ds in FAMILIES if format in (*makers, "all") for d in ds]:
                try:
                    files += check(format, seed, asked.device, decoder)
                except AssertionError as e:
                    found += 1
                    sys.stderr.write(f"{e}\n")
                jobs += 1
            if time.monotonic() > end:
                break
        seed += 1
    sys.stdout.write(f"| fuzz whole jobs on {asked.device}: {jobs} jobs of all formats | {files} | {found} |\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
