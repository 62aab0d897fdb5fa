"""The JPEG kernels without a GPU: compiled by g++ behind cuda_emulator.h, memory is NumPy's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dali_run.ops import jpeg_gpu

EMULATOR = Path(__file__).with_name("cuda_emulator.h")


@cache
def _library(options: tuple[str, ...]) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to run the CUDA sources on the CPU")
    folder = Path(tempfile.mkdtemp(prefix="jpeg-emulation-"))
    source, library = folder / "jpeg.cpp", folder / "jpeg.so"
    source.write_text(f'#include "{EMULATOR}"\n{jpeg_gpu.source_text()}\n')
    flags = "-O2 -std=c++17 -fPIC -shared -U_FORTIFY_SOURCE -ffp-contract=off -fno-strict-aliasing".split()
    subprocess.run([compiler, *flags, *options, "-o", library, source], check=True, capture_output=True)
    return ctypes.CDLL(str(library))


class EmulatedRuntime:
    """Every allocation is followed by a strip that no kernel may write."""

    GUARD = 4096

    def __init__(self, *options: str) -> None:
        self.library = _library(options)
        self.launched: list[str] = []
        self._owners: list[NDArray[np.uint8]] = []

    def allocate(self, size: int) -> tuple[Any, int]:
        memory = np.full(size + 256 + self.GUARD, 0xA5, np.uint8)
        start = -memory.ctypes.data % 256
        memory[start + size :] = 0x5A
        view = memory[start : start + size]
        self._owners.append(memory[start + size :])
        return view, view.ctypes.data

    def check_guards(self) -> None:
        assert all((strip == 0x5A).all() for strip in self._owners)

    def upload(self, address: int, data: NDArray[np.uint8], stream: Any) -> None:
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def zero(self, address: int, size: int, stream: Any) -> None:
        ctypes.memset(address, 0, size)

    def launch(self, kernel: str, grid: int, threads: int, batch: int, stream: Any) -> None:
        self.launched.append(kernel)
        function = ctypes.cast(getattr(self.library, kernel), ctypes.c_void_p)
        self.library.emulate(function, ctypes.c_int(grid), ctypes.c_int(threads), ctypes.c_void_p(batch))
