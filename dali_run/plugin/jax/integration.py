"""Tensors as JAX arrays; this module has the name of DALI's module."""

from __future__ import annotations

from typing import Any

from ...tensors import TensorCPU, TensorGPU
from . import as_jax


def _to_jax_array(dali_tensor: TensorCPU | TensorGPU, copy: bool) -> Any:
    """Return the tensor as a JAX array on its device: a view, or a copy if ``copy`` is true or JAX cannot use the
    memory."""
    array = as_jax(dali_tensor.array)
    return array.copy() if copy else array
