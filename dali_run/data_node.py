"""The class DataNode and the constant newaxis; this module has the name of DALI's module."""

from __future__ import annotations

from .pipelines.python.data_node import DataNode
from .pipelines.python.indexing import newaxis

__all__ = ["DataNode", "newaxis"]
