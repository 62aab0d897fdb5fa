"""A stand-in for kvikio."""

from __future__ import annotations

import ctypes
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest


class Future:
    """kvikio.IOFuture."""

    def __init__(self, read: int) -> None:
        self._read = read

    def get(self) -> int:
        return self._read


class CuFile:
    """kvikio.CuFile, as its documentation has it. What was read is remembered."""

    reads: list[tuple[str, int, int]] = []  # noqa: RUF012
    open_files = 0

    def __init__(self, file: str, flags: str = "r") -> None:
        assert flags == "r"
        self._path, self._handle = file, os.open(file, os.O_RDONLY)
        CuFile.open_files += 1

    def pread(self, buf: Any, size: int | None = None, file_offset: int = 0, task_size: int | None = None) -> Future:
        data = os.pread(self._handle, buf.nbytes if size is None else size, file_offset)
        assert len(data) <= buf.nbytes
        ctypes.memmove(buf.data.ptr, data, len(data))
        CuFile.reads.append((self._path, file_offset, len(data)))
        return Future(len(data))

    def close(self) -> None:
        os.close(self._handle)
        CuFile.open_files -= 1


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in can be imported; it leaves no file open."""
    module = types.ModuleType("kvikio")
    module.CuFile = CuFile  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvikio", module)
    monkeypatch.setattr(CuFile, "reads", [])
    monkeypatch.setattr(CuFile, "open_files", 0)
    yield
    assert CuFile.open_files == 0
