"""Fixtures that tests of ways to read share with those of the engine."""

from tests.kit.engine.fake_kvikio import kvikio

__all__ = ["kvikio"]
