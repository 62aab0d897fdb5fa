"""JSON Schema of the types in `OUTPUTS`."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal, NotRequired, get_args, get_origin, get_type_hints

from ....ops.base import nearest
from ....ops.errors import SpecError
from .outputs import OUTPUTS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def output_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one of `OUTPUTS`. Raises SpecError with the nearest names."""
    if name not in OUTPUTS:
        raise SpecError(f"there is no schema {name!r}{nearest(name, OUTPUTS)} (known: spec, {', '.join(OUTPUTS)})")
    command, declared = OUTPUTS[name]
    return {"$schema": DIALECT, "title": f"dali-run {command}", **_schema(declared)}


_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def _schema(declared: Any) -> dict[str, Any]:
    origin, arguments = get_origin(declared), get_args(declared)
    if declared is Any:
        return {}
    if declared in _PLAIN:
        return {"type": _PLAIN[declared]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(x) for x in arguments]}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if typing.is_typeddict(declared):
        text = (declared.__doc__ or "").split("\n\n")[0]
        return {
            "type": "object",
            **({"description": text} if text and not text.startswith("dict") else {}),
            "properties": {name: _schema(tp) for name, tp in get_type_hints(declared).items()},
            "required": sorted(required_fields(declared)),
        }
    raise AssertionError(f"no schema for {declared}")


def required_fields(declared: Any) -> set[str]:
    """Return the names of the fields that the TypedDict ``declared`` requires. (`__required_keys__` does not recognize
    NotRequired in annotations that are text.)"""
    hints = get_type_hints(declared, include_extras=True)
    return {name for name, tp in hints.items() if get_origin(tp) is not NotRequired}
