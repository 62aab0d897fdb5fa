"""LoaderEvaluator, which measures how long a training waits for its data."""

from __future__ import annotations

from .loader import LoaderEvaluator

__all__ = ["LoaderEvaluator"]
