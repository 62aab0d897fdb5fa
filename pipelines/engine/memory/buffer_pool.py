"""Reuse large host arrays once no reference to them is left.

Otherwise the kernel would have to find and clear new pages for every batch, which takes longer than filling them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.batch import host_empty

_MIN_BYTES = 1 << 20
"""Minimum size in bytes of arrays from the pool. Smaller ones are from the heap, which keeps freed memory."""


class BufferPool:
    """A pool of large host arrays. When the last view of an array is gone, in any thread, its memory returns to the
    pool. `HostExecutor` creates and closes the pools of a run. `empty` may be called by any thread."""

    def __init__(
        self, max_blocks: int = 3, max_bytes: int = 1 << 62, has_room: Callable[[int], bool] = lambda _: True
    ) -> None:
        """At most ``max_blocks`` free blocks are cached, of at most ``max_bytes`` together; the oldest are freed first.
        A returned block is cached only if ``has_room(nbytes)`` is true; a destructor may call that at any moment."""
        self.max_bytes = max_bytes
        """Maximum number of bytes in free blocks that are cached for reuse."""
        self._has_room = has_room
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=max_blocks)  # no lock: a garbage collection may append

    def empty(self, n: int, dtype: Any) -> npt.NDArray[Any]:
        """Return an uninitialised flat array, whose memory returns to the pool when its last view is gone."""
        nbytes = n * np.dtype(dtype).itemsize
        if not _MIN_BYTES <= nbytes <= self.max_bytes:
            return host_empty(n, dtype)
        lease = np.asarray(_Block(self, self._block(nbytes)))
        return lease[:nbytes].view(dtype)

    @property
    def cached(self) -> int:
        """Bytes in free blocks, which wait to be reused."""
        return sum(map(len, list(self._free)))

    def clear(self) -> None:
        """Free all blocks that are cached for reuse."""
        self._free.clear()

    def close(self) -> None:
        """Free all cached blocks now, and blocks in use when they return. (An engine that has ended may live on for
        long until the garbage collector runs.)"""
        self.max_bytes = 0
        self._has_room = _has_no_room
        self._free.clear()

    def put(self, block: npt.NDArray[np.uint8]) -> None:
        """Return a memory block to the pool, or free it if the pool is full."""
        if len(block) > self.max_bytes:
            return
        with suppress(IndexError):  # another thread took the last block
            while self.cached + len(block) > self.max_bytes:
                self._free.popleft()
        if self._has_room(len(block)):
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
        # allocate more than needed, for the next array may be larger; pages that are never written take no memory
        return host_empty(max(nbytes, min(1 << (nbytes - 1).bit_length(), self.max_bytes)), np.uint8)


def _has_no_room(_: int) -> bool:
    return False


class _Block:
    """Owner of a memory block in use. NumPy's views refer to it, and its destructor returns the block to the pool."""

    def __init__(self, pool: BufferPool, block: npt.NDArray[np.uint8]) -> None:
        self._pool, self._block = pool, block
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._pool.put(self._block)
