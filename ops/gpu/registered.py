"""Registration of host memory with CUDA: GPUs then read it directly, over the bus, without a copy."""

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
    """Return why the GPUs ``indices`` cannot read files mapped into host memory and registered with CUDA; an empty text
    if they can."""
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
    """Register ``nbytes`` of mapped memory with CUDA: the pages are locked, and all GPUs can read them at the host's
    addresses. Takes some 40 ms per gigabyte; pages of a file that are not in the page cache are read from disk. Raises
    CUDARuntimeError."""
    import cupy

    with OnGpu(index):
        cupy.cuda.runtime.hostRegister(address, nbytes, _PORTABLE | _MAPPED | _READ_ONLY)


class Locked(mmap.mmap):
    """Page-locked host memory for all GPUs, freed when nothing refers to it any longer. The system provides the pages
    (large ones if it has them), then the driver locks them. For 112 MiB on one H200 that takes 24 ms; `cudaHostAlloc`
    took 73 ms, and launched and copied nothing for other threads meanwhile. Copies run at 55 GB/s with either. A forked
    process finds zeros in the memory."""

    _address = 0
    """Address under which the memory is registered with CUDA; 0 if it is not registered."""
    _index = 0

    def __new__(cls, nbytes: int, index: int) -> Locked:
        """Allocate ``nbytes`` of page-locked memory, with GPU ``index`` current. Raises OSError or CUDARuntimeError if
        the system or the driver cannot provide it."""
        import cupy

        made = super().__new__(cls, -1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(made))
        if _libc().madvise(address, nbytes, _OTHER_AFTER_FORK):
            raise OSError("this system has no memory that forks do not share")
        for advice in (_HUGE, _FILL):  # an older system may ignore this advice: the driver then does the work
            _libc().madvise(address, nbytes, advice)
        with OnGpu(index):
            cupy.cuda.runtime.hostRegister(address, nbytes, _PORTABLE | _MAPPED)
        made._address, made._index = address, index
        return made

    def __del__(self) -> None:
        with suppress(Exception):  # at interpreter exit CUDA may be gone
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
    """Return whether GPU ``index`` reads registered memory at the same addresses as the host."""
    import cupy

    try:
        return bool(cupy.cuda.runtime.deviceGetAttribute(_SAME_ADDRESS, index))
    except Exception:  # CUDARuntimeError: a driver older than the attribute
        return False


def why_not_locked(index: int) -> str:
    """Return why GPU ``index`` cannot use `Locked` memory; an empty text if a test allocation of 1 MiB succeeds."""
    if not same_address(index):
        return f"GPU {index} has other addresses for the host's memory"
    try:
        Locked(1 << 20, index)
    except Exception as e:  # CUDARuntimeError
        return f"cudaHostRegister: {e}" if not isinstance(e, OSError) else str(e)
    return ""


def unregister(address: int, index: int) -> None:
    """Undo `register` for the memory that begins at ``address``."""
    import cupy

    with OnGpu(index):
        cupy.cuda.runtime.hostUnregister(address)


def probe(index: int) -> str:
    """Return why GPU ``index`` cannot read files in the page cache; an empty text if registering one page of a file
    works."""
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
