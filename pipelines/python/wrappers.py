"""Functions of ``fn`` that are written by hand, because their calls accept more than inputs and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Wrapper = Callable[..., Any]
WRAPPERS: dict[str, Wrapper] = {}
"""Functions that are written by hand for ``fn``, by the name of their operator: external_source, python_function,
..."""


def wrap(name: str) -> Callable[[Wrapper], Wrapper]:
    """Return a decorator that registers a function as ``fn.<name>``, in place of the generated function."""

    def register(function: Wrapper) -> Wrapper:
        WRAPPERS[name] = function
        return function

    return register
