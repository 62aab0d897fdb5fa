"""The page docs/json.md: the JSON that commands print, from the declared types."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dali_run.pipelines.tools.json_output.outputs import OUTPUTS
from dali_run.pipelines.tools.json_output.schema import required_fields


def json_page() -> str:
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
            known = "" if name in required_fields(declared) else "; may be missing"
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
