"""The NVIDIA driver through ctypes, with nothing but the standard library: lists GPUs, and names the extra to install.

``python -P ops/gpu/driver.py`` prints the extra for this machine (cuda12, cuda13) or nothing; the Makefile runs it
before anything is installed.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, with the properties that the NVIDIA driver reports."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """The installed NVIDIA driver and its GPUs, as the function `driver` found them."""

    cuda: tuple[int, int]
    """Newest CUDA version that the driver supports: (major, minor)."""
    gpus: tuple[Gpu, ...]

    @property
    def extra(self) -> str:
        """Return the name of the pip extra of dali-run that fits this driver, such as ``cuda12``; empty if there is no
        GPU or the driver is too old."""
        if not self.gpus or self.cuda < (12, 0):
            return ""
        return "cuda13" if self.cuda >= (13, 0) else "cuda12"


_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


def library() -> ctypes.CDLL:
    """Load the NVIDIA driver's library (libcuda). Raises OSError if there is no driver."""
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


def driver() -> GpuDriver | None:
    """Return the NVIDIA driver of this machine, or None if there is no working one."""
    try:
        cuda = library()
    except OSError:
        return None
    version, count = ctypes.c_int(), ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) or cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return None
    gpus = tuple(gpu for i in range(count.value) if (gpu := _gpu(cuda, i)))
    return GpuDriver((version.value // 1000, version.value % 1000 // 10), gpus)


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu | None:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    memory, major, minor = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int()
    failed = (
        cuda.cuDeviceGet(ctypes.byref(device), index)
        or cuda.cuDeviceGetName(name, 256, device)
        or cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    )
    return None if failed else Gpu(name.value.decode(errors="replace"), memory.value, (major.value, minor.value))


if __name__ == "__main__":
    found = driver()
    print(found.extra if found else "")  # noqa: T201 - a script's output
