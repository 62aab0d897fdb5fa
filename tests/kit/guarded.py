"""Memory between pages without access: a loop that reads or writes outside of it ends the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

_PAGE = mmap.PAGESIZE
_NONE = 0


class Guarded:
    """Memory for up to ``max_bytes`` bytes, between pages without access: an access beyond it ends the process. New
    content overwrites the old."""

    def __init__(self, max_bytes: int) -> None:
        self._size = -(-max_bytes // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, self._size + 2 * _PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        for place in (start, start + _PAGE + self._size):
            if libc.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(_PAGE), _NONE):
                raise OSError(ctypes.get_errno(), "mprotect")

    def empty(self, n: int, *, at_end: bool) -> npt.NDArray[np.uint8]:
        """Return ``n`` bytes at the end, or at the beginning, of the accessible pages."""
        first = _PAGE + (self._size - n if at_end else 0)
        return np.frombuffer(self._map, np.uint8, n, first)

    def put(self, data: bytes, *, at_end: bool) -> npt.NDArray[np.uint8]:
        """Put ``data`` at the end, or at the beginning, of the accessible pages, and return it as an array."""
        place = self.empty(len(data), at_end=at_end)
        place[:] = np.frombuffer(data, np.uint8)
        return place
