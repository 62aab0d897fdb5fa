"""Make a GPU current in the calling thread, for its calls of CUDA."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from .driver import library
from .driver_calls import raise_error

_thread = threading.local()


class OnGpu:
    """Context manager: GPU ``index`` is current in this thread; on exit, the GPU that was current before is again.

    If no GPU was current, `cupy.cuda.Device` would make GPU 0 current on exit, and CUDA 12 creates a context there at
    once: half a gigabyte of a GPU that the run may not use, in every process. GPU 0 itself stays current in such a
    thread, which is CUDA's default. Many threads may enter one instance, also recursively. Raises
    cupy.cuda.driver.CUDADriverError if there is no such GPU.
    """

    __slots__ = ("_context", "_pop", "_popped", "_push", "index")

    def __init__(self, index: int) -> None:
        self.index, self._context = index, _context(index)
        self._push, self._pop, self._popped = _functions()

    def __enter__(self) -> OnGpu:
        if self.index == 0 and not hasattr(_thread, "has_one"):
            _thread.has_one = _have_one()
        if status := self._push(self._context):
            raise_error(status)
        return self

    def __exit__(self, *exc: object) -> None:
        self._pop(self._popped)


@cache
def _context(index: int) -> Any:
    """Return the GPU's primary context, which CuPy, PyTorch and other libraries share. It is never released, like
    theirs."""
    driver = library()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    status = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    )
    if status:
        raise_error(status)
    return context


_popped = ctypes.c_void_p()
"""Variable to which the driver writes the popped context; it is never read."""


@cache
def _functions() -> tuple[Callable[[Any], int], Callable[[Any], int], Any]:
    """Return the driver's functions that push and pop a context, and the argument of the latter. They are called with
    the GIL held: acquiring it again would take longer than they do."""
    driver = ctypes.PyDLL(library()._name)
    return driver.cuCtxPushCurrent_v2, driver.cuCtxPopCurrent_v2, ctypes.byref(_popped)


def _have_one() -> bool:
    """Make current the GPU that CUDA considers current: GPU 0 if none was set."""
    from cupy.cuda import runtime

    runtime.setDevice(runtime.getDevice())
    return True
