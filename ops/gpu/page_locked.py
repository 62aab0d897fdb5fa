"""Large page-locked blocks of the host are used again for whatever fits and is not much smaller.

CuPy's pool gives a block out again only for the size that it was made for. Batches are never quite of the same size, so
that blocks were made again and again: for 80 MB that takes the driver 50 to 65 ms, in which it copies and launches
nothing for other threads. `registered.Locked` takes 17 ms, most of them without the driver.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]

SMALLEST = 1 << 20
"""Bytes. Smaller blocks are CuPy's pool's, by their sizes."""
SPARE = 4 << 30
"""Bytes that wait to be used again, at most, when a block has to be made; less where a run's account is full."""


_RATE = 4e9
"""Bytes a second for which it is worth waiting: page-locking takes nearly as long, and memory besides."""
_PATIENCE = 0.03
_LOOK = 0.001
_RECENT = 0.1
"""Seconds since the last block came back in which the next one may soon."""
_pause = time.sleep


class Room(Protocol):
    """The account of a run's memory."""

    @property
    def limit(self) -> int:
        """Bytes that there may be."""
        ...

    def has_room(self, nbytes: int) -> bool:
        """There is room for so many bytes more that wait to be used again. Takes no lock: destructors ask."""
        ...


class Blocks:
    """The blocks that wait to be used again. They may be held by any thread, and as long as anyone likes."""

    def __init__(self) -> None:
        self._idle: deque[_Block] = deque()  # appended to without the lock: a collection may do it
        self._choosing = threading.Lock()
        self._came_back: deque[tuple[float, int]] = deque(maxlen=16)
        """When the last blocks did, and their sizes."""
        self._rooms: tuple[Room, ...] = ()

    @property
    def cached(self) -> int:
        """Bytes that wait to be used again."""
        return sum(len(b.data) for b in list(self._idle))

    @property
    def max_bytes(self) -> int:
        """Bytes that may wait, about."""
        return 2 * SPARE

    def enter(self, room: Room) -> None:
        """A run begins on whose account is what waits to be used again; until it does `leave`."""
        with self._choosing:
            self._rooms = (*self._rooms, room)

    def leave(self, room: Room) -> None:
        """The run is over; once more does no harm."""
        with self._choosing:
            self._rooms = tuple(r for r in self._rooms if r is not room)

    @property
    def least(self) -> int:
        """Bytes that the smallest of the runs' accounts may have; 1 << 62 where there is no run."""
        return min((r.limit for r in self._rooms), default=1 << 62)

    def empty(self, nbytes: int, make: Callable[[int], Any]) -> U8:
        """An uninitialised array, of what ``make`` gives for a number of bytes where no idle block fits. Its memory
        comes back when the last view of it is gone."""
        block = self._taken(nbytes) or self._awaited(nbytes) or self._made(nbytes, make)
        return np.asarray(Lease(self, block))[:nbytes]

    def clear(self) -> None:
        """Let go of all blocks that nobody holds."""
        self._idle.clear()

    def put(self, block: _Block) -> None:
        """A block is needed no more."""
        self._came_back.append((time.monotonic(), len(block.data)))
        if all(r.has_room(len(block.data)) for r in self._rooms):
            self._idle.append(block)

    def _taken(self, nbytes: int) -> _Block | None:
        with self._choosing:
            fitting = [b for b in list(self._idle) if nbytes <= len(b.data) <= 2 * nbytes]
            best = min(fitting, key=lambda b: len(b.data), default=None)
            if best is not None:
                self._idle.remove(best)
            return best

    def _awaited(self, nbytes: int) -> _Block | None:
        """A block that comes back in a part of the time that it takes to make one, where such blocks come back at all:
        to make one keeps the driver from everything else."""
        now = time.monotonic()
        until = now + min(_PATIENCE, nbytes / _RATE)
        if not any(now - at < _RECENT and nbytes <= size <= 2 * nbytes for at, size in list(self._came_back)):
            return None
        while time.monotonic() < until:
            _pause(_LOOK)
            if (found := self._taken(nbytes)) is not None:
                return found
        return None

    def _made(self, nbytes: int, make: Callable[[int], Any]) -> _Block:
        with self._choosing:
            if self.cached > SPARE:
                self._idle.clear()  # of other sizes than those that are wanted now
        size = nbytes + nbytes // 8  # the next batch may be larger
        try:
            return _Block(np.frombuffer(make(size), np.uint8, size))
        except Exception:  # too much is locked already
            self.clear()
            return _Block(np.frombuffer(make(nbytes), np.uint8, nbytes))


class _Block:
    """One block: an object of its own, which compares by identity."""

    __slots__ = ("data",)

    def __init__(self, data: U8) -> None:
        self.data = data


class Lease:
    """The owner of a block that is out; NumPy's views hold it."""

    def __init__(self, blocks: Blocks, block: _Block) -> None:
        self._blocks, self._block = blocks, block
        self.__array_interface__ = block.data.__array_interface__

    def __del__(self) -> None:
        self._blocks.put(self._block)
