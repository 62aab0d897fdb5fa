"""Functions of values, element by element: ``math.sqrt(x)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .invocation import calculate

Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]


def unary(name: str, about: str) -> Unary:
    """The function ``name`` of one value."""

    def call(input: Any) -> Any:
        return calculate(name + "({})", input)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = about
    return call


def binary(name: str, about: str) -> Binary:
    """The function ``name`` of two values."""

    def call(left: Any, right: Any) -> Any:
        return calculate(name + "({}, {})", left, right)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = about
    return call
