"""Batches as PyTorch tensors: views, and copies where they are asked for."""

from __future__ import annotations

from typing import Any

import torch

from ...ops.types import DALIDataType
from ...pipelines.python.tensors import Tensor
from ...pipelines.python.torch_views import from_array, from_batch

to_torch_type = {
    DALIDataType.UINT8: torch.uint8, DALIDataType.UINT16: torch.uint16, DALIDataType.UINT32: torch.uint32,
    DALIDataType.UINT64: torch.uint64, DALIDataType.INT8: torch.int8, DALIDataType.INT16: torch.int16,
    DALIDataType.INT32: torch.int32, DALIDataType.INT64: torch.int64, DALIDataType.FLOAT16: torch.float16,
    DALIDataType.FLOAT: torch.float32, DALIDataType.FLOAT64: torch.float64, DALIDataType.BOOL: torch.bool,
}  # fmt: skip
"""PyTorch's name of every type of ours."""


def to_torch_tensor(data: Any, copy: bool = False) -> torch.Tensor:
    """A Tensor, or a TensorList of samples of one shape, as a tensor; a view of it, unless ``copy``."""
    tensor = from_array(data.array) if isinstance(data, Tensor) else from_batch(data.batch)
    return tensor.clone() if copy else tensor


class MismatchError(ValueError, AssertionError):
    """A tensor has another shape or type than the data that is to go into it; DALI asserts here."""


def feed_ndarray(
    dali_tensor: Any, arr: torch.Tensor, cuda_stream: Any = None, non_blocking: bool = False
) -> torch.Tensor:
    """Copy a Tensor or TensorList into ``arr``, which has its shape and type. Raises ValueError where it has not."""
    del cuda_stream
    source = to_torch_tensor(dali_tensor)
    if source.shape != arr.shape or source.dtype != arr.dtype:
        raise MismatchError(f"the data is {source.dtype} of shape {tuple(source.shape)}, the tensor {arr.dtype} of "
                            f"shape {tuple(arr.shape)}")  # fmt: skip
    return arr.copy_(source, non_blocking=non_blocking)
