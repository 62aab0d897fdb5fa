"""Check the arguments of an operator: convert constants, separate edges, and describe errors. Called by
`GraphBuilder`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ops.base import Operator, Parameter, coerce, nearest, parameters, type_name
from ...ops.errors import SpecError
from .nodes import Edge


def check_arguments(cls: type[Operator], args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Edge], list[str]]:
    """Check the arguments ``args`` of an operator, and divide them into constants and argument inputs (edges). Return
    both by name, and the texts of all errors."""
    declared = parameters(cls)
    constants: dict[str, Any] = {}
    edges: dict[str, Edge] = {}
    problems: list[str] = []
    for written_name, value in args.items():
        try:
            name, checked = check_argument(cls, written_name, value)
        except SpecError as e:
            problems.append(str(e))
        else:
            (edges if isinstance(checked, Edge) else constants)[name] = checked
    missing = [p for p in declared.values() if p.required and p.name not in constants and p.name not in edges]
    problems += [f"needs argument {p.name!r} ({type_name(p.type)}: {p.arg.help})" for p in missing]
    return constants, edges, problems


def tensor_of(parameter: Parameter | None, value: Any) -> Any:
    """Return ``value`` as an array, if it is one or a list of lists of numbers, and if ``parameter`` accepts arrays.
    The array becomes a constant input of the operator. Return None otherwise."""
    if parameter is None or not parameter.arg.tensor:
        return None
    if isinstance(value, (list, tuple)):
        try:
            array = np.asarray(value)
        except ValueError:  # rows of different lengths
            return None
        return array.astype(np.float32) if array.ndim > 1 and array.dtype.kind in "biuf" else None
    return value if hasattr(value, "__array__") and np.ndim(value) > 0 else None


def no_argument(cls: type[Operator], name: str) -> str:
    """Return the error message for an unknown argument ``name``."""
    return f"has no argument {name!r}{nearest(name, parameters(cls))}"


def check_argument(cls: type[Operator], name: str, value: Any) -> tuple[str, Any]:
    """Check one argument. Return its name (for a deprecated name, the one that replaces it), and its value converted to
    the right type. Raises SpecError with a description of the error."""
    declared = parameters(cls)
    param = declared.get(name)
    if param is None:
        raise SpecError(no_argument(cls, name))
    if param.arg.deprecated and param.arg.deprecated in declared:
        name, param = param.arg.deprecated, declared[param.arg.deprecated]
    if isinstance(value, Edge):
        if not param.arg.per_sample:
            raise SpecError(f"argument {name!r} must be a constant, not the output of an operator")
        return name, value
    try:
        return name, coerce(param, value)
    except ValueError as e:
        raise SpecError(f"argument {name!r}: {e}") from None
