"""dali-run: batch preprocessing from a YAML spec, and DALI's Python API on the same engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import ops
from .version import __version__

if TYPE_CHECKING:
    from . import backend, data_node, fn, math, pickling, pipeline, plugin, tensors, tfrecord, types
    from .pipelines.data_node import DataNode, newaxis
    from .pipelines.factory import pipeline_def
    from .pipelines.pipeline import OperatorConcurrency, Pipeline, StreamPolicy
    from .pipelines.spec_pipeline import load_spec

__all__ = [
    "DataNode",
    "OperatorConcurrency",
    "Pipeline",
    "StreamPolicy",
    "__version__",
    "backend",
    "data_node",
    "fn",
    "load_spec",
    "math",
    "newaxis",
    "ops",
    "pickling",
    "pipeline",
    "pipeline_def",
    "plugin",
    "tensors",
    "tfrecord",
    "types",
]

_MODULES = ("backend", "data_node", "fn", "math", "pickling", "pipeline", "plugin", "tensors", "tfrecord", "types")
_MEMBERS = {
    "DataNode": ".pipelines.data_node",
    "OperatorConcurrency": ".pipelines.pipeline",
    "Pipeline": ".pipelines.pipeline",
    "StreamPolicy": ".pipelines.pipeline",
    "load_spec": ".pipelines.spec_pipeline",
    "newaxis": ".pipelines.data_node",
    "pipeline_def": ".pipelines.factory",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line must start without the engine."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _MEMBERS:
        return getattr(import_module(_MEMBERS[name], __name__), name)
    raise AttributeError(f"module 'dali_run' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _operator_class(name: str) -> Any:
    from .pipelines.functions import ops_member

    return ops_member(name)


ops.operator_classes = _operator_class
