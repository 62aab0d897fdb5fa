"""Device memory that all lanes and uploads of a process share, one pool per GPU; `Lane` and `Uploads` allocate from it.

Blocks come in a few sizes (`roomy`). A launch takes what it needs and gives it back when it ends, so that lanes share
workspaces. Blocks that nobody has needed for seconds go back to the device. CuPy's own pool, its limit and its
allocator belong to the user's program: if that has set an allocator (RMM's, for example), blocks come from there.

A block that the host releases may still be used by work of the stream that it was allocated for. It is given out again
to the same stream at once, in the order of the stream, and to other streams once that stream was synchronized.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import cache
from typing import Any, Literal, get_args

from .current import OnGpu

SMALL = 1 << 20
"""Bytes up to which allocations come from a pool of CuPy's that belongs to lanes alone: metadata, numbers."""
MAX_SLACK = 1.125
"""Size of a block, over the bytes that are asked for, up to which it is given out for them."""
MAX_IDLE = 1.1
"""Bytes that the pool may hold, over the most that were in use at a time within the last window or two."""
WINDOW = 2.0
"""Seconds of a window. Blocks that are idle for longer are given back. To make one again takes the driver milliseconds,
in which it launches nothing."""
_ASYNC = 115
"""cudaDevAttrMemoryPoolsSupported: memory can be freed without a synchronization of the device."""

_NULL_STREAM, _HELD = 0, -1
"""Numbers in the place of streams: CUDA's default one, and that of blocks that are given back only after their use."""


Owner = Literal["arrays", "workspaces", "files"]
"""Kind of memory: outputs, and results in between; what a kernel needs besides; encoded bytes and metadata."""


class OutOfMemoryError(MemoryError):
    """The limit of a pool, or the device's memory, is reached."""


def roomy(nbytes: int) -> int:
    """Bytes of a block for ``nbytes``: one of 32 sizes per power of two, at most a 32nd too large."""
    if nbytes <= SMALL:
        return nbytes
    step = 1 << max((nbytes - 1).bit_length() - 6, 0)
    return -(-nbytes // step) * step


class _Block:
    """A block of device memory."""

    __slots__ = ("address", "memory", "owner", "returned", "size", "stream")

    def __init__(self, address: int, size: int, memory: Any) -> None:
        self.address, self.size = address, size
        self.memory = memory
        """The owner of the memory if the user's allocator made it; None for the driver's."""
        self.stream = 0
        """Stream that it was allocated for."""
        self.owner: Owner = "arrays"
        """Kind of memory that it was allocated for."""
        self.returned = 0.0
        """When it became idle (time.monotonic)."""


class _Lease:
    """The owner of a block that is in use: arrays hold it. Any thread may drop it."""

    __slots__ = ("_block", "_returned")

    def __init__(self, block: _Block, returned: deque[_Block]) -> None:
        self._block, self._returned = block, returned

    def __del__(self) -> None:
        self._returned.append(self._block)


class DevicePool:
    """The pool of one GPU; `pool_of` creates it. Any thread may call it, with the GPU current."""

    def __init__(self, index: int) -> None:
        import cupy

        self.index = index
        self._runtime = cupy.cuda.runtime
        self._async = bool(self._runtime.deviceGetAttribute(_ASYNC, index))
        self._of_cupy = cupy.cuda.MemoryPool().malloc
        self._allocator: Any = None
        self._limits: dict[int, int] = {}
        self._lock = threading.Lock()
        self._shared: list[_Block] = []
        """Idle blocks for any stream."""
        self._local: dict[int, list[_Block]] = {}
        """Idle blocks for later work of one stream, by stream."""
        self._busy: set[int] = set()
        """Streams with work since they were synchronized."""
        self._returned: deque[_Block] = deque()  # without the lock: a collection may append
        self.held = 0
        """Bytes of all blocks."""
        self.live = 0
        """Bytes of blocks that are in use, by the host or by streams that were not synchronized since they were
        released; about, as of the last call."""
        self.peak_held = self.peak_live = 0
        """The most of both since the first owner of a limit came."""
        self._of: dict[Owner, int] = dict.fromkeys(get_args(Owner), 0)
        self.peaks: dict[Owner, int] = dict(self._of)
        """Bytes in use by kind, when the most were in use."""
        self.made = 0
        """Blocks that were made so far."""
        self._high, self._before = 0, 0
        """The most bytes in use in this window, and in the one before."""
        self._began = time.monotonic()

    # -- use ------------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Take blocks from the allocator that the program has given CuPy, if it has given one."""
        import cupy

        allocator = cupy.cuda.get_allocator()
        if not isinstance(getattr(getattr(allocator, "__self__", None), "memory", None), DevicePool):  # not in a lane
            default = cupy.get_default_memory_pool().malloc
            self._allocator = None if allocator == default else allocator

    def allocate(self, nbytes: int, stream: int, owner: Owner = "arrays", *, held: bool = False) -> Any:
        """Uninitialised memory for work of ``stream`` (its number), as CuPy's MemoryPointer. ``held``: the caller holds
        it until all work with it is done, so that any stream may have it next. Raises OutOfMemoryError, and what the
        driver raises."""
        if nbytes <= SMALL:
            self._busy.add(stream)
            return (self._allocator or self._of_cupy)(max(nbytes, 1))
        import cupy

        size = roomy(nbytes)
        with self._lock:
            self._sort()
            block = None if held else _taken(self._local.get(stream, ()), size)
            if block is None:
                block = _taken(self._shared, size) or self._new(size, stream)
                self.live += block.size
            else:
                self._of[block.owner] -= block.size
            self._of[owner] += block.size
            block.stream, block.owner = _HELD if held else stream, owner
            if not held:
                self._busy.add(stream)
            self._high = max(self._high, self.live)
            if self.live > self.peak_live:
                self.peak_live, self.peaks = self.live, dict(self._of)
            lease = _Lease(block, self._returned)
        memory = cupy.cuda.UnownedMemory(block.address, block.size, lease, self.index)
        return cupy.cuda.MemoryPointer(memory, 0)

    def begin(self, stream: int) -> None:
        """Work of ``stream`` begins that may use memory of it."""
        self._busy.add(stream)

    def settle(self, stream: int) -> None:
        """The stream has done all its work: its idle blocks are for all streams now."""
        with self._lock:
            self._sort()
            self._busy.discard(stream)
            for block in self._local.pop(stream, ()):
                self._share(block)
            now = time.monotonic()
            if now - self._began >= WINDOW:
                self._before, self._high, self._began = self._high, self.live, now
            self._free(self.held - int(MAX_IDLE * max(self._before, self._high)))

    # -- limits ---------------------------------------------------------------------------------------------------

    def limit(self, owner: object, nbytes: int | None) -> None:
        """Let ``owner`` have ``nbytes`` of the pool, or no longer (None). The pool holds at most what all owners may
        have together. When the last owner leaves, idle blocks are given back, and there is no limit."""
        with self._lock:
            if nbytes is not None:
                if not self._limits:
                    self.peak_held, self.peak_live, self.peaks = self.held, 0, dict(self._of)
                self._limits[id(owner)] = nbytes
            else:
                self._limits.pop(id(owner), None)
                if not self._limits:
                    self._sort()
                    self._free(self.held)

    def free_idle(self) -> None:
        """Give back all blocks that no work can use."""
        with self._lock:
            self._sort()
            self._free(self.held)

    @property
    def idle(self) -> int:
        """Bytes that could be given back."""
        with self._lock:
            self._sort()
            return sum(b.size for b in self._shared)

    # -- blocks; the lock is held ---------------------------------------------------------------------------------

    def _sort(self) -> None:
        now = time.monotonic()
        for _ in range(len(self._returned)):
            block = self._returned.popleft()
            block.returned = now
            if block.stream in self._busy:
                self._local.setdefault(block.stream, []).append(block)
            else:
                self._share(block)

    def _share(self, block: _Block) -> None:
        self.live -= block.size
        self._of[block.owner] -= block.size
        self._shared.append(block)

    def _new(self, size: int, stream: int) -> _Block:
        self._free(self.held + size - int(MAX_IDLE * max(self._before, self._high, self.live + size)))
        limit = sum(self._limits.values())
        if limit:
            self._free(self.held + size - limit)
            if self.held + size > limit:
                raise OutOfMemoryError(f"{size:,} bytes beside {self.held:,} are more than the {limit:,} of memory.gpu")
        try:
            block = self._made(size, stream)
        except Exception:  # whatever kind it is: what lies idle may have been enough
            if not self._shared:
                raise
            self._free(self.held)
            block = self._made(size, stream)
        self.held += size
        self.made += 1
        self.peak_held = max(self.peak_held, self.held)
        return block

    def _made(self, size: int, stream: int) -> _Block:
        if self._allocator is not None:
            memory = self._allocator(size)
            return _Block(int(memory.ptr), size, memory)
        if self._async:
            return _Block(int(self._runtime.mallocAsync(size, stream)), size, None)
        return _Block(int(self._runtime.malloc(size)), size, None)

    def _free(self, nbytes: int) -> None:
        """Give back shared idle blocks of ``nbytes`` or somewhat more, the longest idle first."""
        if nbytes <= 0 or not self._shared:
            return
        self._shared.sort(key=lambda b: b.returned)
        freed, count = 0, 0
        while freed < nbytes and count < len(self._shared):
            freed += self._shared[count].size
            count += 1
        with OnGpu(self.index):
            for block in self._shared[:count]:
                if block.memory is None:
                    if self._async:
                        self._runtime.freeAsync(block.address, _NULL_STREAM)
                    else:
                        self._runtime.free(block.address)
                block.memory = None
        del self._shared[:count]
        self.held -= freed


def _taken(idle: list[_Block] | tuple[()], size: int) -> _Block | None:
    """The smallest block of ``idle`` that is not much larger than ``size``, taken out of the list."""
    fits = [b for b in idle if size <= b.size <= MAX_SLACK * size]
    if not fits:
        return None
    block = min(fits, key=lambda b: b.size)
    assert isinstance(idle, list)
    idle.remove(block)
    return block


_making = threading.Lock()


def pool_of(index: int) -> DevicePool:
    """The pool of GPU ``index``, for all of the process."""
    with _making:
        return _pool_of(index)


@cache
def _pool_of(index: int) -> DevicePool:
    return DevicePool(index)


def limit_pool(index: int, owner: object, nbytes: int | None) -> None:
    """Let ``owner`` have ``nbytes`` of the pool of GPU ``index``, or no longer (None)."""
    with OnGpu(index):
        pool_of(index).limit(owner, nbytes)


def device_memory(index: int) -> tuple[int, int]:
    """Bytes of GPU ``index`` that are free, or idle in our pool, and all that it has."""
    import cupy

    with OnGpu(index):
        free, total = cupy.cuda.runtime.memGetInfo()
        return int(free) + pool_of(index).idle, int(total)
