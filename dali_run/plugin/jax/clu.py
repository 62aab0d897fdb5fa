"""The iterators with `peek`; this module has the names of DALI's module for CLU."""

from __future__ import annotations

from ...pipelines.python.iterators import LastBatchPolicy
from . import DALIPeekableIterator, peekable_data_iterator

DALIGenericPeekableIterator = DALIPeekableIterator

__all__ = ["DALIGenericPeekableIterator", "LastBatchPolicy", "peekable_data_iterator"]
