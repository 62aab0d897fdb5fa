"""Checks of the keyword arguments that augmentations accept: the parameters of their functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ....ops.errors import SpecError

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_PLACE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


class MissingArgumentError(SpecError):
    """Error of a call in which a keyword argument that an augmentation requires is missing."""


class UnusedArgumentError(SpecError):
    """Error of a call with a keyword argument that none of its augmentations accepts."""


def _keywords(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of an augmentation's function, without the first two (data and magnitude)."""
    keywords = list(inspect.signature(function).parameters.values())[2:]
    return [p for p in keywords if p.kind in _BY_NAME]


def check(function: Callable[..., Any], name: str) -> None:
    """Raise SpecError if ``function`` does not accept two positional arguments: the data and the parameter of an
    augmentation."""
    places = [p for p in inspect.signature(function).parameters.values() if p.kind in _BY_PLACE]
    if len(places) < 2:
        raise SpecError(f"augmentation {name}: its function must take the data and a parameter, it takes {len(places)} "
                        "positional arguments")  # fmt: skip


def accepted(function: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the entries of ``arguments`` that ``function`` accepts. Raises MissingArgumentError if a required one is
    missing."""
    known = _keywords(function)
    missing = [p.name for p in known if p.default is inspect.Parameter.empty and p.name not in arguments]
    if missing:
        hint = "; shape is (height, width), fn.peek_image_shape returns it" if missing == ["shape"] else ""
        raise MissingArgumentError(f"augmentation {name} needs {', '.join(missing)}: pass it to the call{hint}")
    return {p.name: arguments[p.name] for p in known if p.name in arguments}


def refuse_unused(functions: Iterable[Callable[..., Any]], arguments: Mapping[str, Any], call: str) -> None:
    """Raise UnusedArgumentError for arguments that none of the ``functions`` accepts."""
    known = {p.name for f in functions for p in _keywords(f)}
    unused = [name for name in arguments if name not in known]
    if unused:
        raise UnusedArgumentError(f"{call}: no augmentation accepts {', '.join(map(repr, unused))}")
