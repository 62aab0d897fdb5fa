"""Registration: memory of the host that GPUs read by themselves, over the bus, where it lies."""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

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


class Locked(mmap.mmap):
    """Page-locked memory of the host, for all GPUs, until nothing refers to it any more.

    The system fills its pages first, large ones where it has them, and the driver only locks them: 24 ms for 112 MiB on
    one H200, where `cudaHostAlloc` took 73, and launched and copied nothing for other threads. Copies from and to
    either have 55 GB/s. It is not shared with a process that is forked, which finds zeros there.
    """

    _address = 0
    """Of what is registered."""
    _index = 0

    def __new__(cls, nbytes: int, index: int) -> Locked:
        """Raises OSError or CUDARuntimeError where there is no such memory."""
        import cupy

        made = super().__new__(cls, -1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(made))
        if _libc().madvise(address, nbytes, _OTHER_AFTER_FORK):
            raise OSError("this system has no memory that forks do not share")
        for advice in (_HUGE, _FILL):  # what an older system does not know, the driver does
            _libc().madvise(address, nbytes, advice)
        with OnGpu(index):
            cupy.cuda.runtime.hostRegister(address, nbytes, _PORTABLE | _MAPPED)
        made._address, made._index = address, index
        return made

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter ends, and with it CUDA
            if self._address:
                unregister(self._address, self._index)


_HUGE, _OTHER_AFTER_FORK, _FILL = 14, 18, 23  # MADV_HUGEPAGE, MADV_WIPEONFORK, MADV_POPULATE_WRITE


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


@cache
def same_address(index: int) -> bool:
    """GPU ``index`` has the host's addresses for memory that was registered."""
    import cupy

    try:
        return bool(cupy.cuda.runtime.deviceGetAttribute(_SAME_ADDRESS, index))
    except Exception:  # CUDARuntimeError: a driver older than the attribute
        return False


def why_not_locked(index: int) -> str:
    """Why there is no `Locked` memory for GPU ``index``; empty where a little of it was made."""
    if not same_address(index):
        return f"GPU {index} has other addresses for the host's memory"
    try:
        Locked(1 << 20, index)
    except Exception as e:  # CUDARuntimeError
        return f"cudaHostRegister: {e}" if not isinstance(e, OSError) else str(e)
    return ""


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
