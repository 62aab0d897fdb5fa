"""JSON Schema of specs, for editors: names, types, ranges and help of everything that the operators declare.

Checks that need more than the text (names of batches, variables, shapes) are left to `build`. So a spec that builds is
valid, and most mistakes are underlined while the user types.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

from ...ops.base import Operator, Parameter, find, operators, parameters
from ...ops.types import DALIDataType, to_numpy
from ...writers.base import CHECKSUMS, ENCODINGS, Writer, options_of, writers
from ..limits import Memory
from ..plugins import load_installed_plugins, load_operators
from ..settings import RunSettings
from .expressions import EXPRESSIONS
from .model import Policy

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

_VARIABLE: Schema = {"$ref": "#/$defs/variable"}
_NAMES: Schema = {"$ref": "#/$defs/names"}
_DEFS: dict[str, Schema] = {
    "variable": {"type": "string", "pattern": r"\$\{[^{}]+\}", "description": "${name} or ${env:NAME}"},
    "batch": {"type": "string", "pattern": r"^\$[A-Za-z_][A-Za-z0-9_]*$", "description": "the output of a step: $name"},
    "name": {"type": "string", "pattern": r"^[A-Za-z_][A-Za-z0-9_]*$|\$\{", "description": "name of a batch"},
    "names": {"anyOf": [{"$ref": "#/$defs/name"}, {"type": "array", "items": {"$ref": "#/$defs/name"}}]},
    "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
    "condition": {
        "title": "if",
        "description": "steps of the branch that applies to a sample",
        "type": "object",
        "properties": {
            "if": {"type": "string", "description": "$name, or an expression; evaluated for every sample"},
            "then": {"$ref": "#/$defs/steps"},
            "else": {"$ref": "#/$defs/steps"},
        },
        "required": ["if", "then"],
        "additionalProperties": False,
    },
}


def spec_schema(installed: bool = True) -> Schema:
    """Return the JSON Schema of a whole spec with every registered operator and writer. ``installed``: also load the
    plugins of installed packages."""
    load_operators()
    if installed:
        load_installed_plugins()
    ops = {name: op for name, op in operators().items() if not name.startswith("_")}
    formats = writers()
    defs = dict(_DEFS)
    defs |= {f"op.{name}": _step(op) for name, op in ops.items()}
    defs |= {f"writer.{name}": _write(writer) for name, writer in formats.items()}
    defs["step"] = {
        "if": {"type": "object", "required": ["if"], "not": {"required": ["op"]}},
        "then": {"$ref": "#/$defs/condition"},
        "else": _choice("op", {n: ([n, *op.aliases], f"op.{n}") for n, op in ops.items()}, defs),
    }
    defs["write"] = _choice("writer", {n: ([n], f"writer.{n}") for n in formats}, defs)
    return {
        "$schema": DIALECT,
        "title": "dali-run spec",
        "type": "object",
        "properties": _top(),
        "required": ["version", "graph", "outputs"],
        "additionalProperties": False,
        "$defs": defs,
    }


def schema_text(schema: Schema) -> str:
    """Return ``schema`` as JSON text with one line per definition, so that schema files can be compared line by
    line."""
    head = {**schema, "$defs": {}}
    lines = [f"{json.dumps(name)}: {_line(value)}" for name, value in schema["$defs"].items()]
    return _line(head).replace('"$defs":{}', '"$defs":{\n' + ",\n".join(lines) + "\n}") + "\n"


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _choice(key: str, options: Mapping[str, tuple[list[str], str]], defs: Mapping[str, Schema]) -> Schema:
    """Return the JSON Schema of an object in which the value of ``key``, such as an operator's name, selects the
    definition of the other keys.

    For the YAML language server, each name is a constant with its own description, to be shown on hovering. Conditions
    are false for a missing key, so that an empty step is not offered the arguments of all operators.
    """
    texts = {n: defs[definition].get("description", "") for names, definition in options.values() for n in names}
    known = [{"const": n, "title": n, "description": texts[n]} for n in sorted(texts)]
    return {
        "type": "object",
        "properties": {key: {"anyOf": [*known, _VARIABLE]}},
        "required": [key],
        "allOf": [
            {
                "if": {"type": "object", "required": [key],
                       "properties": {key: {"pattern": f"^({'|'.join(map(re.escape, names))})$"}}},
                "then": {"$ref": f"#/$defs/{definition}"},
            }
            for names, definition in options.values()
        ],
    }  # fmt: skip


# -- the sections -----------------------------------------------------------------------------------------------------


def _top() -> dict[str, Schema]:
    count = _or_variable({"type": "integer", "minimum": 1})
    return {
        "version": {"const": 1},
        "name": {"type": "string", "description": "name of the job; the prefix of its files"},
        "vars": {"type": ["object", "null"], "description": "variables: ${name}; --set name=value"},
        "plugins": {
            "type": ["array", "null"],
            "items": {"type": "string"},
            "description": "Python files with operators, relative to the spec",
        },
        "pipeline": _section(
            {
                "batch_size": {**count, "default": 64},
                "num_threads": _or_variable({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}),
                "device": _or_variable({"anyOf": [{"enum": ["auto", "cpu", "gpu", "gpu:all", "null", None]},
                                                  {"type": "string", "pattern": "^gpu:[0-9]+(,[0-9]+)*$"}]}),
                "seed": {**_or_variable({"type": "integer", "minimum": 0}), "default": 0},
                "prefetch_queue_depth": {"anyOf": [count, _section({"cpu_size": count, "gpu_size": count})]},
                **{name: _setting(p) for name, p in parameters(RunSettings).items()},
            }
        ),
        "graph": {"type": "array", "items": {"$ref": "#/$defs/step"}, "minItems": 1, "description": "the steps"},
        "outputs": {
            "anyOf": [
                {"type": "object", "additionalProperties": {"$ref": "#/$defs/name"}, "minProperties": 1},
                {"type": "array", "items": {"$ref": "#/$defs/name"}, "minItems": 1},
            ],
            "description": "outputs of the graph, as name: batch",
        },
        "write": {"anyOf": [{"$ref": "#/$defs/write"}, {"type": "null"}]},
        "on_error": _section(
            {
                "policy": {**_or_variable({"enum": list(get_args(Policy))}), "default": "skip"},
                "max_errors": {
                    "anyOf": [
                        {"type": ["integer", "null"], "minimum": 0},
                        {"type": "string", "pattern": r"%\s*$|\$\{"},
                    ],
                    "description": "a count, or a share of the samples (0.1%)",
                },
            }
        ),
    }  # fmt: skip


def _setting(p: Parameter) -> Schema:
    if p.type is float:  # operators accept true as 1, settings do not
        bounds = {k: v for k, v in (("minimum", p.arg.ge), ("maximum", p.arg.le)) if v is not None}
        return {**_argument(p), **_or_variable({"type": "number", **bounds})}
    if p.type is not Memory:
        return _argument(p)
    limits = _section({"host": _budget("of the machine's memory"), "gpu": _budget("of the GPU's free memory")})
    return {**limits, "description": p.arg.help}


def _budget(share: str) -> Schema:
    return {
        "anyOf": [{"type": ["integer", "null"], "minimum": 1},
                  {"type": "string", "pattern": r"^auto$|^[0-9.]+\s*([KMGT]i?B|B|%)?$|\$\{"}],
        "default": "auto",
        "description": f"a number of bytes, a size (4GiB), or a share {share} (50%)",
    }  # fmt: skip


def _section(properties: Mapping[str, Schema]) -> Schema:
    return {"type": ["object", "null"], "properties": dict(properties), "additionalProperties": False}


def _size() -> Schema:
    return {
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^[0-9.]+\s*([KMGT]i?B|B)?$|\$\{"}],
        "description": "bytes: 1000000, 512MB, 1GiB",
    }


def _write(writer: type[Writer]) -> Schema:
    arguments = {**parameters(find("encoders.audio")), **parameters(find("encoders.image"))}
    field = {
        "encode": {**_or_variable({"enum": list(ENCODINGS)}), "default": "auto"},
        "quality": _or_variable({"type": "integer", "minimum": 1, "maximum": 100}),
        "extension": {"type": "string"},
        **{n: _argument(p) for n, p in arguments.items() if n not in ("format", "quality")},
    }
    return {
        "title": f"writer: {writer.name}",
        "description": _summary(writer),
        "properties": {
            "writer": {},
            "path": {"type": "string", "description": "folder of the shards"},
            "shard": _section(
                {
                    "samples": _or_variable({"type": "integer", "minimum": 1}),
                    "bytes": _size(),
                    "full": _or_variable({"type": "boolean", "description": "samples counts those that are written"}),
                }
            ),
            "fields": {"type": ["object", "null"], "additionalProperties": _section(field)},
            "checksums": {
                **_or_variable({"enum": list(CHECKSUMS)}),
                "default": "tree",
                "description": "checksums of every file: CRC-32C and a hash tree; sha256: also SHA-256",
            },
            **{n: _argument(p) for n, p in options_of(writer).items()},
        },
        "required": ["path", *(n for n, p in options_of(writer).items() if p.required)],
        "additionalProperties": False,
    }


# -- operators --------------------------------------------------------------------------------------------------------


def _step(op: type[Operator]) -> Schema:
    known = parameters(op)
    replaced = {p.arg.deprecated for p in known.values()}
    properties: dict[str, Schema] = {
        "op": {},
        "out": _NAMES,
        "name": {"type": "string", "description": "name in reports; the first reader's samples name the records"},
        "device": _or_variable({"enum": ["auto", *op.devices]}),
        "seed": _or_variable({"type": "integer", "minimum": -1}),
    }
    required = ["op", "out", *(n for n, p in known.items() if p.required and n not in replaced)]
    if op.name in EXPRESSIONS:  # its inputs are the names in the expression
        kind = EXPRESSIONS[op.name]
        known = {kind.key if n == kind.argument else n: p for n, p in known.items() if n != "names"}
        required = ["op", kind.key, *(["out"] if not op.leaves_out else [])]
    else:
        properties["in"] = _NAMES
        required += ["in"] if op.inputs[0] else []
    effective = {n: _argument(p) for n, p in known.items() if not p.arg.ignored}
    idle = {f"^{n}$": _argument(p) for n, p in known.items() if p.arg.ignored}  # accepted, but not suggested by editors
    return {
        "title": op.name,
        "description": _summary(op),
        "type": "object",
        "properties": {**properties, **effective},
        **({"patternProperties": idle} if idle else {}),
        "required": required,
        "additionalProperties": False,
    }


def _summary(declared: type[Operator] | type[Writer]) -> str:
    return " ".join((inspect.getdoc(declared) or "").split("\n\n")[0].split())


def _argument(p: Parameter) -> Schema:
    options = [_type(p.type, p.arg.ge, p.arg.le), _VARIABLE]
    if p.arg.per_sample:
        options.append({"$ref": "#/$defs/batch"})
    schema: Schema = {"anyOf": options, "description": p.arg.help}
    if p.default is not dataclasses.MISSING:
        schema["default"] = _plain(p.default)
        if p.default is None:
            options.append({"type": "null"})
    if p.arg.deprecated:
        schema |= {"deprecated": True, "description": f"{p.arg.help} (use {p.arg.deprecated})"}
    if p.arg.ignored or p.arg.deprecated:  # valid, but not for new specs
        schema["doNotSuggest"] = True
    if p.arg.ignored:
        schema["description"] = f"{p.arg.help} (accepted, without effect: {p.arg.ignored})"
    return schema


def _or_variable(schema: Schema) -> Schema:
    return {"anyOf": [schema, _VARIABLE]}


def _tuple(items: tuple[Any, ...], low: float | None, high: float | None) -> Schema:
    """Return the JSON Schema of a tuple with ``items`` of these types; ``...`` repeats the first."""
    if items[-1] is ...:
        each = _or_variable(_type(items[0], low, high))
        return {"anyOf": [each, {"type": "array", "items": each}]}
    each_of = [_or_variable(_type(t, low, high)) for t in items]
    return {"type": "array", "prefixItems": each_of, "items": False, "minItems": len(items)}


def _type(tp: Any, low: float | None, high: float | None) -> Schema:
    """Return the JSON Schema of the values that `ops.base.coerce` accepts for an argument of type ``tp`` between
    ``low`` and ``high``."""
    origin = get_origin(tp)
    if origin is Literal:
        return {"enum": list(get_args(tp))}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_type(t, low, high) for t in get_args(tp)]}
    if tp is type(None):
        return {"type": "null"}
    if origin is tuple:
        return _tuple(get_args(tp), low, high)
    if isinstance(tp, type) and issubclass(tp, enum.Enum):
        return {"enum": [*_names(tp), *(int(m.value) for m in tp)]}
    bounds = {k: v for k, v in (("minimum", low), ("maximum", high)) if v is not None}
    simple: dict[Any, Schema] = {
        bool: {"enum": [True, False, 0, 1]},
        int: {"anyOf": [{"type": "integer", **bounds}, {"type": "boolean"}]},
        float: {"type": ["number", "boolean"], **bounds},
        str: {"type": "string"},
        dict: {"type": "object"},
        Mapping: {"type": "object"},
    }
    return simple.get(origin or tp, {})


def _names(tp: type[enum.Enum]) -> Iterable[str]:
    """Return the accepted spellings of an enumeration's members."""
    full = list(tp.__members__)
    short = [n.removeprefix("INTERP_") for n in full]
    names = [*short, *full, *(n.lower() for n in (*short, *full))]
    if tp is DALIDataType:
        names += [to_numpy(m).name for m in DALIDataType if m.name not in ("NO_TYPE", "STRING")]
    return dict.fromkeys(names)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value if isinstance(value, (bool, int, float, str, types.NoneType)) else str(value)
