"""Pool of device memory per GPU, shared by all lanes and uploads of a process; `Lane` and `Upload` allocate from it.

Blocks come in a few sizes (`block_size`). A launch takes the memory that it needs and returns it when it ends, so that
lanes share workspaces. Blocks that were not needed for seconds are returned to the device. CuPy's own pool, its limit
and its allocator belong to the user's program: if that has set an allocator (RMM's, for example), blocks come from
there.

Work of the stream that a block was allocated for may still use it after the host has released it. The block is given to
later work of the same stream at once, because the stream runs in order, and to other streams when the stream was
synchronized.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import cache
from typing import Any, Literal, get_args

from .current import OnGpu

SMALL = 1 << 20
"""Allocations of up to this many bytes, such as metadata, come from a small CuPy pool instead of `DevicePool`."""
MAX_SLACK = 1.125
"""Maximum size of a cached block that may serve an allocation, as a multiple of the requested bytes."""
MAX_IDLE = 1.1
"""Maximum bytes that the pool keeps allocated, as a multiple of the most bytes in use at a time during this or the
previous `WINDOW`."""
WINDOW = 2.0
"""Length in seconds of the periods for which the pool measures the most bytes in use. Blocks unused for longer than one
period are freed. Allocating a block again takes milliseconds, in which the driver launches no kernel."""
_ASYNC = 115
"""Number of CUDA's device attribute cudaDevAttrMemoryPoolsSupported: whether the GPU can free memory without waiting
for running work."""

_NULL_STREAM, _HELD = 0, -1
"""Special values of a block's stream number: CUDA's default stream, and -1 for a block that its user releases only
after all work with the block is done."""


Owner = Literal["arrays", "workspaces", "files"]
"""Purpose of allocated device memory: "arrays" for outputs and intermediate results, "workspaces" for scratch memory of
kernels, "files" for encoded bytes and metadata."""


class OutOfMemoryError(MemoryError):
    """Raised if an allocation exceeds the memory pool's limit or the free memory of the GPU."""


def block_size(nbytes: int) -> int:
    """Return the size of the block to allocate for ``nbytes``: one of 32 sizes per power of two, at most a 32nd too
    large."""
    if nbytes <= SMALL:
        return nbytes
    step = 1 << max((nbytes - 1).bit_length() - 6, 0)
    return -(-nbytes // step) * step


class _Block:
    """A block of device memory in a `DevicePool`, in use or cached for reuse."""

    __slots__ = ("address", "memory", "owner", "returned", "size", "stream")

    def __init__(self, address: int, size: int, memory: Any) -> None:
        self.address, self.size = address, size
        self.memory = memory
        """CuPy object that owns the memory, if the user's allocator provided it; None if the driver did."""
        self.stream = 0
        """Number of the CUDA stream for whose work the block was allocated."""
        self.owner: Owner = "arrays"
        """Purpose for which the block is used now, or was used last."""
        self.returned = 0.0
        """Time at which the block became unused (time.monotonic)."""


class _Lease:
    """Owner of a memory block of the pool while arrays use the block; each array refers to the owner. When the last
    reference is dropped, in any thread, the block returns to the pool."""

    __slots__ = ("_block", "_returned")

    def __init__(self, block: _Block, returned: deque[_Block]) -> None:
        self._block, self._returned = block, returned

    def __del__(self) -> None:
        self._returned.append(self._block)


class DevicePool:
    """Memory pool of one GPU. Created by `pool_of`, never closed; any thread may use it while the GPU is current."""

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
        """Unused blocks that work on any CUDA stream may use."""
        self._local: dict[int, list[_Block]] = {}
        """Unused blocks by stream number. Only later work of the same CUDA stream may use them."""
        self._busy: set[int] = set()
        """Numbers of the streams that got work since they were last synchronized."""
        # appended to without the lock: a destructor may do it during garbage collection
        self._returned: deque[_Block] = deque()
        self.held = 0
        """Bytes of all blocks of the pool, in use or cached."""
        self.live = 0
        """Approximate bytes of blocks in use. A released block counts until its stream is synchronized, because work on
        the stream may still use it."""
        self.peak_held = self.peak_live = 0
        """Maximum of `held`, and maximum of `live`, since a memory limit was first set."""
        self._of: dict[Owner, int] = dict.fromkeys(get_args(Owner), 0)
        self.peaks: dict[Owner, int] = dict(self._of)
        """Bytes in use by each purpose, at the time when `live` was largest."""
        self.made = 0
        """Number of blocks that the pool has allocated from the driver so far."""
        self._high, self._before = 0, 0
        """Maximum bytes in use during the current `WINDOW`, and during the previous one."""
        self._began = time.monotonic()

    # -- use ------------------------------------------------------------------------------------------------------

    def use_program_allocator(self) -> None:
        """From now on, allocate blocks with CuPy's current allocator, if the user's program has set one."""
        import cupy

        allocator = cupy.cuda.get_allocator()
        # not inside a lane
        if not isinstance(getattr(getattr(allocator, "__self__", None), "memory", None), DevicePool):
            default = cupy.get_default_memory_pool().malloc
            self._allocator = None if allocator == default else allocator

    def allocate(self, nbytes: int, stream: int, owner: Owner = "arrays", *, held: bool = False) -> Any:
        """Return uninitialised device memory for work on the CUDA stream number ``stream``, as CuPy's MemoryPointer.
        ``held``: the caller releases the memory only after all work with it, so that any stream may get it next. Raises
        OutOfMemoryError, and the driver's exceptions."""
        if nbytes <= SMALL:
            self._busy.add(stream)
            return (self._allocator or self._of_cupy)(max(nbytes, 1))
        import cupy

        size = block_size(nbytes)
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

    def mark_busy(self, stream: int) -> None:
        """Record that CUDA stream ``stream`` is about to get work that may use the pool's memory."""
        self._busy.add(stream)

    def mark_done(self, stream: int) -> None:
        """Record that all work of CUDA stream ``stream`` has finished. Blocks that it released become available to all
        streams."""
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
        """Set how much ``owner``, such as a running job, adds to the pool's memory limit: ``nbytes``, or nothing if
        None. The limit is the sum over all owners. When no owner is left, cached blocks are freed, and there is no
        limit."""
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
        """Free all cached blocks that no enqueued work can still use."""
        with self._lock:
            self._sort()
            self._free(self.held)

    @property
    def idle(self) -> int:
        """Bytes of cached blocks that could be freed now."""
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
        except Exception:  # whatever the exception is: the idle blocks may have been enough
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
        """Free at least ``nbytes`` of cached blocks, if there are as many; blocks unused for longest come first. Blocks
        that only one stream may use are kept."""
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
    """Remove from ``idle`` the smallest block of at least ``size`` bytes, and return the block. Return None if there is
    no such block, or if it is larger than `MAX_SLACK` allows."""
    fits = [b for b in idle if size <= b.size <= MAX_SLACK * size]
    if not fits:
        return None
    block = min(fits, key=lambda b: b.size)
    assert isinstance(idle, list)
    idle.remove(block)
    return block


_making = threading.Lock()


def pool_of(index: int) -> DevicePool:
    """Return the memory pool of GPU ``index``. Each process has one per GPU."""
    with _making:
        return _pool_of(index)


@cache
def _pool_of(index: int) -> DevicePool:
    return DevicePool(index)


def limit_pool(index: int, owner: object, nbytes: int | None) -> None:
    """Set how much ``owner``, such as a running job, adds to the memory limit of GPU ``index``. See
    `DevicePool.limit`."""
    with OnGpu(index):
        pool_of(index).limit(owner, nbytes)


def device_memory(index: int) -> tuple[int, int]:
    """Return the available bytes of GPU ``index`` (free, or cached in the pool), and its total bytes."""
    import cupy

    with OnGpu(index):
        free, total = cupy.cuda.runtime.memGetInfo()
        return int(free) + pool_of(index).idle, int(total)
