"""DALIDatasetWithInputs and Input; this module has the name of DALI's module."""

from __future__ import annotations

from .dataset import DALIDatasetWithInputs, Input

__all__ = ["DALIDatasetWithInputs", "Input"]
