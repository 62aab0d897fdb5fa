"""A stand-in for CuPy without a GPU: the part of it that `ops.device.Lane` and the CUDA JPEG decoder use.

With ``memory``, device memory is host memory, copies copy, and kernels are compiled by g++ and cuda_emulator.h, so that
the engine's whole GPU path runs. Without it, nothing is stored or computed: only the host's own work remains. With
``late``, a stream does nothing before a thread waits for it: host memory that is reused too early is noticed.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import time
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from dali_run.ops.gpu import driver_calls as stream_work

from .emulated_lane import PlainLaunches
from .listed_kernels import launched_of

_MODULES = ("cupy", "cupy.cuda", "cupy.cuda.runtime", "cupy.cuda.driver")
_FIRST_ADDRESS = 1 << 40
_current = threading.local()
_emulating = threading.Lock()
"""Held while a kernel runs, because the emulator's library has one global state."""


class PinnedMemoryPointer(mmap.mmap):
    """Page-locked memory, with the class name that `device.is_pinned` checks."""


class Pointer:
    """Stand-in for cupy.cuda.MemoryPointer."""

    def __init__(self, ptr: int, owner: Any = None) -> None:
        self.ptr, self.owner = ptr, owner

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.ptr + offset, self.owner)


class Array:
    """Stand-in for cupy.ndarray, C-contiguous."""

    def __init__(self, shape: Any, dtype: Any, memptr: Pointer) -> None:
        self.shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        self.dtype, self.data = np.dtype(dtype), memptr
        self.device = Device(_current_device())
        self.size = 1
        for extent in self.shape:
            self.size *= int(extent)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    flags = types.SimpleNamespace(c_contiguous=True)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(int(np.prod(self.shape[k + 1 :])) * self.dtype.itemsize for k in range(self.ndim))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.data.ptr, False), "shape": self.shape, "typestr": self.dtype.str, "version": 3}

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: Any) -> Array:
        if isinstance(where, tuple):
            assert all(w == slice(0, 0) for w in where)
            return self.reshape(-1)[:0]._as((0,) * self.ndim, self.dtype)
        if where is Ellipsis:
            return self
        if not isinstance(where, slice):
            assert 0 <= where < self.shape[0]
            return self.reshape(-1)[where * self.size // self.shape[0] :]._as(self.shape[1:], self.dtype)
        low, high, _ = where.indices(self.shape[0])
        apart = self.strides[0]
        made = Array((max(high - low, 0), *self.shape[1:]), self.dtype, self.data + low * apart)
        made.device = self.device
        return made

    def __setitem__(self, where: Any, other: Array) -> None:
        part = self[where]
        _on(_current_stream(), lambda: ctypes.memmove(part.data.ptr, other.data.ptr, part.nbytes))

    def fill(self, value: Any) -> None:
        values = np.full(self.shape, value, self.dtype)
        _on(_current_stream(), lambda: ctypes.memmove(self.data.ptr, values.ctypes.data, self.nbytes))

    def view(self, dtype: Any) -> Array:
        return self._as(self.nbytes // np.dtype(dtype).itemsize, dtype)

    def reshape(self, *shape: Any) -> Array:
        shape = shape[0] if len(shape) == 1 else shape
        if isinstance(shape, (tuple, list)) and -1 in shape:
            known = -int(np.prod(shape))
            shape = [self.size // known if extent == -1 else extent for extent in shape]
        return self._as(self.size if shape == -1 else shape, self.dtype)

    def _as(self, shape: Any, dtype: Any) -> Array:
        made = Array(shape, dtype, self.data)
        made.device = self.device
        return made

    def copy(self) -> Array:
        """Copy the array to the current device, from whichever device has it."""
        import cupy

        made: Array = cupy.empty(self.shape, self.dtype)
        _on(_current_stream(), lambda: ctypes.memmove(made.data.ptr, self.data.ptr, self.nbytes))
        return made

    def get(self) -> np.ndarray:
        """Copy the array to the host on the current stream, without waiting for other streams."""
        with self.device:  # like CuPy
            _current_stream().synchronize()
        raw = (ctypes.c_uint8 * max(self.nbytes, 1)).from_address(self.data.ptr)
        return np.frombuffer(raw, np.uint8, self.nbytes).view(self.dtype).reshape(self.shape).copy()


class _Context:
    def __init__(self, index: int = 0, **options: Any) -> None:
        self.ptr = index

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Device(_Context):
    """Stand-in for cupy.cuda.Device: each thread has its current device. As in CUDA 12, setting a device creates a
    context on it, also when the previous device is restored."""

    @property
    def id(self) -> int:
        return self.ptr

    def __enter__(self) -> Device:
        _push(self.ptr)
        _called()
        return self

    def __exit__(self, *exc: object) -> None:
        _pop()
        _called()


def _push(index: int) -> int:
    """Make a device current, without touching the previous one afterwards: stand-in for ops.gpu.current."""
    _current.devices = [*getattr(_current, "devices", [0]), index]
    return 0


def _pop(popped: None = None) -> int:
    _current.devices.pop()
    return 0


def _current_device() -> int:
    found: int = getattr(_current, "devices", [0])[-1]
    return found


_contexts: set[int] = set()
"""GPUs on which a CUDA call has created a context: the GPU that was current at the call."""


def _called() -> None:
    """Record a call of the runtime: if no GPU was current in this thread, GPU 0 is from now on."""
    _contexts.add(_current_device())
    if _none_was_made_current():
        _current.has_one = True


def _called_by_driver() -> None:
    """Record a call of the driver, which uses the current context, and creates none."""
    assert not _none_was_made_current() or getattr(_current, "has_one", False), "no GPU is current in this thread"


def _none_was_made_current() -> bool:
    return len(getattr(_current, "devices", [0])) == 1


def _that_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``function`` as a CUDA function that creates a context on the current GPU if there is none."""

    def call(*args: Any, **options: Any) -> Any:
        _called()
        return function(*args, **options)

    return call


class Stream(_Context):
    """Stand-in for cupy.cuda.Stream."""

    late = False
    """Whether work is done only when a thread waits for it."""

    def __init__(self, non_blocking: bool = False) -> None:
        _called()
        with _numbering:
            self.begin(len(_streams) + 1)
            _streams[self.ptr] = self

    def begin(self, number: int) -> None:
        self.device, self.ptr = _current_device(), number
        self._calls: deque[Callable[[], Any]] = deque()
        self.given = self.done = 0
        self._giving = threading.Lock()
        self._doing = threading.RLock()

    def __enter__(self) -> Stream:
        _current.streams = [*getattr(_current, "streams", []), self]
        return self

    def __exit__(self, *exc: object) -> None:
        _current.streams.pop()

    def do(self, call: Callable[[], Any]) -> None:
        """Enqueue ``call`` after all earlier work."""
        if self.late:
            with self._giving:  # several threads upload on one stream
                self._calls.append(call)
                self.given += 1
        else:
            call()

    def synchronize(self, until: int | None = None) -> None:
        """Do all work that was enqueued so far, or the first ``until`` calls of it."""
        _called()
        with self._doing:
            while self._calls and (until is None or self.done < until):
                self._calls.popleft()()
                self.done += 1

    def record(self) -> Event:
        _called()
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        _called()
        if event.stream is not None:
            event.stream.synchronize()


_streams: dict[int, Stream] = {}
_numbering = threading.Lock()


def _current_stream() -> Stream:
    """Return the stream of the innermost ``with``; otherwise the default stream, for which no other stream waits."""
    streams = getattr(_current, "streams", [])
    return streams[-1] if streams else _default_stream()


def _default_stream() -> Stream:
    with _numbering:
        index = _current_device()
        if index not in _defaults:
            _defaults[index] = Stream.__new__(Stream)
            _defaults[index].begin(0)
        return _defaults[index]


_defaults: dict[int, Stream] = {}


def _on(stream: Stream | int | None, call: Callable[[], Any]) -> None:
    """Enqueue ``call`` on a stream, given as object or number; None and 0 are the default stream."""
    found = (_streams.get(stream) if stream else _default_stream()) if isinstance(stream, int) else stream
    (found or _default_stream()).do(call)


class _OfPointer(Stream):
    def __init__(self, ptr: int, device_id: int = -1) -> None:
        self.__dict__ = _streams[ptr].__dict__


class ExternalStream(_OfPointer):
    """Stand-in for cupy.cuda.ExternalStream, for which CuPy 14 warns."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        warnings.warn("ExternalStream is deprecated", DeprecationWarning, stacklevel=2)
        super().__init__(ptr, device_id)


class Event:
    """Stand-in for cupy.cuda.Event."""

    def __init__(self, **options: Any) -> None:
        _called()
        self.at, self.device = time.perf_counter(), _current_device()
        self.stream: Stream | None = None
        self.ptr = id(self)
        _events[self.ptr] = self

    def record(self, stream: Any = None) -> None:
        assert stream is None or stream.device == self.device, "an event of another GPU than its stream's"
        self.at, self.stream = time.perf_counter(), stream
        self.place = 0 if stream is None else stream.given

    @property
    def over(self) -> bool:
        """Whether the stream has done all work that was enqueued before the event."""
        return self.stream is None or self.stream.done >= self.place

    @property
    def done(self) -> bool:
        _called()
        return self.over

    def synchronize(self) -> None:
        _called()
        if self.stream is not None:
            self.stream.synchronize(self.place)


_made: list[Any] = []
"""Driver functions, kept alive because threads of pipelines that a test left may still call them."""
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_events: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()


def _milliseconds(between: Sequence[tuple[int, int]]) -> list[float]:
    """Stand-in for dali_run.ops.gpu.driver_calls.milliseconds."""
    _called_by_driver()
    return [1e3 * (_events[end].at - _events[begin].at) for begin, end in between]


class _Stopwatch:
    """Stand-in for dali_run.ops.gpu.driver_calls.Stopwatch."""

    def __init__(self, stream: int) -> None:
        pass

    def begin(self) -> None:
        _called_by_driver()
        self._began = time.perf_counter()

    def end(self) -> None:
        _called_by_driver()
        self._ended = time.perf_counter()

    def milliseconds(self) -> float:
        _called_by_driver()
        return 1e3 * (self._ended - self._began)


def _of_interface(tensor: Any) -> Array:
    """Return a view of another library's tensor, without a copy."""
    what = tensor.__cuda_array_interface__
    return Array(what["shape"], what["typestr"], Pointer(what["data"][0], tensor))


def _array(value: Any, order: str = "K", copy: bool | None = True) -> Array:
    """Return a packed array: stand-in for cupy.array."""
    import cupy

    if isinstance(value, Array):
        return value.copy() if copy else value
    if hasattr(value, "__cuda_array_interface__"):
        return _of_interface(value).copy() if copy else _of_interface(value)
    host = np.ascontiguousarray(value)
    made: Array = cupy.empty(host.shape, host.dtype)
    _on(_current_stream(), lambda: ctypes.memmove(made.data.ptr, host.ctypes.data, host.nbytes))
    return made


def _concatenate(arrays: Any) -> Array:
    """Join flat arrays, which have to be on the current device: stand-in for cupy.concatenate."""
    import cupy

    assert {a.device.id for a in arrays} == {_current_device()}, "arrays of another GPU than the current one"
    made: Array = cupy.empty(sum(a.size for a in arrays), arrays[0].dtype)
    at = 0
    for a in arrays:
        made[at : at + a.size] = a
        at += a.size
    return made


def _noise(size: int) -> tuple[int, Any]:
    """Allocate memory at a multiple of 256, filled with noise so that bytes that are not written are noticed."""
    buffer = np.full(size + 512, 0xA5, np.uint8)
    return -(-buffer.ctypes.data // 256) * 256, buffer


def _run(code: str, name: str, grid: Any, threads: int, args: Any) -> None:
    from .emulated_lane import compiled

    width, height = (*grid, 1)[:2]
    values = [ctypes.c_void_p(a.data.ptr) if isinstance(a, Array) else np.asarray(a) for a in args]
    where = [ctypes.addressof(v) if isinstance(v, ctypes.c_void_p) else v.ctypes.data for v in values]
    launch = compiled(code, name)
    with _emulating:
        launch(int(width), int(height), int(threads), (ctypes.c_void_p * len(where))(*where))


class Work:
    """Stand-in for dali_run.ops.gpu.driver_calls.Work."""

    def __init__(self, fake: Fake, stream: int) -> None:
        self._fake, self._stream = fake, stream
        self._calls: list[Callable[[], None]] = []

    def launch(self, function: int, grid: int, block: int, *arguments: int) -> None:
        self._calls.append(lambda: self._fake.launch_kernel(function, grid, block, arguments))

    def steady(self, function: int, grid: int, block: int, values: np.ndarray) -> Callable[[], None]:
        def launch() -> None:
            copied = values.copy()
            _on(self._stream, lambda: self._fake.launch_structure(function, grid, block, copied))

        return launch

    def copy_in(self, to: int, host: int, nbytes: int) -> None:
        self._calls.append(lambda: self._fake.memcpy(to, host, nbytes, 1))

    def wait(self, event: int) -> None:
        self._calls.append(lambda: (_streams.get(self._stream) or _default_stream()).wait_event(_events[event]))

    def copies_in(self, to: Any, host: Any, nbytes: Any) -> None:
        for piece in zip(to.tolist(), host.tolist(), nbytes.tolist(), strict=True):
            self.copy_in(*piece)
        self.submit()

    def copy_out(self, host: int, source: int, nbytes: int) -> None:
        self._calls.append(lambda: self._fake.memcpy(host, source, nbytes, 2))

    def calls(self, function: int, arguments: np.ndarray) -> int:
        self.submit()
        made = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_int64,) * arguments.shape[1])(function)
        found: list[int] = []
        for row in arguments.tolist():
            _on(self._stream, lambda: found.append(0 if any(found) else made(*row)))  # noqa: B023
        return next(filter(None, found), 0)

    def zero(self, address: int, nbytes: int) -> None:
        self._calls.append(lambda: self._fake.memset(address, 0, nbytes))

    def record(self, event: int) -> None:
        self.submit()  # the event comes after all earlier work, whenever that is done
        _events[event].record(_streams[self._stream] if self._stream else _default_stream())

    def cancel(self) -> None:
        self._calls = []

    def submit(self) -> None:
        _called_by_driver()
        calls, self._calls = self._calls, []
        for call in calls:
            _on(self._stream, call)


class Fake:
    """State of CuPy's stand-in: what was launched, by kernel and device."""

    def __init__(self, devices: int = 1, memory: bool = False, late: bool = False) -> None:
        self.memory = memory
        self._kept: list[Pointer] | None = [] if late else None
        """Freed device memory, kept because CuPy's pool would reuse it only for later work of the same stream."""
        self.launched: list[tuple[str, int]] = []
        self.registered: dict[int, int] = {}
        self.registrations = 0
        self.attributes: dict[int, int] = {}
        """Attributes of all devices by number; 1 for others."""
        self.uploads = 0
        self.context = 0
        """Context of every GPU, for other libraries; 0 so that they find none."""
        self._devices = devices
        self._pinned: dict[int, list[PinnedMemoryPointer]] = {}
        self._pinning = threading.Lock()
        self._names: list[str] = []
        self._codes: list[str] = []
        self._libraries: list[Callable[[int, int, int], None] | None] = []
        self._next = _FIRST_ADDRESS
        self.allocator: Callable[[int], Pointer] = self.alloc
        self.blocks: dict[int, tuple[int, Pointer]] = {}
        """Blocks of the driver that were not freed: size and memory by address."""

    @property
    def contexts(self) -> set[int]:
        """GPUs on which a CUDA context exists."""
        return set(_contexts)

    def alloc(self, size: int) -> Pointer:
        _called()
        if self.memory:
            found = Pointer(*_noise(size))
            if self._kept is not None:
                self._kept.append(found)
            return found
        self._next += -(-size // 256) * 256
        return Pointer(self._next)

    def malloc_async(self, size: int, stream: int) -> int:
        found: Pointer = self.allocator(size)
        self.blocks[found.ptr] = size, found
        return found.ptr

    def free_async(self, address: int, stream: int) -> None:
        del self.blocks[address]

    def alloc_pinned_memory(self, size: int) -> PinnedMemoryPointer:
        """Allocate page-locked memory; it is reused once nothing refers to it, as in CuPy's pool."""
        _called()
        with self._pinning:
            blocks = self._pinned.setdefault(size, [])
            for k in range(len(blocks)):
                if sys.getrefcount(blocks[k]) == 2:  # references from the list and the call
                    return blocks[k]
            blocks.append(PinnedMemoryPointer(-1, size))
            return blocks[-1]

    def pinned_in_use(self) -> int:
        """Bytes of page-locked memory that are still referenced."""
        with self._pinning:
            return sum(size * sum(sys.getrefcount(blocks[k]) > 2 for k in range(len(blocks)))
                       for size, blocks in self._pinned.items())  # fmt: skip

    def memcpy(self, to: int, source: int, size: int, kind: int, stream: int = 0) -> None:
        self.uploads += kind == 1
        if self.memory:
            ctypes.memmove(to, source, size)
        elif kind == 2:  # status words: no error
            ctypes.memset(to, 0, size)

    def memcpy_async(self, to: int, source: int, size: int, kind: int, stream: int = 0) -> None:
        _on(stream, lambda: self.memcpy(to, source, size, kind))

    def memset(self, address: int, value: int, size: int, stream: int = 0) -> None:
        if self.memory:
            ctypes.memset(address, value, size)

    def module(self, code: str = "", options: Any = (), name_expressions: Any = None, backend: str = "") -> Any:
        def get_function(name: str) -> Any:
            _called()
            number = len(self._names)
            self._names.append(name)
            self._codes.append(code)
            self._libraries.append(self._compiled(name) if "jpeg_states" in code else None)
            kernel = types.SimpleNamespace(ptr=number)

            def call(grid: Any, block: Any, args: Any, stream: Any = None) -> None:
                _called()
                self.launched.append((name, _current_device()))
                launched_of(code, name)
                if self.memory:
                    _on(stream, lambda: _run(code, name, grid, block[0], args))

            call.kernel = kernel  # type: ignore[attr-defined]
            return call

        return types.SimpleNamespace(get_function=get_function)

    def _compiled(self, name: str) -> Callable[[int, int, int], None]:
        """Return a kernel of the JPEG decoder, whose library all tests share."""
        if not self.memory:
            return lambda grid, threads, parameter: None
        from .ops.jpeg_harness import jpeg_library

        library = jpeg_library(())
        function = ctypes.cast(getattr(library, name), ctypes.c_void_p)

        def run(grid: int, threads: int, parameter: int) -> None:
            library.emulate(function, ctypes.c_int(grid), ctypes.c_int(threads), ctypes.c_void_p(parameter))

        return run

    def launch_kernel(self, function: int, grid: int, block: int, arguments: tuple[int, ...]) -> None:
        """Launch a kernel whose arguments are pointers and integers."""
        name, code, run = self._names[function], self._codes[function], self._libraries[function]
        self.launched.append((name, _current_device()))
        if run is None:
            launched_of(code, name)
            if self.memory:
                _run(code, name, (grid,), block, list(map(np.int64, arguments)))
        elif self.memory:
            with _emulating:
                run(grid, block, *arguments)

    def launch_structure(self, function: int, grid: int, block: int, values: np.ndarray) -> None:
        """Launch a kernel with one structure as argument."""
        self.launched.append((self._names[function], _current_device()))
        launched_of(self._codes[function], self._names[function])
        if self.memory:
            _run(self._codes[function], self._names[function], (grid,), block, (values,))

    def driver(self) -> dict[str, int]:
        """Return the addresses of the driver functions that compiled loops call."""

        def copy_in(to: int, host: int, nbytes: int, stream: int) -> int:
            _called_by_driver()
            self.memcpy_async(to, host, nbytes, 1, stream)
            return 0

        def record(event: int, stream: int) -> int:
            _called_by_driver()
            _events[event].record(_streams[stream])
            return 0

        def ask(event: int) -> int:
            _called_by_driver()
            return 0 if _events[event].over else _NOT_READY

        functions = {stream_work.COPY_IN: (copy_in, 4), stream_work.RECORD: (record, 2), stream_work.ASK: (ask, 1)}
        found = {}
        for name, (function, count) in functions.items():
            made = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_int64,) * count)(function)
            _made.append(made)
            found[name] = ctypes.cast(made, ctypes.c_void_p).value or 0
        return found

    def register(self, address: int, size: int, flags: int) -> None:
        self.registered[address] = size
        self.registrations += 1

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def modules(self) -> dict[str, types.ModuleType]:
        """Return the modules to put into `sys.modules` in place of CuPy's."""
        cupy, cuda, runtime, driver = (types.ModuleType(name) for name in _MODULES)
        runtime.memcpyAsync, runtime.memcpy = _that_calls(self.memcpy_async), _that_calls(self.memcpy)  # type: ignore[attr-defined]
        runtime.memsetAsync = _that_calls(self.memset)  # type: ignore[attr-defined]
        runtime.memcpyHostToDevice, runtime.memcpyDeviceToHost, runtime.memcpyDeviceToDevice = 1, 2, 3  # type: ignore[attr-defined]
        runtime.getDevice, runtime.setDevice = _current_device, _that_calls(lambda index: None)  # type: ignore[attr-defined]
        runtime.getDeviceCount = lambda: self._devices  # type: ignore[attr-defined]
        runtime.memGetInfo = _that_calls(lambda: (64 << 30, 80 << 30))  # type: ignore[attr-defined]
        runtime.runtimeGetVersion = runtime.driverGetVersion = lambda: 12000  # type: ignore[attr-defined]
        runtime.deviceGetAttribute = lambda attribute, index: self.attributes.get(attribute, 1)  # type: ignore[attr-defined]
        runtime.hostRegister, runtime.hostUnregister = map(_that_calls, (self.register, self.unregister))  # type: ignore[attr-defined]
        cuda.runtime, cuda.driver = runtime, driver  # type: ignore[attr-defined]
        driver.ctxGetCurrent = lambda: self.context  # type: ignore[attr-defined]
        cuda.Device, cuda.Stream, cuda.Event = Device, Stream, Event  # type: ignore[attr-defined]
        cuda.ExternalStream = ExternalStream  # type: ignore[attr-defined]
        cuda.UnownedMemory = lambda ptr, size, owner, device: Pointer(ptr, owner)  # type: ignore[attr-defined]
        cuda.MemoryPointer = lambda memory, offset: memory + offset  # type: ignore[attr-defined]
        cuda.alloc, cuda.alloc_pinned_memory = lambda size: self.allocator(size), self.alloc_pinned_memory  # type: ignore[attr-defined]
        cuda.set_allocator = lambda allocator: setattr(self, "allocator", allocator)  # type: ignore[attr-defined]
        runtime.malloc, runtime.free = lambda size: 0, lambda address: None  # type: ignore[attr-defined]
        runtime.mallocAsync, runtime.freeAsync = self.malloc_async, self.free_async  # type: ignore[attr-defined]
        cuda.MemoryPool = lambda: types.SimpleNamespace(malloc=lambda size: self.allocator(size))  # type: ignore[attr-defined]
        cuda.using_allocator = lambda allocator: nullcontext()  # type: ignore[attr-defined]
        for kind in ("uint8", "int32", "int64", "uint64", "float32", "float64"):
            setattr(cupy, kind, getattr(np, kind))
        cupy.full = lambda shape, value, dtype: _array(np.full(shape, value, dtype))  # type: ignore[attr-defined]
        cupy.zeros = lambda shape, dtype: _array(np.zeros(shape, dtype))  # type: ignore[attr-defined]
        cupy.asnumpy = lambda array: array.get()  # type: ignore[attr-defined]
        cupy.cuda, cupy.ndarray, cupy.RawModule = cuda, Array, self.module  # type: ignore[attr-defined]
        cupy.empty = lambda n, dtype: Array(  # type: ignore[attr-defined]
            n, dtype, self.allocator(int(np.prod(n)) * np.dtype(dtype).itemsize)
        )
        pool = types.SimpleNamespace(
            malloc=self.alloc, set_limit=lambda size: None, free_all_blocks=_that_calls(lambda stream=None: None)
        )
        for count in ("total_bytes", "used_bytes", "free_bytes", "n_free_blocks"):
            setattr(pool, count, lambda: 0)
        runtime.streamSynchronize = lambda number: (_streams.get(number) or _default_stream()).synchronize()  # type: ignore[attr-defined]
        cupy.ascontiguousarray = lambda a: _array(a, copy=None)  # type: ignore[attr-defined]
        cupy.array, cupy.asarray, cupy.concatenate = _array, lambda a: _array(a, copy=None), _concatenate  # type: ignore[attr-defined]
        cupy.from_dlpack = lambda array: array.__dlpack__(stream=_current_stream())  # type: ignore[attr-defined]
        cuda.get_allocator = lambda: pool.malloc  # type: ignore[attr-defined]
        cuda.get_current_stream = _current_stream  # type: ignore[attr-defined]
        cupy.get_default_memory_pool = cupy.get_default_pinned_memory_pool = lambda: pool  # type: ignore[attr-defined]
        return dict(zip(_MODULES, (cupy, cuda, runtime, driver), strict=True))


@contextmanager
def faked(devices: int = 1, memory: bool = False, late: bool = False) -> Iterator[Fake]:
    """Context manager that replaces CuPy by the stand-in and restores everything afterwards. With ``late``, page-locked
    memory of a lane is also filled with noise."""
    from dali_run.ops.gpu import current, device_memory, early_init, page_locked
    from dali_run.ops.gpu import lane as device
    from dali_run.readers.fetch import gpu_reads

    fake, take = Fake(devices, memory, late), device.Arena.take

    def noisy(arena: device.Arena, nbytes: int) -> np.ndarray:
        piece = take(arena, nbytes)
        piece[:] = 0xEE
        return piece

    Stream.late = late
    if late:
        device.Arena.take = noisy  # type: ignore[method-assign]
    work, stream_work.Work = stream_work.Work, lambda stream: Work(fake, stream)  # type: ignore[assignment,misc]
    stopwatch, stream_work.Stopwatch = stream_work.Stopwatch, _Stopwatch  # type: ignore[misc]
    milliseconds, stream_work.milliseconds = stream_work.milliseconds, _milliseconds
    launches, load = stream_work.Launches, stream_work.load

    class Launches(PlainLaunches):
        def __init__(self, stream: int, kernels: Any, places: Any) -> None:
            def copy(to: int, host: np.ndarray) -> None:
                fake.memcpy_async(to, host.ctypes.data, host.nbytes, 1, stream)

            super().__init__(kernels, places, copy, stream)

        def begin(self, *args: Any, **options: Any) -> None:
            _called_by_driver()
            super().begin(*args, **options)

        def milliseconds(self) -> float:
            _called_by_driver()
            return super().milliseconds()

    stream_work.Launches = Launches  # type: ignore[assignment,misc]
    functions = fake.driver()
    stream_work.load = lambda: functions  # type: ignore[assignment]
    before = {name: sys.modules.get(name) for name in _MODULES}
    _contexts.clear()
    _current.has_one = False
    pushing = current._context, current._functions, current._thread
    current._context, current._functions = (lambda index: index), lambda: (_push, _pop, None)  # type: ignore[assignment]
    current._thread = threading.local()
    page_locking = dict(device._page_locking)
    device._page_locking.clear()
    streams, blocks = dict(device._idle_streams), device._blocks
    device._blocks = page_locked.PageLockedPool()
    device._idle_streams.clear()
    ahead, early_init._start = early_init._start, lambda index: None  # a real GPU of the machine is not touched
    caches = (device._load, device._module, device._load_text, device._text_module, device.gpu_count,
              device_memory._pool_of)  # fmt: skip
    sys.modules.update(fake.modules())
    for cache in caches:
        cache.cache_clear()
    try:
        yield fake
    finally:
        gpu_reads.wait_until_released()
        device._idle_streams.clear()
        device._idle_streams.update(streams)
        device._page_locking.clear()
        device._page_locking.update(page_locking)
        current._context, current._functions, current._thread = pushing
        device._blocks = blocks
        Stream.late, device.Arena.take = False, take  # type: ignore[method-assign]
        _streams.clear()
        _defaults.clear()
        stream_work.Launches, stream_work.load = launches, load  # type: ignore[misc]
        stream_work.Work = work  # type: ignore[misc]
        stream_work.Stopwatch = stopwatch  # type: ignore[misc]
        stream_work.milliseconds = milliseconds
        early_init._start = ahead
        early_init._started.cache_clear()
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
        for cache in caches:
            cache.cache_clear()
