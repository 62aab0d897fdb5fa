"""The classes of pipeline outputs, under the module name that older programs import, and DALI's memory functions."""

from __future__ import annotations

from typing import Any

from .ops.gpu.lane import give_back_pinned, gpu_count
from .plugin_manager import load_directory as LoadDirectory  # noqa: N812 - DALI's name
from .plugin_manager import load_library as LoadLibrary  # noqa: N812 - DALI's name
from .tensors import TensorCPU, TensorGPU, TensorListCPU, TensorListGPU

__all__ = [
    "GetCUDADeviceCount",
    "GetCudaVersion",
    "GetDeviceBufferGrowthFactor",
    "GetHostBufferGrowthFactor",
    "GetHostBufferShrinkThreshold",
    "LoadDirectory",
    "LoadLibrary",
    "PreallocateDeviceMemory",
    "PreallocatePinnedMemory",
    "ReleaseUnusedMemory",
    "RestrictPinnedMemUsage",
    "SetBufferGrowthFactor",
    "SetDeviceBufferGrowthFactor",
    "SetHostBufferGrowthFactor",
    "SetHostBufferShrinkThreshold",
    "TensorCPU",
    "TensorGPU",
    "TensorListCPU",
    "TensorListGPU",
]

_factors = {"host": 1.1, "device": 1.1, "shrink": 0.5}
"""The factors that a program last set. They are only stored: the engine sizes memory by the data itself."""


def GetCudaVersion() -> int:  # noqa: N802 - DALI's name
    """Return the version of the CUDA runtime as CUDA writes it (13000 is 13.0), or -1 without CuPy or CUDA."""
    try:
        import cupy

        return int(cupy.cuda.runtime.runtimeGetVersion())
    except Exception:
        return -1


def __getattr__(name: str) -> Any:
    if name == "__cuda_version__":
        return GetCudaVersion()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def GetCUDADeviceCount() -> int:  # noqa: N802 - DALI's name
    """Return the number of GPUs that can be used."""
    return gpu_count()


def PreallocateDeviceMemory(bytes: int, device_id: int) -> None:  # noqa: N802 - DALI's name
    """Do nothing: the memory pool grows with the first batches and keeps its memory."""


def PreallocatePinnedMemory(bytes: int) -> None:  # noqa: N802 - DALI's name
    """Do nothing, as PreallocateDeviceMemory."""


def ReleaseUnusedMemory() -> None:  # noqa: N802 - DALI's name
    """Return to the system the memory that CuPy's pools hold and nothing uses."""
    if gpu_count():
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        give_back_pinned()


def RestrictPinnedMemUsage() -> None:  # noqa: N802 - DALI's name
    """Do nothing: the setting `memory` limits page-locked memory."""


def SetHostBufferGrowthFactor(factor: float) -> None:  # noqa: N802 - DALI's name
    """Store the factor for `GetHostBufferGrowthFactor`; it has no other effect."""
    _factors["host"] = factor


def SetDeviceBufferGrowthFactor(factor: float) -> None:  # noqa: N802 - DALI's name
    """Store the factor for `GetDeviceBufferGrowthFactor`; it has no other effect."""
    _factors["device"] = factor


def SetBufferGrowthFactor(factor: float) -> None:  # noqa: N802 - DALI's name
    """Store the factor for the host and for the GPU."""
    _factors["host"] = _factors["device"] = factor


def SetHostBufferShrinkThreshold(fraction: float) -> None:  # noqa: N802 - DALI's name
    """Store the threshold for `GetHostBufferShrinkThreshold`; it has no other effect."""
    _factors["shrink"] = fraction


def GetHostBufferGrowthFactor() -> float:  # noqa: N802 - DALI's name
    """Return the factor that was last set for the host."""
    return _factors["host"]


def GetDeviceBufferGrowthFactor() -> float:  # noqa: N802 - DALI's name
    """Return the factor that was last set for the GPU."""
    return _factors["device"]


def GetHostBufferShrinkThreshold() -> float:  # noqa: N802 - DALI's name
    """Return the threshold that was last set."""
    return _factors["shrink"]
