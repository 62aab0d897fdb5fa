"""Batches as PyTorch tensors that view them: on a GPU their memory goes back after the kernels that were queued."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict, deque
from typing import Any

import numpy as np
import torch

from ...ops.batch import Batch
from .arrays import lent

_waiting: deque[tuple[list[Any], _Memory]] = deque()
"""Memory that no tensor refers to any more, until the work that was queued before is done."""
_spare: defaultdict[int, list[Any]] = defaultdict(list)
"""Events of each GPU that can be recorded again: to destroy one lets go of the GIL."""
_lock = threading.RLock()
"""Held for a moment; may be taken again by the destructor of a tensor that is collected in the midst of it."""


class _Memory:
    """GPU memory that tensors view: batches that came onto the GPU together lie in one allocation."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.device: int = array.device.id
        self.tensors = 0
        self.streams: list[Any] = []
        """That were PyTorch's when a tensor went: each may have kernels queued that read it."""


_viewed: dict[int, _Memory] = {}
"""By the identity of the memory that they hold."""


class _Guard:
    """Owner of the GPU array that one tensor views. When the last tensor of its memory goes, kernels that read any of
    them may still be queued on PyTorch's streams: the memory goes back to the pool only after them."""

    def __init__(self, array: Any) -> None:
        self._key = id(array.data.mem)
        with _lock:
            memory = _viewed.get(self._key) or _Memory(array)
            memory.tensors += 1
            _viewed[self._key] = memory  # once more: a destructor may have run since
        self._memory = memory

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        memory = self._memory
        stream = torch.cuda.current_stream(memory.device)
        with _lock:
            if stream not in memory.streams:
                memory.streams.append(stream)
            memory.tensors -= 1
            if memory.tensors:
                return
            _viewed.pop(self._key, None)
            spare = _spare[memory.device]
            events = [spare.pop() if spare else torch.cuda.Event() for _ in memory.streams]
            for event, stream in zip(events, memory.streams, strict=True):
                event.record(stream)
            _waiting.append((events, memory))
            while _waiting:
                events, memory = oldest = _waiting.popleft()  # before it is asked: a destructor may run meanwhile
                if not all(e.query() for e in events):
                    _waiting.appendleft(oldest)
                    break
                _spare[memory.device] += events


_COMPLETE = -1
"""In the place of a stream, DLPack's word for: there is nothing to wait for."""


def from_array(array: Any, complete: bool = True) -> torch.Tensor:
    """A view of ``array``. One on a GPU is ``complete``, as batches are when they are handed out, or PyTorch's stream
    is made to wait for CuPy's."""
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    kept = lent(array, _Guard(array)) if array.size else array
    return torch.from_dlpack(kept.__dlpack__(stream=_COMPLETE) if complete else kept)


def from_batch(batch: Batch) -> torch.Tensor:
    """A view of ``batch``, (N, ...). Raises ValueError where its samples differ in shape."""
    if batch.on_host or not batch.data.size:
        return from_array(batch.dense())
    data, start, shape = batch.block()
    return torch.from_dlpack(lent(data, _Guard(data), start, shape).__dlpack__(stream=_COMPLETE))
