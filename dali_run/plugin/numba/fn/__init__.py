"""numba_function, which runs a function compiled by Numba as an operator."""

from __future__ import annotations

from ....pipelines.python.numba_functions import numba_function
from . import experimental

__all__ = ["experimental", "numba_function"]
