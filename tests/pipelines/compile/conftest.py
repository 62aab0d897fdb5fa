"""Fixtures that tests of the compiler share with those of the engine."""

from tests.kit.engine.joined import pictures

__all__ = ["pictures"]
