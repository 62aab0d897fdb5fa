"""Compiled kernels by name, imported when they are first used: declaring an operator must not load a compiler."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Kernels:
    """The module ``name``, relative to ``package`` (``Kernels(".color_cpu", __package__)``).

    Its members are looked up once; an import statement in a function takes a microsecond at every call, and a batch of
    one image makes dozens.
    """

    def __init__(self, name: str, package: str | None) -> None:
        self._name, self._package = name, package

    def __getattr__(self, member: str) -> Any:
        found = getattr(import_module(self._name, self._package), member)
        setattr(self, member, found)
        return found
