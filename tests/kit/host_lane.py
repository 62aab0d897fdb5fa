"""A lane that runs CUDA kernels on the CPU: g++ compiles the sources, threads run one after the other.

For kernels whose threads do not talk to each other; `cuda_emulator.h` is for the others.
"""

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

from dali_run.ops.gpu.lane import SOURCES

_PREFIX = """
#include <cmath>
#include <cstdlib>
#define __device__
#define __global__
#define __forceinline__ inline
struct Place { unsigned x, y, z; };
static Place threadIdx, blockIdx, blockDim, gridDim;
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fdiv_rn(float a, float b) { return a / b; }
struct Pointer { void* at; template <typename T> operator T*() const { return static_cast<T*>(at); } };
"""
_LOOPS = """
extern "C" void go(unsigned gx, unsigned gy, unsigned block, void** args) {
    blockDim = {block, 1, 1}, gridDim = {gx, gy, 1};
    for (blockIdx.y = 0; blockIdx.y < gy; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gx; ++blockIdx.x)
            for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) KERNEL(ARGUMENTS);
}
"""
_SCALARS = {"int32": "int", "int64": "long long", "float32": "float", "uint32": "unsigned"}


@cache
def _function(source: str, kernel: str, arguments: str) -> Any:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to run the CUDA sources on the CPU")
    folder = Path(tempfile.mkdtemp(prefix="host-lane-"))
    loops = _LOOPS.replace("KERNEL", kernel).replace("ARGUMENTS", arguments)
    (folder / "k.cpp").write_text(f'{_PREFIX}\n#include "{SOURCES / source}"\n{loops}')
    flags = ["-O1", "-std=c++17", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing", f"-I{SOURCES}"]
    subprocess.run([compiler, *flags, "-o", folder / "k.so", folder / "k.cpp"], check=True, capture_output=True)
    return ctypes.CDLL(str(folder / "k.so")).go


class HostLane:
    """A stand-in, over NumPy arrays, for `Context.device` as kernels see it."""

    def empty(self, n: int, dtype: Any) -> Any:
        return np.full(n * np.dtype(dtype).itemsize, 0xA5, np.uint8).view(dtype)

    def upload(self, *arrays: Any) -> tuple[Any, ...]:
        return tuple(np.ascontiguousarray(a).copy() for a in arrays)

    def launch(self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        gx, gy = (*((grid,) if isinstance(grid, int) else grid), 1)[:2]
        if min(gx, gy) <= 0:
            return
        held = [np.asarray(a) for a in args]  # scalars need an address while the kernel runs
        texts = []
        for k, a in enumerate(args):
            scalar = None if isinstance(a, np.ndarray) else _SCALARS[a.dtype.name]
            texts.append(f"*static_cast<{scalar}*>(args[{k}])" if scalar else f"Pointer{{args[{k}]}}")
        pointers = (ctypes.c_void_p * len(held))(*(a.ctypes.data for a in held))
        _function(source, kernel, ", ".join(texts))(gx, gy, block, pointers)
