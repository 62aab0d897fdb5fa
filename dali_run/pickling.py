"""pickle_by_value, which pickles callbacks that worker processes cannot import."""

from __future__ import annotations

from .pipelines.python.sources.pickling import pickle_by_value

__all__ = ["pickle_by_value"]
