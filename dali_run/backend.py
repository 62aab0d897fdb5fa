"""The classes of results, under the name by which older programs import them, and DALI's functions of memory."""

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
"""As they were given; memory is sized by the data itself."""


def GetCudaVersion() -> int:  # noqa: N802 - DALI's name
    """The CUDA runtime's version as CUDA writes it (13000 is 13.0); -1 without CuPy or CUDA."""
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
    """How many GPUs can be used."""
    return gpu_count()


def PreallocateDeviceMemory(bytes: int, device_id: int) -> None:  # noqa: N802 - DALI's name
    """Without effect: the pool grows with the first batches and keeps what it has."""


def PreallocatePinnedMemory(bytes: int) -> None:  # noqa: N802 - DALI's name
    """Without effect, as PreallocateDeviceMemory."""


def ReleaseUnusedMemory() -> None:  # noqa: N802 - DALI's name
    """Give memory back to the system that CuPy's pools hold and nothing uses."""
    if gpu_count():
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        give_back_pinned()


def RestrictPinnedMemUsage() -> None:  # noqa: N802 - DALI's name
    """Without effect: page-locked memory is on the account of `memory`."""


def SetHostBufferGrowthFactor(factor: float) -> None:  # noqa: N802 - DALI's name
    """Without effect but on `GetHostBufferGrowthFactor`."""
    _factors["host"] = factor


def SetDeviceBufferGrowthFactor(factor: float) -> None:  # noqa: N802 - DALI's name
    """Without effect but on `GetDeviceBufferGrowthFactor`."""
    _factors["device"] = factor


def SetBufferGrowthFactor(factor: float) -> None:  # noqa: N802 - DALI's name
    """Both of them."""
    _factors["host"] = _factors["device"] = factor


def SetHostBufferShrinkThreshold(fraction: float) -> None:  # noqa: N802 - DALI's name
    """Without effect but on `GetHostBufferShrinkThreshold`."""
    _factors["shrink"] = fraction


def GetHostBufferGrowthFactor() -> float:  # noqa: N802 - DALI's name
    """The factor that was set."""
    return _factors["host"]


def GetDeviceBufferGrowthFactor() -> float:  # noqa: N802 - DALI's name
    """The factor that was set."""
    return _factors["device"]


def GetHostBufferShrinkThreshold() -> float:  # noqa: N802 - DALI's name
    """The threshold that was set."""
    return _factors["shrink"]
