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
    """Context manager that makes GPU ``index`` current in the calling thread, and on exit the GPU that was current
    before. If the thread had no current GPU, it has none afterwards, unless ``index`` is 0, which is CUDA's default.
    (`cupy.cuda.Device` would make GPU 0 current, and CUDA 12 would create a context on it: half a gigabyte per process,
    on a GPU that this job may not use.) Many threads may enter one instance, also recursively. Raises
    cupy.cuda.driver.CUDADriverError if there is no such GPU."""

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
    """Return the primary CUDA context of GPU ``index``, which CuPy and PyTorch also use. The context is never
    released."""
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
"""Memory into which cuCtxPopCurrent writes the handle of the removed context; nothing reads the handle."""


@cache
def _functions() -> tuple[Callable[[Any], int], Callable[[Any], int], Any]:
    """Return the driver functions cuCtxPushCurrent and cuCtxPopCurrent, and the argument for cuCtxPopCurrent. Calling
    these functions does not release the GIL, because acquiring it again would take longer than the call."""
    driver = ctypes.PyDLL(library()._name)
    return driver.cuCtxPushCurrent_v2, driver.cuCtxPopCurrent_v2, ctypes.byref(_popped)


def _have_one() -> bool:
    """Give the calling thread a current GPU if it has none: GPU 0, CUDA's default. Return True."""
    from cupy.cuda import runtime

    runtime.setDevice(runtime.getDevice())
    return True
