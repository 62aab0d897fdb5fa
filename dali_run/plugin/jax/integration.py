"""Tensors as JAX arrays, under the name of DALI's module."""

from __future__ import annotations

from typing import Any

from ...tensors import TensorCPU, TensorGPU
from . import as_jax


def _to_jax_array(dali_tensor: TensorCPU | TensorGPU, copy: bool) -> Any:
    """Return the tensor as a JAX array on its device; a view unless ``copy`` asks for one or JAX cannot take a view."""
    made = as_jax(dali_tensor.array)
    return made.copy() if copy else made
