"""Lanes: CUDA streams with their memory and staging buffers, on which the kernels of one batch in flight run.

Only this module and kernels import CuPy, so that the CPU path never needs it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..compiled import binaries
from ..compiled.times import times
from ..errors import DeviceError, SpecError
from ..kernels import Kernels
from . import driver_calls as stream_work
from . import page_locked, registered
from .current import OnGpu
from .device_memory import Owner, pool_of
from .readable_by_gpu import lease_of, show
from .watchdog import waiting

SOURCES = Path(__file__).parents[1] / "cuda"

_loops: Any = Kernels(".driver_calls_cpu", __package__)

U8 = npt.NDArray[np.uint8]
_ALIGNMENT = 256
Launch = tuple[str, str, int, int, tuple[Any, ...]]
"""One kernel launch: source file, kernel name, number of blocks, threads per block, arguments."""


class Arena:
    """Host memory for copies to or from a GPU. `take` returns ranges of a block one after the other, or a larger block
    if none fits. `reset` releases all ranges together, and keeps the largest block, so that later batches need no
    other."""

    def __init__(self, allocate: Callable[[int], U8], first: int = 1 << 20) -> None:
        self._allocate = allocate
        self._first = first
        self._blocks: list[U8] = []
        self._at = 0

    def take(self, nbytes: int) -> U8:
        """Return ``nbytes`` of uninitialised memory, aligned to 256 bytes from the start of their block."""
        size = aligned(nbytes)
        if not self._blocks or self._at + size > len(self._blocks[-1]):
            grown = 2 * len(self._blocks[-1]) if self._blocks else self._first
            self._blocks.append(self._allocate(max(grown, size)))
            self._at = 0
        piece = self._blocks[-1][self._at : self._at + nbytes]
        self._at += size
        return piece

    def reset(self) -> None:
        """Release all ranges that `take` returned. Their contents remain until `take` returns the memory again."""
        del self._blocks[:-1]
        self._at = 0


def aligned(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to a multiple of 256, the alignment of arrays in device memory."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


_MOST_ACROSS = 65535
"""CUDA's limit on the number of thread blocks along the second and third axis of a grid. Kernels with one thread block
per sample put samples on these axes."""


def blocks(grid: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return a CUDA grid as a tuple, or () if it has no blocks. Raises SpecError if it exceeds CUDA's limits."""
    grid = (grid,) if isinstance(grid, int) else grid
    if max(grid[1:], default=0) > _MOST_ACROSS:
        raise SpecError(
            f"{max(grid[1:]):,} samples at once are more than the {_MOST_ACROSS:,} that a GPU's kernel takes: "
            "make batches smaller"
        )
    return grid if min(grid) > 0 else ()


_idle_streams: dict[int, list[Any]] = {}
"""CUDA streams of closed lanes, for reuse by new lanes, by GPU. Creating a stream takes long, and CuPy's pool reuses a
small block only on the stream for which the block was allocated."""


def _idle_stream(index: int) -> Any:
    import cupy

    try:
        return _idle_streams[index].pop()
    except (KeyError, IndexError):
        return cupy.cuda.Stream(non_blocking=True)


def borrow_stream(index: int) -> Any:
    """Return a CUDA stream of GPU ``index`` that no other code uses. The caller gives it back with `return_stream`."""
    with OnGpu(index):
        return _idle_stream(index)


def return_stream(index: int, stream: Any) -> None:
    """Take back a stream that `borrow_stream` returned, for reuse. All work on the stream must have finished."""
    _idle_streams.setdefault(index, []).append(stream)


class Lane:
    """One CUDA stream of a GPU, with its memory and staging buffers. All launches and copies on a lane run in order.
    Memory comes from one pool for all lanes of the process (`device_memory`): what the host releases may be reused by
    later work of this lane, and after `synchronize` also by other lanes. Inside ``with lane``, CuPy's own functions use
    the pool too. One thread at a time uses a lane: the thread that launches a batch, then the one that completes the
    batch. The engine's `OpenLanes` creates and closes lanes."""

    def __init__(self, index: int = 0, stream: Any = None) -> None:
        """Create a lane with a CUDA stream of its own, or with ``stream``, a CuPy stream. Raises DeviceError if GPU
        ``index`` cannot be used."""
        self._borrowed = stream is not None
        try:
            import cupy

            self.index = index
            self.gpu = OnGpu(index)
            with self.gpu:
                self.stream = _idle_stream(index) if stream is None else stream
                self.memory = pool_of(index)
                self.memory.use_program_allocator()
            self._allocators: list[AbstractContextManager[object]] = []
            self._using_allocator = cupy.cuda.using_allocator
            page_lock_through(index)
            self._work = self.work()
        except Exception as e:  # CuPy raises ImportError, CUDARuntimeError, CompileException and others
            raise DeviceError(f"GPU {index} cannot be used: {e}; run `dali-run doctor`") from e
        self._closed = False
        self._aside: Any = None
        self._apart = False
        self._in_flight: list[Any] = []
        self._pinned = Arena(pinned_empty)
        self._kernels: dict[tuple[str, str], Any] = {}
        self._handles: dict[tuple[str, str], int] = {}
        self._idle_events: list[Any] = []
        self.cache: dict[str, Any] = {}
        """Objects that operators keep between batches on this CUDA stream, such as decoders and workspaces, by key."""

    @property
    def context(self) -> int:
        """Handle of the GPU's CUDA context (CUcontext), for libraries that take one."""
        import cupy

        with self.gpu:
            return int(cupy.cuda.driver.ctxGetCurrent())

    def __enter__(self) -> Lane:
        self.gpu.__enter__()
        self.stream.__enter__()
        self.memory.mark_busy(self.stream.ptr)
        using = self._using_allocator(self._memory)
        using.__enter__()
        self._allocators.append(using)
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is not None:  # the operator that failed may not have called `join`
            with suppress(Exception):  # the first error is reported
                self.join()
        self._allocators.pop().__exit__(None, None, None)
        self.stream.__exit__(*exc)
        self.gpu.__exit__(*exc)

    def empty(self, n: int, dtype: Any) -> Any:
        """Return an uninitialised flat device array of ``n`` elements, for work on this CUDA stream."""
        import cupy

        return cupy.ndarray((n,), dtype, self._memory(n * np.dtype(dtype).itemsize))

    def _memory(self, nbytes: int, owner: Owner = "arrays") -> Any:
        """Return ``nbytes`` of device memory for work on this CUDA stream, as CuPy's MemoryPointer."""
        return self.memory.allocate(nbytes, self.stream.ptr, owner)

    def upload(self, *arrays: npt.NDArray[Any]) -> tuple[Any, ...]:
        """Copy host arrays to the device, by one asynchronous copy through page-locked memory. The host arrays may be
        changed as soon as this returns."""
        import cupy

        starts, at = [], 0
        for a in arrays:
            starts.append(at)
            at += aligned(a.nbytes)
        staged = self.pinned(max(at, 1))
        for a, s in zip(arrays, starts, strict=True):
            staged[s : s + a.nbytes] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
        memory = self._memory(len(staged), "files")
        self.copy_in(memory.ptr, staged)
        return tuple(cupy.ndarray(a.shape, a.dtype, memory + s) for a, s in zip(arrays, starts, strict=True))

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch in device memory. If the batch is in host memory, upload its whole array, including gaps
        between samples."""
        import cupy

        if not batch.on_host:
            return batch
        lease = lease_of(batch.data)
        if lease is not None:
            return batch.replace(data=lease.bring(self, batch), offsets=lease.places(batch))
        lo, hi = _extent(batch)
        host = np.ascontiguousarray(batch.data[lo:hi])
        device = cupy.ndarray((hi - lo,), batch.dtype, self._memory(host.nbytes, "files"))
        if hi > lo:
            source = host if is_pinned(host) else self._stage(host)
            self.copy_in(device.data.ptr, source)
            self._in_flight.append(source)
        return batch.replace(data=device, offsets=batch.offsets - lo)

    def _stage(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        staged = pinned_empty(host.nbytes)
        staged[:] = host.view(np.uint8)
        return staged

    def to_host(self, batch: Batch) -> Batch:
        """Return the batch in host memory. The copy to page-locked memory is asynchronous: synchronize before reading
        it."""
        if batch.on_host:
            show(batch)
            return batch
        lo, hi = _extent(batch)
        return batch.replace(data=self.download(batch.data[lo:hi]), offsets=batch.offsets - lo)

    def download(self, array: Any) -> npt.NDArray[Any]:
        """Return a flat device array in page-locked host memory. The copy is asynchronous: synchronize before reading
        it."""
        host = pinned_empty(array.nbytes)
        if array.nbytes:
            self._work.copy_out(host.ctypes.data, array.data.ptr, array.nbytes)
            self._work.submit()
            self._in_flight.append(array)
        return host.view(array.dtype)

    # -- raw memory, for kernels that take one block of parameters -----------------------------------------------

    def pinned(self, nbytes: int) -> U8:
        """Return ``nbytes`` of uninitialised page-locked memory. After `synchronize`, later allocations may reuse the
        memory. Operators therefore wait with `wait`, not with `synchronize`: other operators of the same batch still
        use such memory."""
        return self._pinned.take(nbytes)

    def allocate(self, nbytes: int) -> tuple[Any, int]:
        """Allocate ``nbytes`` of device memory. Return the object that owns the memory, and its address, a multiple of
        256."""
        memory = self._memory(nbytes, "workspaces")
        return memory, int(memory.ptr)

    def address(self, array: Any) -> int:
        """Return the address of a device array."""
        return int(array.data.ptr)

    def copy_in(self, address: int, host: npt.NDArray[Any]) -> None:
        """Start copying the page-locked array ``host`` to a device address. The array must stay unchanged until
        `synchronize`."""
        self._work.copy_in(address, host.ctypes.data, host.nbytes)
        self._work.submit()

    def copy(self, address: int, source: int, nbytes: int) -> None:
        """Start copying ``nbytes`` on the device, from address ``source`` to ``address``."""
        import cupy

        runtime = cupy.cuda.runtime
        runtime.memcpyAsync(address, source, nbytes, runtime.memcpyDeviceToDevice, self.stream.ptr)

    def copies_in(self, to: I64, host: I64, nbytes: I64) -> None:
        """Start copying many page-locked blocks to the device: ``nbytes[i]`` bytes from host address ``host[i]`` to
        device address ``to[i]``. See `copy_in`."""
        self._work.copies_in(to, host, nbytes)

    def copy_out(self, address: int, nbytes: int) -> U8:
        """Copy ``nbytes`` from a device address to page-locked memory (`pinned`), and return this memory. The copy is
        asynchronous: synchronize before reading it."""
        host = self.pinned(nbytes)
        self._work.copy_out(host.ctypes.data, address, nbytes)
        self._work.submit()
        return host

    def functions(self, text: str, names: Sequence[str]) -> Mapping[str, Any]:
        """Return the kernels ``names`` of the CUDA source ``text``, by name, for `Work.launch`. Each kernel takes a
        single pointer."""

        with _compiling, self.gpu:
            if (ready := _image(text, None, "", self.index)) is not None:
                return {name: ready[0].get_function(name) for name in names}
            with times.by_nvrtc(names[0]):
                module = _text_module(text, self.index)
            return {name: module.get_function(name).kernel for name in names}  # each function keeps its module loaded

    def launches(
        self, kernels: Sequence[tuple[Any, tuple[int, ...], int, tuple[Any, ...]]], places: Sequence[tuple[int, int]]
    ) -> stream_work.Launches:
        """Return a fixed sequence of kernel launches that can be launched many times on this CUDA stream; see
        `driver_calls.Launches`."""
        return stream_work.Launches(self.stream.ptr, kernels, places)

    def stopwatch(self) -> stream_work.Stopwatch:
        """Return the timer for work on this CUDA stream; one measurement at a time. Call it inside ``with lane``."""
        found: stream_work.Stopwatch | None = self.cache.get("stopwatch")
        if found is None:
            found = self.cache["stopwatch"] = stream_work.Stopwatch(self.stream.ptr)
        return found

    def work(self) -> stream_work.Work:
        """Return the queue of driver calls for this CUDA stream. `driver_calls.Work.submit` makes all queued calls
        together."""
        return stream_work.Work(self.stream.ptr)

    # -- kernels -------------------------------------------------------------------------------------------------

    def launch(self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """Launch ``kernel`` of ``ops/cuda/<source>``; a template is named with its types, as in ``copy<float, unsigned
        char>``.

        Scalars must be NumPy scalars of the parameter's exact type (np.int32(3)); arrays are device arrays.
        """
        if grid := blocks(grid):
            self.function(source, kernel)(grid, (block,), args, stream=self.stream)

    def launch_beside(
        self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any
    ) -> None:  # fmt: skip
        """Launch a kernel on a second CUDA stream: after all earlier launches of this lane, and at the same time as
        later ones until `join`. Meant for kernels that take long and leave most of the GPU idle. Array arguments are
        kept alive until `synchronize`, so that no later work gets their memory."""
        self._in_flight += args
        if self._aside is None:
            with self.gpu:
                self._aside = _idle_stream(self.index)
        # every time, because arguments may have been copied since the last launch
        self._aside.wait_event(self.stream.record())
        self._apart = True
        if grid := blocks(grid):
            self.function(source, kernel)(grid, (block,), args, stream=self._aside)

    def join(self) -> None:
        """Make later launches on this CUDA stream wait for the kernels that `launch_beside` started on a second
        stream."""
        if self._apart:
            self.stream.wait_event(self._aside.record())
            self._apart = False

    def scratch(self, *sizes: int) -> tuple[Any, list[int]]:
        """Make one allocation of uninitialised device memory for arrays of these ``sizes`` in bytes. Return the object
        that owns the memory, and the address of each array, a multiple of 256. When no reference to the owner is left,
        later work on this CUDA stream may get the memory."""
        at, places = 0, []
        for size in sizes:
            places.append(at)
            at += aligned(size)
        memory = self._memory(at, "workspaces")
        first = int(memory.ptr)
        return memory, [first + place for place in places]

    def launch_all(
        self, launches: Sequence[Launch], into: Sequence[tuple[int, U8]] = (),
        out_of: Sequence[tuple[npt.NDArray[Any], int]] = (),
    ) -> None:  # fmt: skip
        """Launch kernels in order, and release the GIL only once. Kernel arguments are as in `launch`, but only
        pointers and integers; plain Python integers are addresses. Grids are one-dimensional. ``into``: copies from
        page-locked memory to device addresses, before the kernels. ``out_of``: copies from device addresses to
        page-locked memory, after the kernels. The page-locked memory comes from `pinned`."""
        calls = [
            (self.handle(source, kernel), grid, block, [a if type(a) is int else self._value(a) for a in args])
            for source, kernel, grid, block, args in launches if grid > 0
        ]  # fmt: skip
        work = self._work
        for address, host in into:
            work.copy_in(address, host.ctypes.data, host.nbytes)
        for handle, grid, block, values in calls:
            work.launch(handle, grid, block, *values)
        for host, address in out_of:
            work.copy_out(host.ctypes.data, address, host.nbytes)
        work.submit()

    def _value(self, argument: Any) -> int:
        return int(argument) if isinstance(argument, np.integer) else self.address(argument)

    def function(self, source: str, kernel: str) -> Any:
        """Return the compiled ``kernel`` of the file ``source`` in ops/cuda."""
        key = source, kernel
        if key not in self._kernels:
            self._kernels[key] = load(source, kernel, self.index)
        return self._kernels[key]

    def handle(self, source: str, kernel: str) -> int:
        """Return the driver's handle of the ``kernel`` of the file ``source`` in ops/cuda, for use with `work`."""
        found = self._handles.get((source, kernel))
        if found is None:
            function = self.function(source, kernel)
            found = self._handles[source, kernel] = int(getattr(function, "kernel", function).ptr)
        return found

    def launch_text(self, text: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """Launch ``kernel`` of the CUDA source ``text``, like `launch`. The compiler does not join products and sums to
        fused multiply-adds, so that generated arithmetic gives the same results as on the CPU."""
        if grid := blocks(grid):
            self.function_of_text(text, kernel)(grid, (block,), args, stream=self.stream)

    def function_of_text(self, text: str, kernel: str) -> Any:
        """Return the compiled ``kernel`` of the CUDA source code ``text``."""
        with _compiling:
            return _load_text(text, kernel, self.index)

    def keep(self, *things: Any) -> None:
        """Keep references to ``things`` (host or device memory) until all work enqueued on this CUDA stream so far is
        done."""
        self._in_flight.extend(things)

    def holds(self, batch: Batch) -> bool:
        """Return whether the batch's data is in device memory."""
        return not batch.on_host

    def after(self, event: Any) -> None:
        """Make later work on this CUDA stream wait for ``event``, a CUDA event recorded on another stream."""
        self._work.wait(event.ptr)
        self._work.submit()

    def wait(self) -> None:
        """Wait for all work on this CUDA stream. In contrast to `synchronize`, references stored by `keep` are not
        dropped."""
        self.join()
        with waiting(self.index), self.gpu:
            self.stream.synchronize()

    def release_memory(self, *, launching: bool) -> None:
        """Wait for all work on this CUDA stream, then free the unused blocks of all memory pools. ``launching``:
        whether the calling thread launches kernels on the stream; if so, also drop the references that `keep` has
        stored and the memory that operators cache."""
        self.wait()
        if launching:
            self._in_flight.clear()
            for kept in self.cache.values():
                if hasattr(kept, "release"):
                    kept.release()
            self.memory.mark_done(self.stream.ptr)
            self.memory.mark_busy(self.stream.ptr)
        self.memory.free_idle()
        _blocks.clear()
        give_back_pinned()

    def synchronize(self) -> None:
        """Wait for all work on this CUDA stream, and drop the references that `keep` has stored."""
        self.wait()
        self.drop_references()

    def drop_references(self) -> None:
        """Drop the references that `keep` has stored. The caller must know that all work on the CUDA stream is done."""
        self._in_flight.clear()
        self._pinned.reset()
        self.memory.mark_done(self.stream.ptr)

    def close(self) -> None:
        """Wait for all work on this CUDA stream, and give its memory and streams back for reuse; the lane cannot be
        used afterwards. Memory that is still referenced elsewhere is given back when it is released."""
        if self._closed:
            return
        self._closed = True
        self.wait()
        self.cache.clear()
        self.drop_references()
        for stream in (self._aside, None if self._borrowed else self.stream):
            if stream is not None:
                return_stream(self.index, stream)

    # -- times ---------------------------------------------------------------------------------------------------

    def mark(self) -> Any:
        """Record a CUDA event on this stream and return it. The event completes when all work launched so far is
        done."""
        import cupy

        event = self._idle_events.pop() if self._idle_events else cupy.cuda.Event()
        self._work.record(event.ptr)
        self._work.submit()
        return event

    def reuse_marks(self, marks: list[Any]) -> None:
        """Take back events that `mark` returned, for reuse by later calls of `mark`."""
        self._idle_events += marks

    def seconds_since(self, begin: Any, end: Any) -> float:
        """Return the seconds of GPU time between two events of `mark`. Call it after `synchronize`."""
        return self.seconds_between([(begin, end)])[0]

    def seconds_between(self, marks: Sequence[tuple[Any, Any]]) -> list[float]:
        """Return the seconds of GPU time between the two events of each pair, by one call of the driver."""
        with self.gpu:
            return [m / 1e3 for m in stream_work.milliseconds([(begin.ptr, end.ptr) for begin, end in marks])]


def _extent(batch: Batch) -> tuple[int, int]:
    if len(batch) == 0:
        return 0, 0
    low, high = _loops.extent(np.ascontiguousarray(batch.offsets), np.ascontiguousarray(batch.shapes))
    return int(low), int(high)


def places_on_device(batch: Batch) -> I64:
    """Return the index of each sample's first element in the device array that `Lane.to_device` would create for
    ``batch``, which is in host memory."""
    lease = lease_of(batch.data)
    if lease is not None:
        return lease.places(batch)
    return batch.offsets - _extent(batch)[0]


def foreign(value: Any) -> Any:
    """Return another library's GPU array as a CuPy array, without a copy. If the library supports DLPack, CuPy's
    current stream waits for the stream of the array. Other interfaces need not name that stream."""
    import cupy

    if isinstance(value, cupy.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        with suppress(BufferError, TypeError, RuntimeError, ValueError):  # for example a type that DLPack does not have
            return cupy.from_dlpack(value.detach() if hasattr(value, "detach") else value)
    return cupy.asarray(value)


_blocks = page_locked.PageLockedPool()


def page_locked_blocks() -> page_locked.PageLockedPool:
    """Return this process's pool of large page-locked blocks. Cached blocks count against the memory budgets of running
    jobs."""
    return _blocks


def pinned_empty(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return an uninitialised page-locked host buffer, from CuPy's pool or, if it is large, from
    `page_locked_blocks`."""
    if nbytes > page_locked.MIN_BLOCK:
        return _blocks.empty(nbytes, _large_pinned)
    return np.frombuffer(_alloc_pinned(nbytes), np.uint8, nbytes)


def _large_pinned(nbytes: int) -> Any:
    """Allocate a large block of ``nbytes`` page-locked memory, by the method during which other threads can use the
    driver if possible."""
    index = _page_locking.get("gpu")
    if index is not None and registered.same_address(index):
        try:
            return registered.Locked(nbytes, index)
        except Exception as e:  # CUDARuntimeError: no more memory can be locked
            _tell(f"{type(e).__name__}: {e}")
    return _alloc_pinned(nbytes)


@lru_cache(16)
def _tell(why: str) -> None:
    """Log, once, that the driver itself allocates page-locked memory, which takes three times as long and blocks other
    work in the driver meanwhile. ``why``: the reason."""
    import logging

    logging.getLogger(__name__).debug("page-locked memory is made by the driver, not registered: %s", why)


def _alloc_pinned(nbytes: int) -> Any:
    """Allocate page-locked memory from CuPy's pool, which reuses a block only for the same size and never frees one.
    Sizes are rounded up to a few values, so that batches of similar size share blocks: a new block costs milliseconds.
    Unused blocks are freed here if an allocation fails, and after every `PINNED_SPARE` bytes of new blocks (or an
    eighth of the smallest job's memory budget)."""
    import cupy

    step = max(512, 1 << max(nbytes - 1, 0).bit_length() - 3) if nbytes > 4096 else 512
    size = max(-(-nbytes // step) * step, 512)
    try:
        with _page_locking_gpu():
            block = cupy.cuda.alloc_pinned_memory(size)
    except Exception:  # CUDARuntimeError: too much memory is locked already
        give_back_pinned()
        with _page_locking_gpu():
            return cupy.cuda.alloc_pinned_memory(size)
    with _pinning:
        where = getattr(block, "ptr", id(block))
        if where not in _new_blocks:  # identified by address: other threads take and return blocks meanwhile
            _new_blocks[where] = size
            if sum(_new_blocks.values()) > min(PINNED_SPARE, _blocks.smallest_budget // 8):
                _new_blocks.clear()
                give_back_pinned()
    return block


def give_back_pinned() -> None:
    """Free the unused page-locked memory in CuPy's pool."""
    import cupy

    with _page_locking_gpu():
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def page_lock_through(index: int) -> None:
    """Make GPU ``index`` current whenever memory is page-locked. Only the first call in a process has an effect.
    Page-locking creates a CUDA context on the current GPU, and threads that read and decode have not chosen one. All
    GPUs can use page-locked memory."""
    _page_locking.setdefault("gpu", index)


def _page_locking_gpu() -> AbstractContextManager[object]:
    return OnGpu(_page_locking["gpu"]) if _page_locking else nullcontext()


_page_locking: dict[str, int] = {}
"""The GPU that is current while memory is page-locked, as ``gpu``; empty before `page_lock_through`. Threads that read
files share it."""


PINNED_SPARE = 4 << 30
_new_blocks: dict[int, int] = {}
"""Sizes in bytes, by address, of the blocks that CuPy's page-locked pool has allocated since `give_back_pinned` was
called here. All lanes share that pool."""
_pinning = threading.Lock()


def is_pinned(host: npt.NDArray[Any]) -> bool:
    """Return whether the array is a view of memory from `pinned_empty`."""
    base: Any = host
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return isinstance(base, page_locked.Lease) or type(base).__name__ == "PinnedMemoryPointer"


_compiling = threading.Lock()


@cache
def _module(source: str, kernels: tuple[str, ...], index: int) -> Any:
    import cupy

    with OnGpu(index):
        return cupy.RawModule(
            code=(SOURCES / source).read_text(),
            options=("--std=c++17", f"-I{SOURCES}"),
            name_expressions=kernels or None,
        )


@cache
def _image(text: str, folder: Path | None, kernel: str, index: int) -> tuple[Any, str] | None:
    """Return the CUDA module of the wheel that contains ``kernel`` of the source ``text``, loaded, and the kernel's
    name in the module. Return None if the wheel has no binary for this GPU, or if the driver accepts none."""
    if not binaries.there_are_any():
        return None
    import cupy

    capability, runtime = int(cupy.cuda.Device(index).compute_capability), cupy.cuda.runtime
    for cuda in binaries.majors(runtime.runtimeGetVersion() // 1000, runtime.driverGetVersion() // 1000):
        found = binaries.find(binaries.digest(text, folder), kernel, capability, cuda)
        if found is None:
            continue
        module = cupy.cuda.function.Module()
        try:
            with OnGpu(index):
                module.load(found[0])
        except cupy.cuda.driver.CUDADriverError:  # for example PTX that is newer than the driver
            continue
        times.images += 1
        return module, found[1]
    return None


@cache
def _load(source: str, kernel: str, index: int) -> Any:
    instance = kernel if "<" in kernel else ""
    if (ready := _image((SOURCES / source).read_text(), SOURCES, instance, index)) is not None:
        module, name = ready
        return module.get_function(name or kernel)
    with times.by_nvrtc(f"{source} {instance}".rstrip()):
        return _module(source, (kernel,) if "<" in kernel else (), index).get_function(kernel)


@cache
def _text_module(text: str, index: int) -> Any:
    import cupy

    with OnGpu(index):
        return cupy.RawModule(code=text, options=("--std=c++17",), backend="nvrtc")


@lru_cache(1024)
def _load_text(text: str, kernel: str, index: int) -> Any:
    import cupy

    with times.by_nvrtc(kernel), OnGpu(index):
        module = cupy.RawModule(code=text, options=("--std=c++17", f"-I{SOURCES}", "--fmad=false"))
        return module.get_function(kernel)


def load(source: str, kernel: str, index: int = 0) -> Any:
    """Return the compiled ``kernel`` of ``source``. It comes from the wheel's CUDA binaries; if they lack it, NVRTC
    compiles it at the first use, and CuPy caches the result on disk."""
    with _compiling:
        return _load(source, kernel, index)


@cache
def gpu_count() -> int:
    """Return the number of usable GPUs; 0 without CuPy or a driver. Imports CuPy, which is slow: not called while a
    command line or spec is parsed."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # whatever is missing, no GPU can be used
        return 0
