"""The part that DALI calls experimental: `pipeline_def` with debug mode."""

from __future__ import annotations

from ..pipelines.python.pipeline_def import experimental as _experimental

pipeline_def = _experimental.pipeline_def

__all__ = ["pipeline_def"]
