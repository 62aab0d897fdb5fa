"""Calls of the CUDA driver for launches, copies and events: several are made in one call without the GIL.

Each takes some microseconds. CuPy releases the GIL around most of them, and in a busy pipeline the thread that launches
waits far longer than that to acquire it again. Around the calls for events CuPy keeps the GIL: while another thread
copies or registers memory, which holds the driver's locks for milliseconds, all Python threads would wait with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..kernels import Kernels
from .driver import library

LAUNCH, COPY_IN, COPY_OUT, ZERO = "cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemsetD8Async"
RECORD, ELAPSED, ASK, WAIT = "cuEventRecord", "cuEventElapsedTime", "cuEventQuery", "cuStreamWaitEvent"
_NAMES = (LAUNCH, COPY_IN, COPY_OUT, ZERO, RECORD, ELAPSED, ASK, WAIT)
_MOST, _ARGUMENTS = 32, 16
"""Maximum number of driver calls that are queued before `Work.submit` makes them; and maximum number of arguments of a
kernel."""
_COLUMNS = 12
"""Columns of an array with one driver call per row: the address of a driver function, then its arguments."""

_HELD_LAUNCH = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *(ctypes.c_uint,) * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)

_loops: Any = Kernels(".driver_calls_cpu", __package__)


@cache
def load() -> Mapping[str, int]:
    """Return the addresses of the driver functions of `_NAMES`, by name. Raises OSError if there is no driver."""
    found = library()
    return {name: ctypes.cast(found[name], ctypes.c_void_p).value or 0 for name in _NAMES}


def raise_error(status: int) -> NoReturn:
    """Raise cupy.cuda.driver.CUDADriverError with the driver's text for ``status``."""
    from cupy.cuda import driver

    raise driver.CUDADriverError(status)


def call(name: str, *arguments: int) -> None:
    """Call the driver function ``name``, with the GIL released. Raises cupy.cuda.driver.CUDADriverError."""
    row = np.zeros((1, _COLUMNS), np.int64)
    row[0, : 1 + len(arguments)] = load()[name], *arguments
    if status := _loops.call_all(row, 1):
        raise_error(status)


def milliseconds(between: Sequence[tuple[int, int]]) -> list[float]:
    """Return the milliseconds of GPU time between two CUDA events, for each pair of event handles. All events must have
    completed. Raises cupy.cuda.driver.CUDADriverError."""
    if not between:
        return []
    found, calls = np.zeros(len(between), np.float32), np.zeros((len(between), _COLUMNS), np.int64)
    first = found.ctypes.data
    calls[:, 0], calls[:, 1] = load()[ELAPSED], np.arange(first, first + found.nbytes, found.itemsize)
    calls[:, 2:4] = between
    if status := _loops.call_all(calls, len(calls)):
        raise_error(status)
    times: list[float] = found.tolist()
    return times


class Launches:
    """Fixed sequence of kernel launches, prepared once and launched many times. Each time, data may first be copied to
    the GPU, and some kernel arguments are replaced by new addresses. Created by `Lane.launches`; used by the thread
    that launches on the lane (CUDA stream)."""

    def __init__(
        self, stream: int, kernels: Sequence[tuple[Any, tuple[int, ...], int, tuple[Any, ...]]],
        places: Sequence[tuple[int, int]],
    ) -> None:  # fmt: skip
        """``kernels``: CuPy functions with grid, block and arguments (NumPy scalars). ``places``: the arguments that
        change with each `begin`, as pairs (index of the kernel, index of its argument)."""
        functions = load()
        firsts = np.cumsum([0, *(len(arguments) for *_, arguments in kernels)])
        self._values = np.zeros(int(firsts[-1]), np.int64)
        at = self._values.ctypes.data
        self._where = np.arange(at, at + self._values.nbytes, 8)
        """Host address of each kernel argument. cuLaunchKernel takes pointers to the arguments, not their values."""
        self._slots, self._places = self._values.data, [int(firsts[kernel]) + k for kernel, k in places]
        self._stream = stream
        self._calls = np.zeros((len(kernels) + 3, _COLUMNS), np.int64)
        """Driver calls for the whole sequence, one per row: record an event, copy, launch each kernel, record another
        event."""
        self._copy, self._tables = self._calls[1], {(True, False): self._calls[1:-1], (False, False): self._calls[2:-1]}
        """Row of `_calls` for the copy; and the rows of `_calls` to make, by (whether to copy first, whether to measure
        the time)."""
        self._copy[[0, 4]] = functions[COPY_IN], stream
        for k, (function, grid, block, arguments) in enumerate(kernels):
            wide, high, deep = (*grid, 1, 1)[:3]
            where = self._where.ctypes.data + 8 * int(firsts[k])
            self._calls[k + 2] = (functions[LAUNCH], getattr(function, "kernel", function).ptr, wide, high, deep,
                                       block, 1, 1, 0, stream, where, 0)  # fmt: skip
            for n, value in enumerate(arguments):
                raw = np.asarray(value).tobytes()
                self._values[firsts[k] + n : firsts[k] + n + 1].view(np.uint8)[: len(raw)] = np.frombuffer(
                    raw, np.uint8
                )
        self._functions = [function for function, *_ in kernels]
        """CuPy's kernel objects; referring to them keeps the kernels' modules loaded."""
        self._passed = np.zeros(1, np.float32)
        self._asks: Any = None

    def begin(
        self, addresses: Sequence[int], to: int, host: npt.NDArray[np.uint8], *, timed: bool = False
    ) -> None:  # fmt: skip
        """Copy the page-locked array ``host`` to the device address ``to``, then launch the kernels, with ``addresses``
        as the arguments that change. ``timed``: measure the GPU time, for `milliseconds`. Raises
        cupy.cuda.driver.CUDADriverError."""
        if timed and self._asks is None:
            self._mark()
        slots = self._slots
        for place, address in zip(self._places, addresses, strict=True):
            slots[place] = address
        if copies := host.nbytes > 0:
            self._copy[1:4] = to, host.__array_interface__["data"][0], host.nbytes
        calls = self._tables[copies, timed]
        if status := _loops.call_all(calls, len(calls)):
            raise_error(status)

    def milliseconds(self) -> float:
        """Return the milliseconds that the last `begin` with ``timed`` took on the GPU; may be called only when the GPU
        has finished. Raises cupy.cuda.driver.CUDADriverError."""
        if status := _loops.call_all(self._asks, 1):
            raise_error(status)
        return float(self._passed[0])

    def _mark(self) -> None:
        """Create the two CUDA events that measure the time of the launches, and add recording them to the driver
        calls."""
        import cupy

        functions, calls = load(), self._calls
        self._events = [cupy.cuda.Event() for _ in range(2)]
        first, last = (event.ptr for event in self._events)
        calls[0, :3] = functions[RECORD], first, self._stream
        calls[-1, :3] = functions[RECORD], last, self._stream
        self._tables[True, True], self._tables[False, True] = calls, np.concatenate((calls[:1], calls[2:]))
        self._asks = np.zeros((1, _COLUMNS), np.int64)
        self._asks[0, :4] = functions[ELAPSED], self._passed.ctypes.data, first, last


class Stopwatch:
    """Timer for work on one CUDA stream: two events recorded on the stream before and after the work. May be used again
    and again. Created by `Lane.stopwatch`."""

    def __init__(self, stream: int) -> None:
        """``stream``: handle of a CUDA stream of the current GPU."""
        import cupy

        functions = load()
        self._passed = np.zeros(1, np.float32)
        self._events = cupy.cuda.Event(), cupy.cuda.Event()
        first, last = (event.ptr for event in self._events)
        self._calls = np.zeros((3, 1, _COLUMNS), np.int64)
        self._calls[0, 0, :3] = functions[RECORD], first, stream
        self._calls[1, 0, :3] = functions[RECORD], last, stream
        self._calls[2, 0, :4] = functions[ELAPSED], self._passed.ctypes.data, first, last

    def begin(self) -> None:
        """Record the first event: the measured time begins when the device reaches it."""
        self._call(0)

    def end(self) -> None:
        """Record the second event, at which the measured time ends."""
        self._call(1)

    def milliseconds(self) -> float:
        """Return the milliseconds between `begin` and `end` on the GPU; may be called only when the GPU has finished.
        Raises cupy.cuda.driver.CUDADriverError."""
        self._call(2)
        return float(self._passed[0])

    def _call(self, which: int) -> None:
        if status := _loops.call_all(self._calls[which], 1):
            raise_error(status)


class Work:
    """Queue of CUDA driver calls for one stream of the current CUDA context. `submit` makes all queued calls in order,
    and releases the GIL only once. Host memory must be page-locked, and stay unchanged until the stream has finished.
    Used by one thread at a time."""

    def __init__(self, stream: int) -> None:
        self._functions = load()
        self._stream = stream
        self._calls = np.zeros((_MOST, _COLUMNS), np.int64)
        self._values = np.zeros((_MOST, _ARGUMENTS), np.int64)
        # writing a few numbers through NumPy takes ten times as long as through memoryviews
        self._slots, self._given = self._calls.reshape(-1).data, self._values.reshape(-1).data
        self._where = self._values.ctypes.data + 8 * np.arange(_MOST * _ARGUMENTS)
        """Address in host memory of each kernel argument; cuLaunchKernel takes these addresses, not the values."""
        self._at = self._where.ctypes.data
        self._count = 0

    def launch(self, function: int, grid: int, block: int, *arguments: int) -> None:
        """Queue the launch of a kernel with a one-dimensional grid. ``arguments``: pointers and integers, which the
        driver copies at `submit`. Raises ValueError for more than 16 arguments."""
        if len(arguments) > _ARGUMENTS:
            raise ValueError(f"a kernel takes up to {_ARGUMENTS} arguments, got {len(arguments)}")
        if self._count == _MOST:
            self.submit()
        at, given = _ARGUMENTS * self._count, self._given
        where = self._at + 8 * at
        for argument in arguments:
            given[at] = argument
            at += 1
        self._add(LAUNCH, function, grid, 1, 1, block, 1, 1, 0, self._stream, where, 0)

    def steady(self, function: int, grid: int, block: int, values: npt.NDArray[Any]) -> Callable[[], None]:
        """Return a function that launches a kernel immediately, without the queue and without releasing the GIL. The
        kernel's only argument is a structure: the bytes that ``values`` has at the launch. If many threads launch
        kernel after kernel, acquiring the GIL again takes longer than a launch (one H200, eight threads, HEVC to
        frames: 13,049 per second instead of 12,467)."""
        where = (ctypes.c_void_p * 1)(values.ctypes.data)
        call = _HELD_LAUNCH(self._functions[LAUNCH])
        arguments = function, grid, 1, 1, block, 1, 1, 0, self._stream, ctypes.addressof(where), None

        def launch(_held: Any = (where, values)) -> None:
            if status := call(*arguments):
                raise_error(status)

        return launch

    def copy_in(self, to: int, host: int, nbytes: int) -> None:
        """Queue a copy of ``nbytes`` from the host address ``host`` to the device address ``to``."""
        if nbytes:
            self._add(COPY_IN, to, host, nbytes, self._stream)

    def copies_in(self, to: npt.NDArray[np.int64], host: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]) -> None:
        """Submit the queued calls, then start copying many blocks from host addresses ``host`` to device addresses
        ``to``. ``nbytes``: size of each block, at least 1."""
        self.submit()
        calls = np.zeros((len(to), _COLUMNS), np.int64)
        calls[:, 0], calls[:, 1], calls[:, 2] = self._functions[COPY_IN], to, host
        calls[:, 3], calls[:, 4] = nbytes, self._stream
        if status := _loops.call_all(calls, len(calls)):
            raise_error(status)

    def copy_out(self, host: int, source: int, nbytes: int) -> None:
        """Queue a copy of ``nbytes`` from the device address ``source`` to the host address ``host``."""
        if nbytes:
            self._add(COPY_OUT, host, source, nbytes, self._stream)

    def calls(self, function: int, arguments: npt.NDArray[np.int64]) -> int:
        """Submit the queued calls, then call a C function that enqueues work on the stream, once per row of
        ``arguments`` (integers and pointers). Return the first status other than 0, after which the function is not
        called again; 0 if all calls succeed."""
        self.submit()
        calls = np.zeros((len(arguments), _COLUMNS), np.int64)
        calls[:, 0], calls[:, 1 : 1 + arguments.shape[1]] = function, arguments
        return int(_loops.call_all(calls, len(calls)))

    def zero(self, address: int, nbytes: int) -> None:
        """Queue a call that fills ``nbytes`` at a device address with zeros."""
        if nbytes:
            self._add(ZERO, address, 0, nbytes, self._stream)

    def record(self, event: int) -> None:
        """Queue recording a CUDA event, which completes when all work queued before it has finished."""
        self._add(RECORD, event, self._stream)

    def wait(self, event: int) -> None:
        """Queue a wait for a CUDA event of another stream: calls that are queued later take effect after the event."""
        self._add(WAIT, self._stream, event, 0)

    def submit(self) -> None:
        """Make all queued calls. If the driver rejects one, raises cupy.cuda.driver.CUDADriverError and skips the calls
        after it."""
        count, self._count = self._count, 0
        if count and (status := _loops.call_all(self._calls, count)):
            raise_error(status)

    def cancel(self) -> None:
        """Discard all queued calls without making them."""
        self._count = 0

    def _add(self, name: str, *arguments: int) -> None:
        if self._count == _MOST:
            self.submit()
        at, slots = _COLUMNS * self._count, self._slots
        slots[at] = self._functions[name]
        for argument in arguments:
            at += 1
            slots[at] = argument
        self._count += 1
