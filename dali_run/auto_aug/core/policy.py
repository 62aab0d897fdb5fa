"""The class Policy; this module has the name of DALI's module."""

from __future__ import annotations

from ...pipelines.python.auto_aug.policy import Policy

__all__ = ["Policy"]
