"""NumbaFunction, under DALI's older name."""

from __future__ import annotations

from ....pipelines.python.numba_functions import NumbaFunction

__all__ = ["NumbaFunction"]
