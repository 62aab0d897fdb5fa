"""Decode audio files that libsndfile does not support with FFmpeg (package av, PyAV): some MP3 and Ogg files, FLAC in
Ogg and FLAC of 32 bits. They are rare, so that a whole file is decoded at once."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

_CONTAINERS = frozenset(("mp3", "ogg", "flac"))
"""Containers that FFmpeg may decode, by its names. Others are refused, because FFmpeg also detects audio in files that
are not audio."""


class Decoded:
    """Decoded audio file in memory, with the methods of `libsndfile.AudioFile`."""

    narrow = False

    def __init__(self, values: npt.NDArray[Any], rate: int, kind: str) -> None:
        """Store the decoded ``values`` [frames, channels]: float32, or int32 with the audio samples in the high
        bits."""
        self._values = values
        self.frames, self.channels = values.shape
        self.rate, self.format = rate, kind
        self.integers = values.dtype.kind == "i"

    def cut(self, first: int, frames: int) -> None:
        """Keep only ``frames`` frames, from frame ``first`` on."""
        self._values = self._values[first : first + frames]
        self.frames = len(self._values)

    def read_into(self, out: npt.NDArray[Any]) -> None:
        """Write all frames to the flat array ``out``: float32, or int16 or int32 if the file stores integers."""
        values = self._values.reshape(-1)
        if out.dtype == values.dtype:
            out[...] = values
        else:
            out[...] = values >> 16 if out.dtype == np.int16 else values * 2.0**-31

    def close(self) -> None:
        """Do nothing: no file is open."""


def open_memory(data: npt.NDArray[np.uint8], max_samples: int) -> Decoded | None:
    """Decode a file whose bytes are ``data``. Return None if FFmpeg is not installed, or reports any error. Decoding
    stops shortly after ``max_samples`` samples."""
    try:
        import av
    except ImportError:
        return None
    try:
        with av.open(io.BytesIO(data.tobytes()), "r", options={"err_detect": "crccheck+explode"}) as container:
            kind = container.format.name
            if kind not in _CONTAINERS or not container.streams.audio:
                return None
            stream = container.streams.audio[0]
            stream.codec_context.options = {"err_detect": "crccheck+explode"}
            stream.codec_context.thread_count = 1
            parts: list[npt.NDArray[Any]] = []
            samples = 0
            for frame in container.decode(stream):
                part = frame.to_ndarray()
                part = part.T if frame.format.is_planar else part.reshape(frame.samples, -1)
                if parts and part.shape[1] != parts[0].shape[1]:
                    return None
                parts.append(_plain(part))
                samples += part.size
                if samples > max_samples:
                    break
            rate, said = int(stream.codec_context.sample_rate), stream.duration if kind == "flac" else None
    except (av.error.FFmpegError, ValueError, EOFError):
        return None
    if not samples or rate <= 0:
        return None
    values = np.concatenate(parts)
    if (
        said is not None
        and samples <= max_samples
        and len(values) < round(float(said * (stream.time_base or 0)) * rate)
    ):
        return None  # the file ends early
    return Decoded(np.ascontiguousarray(values), rate, kind.upper())


def _plain(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return FFmpeg's ``values`` as float32 if they are floats, or as int32 with integer audio samples in the high
    bits."""
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    if values.dtype == np.uint8:
        return (values.astype(np.int32) - 128) << 24
    return values.astype(np.int32) << (32 - 8 * values.dtype.itemsize)
