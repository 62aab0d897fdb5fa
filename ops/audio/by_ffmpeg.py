"""Files that libsndfile refuses, through FFmpeg, as the package av (PyAV) carries it: some MP3 and Ogg files, FLAC in
Ogg and FLAC of 32 bits. Rare, so they are decoded at once, as a whole."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

_CONTAINERS = frozenset(("mp3", "ogg", "flac"))
"""FFmpeg finds something in much that is no sound."""


class Decoded:
    """A file in memory, to be read as `libsndfile.Sound` is."""

    narrow = False

    def __init__(self, values: npt.NDArray[Any], rate: int, kind: str) -> None:
        """``values``: [frames, channels], float32, or int32 whose high bits are the samples'."""
        self._values = values
        self.frames, self.channels = values.shape
        self.rate, self.format = rate, kind
        self.integers = values.dtype.kind == "i"

    def cut(self, first: int, frames: int) -> None:
        """Leave out what is before frame ``first`` and after ``frames`` of them."""
        self._values = self._values[first : first + frames]
        self.frames = len(self._values)

    def read_into(self, out: npt.NDArray[Any]) -> None:
        """All frames into ``out``, flat, float32, or, of integers, int16 or int32, too."""
        values = self._values.reshape(-1)
        if out.dtype == values.dtype:
            out[...] = values
        else:
            out[...] = values >> 16 if out.dtype == np.int16 else values * 2.0**-31

    def close(self) -> None:
        """There is nothing to let go of."""


def open_memory(data: npt.NDArray[np.uint8], max_samples: int) -> Decoded | None:
    """The file whose bytes are ``data``; None where FFmpeg is not installed, or finds anything wrong. Of a file of more
    samples than ``max_samples`` there are some more than that."""
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
        return None  # it ends early
    return Decoded(np.ascontiguousarray(values), rate, kind.upper())


def _plain(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """float32, or int32 with the samples as its high bits."""
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    if values.dtype == np.uint8:
        return (values.astype(np.int32) - 128) << 24
    return values.astype(np.int32) << (32 - 8 * values.dtype.itemsize)
