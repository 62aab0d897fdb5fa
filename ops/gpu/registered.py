"""Registration: memory of the host that GPUs read by themselves, over the bus, where it lies."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence

import numpy as np

from .current import OnGpu

_READ_ONLY_SUPPORTED, _SAME_ADDRESS = 113, 91  # cudaDevAttrHostRegisterReadOnlySupported, ...CanUseHostPointerFor...
_PORTABLE, _MAPPED, _READ_ONLY = 1, 2, 8  # cudaHostRegister...


def why_not(indices: Sequence[int]) -> str:
    """Why the GPUs ``indices`` cannot read registered pages of files; empty where they can."""
    return next(filter(None, map(_why_not, indices)), "")


def _why_not(index: int) -> str:
    import cupy

    ask = cupy.cuda.runtime.deviceGetAttribute
    try:
        read_only, same = ask(_READ_ONLY_SUPPORTED, index), ask(_SAME_ADDRESS, index)
    except Exception as e:  # CUDARuntimeError: a driver older than the attribute
        return f"GPU {index} does not say whether it takes read-only memory: {e}"
    if not read_only:
        return f"GPU {index} cannot register read-only memory"
    return "" if same else f"GPU {index} has other addresses for the host's memory"


def register(address: int, nbytes: int, index: int) -> None:
    """Lock the pages in memory and let all GPUs read them at the host's addresses. Takes some 40 ms a gigabyte, and
    reads what is not in the page cache. Raises CUDARuntimeError."""
    import cupy

    with OnGpu(index):
        cupy.cuda.runtime.hostRegister(address, nbytes, _PORTABLE | _MAPPED | _READ_ONLY)


def unregister(address: int, index: int) -> None:
    """The opposite of `register`, of the same address."""
    import cupy

    with OnGpu(index):
        cupy.cuda.runtime.hostUnregister(address)


def probe(index: int) -> str:
    """Why GPU ``index`` cannot read files in the page cache; empty where one was registered."""
    reason = why_not([index])
    if reason:
        return reason
    with tempfile.TemporaryFile(prefix="dali-run-") as file:
        file.truncate(mmap.PAGESIZE)
        page = np.frombuffer(mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ), np.uint8)
    try:
        register(page.ctypes.data, mmap.PAGESIZE, index)
        unregister(page.ctypes.data, index)
    except Exception as e:  # CUDARuntimeError
        return f"cudaHostRegister: {e}"
    return ""
