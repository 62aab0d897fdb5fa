"""The GPU that is current in a thread, for the calls of CUDA that it makes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from .driver import library
from .driver_calls import refused

_thread = threading.local()


class OnGpu:
    """``with`` it, GPU ``index`` is current in this thread; afterwards what was current before is.

    Where that was none, `cupy.cuda.Device` would make GPU 0 current, and CUDA 12 makes a context there at once: half a
    gigabyte of a GPU that the run may have nothing to do with, in every process. GPU 0 itself stays current in such a
    thread, as CUDA has it. It may be entered by many threads, and again inside itself. Raises
    cupy.cuda.driver.CUDADriverError where there is no such GPU.
    """

    __slots__ = ("_context", "_pop", "_popped", "_push", "index")

    def __init__(self, index: int) -> None:
        self.index, self._context = index, _context(index)
        self._push, self._pop, self._popped = _functions()

    def __enter__(self) -> OnGpu:
        if self.index == 0 and not hasattr(_thread, "has_one"):
            _thread.has_one = _have_one()
        if status := self._push(self._context):
            refused(status)
        return self

    def __exit__(self, *exc: object) -> None:
        self._pop(self._popped)


@cache
def _context(index: int) -> Any:
    """The context that CuPy, PyTorch and others share, held for good, as they do."""
    driver = library()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    status = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    )
    if status:
        refused(status)
    return context


_popped = ctypes.c_void_p()
"""Where the driver says what it took; nobody asks."""


@cache
def _functions() -> tuple[Callable[[Any], int], Callable[[Any], int], Any]:
    """Push, pop, and what the latter takes. The GIL is kept: to get it back takes longer than they do."""
    driver = ctypes.PyDLL(library()._name)
    return driver.cuCtxPushCurrent_v2, driver.cuCtxPopCurrent_v2, ctypes.byref(_popped)


def _have_one() -> bool:
    """The GPU that CUDA takes to be current, which is GPU 0 where none was set, is."""
    from cupy.cuda import runtime

    runtime.setDevice(runtime.getDevice())
    return True
