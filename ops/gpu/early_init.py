"""Start GPUs early: a thread creates their contexts while the program reads specs, lists files and loads compilers.

Creating a context takes some tenths of a second. CuPy holds the GIL for it; a call through ctypes does not. A thread
that uses the GPU meanwhile waits for the context in the driver, as if it created one itself.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

from .driver import library

_starting = threading.Lock()


def start_ahead(indices: Sequence[int]) -> None:
    """Start threads that create the CUDA contexts of the GPUs ``indices``, and return immediately, so that opening
    these GPUs later is quick. Later calls for the same GPU do nothing. Errors are not reported here, but when a lane
    (CUDA stream) is opened."""
    with _starting:
        for index in indices:
            _started(index)


@cache
def _started(index: int) -> threading.Thread:
    """Return the thread that creates the context of GPU ``index``; the first call starts it."""
    # not a daemon thread: the interpreter must not exit while the driver creates a context
    thread = threading.Thread(target=_start, args=(index,), name=f"start GPU {index}")
    thread.start()
    return thread


def start_named(device: str) -> None:
    """Start creating the CUDA context of the GPU that the setting ``device`` names, while the rest of a job is still
    being prepared. ``device``: ``gpu``, ``gpu:2``, or ``auto`` for the first GPU if CuPy is installed. Does nothing for
    several GPUs, because each gets its own process."""
    name, _, number = device.partition(":")
    if name == "gpu" and (not number or number.isdecimal()):
        start_ahead([int(number or 0)])
    elif device == "auto" and ("cupy" in sys.modules or find_spec("cupy") is not None):
        start_ahead([0])


def _start(index: int) -> None:
    try:
        driver = library()
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if not (driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index)):
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)  # never released, like CuPy's
