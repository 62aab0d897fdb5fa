"""Functions of PyTorch's as operators, under the name of DALI's module."""

from __future__ import annotations

from .functions import torch_python_function

__all__ = ["torch_python_function"]
