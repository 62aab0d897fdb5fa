"""Read files into GPU memory with kvikio: by GPUDirect Storage, or in kvikio's compatibility mode through host memory.

Used by `readers.fetch.stored_arrays`; `dali-run plan` and `dali-run doctor` print what `describe` returns.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from .watchdog import waiting

COMPATIBILITY, DIRECT = "compatibility mode", "GPUDirect Storage"
REMEDY = "pip install 'dali-run[gds]' (with drivers for CUDA 12: gds-cuda12)"


def unavailable_reason() -> str:
    """Return the reason why kvikio cannot be used on this machine; an empty text if it can."""
    try:
        import kvikio  # noqa: F401
    except Exception as e:  # a broken installation raises many kinds
        missing = isinstance(e, ModuleNotFoundError) and e.name == "kvikio"
        return "kvikio is not installed" if missing else f"kvikio cannot be loaded: {' '.join(str(e).split())[:200]}"
    return ""


def mode() -> str:
    """Return how kvikio, which must be available, reads files on this machine: `DIRECT` or `COMPATIBILITY`."""
    import kvikio

    return _mode_of(kvikio)


@cache
def _mode_of(kvikio: ModuleType) -> str:
    try:
        defaults, driver = (import_module(f"{kvikio.__name__}.{name}") for name in ("defaults", "cufile_driver"))
        direct = not defaults.is_compat_mode_preferred() and driver.get("is_gds_available")
    except Exception:  # the driver of GPUDirect Storage is missing or broken: kvikio then reads without it
        direct = False
    return DIRECT if direct else COMPATIBILITY


def describe() -> str:
    """Return a text that says how ``readers.numpy(device="gpu")`` gets its arrays into GPU memory on this machine."""
    reason = unavailable_reason()
    if reason:
        return f"read by the CPU and uploaded: {reason}; {REMEDY}"
    return f"read into GPU memory by kvikio, {mode()}"


class DirectFile:
    """A file that is open for reading into the memory of GPU ``index``. Used and closed by one thread."""

    def __init__(self, path: str, index: int) -> None:
        """Raises kvikio's exceptions if the file cannot be opened."""
        import kvikio

        self._index = index
        self._file = kvikio.CuFile(path, "r")

    def read(self, start: int, into: Any) -> int:
        """Fill the device array ``into``, uint8, with the file's bytes from ``start`` on, and wait until they are
        there. Return the number of bytes that were read. The GPU must be current. Raises kvikio's exceptions."""
        with waiting(self._index):
            return int(self._file.raw_read(into, int(into.nbytes), start))

    def close(self) -> None:
        self._file.close()
