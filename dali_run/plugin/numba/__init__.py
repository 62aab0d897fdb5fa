"""Operators that run functions compiled by Numba."""

from __future__ import annotations

from ...pipelines.python.numba_functions import NumbaFunction
from . import experimental, fn

__all__ = ["NumbaFunction", "experimental", "fn"]
