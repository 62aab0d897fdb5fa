"""A pipeline made again: the same graph, with other settings, from its beginning."""

from __future__ import annotations

from typing import Any

from ..graph.builder import GraphBuilder
from .from_spec import SpecPipeline
from .pipeline import Pipeline


def recreate(pipeline: Pipeline, **arguments: Any) -> Pipeline:
    """A pipeline with the graph of ``pipeline``, sources included; ``arguments`` take the place of its own.

    Raises what Pipeline raises for its arguments.
    """
    edges = pipeline._named_outputs()
    cls = SpecPipeline if isinstance(pipeline, SpecPipeline) else Pipeline
    made = cls(**{**pipeline._settings.arguments(), **arguments})
    made._definition.adopt(GraphBuilder.of(pipeline._definition.builder.nodes), edges)
    made._definition.names = pipeline._definition.names
    return made
