"""numba_function, under the name of DALI's older module."""

from __future__ import annotations

from .....pipelines.python.numba_functions import numba_function

__all__ = ["numba_function"]
