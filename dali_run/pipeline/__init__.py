"""Pipeline, pipeline_def, DataNode, do_not_convert; this module has the name and the members of DALI's module."""

from __future__ import annotations

from ..pipelines.python.control_flow.autograph import do_not_convert
from ..pipelines.python.data_node import DataNode
from ..pipelines.python.debug import DataNodeDebug
from ..pipelines.python.pipeline import OperatorConcurrency, Pipeline, StreamPolicy
from ..pipelines.python.pipeline_def import pipeline_def
from . import experimental

__all__ = [
    "DataNode",
    "DataNodeDebug",
    "OperatorConcurrency",
    "Pipeline",
    "StreamPolicy",
    "do_not_convert",
    "experimental",
    "pipeline_def",
]
