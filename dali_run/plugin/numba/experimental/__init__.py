"""NumbaFunction, under the name of DALI's older module."""

from __future__ import annotations

from ....pipelines.python.numba_functions import NumbaFunction

__all__ = ["NumbaFunction"]
