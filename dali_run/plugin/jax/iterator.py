"""The iterators for JAX; this module has the name of DALI's module."""

from __future__ import annotations

from . import DALIGenericIterator, data_iterator

__all__ = ["DALIGenericIterator", "data_iterator"]
