"""Hints that a program may give about loops that the dynamic mode runs as pipelines (``next_epoch(batch_size=N,
capture=True)``)."""

from __future__ import annotations

from ..pipelines.dynamic.capture import invariant

__all__ = ["invariant"]
