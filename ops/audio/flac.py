"""Read FLAC files in memory with the decoder of flac_cpu, and with libsndfile if that does not support a file."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..kernels import Kernels

_cpu: Any = Kernels(".flac_cpu", __package__)
_files: Any = Kernels(".libsndfile", __package__)

_own = threading.local()
_LARGE = 4 << 20


@cache
def _tables() -> npt.NDArray[np.uint16]:
    tables = np.zeros((8, 256), np.uint16)
    _cpu.crc_tables(tables)
    return tables


def _room(size: int) -> npt.NDArray[np.uint8]:
    """Return a buffer for a file of ``size`` bytes. Each thread reuses one buffer for all files, because new memory
    pages are expensive."""
    kept: npt.NDArray[np.uint8] | None = getattr(_own, "room", None)
    if size > _LARGE:
        return np.zeros(size, np.uint8)
    if kept is None:
        kept = _own.room = np.zeros(_LARGE, np.uint8)
    return kept


class Flac:
    """Open FLAC file in memory, with the methods of `libsndfile.AudioFile`."""

    integers = True
    format = "FLAC"

    def __init__(self, data: npt.NDArray[np.uint8], header: npt.NDArray[np.int64]) -> None:
        self._data, self._found, self._first = data, header, 0
        self.frames, self.channels, self.rate = (int(v) for v in header[: _cpu.BITS])
        self.narrow = int(header[_cpu.BITS]) <= 16

    def cut(self, first: int, frames: int) -> None:
        """Keep only ``frames`` frames, from frame ``first`` on."""
        self._first, self.frames = first, frames

    def read_into(self, out: npt.NDArray[Any]) -> None:
        """Decode all frames into the flat array ``out``: float32, int16 or int32. Raises SampleError."""
        bits, whole = int(self._found[_cpu.BITS]), self.frames == int(self._found[_cpu.FRAMES])
        target = out if whole else np.empty(int(self._found[_cpu.FRAMES]) * self.channels, out.dtype)
        guarded = _room(len(self._data) + _cpu.GUARD)
        guarded[: len(self._data)] = self._data
        wide = 8 * out.dtype.itemsize if out.dtype.kind == "i" else bits
        scale = np.float32(2.0 ** (1 - bits)) if out.dtype.kind == "f" else np.int64(1)
        left, right = np.int64(max(wide - bits, 0)), np.int64(max(bits - wide, 0))
        if _cpu.decode(guarded, np.int64(len(self._data)), self._found, _tables(), scale, left, right, target):
            if not whole:
                start = self._first * self.channels
                out[...] = target[start : start + len(out)]
            return
        sound = _files.open_memory(self._data)  # libsndfile decides whether the file is corrupt
        try:
            sound.cut(self._first, self.frames)
            sound.read_into(out)
        finally:
            sound.close()

    def close(self) -> None:
        """Do nothing: no file is open."""


def open_memory(data: npt.NDArray[np.uint8]) -> Flac | None:
    """Open the FLAC file whose bytes are ``data``. Return None if it is not FLAC, or of a kind that this decoder does
    not support."""
    found = np.zeros(_cpu.FIELDS, np.int64)
    if len(data) < 42 or data[0] != ord("f") or not _cpu.header(data, found):
        return None
    return Flac(data, found)
