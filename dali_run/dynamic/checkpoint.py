"""States of readers and random generators, collected, stored and restored."""

from __future__ import annotations

from ..pipelines.dynamic.checkpoint import Checkpoint, current

__all__ = ["Checkpoint", "current"]
