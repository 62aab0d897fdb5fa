"""numba_function, under DALI's older name."""

from __future__ import annotations

from .....pipelines.python.numba_functions import numba_function

__all__ = ["numba_function"]
