"""Registration: memory of the host that GPUs read by themselves, over the bus, where it lies."""

from __future__ import annotations

from collections.abc import Sequence

_READ_ONLY_SUPPORTED, _SAME_ADDRESS = 113, 91  # cudaDevAttrHostRegisterReadOnlySupported, ...CanUseHostPointerFor...
_PORTABLE, _MAPPED, _READ_ONLY = 1, 2, 8  # cudaHostRegister...


def why_not(indices: Sequence[int]) -> str:
    """Why the GPUs ``indices`` cannot read registered pages of files; empty where they can."""
    import cupy

    for index in indices:
        try:
            read_only, same = (
                cupy.cuda.runtime.deviceGetAttribute(a, index) for a in (_READ_ONLY_SUPPORTED, _SAME_ADDRESS)
            )
        except Exception as e:  # CUDARuntimeError: a driver older than the attribute
            return f"GPU {index} does not say whether it takes read-only memory: {e}"
        if not read_only:
            return f"GPU {index} cannot register read-only memory"
        if not same:
            return f"GPU {index} has other addresses for the host's memory"
    return ""


def register(address: int, nbytes: int, index: int) -> None:
    """Lock the pages in memory and let all GPUs read them at the host's addresses. Takes some 40 ms a gigabyte, and
    reads what is not in the page cache. Raises CUDARuntimeError."""
    import cupy

    with cupy.cuda.Device(index):
        cupy.cuda.runtime.hostRegister(address, nbytes, _PORTABLE | _MAPPED | _READ_ONLY)


def unregister(address: int, index: int) -> None:
    """The opposite of `register`, of the same address."""
    import cupy

    with cupy.cuda.Device(index):
        cupy.cuda.runtime.hostUnregister(address)
