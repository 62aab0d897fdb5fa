"""Conversion of batches to PyTorch tensors: views, or copies on request."""

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
"""PyTorch's type for each DALI type."""


def to_torch_tensor(data: Any, copy: bool = False) -> torch.Tensor:
    """Return a Tensor, or a TensorList whose samples share one shape, as a PyTorch tensor: a view, or a copy if
    ``copy`` is true."""
    tensor = from_array(data.array) if isinstance(data, Tensor) else from_batch(data.batch)
    return tensor.clone() if copy else tensor


class MismatchError(ValueError, AssertionError):
    """A tensor has another shape or type than the data to be copied into it. It is also an AssertionError, which DALI
    raises."""


def feed_ndarray(
    dali_tensor: Any, arr: torch.Tensor, cuda_stream: Any = None, non_blocking: bool = False
) -> torch.Tensor:
    """Copy a Tensor or TensorList into ``arr``. Raises ValueError if ``arr`` has another shape or type."""
    del cuda_stream
    source = to_torch_tensor(dali_tensor)
    if source.shape != arr.shape or source.dtype != arr.dtype:
        raise MismatchError(f"the data is {source.dtype} of shape {tuple(source.shape)}, but the tensor is "
                            f"{arr.dtype} of "
                            f"shape {tuple(arr.shape)}")  # fmt: skip
    return arr.copy_(source, non_blocking=non_blocking)
