"""Compiled loops by name, imported when they are first used: declaring an operator must not load a compiler."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Kernels:
    """Stand-in for a module that is imported when one of its functions is first used: ``Kernels(".color_cpu",
    __package__)``. An import statement inside a function would take a microsecond per call, and a batch of one image
    needs dozens of calls."""

    def __init__(self, name: str, package: str | None) -> None:
        self._name, self._package = name, package

    def __getattr__(self, member: str) -> Any:
        found = getattr(import_module(self._name, self._package), member)
        setattr(self, member, found)
        return found
