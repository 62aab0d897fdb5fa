"""JSON Schema and documentation of the types in `OUTPUTS`."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
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
            "required": sorted(_required(declared)),
        }
    raise AssertionError(f"no schema for {declared}")


def _required(declared: Any) -> set[str]:
    """Return the names of the fields that the TypedDict ``declared`` requires. (`__required_keys__` does not recognize
    NotRequired in annotations that are text.)"""
    hints = get_type_hints(declared, include_extras=True)
    return {name for name, tp in hints.items() if get_origin(tp) is not NotRequired}


def as_page() -> str:
    """Return the text of docs/json.md, which describes the output of all commands with ``--json``."""
    lines = [
        "# JSON for programs",
        "",
        "Commands print JSON with `--json`: on stdout, and nothing else there. Messages for people go to stderr; exit",
        "codes are the same. Fields may be added at any time; those below stay. `dali-run schema --of run` prints the",
        "JSON Schema of what `run --json` prints; the names for `--of` are in the first column. An error that ends a",
        "command before it has a result is printed as [Finished](#finished), with an empty report.",
        "",
        "```sh",
        "dali-run schema --of validate",
        "dali-run validate configs/quickstart.yaml --json",
        "```",
        "",
        "| `--of` | printed by | |",
        "|---|---|---|",
    ]
    for name, (command, declared) in OUTPUTS.items():
        inner = get_args(declared)[0] if get_origin(declared) is list else declared
        list_prefix = "a list of: " if get_origin(declared) is list else ""
        by = command if "." in command else f"{command} --json"
        lines.append(f"| `{name}` | `{by}` | {list_prefix}[{inner.__name__}](#{inner.__name__.lower()}) |")
    for declared in _declared():
        lines += ["", f"## {declared.__name__}", "", (declared.__doc__ or "").strip(), "", "| field | |", "|---|---|"]
        for name, tp in get_type_hints(declared).items():
            known = "" if name in _required(declared) else "; may be missing"
            lines.append(f"| `{name}` | {_words(tp)}{known} |")
    return "\n".join(lines) + "\n"


def _declared() -> list[Any]:
    """Return all TypedDicts that describe JSON output, in the order of first use, each once."""
    types_found: dict[Any, None] = {}

    def visit(declared: Any) -> None:
        if typing.is_typeddict(declared) and declared not in types_found:
            types_found[declared] = None
            for tp in get_type_hints(declared).values():
                visit(tp)
        for inner in get_args(declared):
            visit(inner)

    for _, declared in OUTPUTS.values():
        visit(declared)
    return list(types_found)


def _words(declared: Any) -> str:
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is list:
        return f"list of {_words(arguments[0])}"
    if origin is dict:
        return f"object of {_words(arguments[1])}"
    if origin is Literal:
        return " or ".join(f"`{x}`" for x in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_words(x) for x in arguments)
    if typing.is_typeddict(declared):
        return f"[{declared.__name__}](#{declared.__name__.lower()})"
    words: Mapping[Any, str] = {Any: "anything", str: "text", int: "integer", float: "number", bool: "boolean"}
    return words.get(declared, "null")
