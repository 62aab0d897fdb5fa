"""CUDA tensors: the steps of a call run on PyTorch's current stream, and the host does not wait for them."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ops.batch import Batch
from ..ops.gpu.lane import Lane
from ..ops.libraries import torchvision_on_gpu

_IN_FLIGHT = 4
"""Number of calls per thread, GPU and stream whose numbers may be on the way to the GPU at the same time. A further
call uses the host memory of the oldest one again."""
_DTYPES = ("uint8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Types that both PyTorch and NumPy have."""


def of(value: Any) -> Gpu | None:
    """Return the GPU of a tensor, or None if it is on the host or has a type that NumPy does not have."""
    if not getattr(value, "is_cuda", False) or str(value.dtype).removeprefix("torch.") not in _DTYPES:
        return None
    return Gpu(value.device.index)


def _torch() -> Any:
    return sys.modules["torch"]


class Gpu:
    """The GPU that holds the tensors of one call. A context manager: inside it, PyTorch's stream is the current stream
    of CuPy."""

    lane: Any

    def __init__(self, index: int) -> None:
        self._index = index
        self._arrays: list[tuple[Any, Any]] = []
        self._slot: _Slot | None = None

    def __enter__(self) -> Gpu:
        torch = _torch()
        self._slot = _slot(self._index, torch.cuda.current_stream(self._index).cuda_stream)
        self.lane = self._slot.lane
        self.lane.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._slot is not None
        self._slot.record_end()
        self.lane.__exit__(*exc)

    def flat(self, tensors: Sequence[Any]) -> Any:
        """Return the elements of ``tensors`` in one flat array, without a copy if there is a single contiguous
        tensor."""
        torch = _torch()
        parts = [t.detach().contiguous().reshape(-1) for t in tensors]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._remember(self._array(joined), joined)

    def empty(self, n: int, dtype: Any) -> Any:
        """Return an uninitialised flat array in PyTorch's memory, which `tensor` turns into a tensor."""
        torch = _torch()
        tensor = torch.empty(n, dtype=getattr(torch, np.dtype(dtype).name), device=f"cuda:{self._index}")
        return self._remember(self._array(tensor), tensor)

    def _array(self, tensor: Any) -> Any:
        """Return a CuPy array that views a flat tensor. (`cupy.asarray` takes ten times as long.)"""
        import cupy

        count, dtype = tensor.numel(), np.dtype(str(tensor.dtype).removeprefix("torch."))
        if not count:
            return cupy.asarray(tensor)
        memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), count * dtype.itemsize, tensor, self._index)
        return cupy.ndarray((count,), dtype, cupy.cuda.MemoryPointer(memory, 0))

    def _remember(self, array: Any, tensor: Any) -> Any:
        self._arrays.append((array, tensor))
        return array

    def tensor(self, array: Any) -> Any:
        """Return the tensor that ``array`` views if `flat` or `empty` returned the array, otherwise None."""
        return next((tensor for known, tensor in self._arrays if known is array), None)

    def host(self, batch: Batch) -> Batch:
        """Return a copy of ``batch`` on the host, after the GPU has computed it."""
        copy: Batch = self.lane.to_host(batch)
        self.lane.synchronize()
        return copy


def plain_batch(value: Any) -> bool:
    """Return whether ``value`` is a contiguous, plain PyTorch tensor of bytes (..., C, H, W) on a GPU, with at least
    one image."""
    if not getattr(value, "is_cuda", False) or type(value).__name__ != "Tensor" or value.ndim < 4:
        return False
    bytes_ = str(value.dtype) == "torch.uint8" and value.is_contiguous()
    return bytes_ and value.numel() > 0 and math.prod(value.shape[-3:]) < 1 << 31


def flipped(value: Any, flips: Any, upside_down: bool) -> Any:
    """Return a copy of ``value``, a tensor for which `plain_batch` is true, in which the images are flipped for which
    ``flips`` is not 0: ``upside_down``, or left to right. The result equals the result of `run`, without the cost of
    batches and arrays."""
    gpu = Gpu(value.device.index)
    with gpu:
        result = _torch().empty_like(value)
        torchvision_on_gpu.flip(gpu.lane, value.shape[-3:], value.data_ptr(), flips, upside_down, result.data_ptr())
    return result


class _Slot:
    """A lane (CUDA stream with memory) that queues work on a stream of PyTorch. Its host memory is used again after the
    GPU has read it."""

    def __init__(self, index: int, stream: int) -> None:
        import cupy

        self.lane = Lane(index, _borrowed(cupy.cuda.ExternalStream, stream, index))
        self._read: Any = None

    def free(self) -> None:
        """Wait until the GPU has read the host memory of the previous call in this slot."""
        if self._read is not None:
            self._read.synchronize()
            self._read = None
            self.lane.drop_references()

    def record_end(self) -> None:
        """Record an event on the stream behind all work of a call, so that `free` can wait for it."""
        import cupy

        self._read = cupy.cuda.Event(disable_timing=True)
        self._read.record(self.lane.stream)


def _borrowed(kind: Any, pointer: int, index: int) -> Any:
    """Return PyTorch's stream as a CuPy stream.

    `Stream.from_external`, which CuPy 14 recommends in a warning, is not used: its streams destroy the stream that they
    were created from.
    """
    stream = kind.__new__(kind)
    super(kind, stream).__init__(pointer, index)
    return stream


_thread_slots = threading.local()
"""Per thread: the `_Slot` objects by (GPU index, stream address)."""


def _slot(index: int, stream: int) -> _Slot:
    slots: list[_Slot] = _thread_slots.__dict__.setdefault("slots", {}).setdefault((index, stream), [])
    slot = _Slot(index, stream) if len(slots) < _IN_FLIGHT else slots.pop(0)
    slots.append(slot)
    slot.free()
    return slot
