"""Classes for batches and samples: runs return them, and feed_input and sources accept them."""

from __future__ import annotations

from .pipelines.python.tensors import Tensor, TensorCPU, TensorGPU, TensorList, TensorListCPU, TensorListGPU

__all__ = ["Tensor", "TensorCPU", "TensorGPU", "TensorList", "TensorListCPU", "TensorListGPU"]
