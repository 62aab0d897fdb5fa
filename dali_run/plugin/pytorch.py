"""Iterators that give PyTorch tensors. Nothing is copied: a tensor is a view of the batch, on the host and on a GPU."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..pipelines.arrays import lent
from ..pipelines.iterators import BaseIterator, LastBatchPolicy, checked_output_map
from ..pipelines.pipeline import Pipeline
from ..pipelines.python_functions import python_function
from ..pipelines.tensors import Tensor, TensorList

__all__ = [
    "DALIClassificationIterator",
    "DALIGenericIterator",
    "DALIRaggedIterator",
    "LastBatchPolicy",
    "feed_ndarray",
    "fn",
    "to_torch_tensor",
]

_waiting: deque[tuple[Any, Any]] = deque()
"""GPU arrays that no tensor refers to any more, until the work that was queued before is done."""


class _Guard:
    """Owner of a GPU array that a tensor views. When the tensor goes, kernels that read it may still be queued on
    PyTorch's stream: the memory goes back to the pool only after them."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._array.device.id))
        _waiting.append((event, self._array))
        while _waiting and _waiting[0][0].query():
            _waiting.popleft()


_COMPLETE = -1
"""In the place of a stream, DLPack's word for: there is nothing to wait for."""


def _from_array(array: Any, complete: bool = True) -> torch.Tensor:
    """A view of ``array``. One on a GPU is ``complete``, as batches are when they are handed out, or PyTorch's stream
    is made to wait for CuPy's."""
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    kept = lent(array, _Guard(array)) if array.size else array
    return torch.from_dlpack(kept.__dlpack__(stream=_COMPLETE) if complete else kept)


def to_torch_tensor(data: Any, copy: bool = False) -> torch.Tensor:
    """A Tensor, or a TensorList of samples of one shape, as a tensor; a view of it, unless ``copy``."""
    array = data.array if isinstance(data, Tensor) else data.batch.dense()
    tensor = _from_array(array)
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


class DALIGenericIterator(BaseIterator):
    """Gives a list with a dict for each pipeline: output name -> tensor (N, ...)."""

    def __init__(
        self,
        pipelines: Pipeline | Sequence[Pipeline],
        output_map: Sequence[str] | None = None,
        size: int = -1,
        reader_name: str | None = None,
        auto_reset: bool | str | None = False,
        fill_last_batch: bool | None = None,
        dynamic_shape: bool = False,
        last_batch_padded: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:
        """``dynamic_shape`` is taken for DALI's sake: shapes may always differ between batches. Raises ValueError."""
        del dynamic_shape
        super().__init__(pipelines, size, reader_name, auto_reset, fill_last_batch, last_batch_padded,
                         last_batch_policy, prepare_first_batch)  # fmt: skip
        self.output_map = checked_output_map(output_map, self.pipelines)

    def __next__(self) -> list[dict[str, Any]]:
        batches = self.next_outputs()
        return [{k: self.convert(k, t) for k, t in zip(self.output_map, one, strict=True)} for one in batches]

    def convert(self, name: str, outputs: TensorList) -> Any:
        """One output of one pipeline. Raises ValueError where its samples differ in shape."""
        return _from_array(outputs.batch.dense())


class DALIClassificationIterator(DALIGenericIterator):
    """DALIGenericIterator for pipelines that give images and labels: ``data`` and ``label``."""

    def __init__(
        self, pipelines: Pipeline | Sequence[Pipeline], size: int = -1, reader_name: str | None = None,
        auto_reset: bool | str | None = False, fill_last_batch: bool | None = None, dynamic_shape: bool = False,
        last_batch_padded: bool = False, last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(pipelines, ["data", "label"], size, reader_name, auto_reset, fill_last_batch, dynamic_shape,
                         last_batch_padded, last_batch_policy, prepare_first_batch)  # fmt: skip


class DALIRaggedIterator(DALIGenericIterator):
    """As DALIGenericIterator, for outputs whose samples differ in shape.

    ``output_types`` names for each output what is given: a dense tensor, a list of tensors, or one flat list of
    coordinates and values (a sparse COO tensor).
    """

    DENSE_TAG = "dense"
    SPARSE_LIST_TAG = "list"
    SPARSE_COO_TAG = "coo"

    def __init__(
        self, pipelines: Pipeline | Sequence[Pipeline], output_map: Sequence[str] | None = None, size: int = -1,
        reader_name: str | None = None, output_types: Sequence[str] | None = None,
        auto_reset: bool | str | None = False, fill_last_batch: bool | None = None, dynamic_shape: bool = False,
        last_batch_padded: bool = False, last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(pipelines, output_map, size, reader_name, auto_reset, fill_last_batch, dynamic_shape,
                         last_batch_padded, last_batch_policy, prepare_first_batch)  # fmt: skip
        types = list(output_types) if output_types is not None else [self.DENSE_TAG] * len(self.output_map)
        if len(types) != len(self.output_map):
            raise ValueError(f"output_types names {len(types)} outputs, output_map {len(self.output_map)}")
        unknown = set(types) - {self.DENSE_TAG, self.SPARSE_LIST_TAG, self.SPARSE_COO_TAG}
        if unknown:
            raise ValueError(
                f"output_types must be DENSE_TAG, SPARSE_LIST_TAG or SPARSE_COO_TAG, got {unknown.pop()!r}"
            )
        self._types = dict(zip(self.output_map, types, strict=True))

    def convert(self, name: str, outputs: TensorList) -> Any:
        """One output of one pipeline. Raises ValueError where a dense one has samples of different shapes."""
        kind = self._types[name]
        if kind == self.DENSE_TAG:
            return super().convert(name, outputs)
        samples = [_from_array(outputs.at(i)) for i in range(len(outputs))]
        return samples if kind == self.SPARSE_LIST_TAG else _coordinates(samples)


class fn:  # noqa: N801  # a namespace of DALI's
    """Operators of PyTorch's."""

    @staticmethod
    def torch_python_function(*inputs: Any, function: Callable[..., Any], **arguments: Any) -> Any:
        """fn.python_function for a function that takes and returns tensors (lists of them with
        ``batch_processing``). Inputs are views of the batch."""

        def call(*arrays: Any) -> Any:
            def view(array: Any) -> torch.Tensor:
                return _from_array(array, complete=False)

            return function(*([view(a) for a in x] if isinstance(x, list) else view(x) for x in arrays))

        return python_function(*inputs, function=call, **arguments)


def _coordinates(samples: list[torch.Tensor]) -> torch.Tensor:
    """All samples as one sparse tensor, the sample's number first among the coordinates."""
    where, values = [], []
    for i, sample in enumerate(samples):
        at = torch.ones_like(sample, dtype=torch.bool).nonzero()
        where.append(torch.cat([torch.full((len(at), 1), i, device=at.device), at], dim=1))
        values.append(sample.reshape(-1))
    extents = [max(s.shape[d] for s in samples) for d in range(samples[0].dim())]
    return torch.sparse_coo_tensor(
        torch.cat(where).t(), torch.cat(values), (len(samples), *extents), check_invariants=False
    )
