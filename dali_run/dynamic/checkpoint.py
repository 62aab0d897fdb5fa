"""Checkpoints of the dynamic mode: they collect, store and restore the states of readers and random number
generators."""

from __future__ import annotations

from ..pipelines.dynamic.checkpoint import Checkpoint
from ..pipelines.dynamic.contexts import current_checkpoint as current

__all__ = ["Checkpoint", "current"]
