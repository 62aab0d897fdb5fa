"""Batches as PyTorch tensors that share their memory. On a GPU, the memory is freed only after the queued kernels that
read it."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict, deque
from typing import Any

import numpy as np
import torch

from ...ops.batch import Batch
from .arrays import lent


class _Memory:
    """One allocation of GPU memory that PyTorch tensors view. Batches that were uploaded together share it."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.device: int = array.device.id
        self.tensors = 0
        self.streams: list[Any] = []
        """PyTorch's streams on which deleted tensors may still be read by queued kernels."""


class _ViewedMemory:
    """All GPU memory of this process that PyTorch tensors view, or whose tensors were deleted while kernels may still
    read it."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[list[Any], _Memory]] = deque()
        """GPU memory to release, with CUDA events: when these have passed, no kernel can still read the memory."""
        self.spare: defaultdict[int, list[Any]] = defaultdict(list)
        """CUDA events to use again, by GPU. They are never destroyed, because that would release the GIL."""
        self.lock = threading.RLock()
        """Lock of these collections. It is reentrant, because garbage collection may run a tensor's destructor while
        the lock is held."""
        self.viewed: dict[int, _Memory] = {}
        """Memory that tensors view, by the id() of CuPy's memory object."""


_all = _ViewedMemory()


class _Guard:
    """Owner of the GPU array that one PyTorch tensor views. After the last tensor is deleted, the memory returns to the
    pool only when PyTorch's queued kernels that may read it have run."""

    def __init__(self, array: Any) -> None:
        self._key = id(array.data.mem)
        with _all.lock:
            memory = _all.viewed.get(self._key) or _Memory(array)
            memory.tensors += 1
            _all.viewed[self._key] = memory  # again, because a destructor may have removed it meanwhile
        self._memory = memory

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        memory = self._memory
        stream = torch.cuda.current_stream(memory.device)
        with _all.lock:
            if stream not in memory.streams:
                memory.streams.append(stream)
            memory.tensors -= 1
            if memory.tensors:
                return
            _all.viewed.pop(self._key, None)
            spare = _all.spare[memory.device]
            events = [spare.pop() if spare else torch.cuda.Event() for _ in memory.streams]
            for event, stream in zip(events, memory.streams, strict=True):
                event.record(stream)
            _all.waiting.append((events, memory))
            while _all.waiting:
                # removed before the query, because a destructor may run meanwhile
                events, memory = oldest = _all.waiting.popleft()
                if not all(e.query() for e in events):
                    _all.waiting.appendleft(oldest)
                    break
                _all.spare[memory.device] += events


_COMPLETE = -1
"""Value of DLPack's ``stream`` argument that means that the data is complete, without waiting."""


def from_array(array: Any, complete: bool = True) -> torch.Tensor:
    """Return a PyTorch view of ``array``. ``complete``: whether the array on a GPU is already computed, as in returned
    batches; otherwise PyTorch's stream waits for CuPy's."""
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    view = lent(array, _Guard(array)) if array.size else array
    return torch.from_dlpack(view.__dlpack__(stream=_COMPLETE) if complete else view)


def from_batch(batch: Batch) -> torch.Tensor:
    """Return a PyTorch view of ``batch`` with shape (N, ...). Raises ValueError if its samples differ in shape."""
    if batch.on_host or not batch.data.size:
        return from_array(batch.dense())
    data, start, shape = batch.block()
    return torch.from_dlpack(lent(data, _Guard(data), start, shape).__dlpack__(stream=_COMPLETE))
