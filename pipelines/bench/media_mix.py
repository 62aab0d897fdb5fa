"""Generate audio clips and videos for benchmarks, in the formats that data sets have; all files differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.audio.libsndfile import require as require_soundfile
from ...ops.video.media import require as require_av
from .web_mix import in_turns

RATE = 16_000
SECONDS = 10
"""Length in seconds of each generated audio clip."""
_OFFSET_SECONDS = 60
"""Largest offset in seconds, in the generated noise, at which a clip begins."""
FRAMES = 64
HEIGHT, WIDTH = 720, 1280
"""Height and width in pixels of the generated videos."""
SOUNDS: Mapping[str, float] = {"wav": 0.5, "flac": 0.35, "ogg": 0.15}
"""Fraction of the clips in each audio format. MP3 is not among them, because DALI does not decode it."""
VIDEOS: Mapping[str, float] = {"h264": 0.6, "vp9": 0.25, "hevc": 0.15}
"""Fraction of the videos with each codec."""
_CODECS: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "h264": ("mp4", "libx264", {"preset": "veryfast"}),
    "hevc": ("mp4", "libx265", {"preset": "ultrafast", "x265-params": "log-level=none"}),
    "vp9": ("webm", "libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}),
}
_GOP = 24
"""Number of frames from one key frame of a video to the next."""


def write_sounds(folder: Path, count: int = 600, shares: Mapping[str, float] = SOUNDS) -> None:
    """Write ``count`` audio clips of ten seconds, 16 kHz, one channel, 16 bits, to ``folder``/<format>: noise with the
    pauses and the low pitch of speech. Raises SpecError if the package soundfile is missing."""
    soundfile = require_soundfile()
    random = np.random.default_rng(0)
    length = RATE * (SECONDS + _OFFSET_SECONDS)
    noise = np.convolve(random.standard_normal(length).astype(np.float32), np.hanning(12).astype(np.float32), "same")
    steps = np.arange(0, length, RATE // 4)
    voice = noise * np.interp(np.arange(length), steps, random.random(len(steps)) ** 2).astype(np.float32)
    voice *= 0.5 / np.abs(voice).max()

    def write(number: int, kind: str) -> None:
        start = number * 7919 % (RATE * _OFFSET_SECONDS)
        part = voice[start : start + RATE * SECONDS] * np.float32(0.5 + number % 97 / 194)
        subtype = "VORBIS" if kind == "ogg" else "PCM_16"
        path = folder / kind / f"{number:06d}.{kind}"
        soundfile.write(path, part, RATE, format=kind.upper(), subtype=subtype)

    _write_all(folder, shares, count, write)


def write_videos(folder: Path, count: int = 24, shares: Mapping[str, float] = VIDEOS) -> None:
    """Write ``count`` videos of 64 frames, 1280 x 720, 25 frames per second, a key frame every 24 frames, to
    ``folder``/<codec>: a view that moves over an image. Raises SpecError if the package av is missing."""
    av = require_av()
    image = _background()

    def write(number: int, kind: str) -> None:
        ending, codec, options = _CODECS[kind]
        draw = np.random.default_rng(number)
        y = int(draw.integers(0, image.shape[0] - HEIGHT - 2 * FRAMES))
        x = int(draw.integers(0, image.shape[1] - WIDTH - 3 * FRAMES))
        with av.open(str(folder / kind / f"{number:04d}.{ending}"), "w") as container:
            stream = container.add_stream(codec, rate=25, options=dict(options))
            stream.height, stream.width, stream.pix_fmt, stream.gop_size = HEIGHT, WIDTH, "yuv420p", _GOP
            stream.codec_context.thread_count = 1  # several files are encoded at the same time
            for k in range(FRAMES):
                view = image[y + 2 * k : y + 2 * k + HEIGHT, x + 3 * k : x + 3 * k + WIDTH]
                container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(view), "rgb24")))
            container.mux(stream.encode())

    _write_all(folder, shares, count, write)


def _background() -> npt.NDArray[np.uint8]:
    """Return an image, larger than a video frame, with coarse and fine structure in all colours."""
    draw = np.random.default_rng(0)
    height, width = HEIGHT + 640, WIDTH + 960
    total = np.zeros((height, width, 3), np.float32)
    for step, strength in ((160, 110), (40, 50), (8, 24), (2, 8)):
        coarse = draw.random((height // step + 2, width // step + 2, 3), np.float32) * strength
        total += coarse.repeat(step, 0).repeat(step, 1)[:height, :width]
    return np.clip(total, 0, 255).astype(np.uint8)


def _write_all(folder: Path, shares: Mapping[str, float], count: int, write: Callable[[int, str], Any]) -> None:
    for kind in shares:
        (folder / kind).mkdir(parents=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(write, range(count), in_turns(shares, count)):
            pass
