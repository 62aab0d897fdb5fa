"""Pipeline, pipeline_def, DataNode, do_not_convert: the names of DALI's module of this name."""

from __future__ import annotations

from ..pipelines.autograph import do_not_convert
from ..pipelines.data_node import DataNode
from ..pipelines.debug import DataNodeDebug
from ..pipelines.factory import pipeline_def
from ..pipelines.pipeline import OperatorConcurrency, Pipeline, StreamPolicy
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
