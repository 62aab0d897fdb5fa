"""DALI's experimental `pipeline_def`, which has a debug mode."""

from __future__ import annotations

from ..pipelines.python.pipeline_def import experimental as _experimental

pipeline_def = _experimental.pipeline_def

__all__ = ["pipeline_def"]
