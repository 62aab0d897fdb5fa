"""DALIDatasetWithInputs and Input, under DALI's name for them."""

from __future__ import annotations

from .dataset import DALIDatasetWithInputs, Input

__all__ = ["DALIDatasetWithInputs", "Input"]
