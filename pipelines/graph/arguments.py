"""The arguments of an operator: constants checked and converted, edges sorted out, mistakes named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ops.base import Operator, Parameter, coerce, nearest, parameters, type_name
from ...ops.errors import SpecError
from .nodes import Edge


def check_arguments(cls: type[Operator], args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Edge], list[str]]:
    """The constants and the argument inputs among ``args``, and everything that is wrong with them."""
    known = parameters(cls)
    constants: dict[str, Any] = {}
    edges: dict[str, Edge] = {}
    problems: list[str] = []
    for given, value in args.items():
        try:
            name, checked = check_argument(cls, given, value)
        except SpecError as e:
            problems.append(str(e))
        else:
            (edges if isinstance(checked, Edge) else constants)[name] = checked
    missing = [p for p in known.values() if p.required and p.name not in constants and p.name not in edges]
    problems += [f"needs argument {p.name!r} ({type_name(p.type)}: {p.arg.help})" for p in missing]
    return constants, edges, problems


def is_tensor(known: Parameter | None, value: Any) -> bool:
    """Whether ``value`` is an array for an argument that takes tensors: it becomes a constant input of the operator."""
    return known is not None and known.arg.tensor and hasattr(value, "__array__") and np.ndim(value) > 0


def no_argument(cls: type[Operator], name: str) -> str:
    """Error message for an unknown argument ``name``."""
    return f"has no argument {name!r}{nearest(name, parameters(cls))}"


def check_argument(cls: type[Operator], name: str, value: Any) -> tuple[str, Any]:
    """The argument that ``name`` stands for (a deprecated one hands its value on) and its value as the right type.

    Raises SpecError that says what is wrong.
    """
    known = parameters(cls)
    param = known.get(name)
    if param is None:
        raise SpecError(no_argument(cls, name))
    if param.arg.deprecated and param.arg.deprecated in known:
        name, param = param.arg.deprecated, known[param.arg.deprecated]
    if isinstance(value, Edge):
        if not param.arg.per_sample:
            raise SpecError(f"argument {name!r} must be a constant, not the output of an operator")
        return name, value
    try:
        return name, coerce(param, value)
    except ValueError as e:
        raise SpecError(f"argument {name!r}: {e}") from None
