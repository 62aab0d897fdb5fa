"""LastBatchPolicy, and what the iterators of all frameworks share."""

from __future__ import annotations

from ..pipelines.python.iterators import BaseIterator, LastBatchPolicy

__all__ = ["BaseIterator", "LastBatchPolicy"]
