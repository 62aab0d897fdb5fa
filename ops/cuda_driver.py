"""The few calls of the CUDA driver that every launch makes, without letting go of the GIL.

Each takes some microseconds. CuPy lets go of the GIL around every one of them, and in a busy pipeline the thread that
launches waits far longer than that to get it back.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_POINTER, _ADDRESS, _UNSIGNED, _SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t


class Driver:
    """Asynchronous work on a stream of the current context. Every call raises cupy.cuda.driver.CUDADriverError."""

    def __init__(self) -> None:
        """Raises OSError where there is no driver."""
        library = ctypes.PyDLL("libcuda.so.1")  # a CDLL would let go of the GIL
        self._launch = library.cuLaunchKernel
        self._launch.argtypes = [_POINTER, *[_UNSIGNED] * 7, _POINTER, _POINTER, _POINTER]
        self._copy_in = library.cuMemcpyHtoDAsync_v2
        self._copy_in.argtypes = [_ADDRESS, _POINTER, _SIZE, _POINTER]
        self._copy_out = library.cuMemcpyDtoHAsync_v2
        self._copy_out.argtypes = [_POINTER, _ADDRESS, _SIZE, _POINTER]
        self._fill = library.cuMemsetD8Async
        self._fill.argtypes = [_ADDRESS, ctypes.c_ubyte, _SIZE, _POINTER]
        self._record = library.cuEventRecord
        self._record.argtypes = [_POINTER, _POINTER]

    def launch(self, function: int, grid: int, block: int, parameters: int, stream: int) -> None:
        """Run a kernel on one row of blocks; ``parameters`` is the address of the array of its arguments' addresses."""
        status = self._launch(function, grid, 1, 1, block, 1, 1, 0, stream, parameters, None)
        if status:
            _refused(status)

    def copy_in(self, to: int, host: int, nbytes: int, stream: int) -> None:
        """Copy page-locked memory to the device."""
        status = self._copy_in(to, host, nbytes, stream)
        if status:
            _refused(status)

    def copy_out(self, host: int, source: int, nbytes: int, stream: int) -> None:
        """Copy memory of the device to page-locked memory."""
        status = self._copy_out(host, source, nbytes, stream)
        if status:
            _refused(status)

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        """Fill memory of the device with zeros."""
        status = self._fill(address, 0, nbytes, stream)
        if status:
            _refused(status)

    def record(self, event: Any, stream: int) -> None:
        """Record an event of CuPy's."""
        status = self._record(event.ptr, stream)
        if status:
            _refused(status)


def _refused(status: int) -> None:
    from cupy.cuda import driver

    raise driver.CUDADriverError(status)


@cache
def load() -> Driver:
    """The driver of this machine. Raises OSError where there is none."""
    return Driver()
