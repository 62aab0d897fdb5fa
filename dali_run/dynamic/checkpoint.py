"""States of readers and random generators, collected, stored and restored."""

from __future__ import annotations

from ..pipelines.dynamic.checkpoint import Checkpoint
from ..pipelines.dynamic.contexts import current_checkpoint as current

__all__ = ["Checkpoint", "current"]
