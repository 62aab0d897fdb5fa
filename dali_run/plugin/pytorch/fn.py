"""Operators that call PyTorch functions; this module has the name of DALI's module."""

from __future__ import annotations

from .functions import torch_python_function

__all__ = ["torch_python_function"]
