"""Large arrays of the host are used again once no reference to them is left, so that the kernel need not find and
clear new pages for every batch, which takes longer than filling them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.batch import host_empty

_SMALLEST = 1 << 20
"""Bytes. Smaller arrays come from the heap, which keeps what it was given back itself."""


class Recycler:
    """Where large arrays come from. Arrays may be held as long as anyone likes, and by any thread."""

    def __init__(self, spare: int = 3, most: int = 1 << 62, room: Callable[[int], bool] = lambda _: True) -> None:
        """At most ``spare`` arrays wait to be used again, of at most ``most`` bytes together, and as long as there is
        ``room`` for so many bytes more, which a destructor may ask at any moment. Those that wait longest make way."""
        self.most = most
        """Bytes that may wait."""
        self._room = room
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=spare)  # without a lock: a collection may append

    def empty(self, n: int, dtype: Any) -> npt.NDArray[Any]:
        """An uninitialised flat array. Its memory comes back when the last view of it is gone."""
        nbytes = n * np.dtype(dtype).itemsize
        if not _SMALLEST <= nbytes <= self.most:
            return host_empty(n, dtype)
        lease = np.asarray(_Block(self, self._block(nbytes)))
        return lease[:nbytes].view(dtype)

    @property
    def idle(self) -> int:
        """Bytes that wait to be used again."""
        return sum(map(len, list(self._free)))

    def clear(self) -> None:
        """Keep nothing of what waits now."""
        self._free.clear()

    def close(self) -> None:
        """Keep nothing any more, what is out included: an engine that has ended may wait long for the collector."""
        self.most = 0
        self._room = _none
        self._free.clear()

    def back(self, block: npt.NDArray[np.uint8]) -> None:
        """A block is needed no more."""
        if len(block) > self.most:
            return
        with suppress(IndexError):  # another thread took the last one
            while self.idle + len(block) > self.most:
                self._free.popleft()
        if self._room(len(block)):
            self._free.append(block)

    def _block(self, nbytes: int) -> npt.NDArray[np.uint8]:
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread took it
                break
            if nbytes <= len(block) <= 2 * nbytes:
                return block
            self._free.append(block)
        # more, for the next one may be larger; what is never written takes no memory
        return host_empty(max(nbytes, min(1 << (nbytes - 1).bit_length(), self.most)), np.uint8)


def _none(_: int) -> bool:
    return False


class _Block:
    """The owner of a block that is out; NumPy's views hold it."""

    def __init__(self, recycler: Recycler, block: npt.NDArray[np.uint8]) -> None:
        self._recycler, self._block = recycler, block
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._recycler.back(self._block)
