"""CUDA tensors: where the steps of a call run that was given some, on PyTorch's current stream and without waiting."""

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
"""Calls whose numbers may be on their way at a time: memory of the host that a copy reads is used again after that."""
_DTYPES = ("uint8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Types that both PyTorch and NumPy have."""


def of(value: Any) -> Gpu | None:
    """The GPU of a tensor; None for what lies on the host, or is of a type that NumPy does not know."""
    if not getattr(value, "is_cuda", False) or str(value.dtype).removeprefix("torch.") not in _DTYPES:
        return None
    return Gpu(value.device.index)


def _torch() -> Any:
    return sys.modules["torch"]


class Gpu:
    """The GPU of one call's tensors. A context manager: inside, its stream is the current one."""

    lane: Any

    def __init__(self, index: int) -> None:
        self._index = index
        self._made: list[tuple[Any, Any]] = []
        self._slot: _Slot | None = None

    def __enter__(self) -> Gpu:
        torch = _torch()
        self._slot = _slot(self._index, torch.cuda.current_stream(self._index).cuda_stream)
        self.lane = self._slot.lane
        self.lane.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._slot is not None
        self._slot.begun()
        self.lane.__exit__(*exc)

    def flat(self, tensors: Sequence[Any]) -> Any:
        """The elements of ``tensors``, one after the other: those of one tensor as they lie there."""
        torch = _torch()
        parts = [t.detach().contiguous().reshape(-1) for t in tensors]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._kept(self._array(joined), joined)

    def empty(self, n: int, dtype: Any) -> Any:
        """An uninitialised flat array that `tensor` makes a tensor of; PyTorch's memory."""
        torch = _torch()
        made = torch.empty(n, dtype=getattr(torch, np.dtype(dtype).name), device=f"cuda:{self._index}")
        return self._kept(self._array(made), made)

    def _array(self, tensor: Any) -> Any:
        """CuPy's array over a flat tensor. (`cupy.asarray` takes ten times as long.)"""
        import cupy

        count, dtype = tensor.numel(), np.dtype(str(tensor.dtype).removeprefix("torch."))
        if not count:
            return cupy.asarray(tensor)
        memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), count * dtype.itemsize, tensor, self._index)
        return cupy.ndarray((count,), dtype, cupy.cuda.MemoryPointer(memory, 0))

    def _kept(self, array: Any, tensor: Any) -> Any:
        self._made.append((array, tensor))
        return array

    def tensor(self, array: Any) -> Any:
        """The tensor over ``array``, where it is one of `flat` or `empty`."""
        return next((tensor for known, tensor in self._made if known is array), None)

    def host(self, batch: Batch) -> Batch:
        """``batch`` on the host, once the GPU is done with it."""
        found: Batch = self.lane.to_host(batch)
        self.lane.synchronize()
        return found


def plain_batch(value: Any) -> bool:
    """``value`` is PyTorch's own tensor (..., C, H, W) of bytes on a GPU, of some images, without gaps."""
    if not getattr(value, "is_cuda", False) or type(value).__name__ != "Tensor" or value.ndim < 4:
        return False
    bytes_ = str(value.dtype) == "torch.uint8" and value.is_contiguous()
    return bytes_ and value.numel() > 0 and math.prod(value.shape[-3:]) < 1 << 31


def flipped(value: Any, which: Any, upside_down: bool) -> Any:
    """The images of ``value``, a tensor (..., C, H, W) of bytes that lies there without gaps, those where ``which`` is
    not 0 mirrored, or turned upside down. It is what `run` does for them, less what batches and arrays cost besides."""
    gpu = Gpu(value.device.index)
    with gpu:
        made = _torch().empty_like(value)
        torchvision_on_gpu.flip(gpu.lane, value.shape[-3:], value.data_ptr(), which, upside_down, made.data_ptr())
    return made


class _Slot:
    """A lane on a stream of PyTorch's. Its memory of the host is used again once the GPU has read it."""

    def __init__(self, index: int, stream: int) -> None:
        import cupy

        self.lane = Lane(index, _borrowed(cupy.cuda.ExternalStream, stream, index))
        self._read: Any = None

    def free(self) -> None:
        """Wait until the GPU has read what was given to it in this slot."""
        if self._read is not None:
            self._read.synchronize()
            self._read = None
            self.lane.drop_references()

    def begun(self) -> None:
        """All of a call is on the stream."""
        import cupy

        self._read = cupy.cuda.Event(disable_timing=True)
        self._read.record(self.lane.stream)


def _borrowed(kind: Any, pointer: int, index: int) -> Any:
    """PyTorch's stream as CuPy's, without the warning of CuPy 14 to take `Stream.from_external`: its streams destroy
    what they were made of when they go."""
    stream = kind.__new__(kind)
    super(kind, stream).__init__(pointer, index)
    return stream


_mine = threading.local()
"""The slots of each thread, by GPU and stream."""


def _slot(index: int, stream: int) -> _Slot:
    slots: list[_Slot] = _mine.__dict__.setdefault("slots", {}).setdefault((index, stream), [])
    slot = _Slot(index, stream) if len(slots) < _IN_FLIGHT else slots.pop(0)
    slots.append(slot)
    slot.free()
    return slot
