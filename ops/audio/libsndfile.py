"""Read audio files in memory with libsndfile, which the package soundfile contains: FLAC, Ogg Vorbis and Opus, MP3,
AIFF, rare kinds of WAV, and the other formats that it supports.

soundfile itself reads memory through Python functions, so that each piece of a file would wait for the GIL. Here the
functions that libsndfile calls are compiled, so that decoding is one call without the GIL.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RejectCode, SampleError, SpecError
from ..kernels import Kernels

_calls: Any = Kernels(".libsndfile_cpu", __package__)

_READ = 0x10  # SFM_READ
INTEGERS = frozenset((
    "PCM_S8", "PCM_16", "PCM_24", "PCM_32", "PCM_U8", "ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM", "GSM610", "G721_32",
    "ALAC_16", "ALAC_20", "ALAC_24", "ALAC_32",
))  # fmt: skip
"""Encodings that store integers, by libsndfile's names. Files of other encodings are read as floats."""
NARROW = INTEGERS - {"PCM_24", "PCM_32", "ALAC_20", "ALAC_24", "ALAC_32"}
"""Encodings that store integers of at most 16 bits, by libsndfile's names."""


def require() -> Any:
    """Return the package soundfile. Raises SpecError if it is not installed."""
    try:
        import soundfile
    except (ImportError, OSError) as e:  # OSError: the library itself is missing
        raise SpecError(f"audio needs the package soundfile: pip install 'dali-run[media]' ({e})") from None
    return soundfile


@cache
def _library() -> tuple[Any, Any, Any, Any]:
    """Return the modules and objects with which libsndfile reads files in memory: cffi, the library, the compiled
    callbacks, and the module soundfile."""
    soundfile = require()
    ffi, library = soundfile._ffi, soundfile._snd
    calls = ffi.new("SF_VIRTUAL_IO*")
    for name, function, kind in (
        ("get_filelen", _calls.length, "sf_vio_get_filelen"),
        ("seek", _calls.seek, "sf_vio_seek"),
        ("read", _calls.read, "sf_vio_read"),
        ("tell", _calls.tell, "sf_vio_tell"),
    ):
        setattr(calls, name, ffi.cast(kind, function.address))
    return ffi, library, calls, soundfile


@dataclass(slots=True)
class AudioFile:
    """Audio file in memory, opened by libsndfile. The caller closes it."""

    frames: int
    channels: int
    rate: int
    integers: bool
    """Whether the file stores samples as integers."""
    narrow: bool
    """Whether the stored samples have at most 16 bits."""
    format: str
    """Name of the file's format in libsndfile: FLAC, OGG, MP3, ..."""
    _handle: Any
    _held: Any
    """Objects that libsndfile has pointers to, such as the file's bytes; referenced to keep them alive."""

    def cut(self, first: int, frames: int) -> None:
        """Keep only ``frames`` frames, from frame ``first`` on. Raises SampleError if frame ``first`` is not found."""
        if first and _library()[1].sf_seek(self._handle, first, 0) != first:
            raise SampleError("corrupt_data", f"{self.format}: frame {first} could not be found")
        self.frames = frames

    def read_into(self, out: npt.NDArray[Any]) -> None:
        """Decode all frames into the flat array ``out``, float32, int16 or int32. Raises SampleError if frames are
        missing."""
        ffi, library, _, soundfile = _library()
        name = {"float32": "float", "int16": "short", "int32": "int"}[out.dtype.name]
        read = getattr(library, f"sf_readf_{name}")
        target = ffi.cast(f"{name}*", out.ctypes.data)
        got = read(self._handle, target, self.frames)
        if got != self.frames:
            number = library.sf_error(self._handle)
            reason = soundfile.LibsndfileError(number).error_string if number else "its data ends early"
            code: RejectCode = "corrupt_data" if number else "truncated"
            raise SampleError(code, f"{self.format}: {max(got, 0)} of {self.frames} frames could be decoded: {reason}")

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            _library()[1].sf_close(self._handle)
            self._handle = None


def open_memory(data: npt.NDArray[np.uint8]) -> AudioFile:
    """Open the file whose bytes are ``data``, which must stay unchanged until the file is closed. Raises
    SampleError."""
    ffi, library, calls, soundfile = _library()
    if not len(data):
        raise SampleError("truncated", "the file is empty")
    state = np.array([data.ctypes.data, len(data), 0], np.int64)
    info = ffi.new("SF_INFO*")
    handle = library.sf_open_virtual(calls, _READ, info, ffi.cast("void*", state.ctypes.data))
    if handle == ffi.NULL:
        number = library.sf_error(ffi.NULL)
        reason = soundfile.LibsndfileError(number).error_string.rstrip(".")
        known = any(bytes(data[a : a + len(m)]) == m for a, m in _MARKS)
        raise SampleError("corrupt_data" if known else "not_audio", f"no decoder supports it: {reason}")
    major = _names(soundfile._formats).get(info.format & 0x0FFF0000, "?")
    minor = _names(soundfile._subtypes).get(info.format & 0xFFFF, "?")
    frames = int(info.frames)
    if frames == _UNKNOWN:  # a FLAC file that was written as a stream: count its frames, and open it again
        frames = _counted(library, ffi, handle, int(info.channels))
        library.sf_close(handle)
        state[2] = 0
        handle = library.sf_open_virtual(calls, _READ, info, ffi.cast("void*", state.ctypes.data))
    return AudioFile(frames, int(info.channels), int(info.samplerate), minor in INTEGERS, minor in NARROW,
                 major, handle, (data, state, info))  # fmt: skip


_UNKNOWN = 2**63 - 1
_BLOCK = 1 << 16


def _counted(library: Any, ffi: Any, handle: Any, channels: int) -> int:
    """Count the frames of a file whose header does not give their number, by decoding it. Stop if there are more than
    allowed."""
    block, frames = np.empty(_BLOCK * channels, np.int16), 0
    while frames <= _MAX and (got := library.sf_readf_short(handle, ffi.cast("short*", block.ctypes.data), _BLOCK)) > 0:
        frames += got
    return frames


_MAX = 1 << 31


_MARKS = ((0, b"RIFF"), (0, b"fLaC"), (0, b"OggS"), (0, b"FORM"), (0, b"RF64"), (0, b"ID3"), (0, b"caff"))


def _names(table: dict[str, int]) -> dict[int, str]:
    return {number: name for name, number in table.items()}


def encode(signal: npt.NDArray[Any], rate: int, kind: str, encoding: str) -> bytes:
    """Return a file of format ``kind`` (FLAC, WAV) that contains ``signal`` [n] or [n, channels]. Raises
    SampleError."""
    import io

    soundfile = require()
    out = io.BytesIO()
    try:
        soundfile.write(out, signal, rate, format=kind, subtype=encoding)
    except (soundfile.LibsndfileError, ValueError, TypeError) as e:
        raise SampleError("encode_failed", f"{kind}: {e}") from None
    return out.getvalue()
