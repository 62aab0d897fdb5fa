"""LastBatchPolicy, and the base class of the iterators of all frameworks."""

from __future__ import annotations

from ..pipelines.python.iterators import BaseIterator, LastBatchPolicy

__all__ = ["BaseIterator", "LastBatchPolicy"]
