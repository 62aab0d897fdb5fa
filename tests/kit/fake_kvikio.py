"""A stand-in for kvikio over the memory of `fake_cupy`: CuFile reads real files into stand-in arrays."""

from __future__ import annotations

import ctypes
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Kvikio:
    """State of kvikio's stand-in: the reads that were made, and the answers of the system."""

    def __init__(self) -> None:
        self.reads: list[tuple[str, int, int]] = []
        """Name of the file, offset and number of bytes of each read."""
        self.open_files = 0
        self.has_gds = False
        self.before_read: Callable[[str], None] = lambda path: None
        """Function that is called before each read with the file's path; the read raises what it raises."""


@contextmanager
def installed() -> Iterator[Kvikio]:
    """Make ``import kvikio`` find the stand-in. At the end, assert that no file is open."""
    state = Kvikio()

    class CuFile:
        """Stand-in for kvikio.CuFile, as kvikio 26.10 documents it, for reading."""

        def __init__(self, file: Any, flags: str = "r") -> None:
            assert flags == "r"
            self._path, self._handle = os.fspath(file), os.open(file, os.O_RDONLY)
            state.open_files += 1

        def raw_read(self, buf: Any, size: int | None = None, file_offset: int = 0, dev_offset: int = 0) -> int:
            state.before_read(self._path)
            interface = buf.__cuda_array_interface__
            space = buf.nbytes - dev_offset
            size = space if size is None else size
            if size > space:
                raise ValueError("size is larger than the buffer")
            data = os.pread(self._handle, size, file_offset)
            if size and not data:
                raise RuntimeError("KvikIO failure: read end of file")
            ctypes.memmove(interface["data"][0] + dev_offset, data, len(data))
            state.reads.append((os.path.basename(self._path), file_offset, len(data)))
            return len(data)

        def close(self) -> None:
            os.close(self._handle)
            state.open_files -= 1

    module, driver, defaults = (types.ModuleType(f"kvikio{n}") for n in ("", ".cufile_driver", ".defaults"))
    module.CuFile = CuFile  # type: ignore[attr-defined]
    driver.get = lambda name: {"is_gds_available": state.has_gds}[name]  # type: ignore[attr-defined]
    defaults.is_compat_mode_preferred = lambda: not state.has_gds  # type: ignore[attr-defined]
    module.cufile_driver, module.defaults = driver, defaults  # type: ignore[attr-defined]
    modules = {m.__name__: m for m in (module, driver, defaults)}
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield state
        assert state.open_files == 0
    finally:
        for name, known in before.items():
            if known is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = known
