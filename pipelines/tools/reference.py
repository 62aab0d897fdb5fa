"""Reference of all operators from their declarations, as data: for JSON, for a terminal, and for the pages of docs/."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Mapping
from typing import Any

from ...ops.base import Operator, Parameter, operators, parameters, type_name
from ...ops.errors import SpecError
from ...writers.base import Writer, options_of, writers
from ..plugins import find_operator, known_writer, load_installed_plugins, load_operators


def describe_operators(installed: bool = True) -> list[dict[str, Any]]:
    """Return all operators that a spec can name, sorted, followed by the writers; ``installed`` includes those of
    installed packages."""
    return [*map(describe, _named(installed)), *(describe_writer(w) for w in writers().values())]


def list_operators() -> list[dict[str, Any]]:
    """Return ``name``, ``stages`` and ``summary`` of all operators and writers. This is faster than
    `describe_operators`."""
    rows = [{"name": op.name, "stages": list(op.devices), "summary": _summary(op)} for op in _named(installed=True)]
    return [*rows, *({"name": _WRITERS + w.name, "stages": ["write"], "summary": _summary(w)}
                      for w in writers().values())]  # fmt: skip


def _named(installed: bool) -> list[type[Operator]]:
    load_operators()
    if installed:
        load_installed_plugins()
    return [op for name, op in operators().items() if not name.startswith("_")]


def _summary(declared: type[Operator] | type[Writer]) -> str:
    return " ".join((inspect.getdoc(declared) or "").split("\n\n")[0].split())


def describe_operator(name: str) -> dict[str, Any]:
    """Return the description of the operator ``name`` (or an alias), or of ``writers.<name>``. Raises SpecError with
    the nearest names."""
    if name.startswith(_WRITERS):
        return describe_writer(known_writer(name.removeprefix(_WRITERS)))
    try:
        return describe(find_operator(name))
    except SpecError:
        load_installed_plugins()
    return describe(find_operator(name))


_WRITERS = "writers."


def describe_writer(writer: type[Writer]) -> dict[str, Any]:
    """Return the description of a writer, in the form of `describe`."""
    facts = {
        "in a spec": f"write: {{writer: {writer.name}, path: ...}}",
        "shards": f"<name>-00000-of-00001{writer.suffix}",
    }
    return {
        "name": _WRITERS + writer.name,
        "aliases": [],
        "summary": _summary(writer),
        "doc": inspect.getdoc(writer) or "",
        "stages": ["write"],
        "inputs": [1, None],
        "layouts": [],
        "random": False,
        "bound": "exact",
        "arguments": [_argument(p) for p in options_of(writer).values()],
        "example": "",
        "facts": facts,
    }


def describe(op: type[Operator]) -> dict[str, Any]:
    """Return the description of the operator ``op`` as data for JSON: facts, arguments, an example."""
    return {
        "name": op.name,
        "aliases": list(op.aliases),
        "summary": _summary(op),
        "doc": inspect.getdoc(op) or "",
        "stages": list(op.devices),
        "inputs": list(op.inputs),
        "layouts": list(op.layouts),
        "random": op.random,
        "bound": op.bound,
        "arguments": [_argument(p) for p in parameters(op).values()],
        "example": op.example,
        "facts": _facts(op),
    }


def _facts(op: type[Operator]) -> dict[str, str]:
    """Return facts about an operator, such as its devices, as text by title."""
    low, high = op.inputs
    facts = {"runs on": ", ".join(op.devices), "inputs": str(low) if low == high else f"{low} to {high}"}
    if op.layouts:
        facts["layouts"] = ", ".join(op.layouts)
    if op.random:
        facts["random"] = "by (seed, operator, epoch, sample)"
    if "cpu" in op.stages and len(op.stages) > 1:
        facts["CPU and GPU"] = op.bound
    if op.aliases:
        facts["also called"] = ", ".join(op.aliases)
    return facts


def _argument(p: Parameter) -> dict[str, Any]:
    notes = []
    if p.arg.ge is not None or p.arg.le is not None:
        low = "" if p.arg.ge is None else f"{p.arg.ge:.10g} <= "
        high = "" if p.arg.le is None else f" <= {p.arg.le:.10g}"
        notes.append(f"{low}value{high}")
    if p.arg.per_sample:
        notes.append("may differ by sample ($name)")
    if p.arg.deprecated:
        notes.append(f"deprecated: use {p.arg.deprecated}")
    return {
        "name": p.name,
        "type": type_name(p.type),
        "default": "required" if p.required else show_default(p.default),
        "per_sample": p.arg.per_sample,
        "help": "; ".join([p.arg.help, *notes]),
        "without_effect": p.arg.ignored,
    }


def without_effect(operator: Mapping[str, Any], quote: str = "") -> str:
    """Return text that lists DALI's arguments that have no effect in this operator, with the reasons; "" for none."""
    why: dict[str, list[str]] = {}
    for a in operator["arguments"]:
        if a["without_effect"]:
            why.setdefault(a["without_effect"], []).append(f"{quote}{a['name']}{quote}")
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in why.items())


def show_default(value: Any) -> str:
    """Return the default value of an argument in YAML notation."""
    if value is dataclasses.MISSING or value is None:
        return "-"
    if isinstance(value, enum.Enum):
        return value.name.removeprefix("INTERP_")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(show_default(v) for v in value) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value != "" else '""'
