"""Fixtures that several tests of the engine share."""

from tests.kit.engine.decoding import engines
from tests.kit.engine.joined import pictures

__all__ = ["engines", "pictures"]
