"""Copies of pipelines with other settings."""

from __future__ import annotations

from typing import Any

from ..graph.builder import GraphBuilder
from .from_spec import SpecPipeline
from .pipeline import Pipeline


def recreate(pipeline: Pipeline, **arguments: Any) -> Pipeline:
    """Return a new pipeline with the graph of ``pipeline``, including its sources. ``arguments`` replace the settings
    of ``pipeline``.

    Raises the exceptions of Pipeline's constructor.
    """
    edges = pipeline._named_outputs()
    cls = SpecPipeline if isinstance(pipeline, SpecPipeline) else Pipeline
    created = cls(**{**pipeline._settings.arguments(), **arguments})
    created._definition.adopt(GraphBuilder.of(pipeline._definition.builder.nodes), edges)
    created._definition.names = pipeline._definition.names
    return created
