"""DALI's experimental modules for PyTorch."""

from __future__ import annotations

from . import proxy

__all__ = ["proxy"]
