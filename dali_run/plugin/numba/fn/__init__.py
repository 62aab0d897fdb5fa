"""numba_function."""

from __future__ import annotations

from ....pipelines.python.numba_functions import numba_function
from . import experimental

__all__ = ["experimental", "numba_function"]
