"""Which keyword arguments augmentations take: those of their functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ....ops.errors import SpecError

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_PLACE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


class MissingArgumentError(SpecError):
    """An augmentation needs a keyword argument that its call did not give."""


class UnusedArgumentError(SpecError):
    """A keyword argument that no augmentation of a call takes."""


def _keywords(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters after data and parameter."""
    rest = list(inspect.signature(function).parameters.values())[2:]
    return [p for p in rest if p.kind in _BY_NAME]


def check(function: Callable[..., Any], name: str) -> None:
    """Raises SpecError for a function that does not take data and a parameter."""
    places = [p for p in inspect.signature(function).parameters.values() if p.kind in _BY_PLACE]
    if len(places) < 2:
        raise SpecError(f"augmentation {name}: its function must take the data and a parameter, it takes {len(places)} "
                        "positional arguments")  # fmt: skip


def accepted(function: Callable[..., Any], given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Those of the ``given`` arguments that ``function`` takes. Raises MissingArgumentError where one is missing."""
    known = _keywords(function)
    missing = [p.name for p in known if p.default is inspect.Parameter.empty and p.name not in given]
    if missing:
        hint = "; shape is (height, width), fn.peek_image_shape finds it" if missing == ["shape"] else ""
        raise MissingArgumentError(f"augmentation {name} needs {', '.join(missing)}: give it to the call{hint}")
    return {p.name: given[p.name] for p in known if p.name in given}


def refuse_unused(functions: Iterable[Callable[..., Any]], given: Mapping[str, Any], call: str) -> None:
    """Raises UnusedArgumentError for arguments that none of the ``functions`` takes."""
    known = {p.name for f in functions for p in _keywords(f)}
    unused = [name for name in given if name not in known]
    if unused:
        raise UnusedArgumentError(f"{call}: no augmentation takes {', '.join(map(repr, unused))}")
