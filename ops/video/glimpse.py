"""Inspect a video: its codec, size and duration, and a few small frames. Called by tools that show data sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..errors import SampleError, SpecError
from .media import Clip

_STARTS = ((4, b"ftyp"), (0, b"\x1aE\xdf\xa3"), (8, b"AVI "), (0, b"FLV\x01"), (0, b"\0\0\1\xba"), (0, b"OggS"))
"""Magic numbers of video containers, as (offset, bytes), for MP4 and MOV, Matroska and WebM, AVI, FLV, MPEG-PS, Ogg."""
_PICTURES = frozenset((b"avif", b"avis", b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1"))
"""MP4 brands of files that contain still images."""
_TS = 188
"""Bytes per packet of an MPEG transport stream. Each packet begins with the letter G."""


def is_video(data: bytes | memoryview) -> bool:
    """Return whether ``data`` begins like a video file."""
    head = bytes(data[: 2 * _TS + 1])
    if head[8:12] in _PICTURES:
        return False
    return any(head[at : at + len(mark)] == mark for at, mark in _STARTS) or head[::_TS] == b"GGG"


def glimpse(data: bytes, count: int = 0, side: int = 0) -> tuple[dict[str, Any], list[npt.NDArray[np.uint8]]]:
    """Return codec, width, height, number of frames and seconds of a video, as a dict; and ``count`` of its frames at
    equal distances, scaled so that the longer side has ``side`` pixels. The frames are key frames if there are enough.
    Raises SampleError if ``data`` is not a video, or if av is not installed."""
    try:
        clip = Clip(np.frombuffer(data, np.uint8))
    except SpecError as e:
        raise SampleError("unsupported", str(e)) from None
    with clip:
        facts: dict[str, Any] = {"codec": clip.codec, "width": clip.width, "height": clip.height}
        times = clip.times
        step = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        facts |= {"frames": len(times), "seconds": round(float(times[-1] - times[0]) + step, 3)}
        if not count:
            return facts, []
        all_times, keys = clip.index
        numbers = np.searchsorted(all_times, keys) if len(keys) >= count else np.arange(len(times))
        wanted = numbers[np.unique(np.linspace(0, len(numbers) - 1, count).round().astype(int))].tolist()
        scale = min(side / max(clip.height, clip.width), 1)
        size = max(round(clip.width * scale), 1), max(round(clip.height * scale), 1)
        frame, small = np.empty((clip.height, clip.width, 3), np.uint8), []
        for number in wanted:
            clip.decode([number], lambda _: [frame])
            small.append(np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BOX)))
        return facts, small
