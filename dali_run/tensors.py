"""Batches and samples as data: what runs return, and what feed_input and sources take."""

from __future__ import annotations

from .pipelines.python.tensors import Tensor, TensorCPU, TensorGPU, TensorList, TensorListCPU, TensorListGPU

__all__ = ["Tensor", "TensorCPU", "TensorGPU", "TensorList", "TensorListCPU", "TensorListGPU"]
