"""Batches as PyTorch tensors: views, and copies where they are asked for."""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Any

import numpy as np
import torch

from ...ops.types import DALIDataType
from ...pipelines.arrays import lent
from ...pipelines.tensors import Tensor

to_torch_type = {
    DALIDataType.UINT8: torch.uint8, DALIDataType.UINT16: torch.uint16, DALIDataType.UINT32: torch.uint32,
    DALIDataType.UINT64: torch.uint64, DALIDataType.INT8: torch.int8, DALIDataType.INT16: torch.int16,
    DALIDataType.INT32: torch.int32, DALIDataType.INT64: torch.int64, DALIDataType.FLOAT16: torch.float16,
    DALIDataType.FLOAT: torch.float32, DALIDataType.FLOAT64: torch.float64, DALIDataType.BOOL: torch.bool,
}  # fmt: skip
"""PyTorch's name of every type of ours."""

_waiting: deque[tuple[list[Any], Any]] = deque()
"""GPU arrays that no tensor refers to any more, until the work that was queued before is done."""
_lock = threading.RLock()
"""Held for a moment; may be taken again by the destructor of a tensor that is collected in the midst of it."""


class _Memory:
    """GPU memory that tensors view: batches that came onto the GPU together lie in one allocation."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.tensors = 0
        self.streams: set[Any] = set()
        """That were PyTorch's when a tensor went: each may have kernels queued that read it."""


_viewed: dict[int, _Memory] = {}
"""By the identity of the memory that they hold."""


class _Guard:
    """Owner of the GPU array that one tensor views. When the last tensor of its memory goes, kernels that read any of
    them may still be queued on PyTorch's streams: the memory goes back to the pool only after them."""

    def __init__(self, array: Any) -> None:
        self._key, fresh = id(array.data.mem), _Memory(array)
        with _lock:
            memory = _viewed.setdefault(self._key, fresh)
            memory.tensors += 1
            _viewed[self._key] = memory  # once more: a destructor may have run since
        self._memory = memory

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        memory = self._memory
        stream = torch.cuda.current_stream(memory.array.device.id)
        with _lock:
            memory.streams.add(stream)
            memory.tensors -= 1
            if memory.tensors:
                return
            _viewed.pop(self._key, None)
            events = []
            for stream in memory.streams:
                events.append(torch.cuda.Event())
                events[-1].record(stream)
            _waiting.append((events, memory.array))
            while _waiting and all(e.query() for e in _waiting[0][0]):
                _waiting.popleft()


_COMPLETE = -1
"""In the place of a stream, DLPack's word for: there is nothing to wait for."""


def from_array(array: Any, complete: bool = True) -> torch.Tensor:
    """A view of ``array``. One on a GPU is ``complete``, as batches are when they are handed out, or PyTorch's stream
    is made to wait for CuPy's."""
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    kept = lent(array, _Guard(array)) if array.size else array
    return torch.from_dlpack(kept.__dlpack__(stream=_COMPLETE) if complete else kept)


def to_torch_tensor(data: Any, copy: bool = False) -> torch.Tensor:
    """A Tensor, or a TensorList of samples of one shape, as a tensor; a view of it, unless ``copy``."""
    array = data.array if isinstance(data, Tensor) else data.batch.dense()
    tensor = from_array(array)
    return tensor.clone() if copy else tensor


def feed_ndarray(
    dali_tensor: Any, arr: torch.Tensor, cuda_stream: Any = None, non_blocking: bool = False
) -> torch.Tensor:
    """Copy a Tensor or TensorList into ``arr``, which has its shape and type. Raises ValueError where it has not."""
    del cuda_stream
    source = to_torch_tensor(dali_tensor)
    if source.shape != arr.shape or source.dtype != arr.dtype:
        raise ValueError(f"the data is {source.dtype} of shape {tuple(source.shape)}, the tensor {arr.dtype} of shape "
                         f"{tuple(arr.shape)}")  # fmt: skip
    return arr.copy_(source, non_blocking=non_blocking)
