"""dali-run: batch preprocessing from a YAML spec, and DALI's Python API on the same engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .pipelines.data_node import DataNode
    from .pipelines.pipeline import Pipeline, pipeline_def

__all__ = ["DataNode", "Pipeline", "__version__", "pipeline_def"]


def __getattr__(name: str) -> Any:
    """Import on first use: the command line must start without the engine."""
    if name == "DataNode":
        from .pipelines.data_node import DataNode

        return DataNode
    if name in ("Pipeline", "pipeline_def"):
        from .pipelines import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module 'dali_run' has no attribute {name!r}")
