"""Functions that Numba compiles, as operators."""

from __future__ import annotations

from ...pipelines.python.numba_functions import NumbaFunction
from . import experimental, fn

__all__ = ["NumbaFunction", "experimental", "fn"]
