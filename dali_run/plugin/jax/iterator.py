"""The iterators for JAX, under the name of DALI's module."""

from __future__ import annotations

from . import DALIGenericIterator, data_iterator

__all__ = ["DALIGenericIterator", "data_iterator"]
