"""Start GPUs ahead: a thread makes their contexts while the program reads specs, lists files and loads compilers.

A context takes some tenths of a second. Through CuPy, making one would hold the GIL; through ctypes it holds nothing.
Whoever uses the GPU meanwhile waits for the context in the driver, as for one of its own.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec

from .driver import library

_started: dict[int, threading.Thread] = {}
_starting = threading.Lock()


def start_ahead(indices: Sequence[int]) -> None:
    """Begin to start these GPUs, once in a process; returns at once. Nothing that goes wrong is this function's to
    report: whoever opens a lane is told."""
    with _starting:
        for index in indices:
            if index not in _started:
                # no daemon: the program must not end in the midst of it, under the driver's feet
                _started[index] = threading.Thread(target=_start, args=(index,), name=f"start GPU {index}")
                _started[index].start()


def start_named(device: str) -> None:
    """Begin to start the GPU that a setting names (``gpu``, ``gpu:2``; ``auto``: the first, where there is CuPy to use
    it) before all else is known; none where it names several, which have processes of their own."""
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
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)  # for good, as CuPy does
