"""DataNode and newaxis, under the name of DALI's module."""

from __future__ import annotations

from .pipelines.python.data_node import DataNode
from .pipelines.python.indexing import newaxis

__all__ = ["DataNode", "newaxis"]
