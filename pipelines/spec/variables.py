"""Replacement of ``${name}`` and ``${env:NAME}`` in a spec, and of values by ``--set``."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...ops.base import nearest
from ..problems import Mark, Problems, show
from .text import MOST_DEPTH, MOST_VALUES, Value, depth_of, from_python, parse, resolve

MOST_CHARACTERS = 1 << 16
_REFERENCE = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}")


# -- ${...} -----------------------------------------------------------------------------------------------------------


def substitute(root: Value, problems: Problems) -> Value:
    """Return the document ``root`` with every variable reference ``${...}`` replaced by its value. ``$${`` stands for
    the characters ``${``.

    A value that consists of one reference gets the variable's type; in longer text, the variable's text is inserted.
    """
    assert isinstance(root.data, dict)
    section = root.data.get("vars")
    variables = _Variables(section if section is not None else Value({}, root.mark), problems)
    entries = {k: variables.in_value(v) for k, v in root.data.items() if k != "vars"}
    if section is not None:
        entries["vars"] = variables.all()
    return replace(root, data=entries)


class _Variables:
    def __init__(self, given: Value, problems: Problems) -> None:
        self.problems = problems
        self.given = given
        self.raw: dict[str, Value] = given.data if isinstance(given.data, dict) else {}
        if given.data is not None and not isinstance(given.data, dict) and not given.broken:
            problems.add(given.mark, f"vars must be a mapping (name: value), got {given.kind}")
        for name in self.raw:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
                problems.add(
                    given.key_marks[name], f"{show(name)} is not a valid name for a variable: use letters, digits and _"
                )
        self.done: dict[str, Value] = {}
        self.open: list[str] = []
        self.sizes: dict[int, int] = {}
        """Number of values in each list or mapping, with nested ones, by the id() of its object."""
        self.expanded = 0

    def all(self) -> Value:
        """Return the ``vars:`` section itself, with the references in it resolved."""
        return replace(self.given, data={name: self.value(name) for name in self.raw})

    def value(self, name: str) -> Value:
        """Return the value of the variable ``name``, which must exist."""
        if name not in self.done:
            if name in self.open:
                chain = " -> ".join([*self.open[self.open.index(name) :], name])
                self.problems.add(self.raw[name].mark, f"variables refer to each other in a circle: {chain}")
                return Value(None, self.raw[name].mark, broken=True)
            if len(self.open) >= MOST_DEPTH:
                self.problems.add(
                    self.raw[name].mark, f"variables refer to each other over more than {MOST_DEPTH} steps"
                )
                return Value(None, self.raw[name].mark, broken=True)
            self.open.append(name)
            self.done[name] = self.in_value(self.raw[name])
            self.open.pop()
        return self.done[name]

    def in_value(self, value: Value) -> Value:
        if isinstance(value.data, dict):
            entries = {k: self.in_value(v) for k, v in value.data.items()}
            return replace(value, data=entries, depth=depth_of(entries.values()))
        if isinstance(value.data, tuple):
            items = tuple(self.in_value(v) for v in value.data)
            return replace(value, data=items, depth=depth_of(items))
        if isinstance(value.data, str) and "${" in value.data:
            return self.in_text(value, value.data)
        return value

    def in_text(self, value: Value, text: str) -> Value:
        only_reference = _REFERENCE.fullmatch(text)
        if only_reference and only_reference[2] is not None:
            value_found = self.lookup(only_reference[2], value.mark)
            if value_found is None or not self.fits(value_found, value.mark):
                return Value(None, value.mark, broken=True)
            return replace(value_found, mark=value.mark)
        parts: list[str] = []
        at = 0
        for match in _REFERENCE.finditer(text):
            parts.append(text[at : match.start()])
            at = match.end()
            part = "${" if match[1] else self.text(match[2], value.mark)
            if part is None:
                return replace(value, broken=True)
            parts.append(part)
        if "${" in text[at:]:
            self.problems.add(value.mark, f"{show(text)} opens ${{ without closing it; write $${{ for the characters")
            return replace(value, broken=True)
        result = "".join([*parts, text[at:]])
        if len(result) > MOST_CHARACTERS:
            self.problems.add(value.mark, f"becomes longer than {MOST_CHARACTERS} characters")
            return replace(value, broken=True)
        return replace(value, data=result)

    def fits(self, value: Value, mark: Mark) -> bool:
        """Return whether ``value``, the value of a variable, may be inserted. It may not if the document would get too
        large or too deep."""
        self.expanded += self.size(value)
        if self.expanded <= MOST_VALUES and value.depth <= MOST_DEPTH:
            return True
        self.problems.add(mark, f"variables expand to more than {MOST_VALUES} values or {MOST_DEPTH} levels")
        return False

    def size(self, value: Value) -> int:
        """Return the number of values in ``value``, nested ones included. The count of each object is cached."""
        if not isinstance(value.data, (dict, tuple)):
            return 1
        inner = value.data.values() if isinstance(value.data, dict) else value.data
        key = id(value.data)
        if key not in self.sizes:
            self.sizes[key] = 1 + sum(self.size(v) for v in inner)
        return self.sizes[key]

    def text(self, name: str, mark: Mark) -> str | None:
        """Return the value of variable ``name`` as text, for insertion into longer text; None if it has no text."""
        variable = self.lookup(name, mark)
        if variable is None or variable.broken:
            return None
        if isinstance(variable.data, bool):
            return str(variable.data).lower()
        if variable.data is None or isinstance(variable.data, (tuple, dict)):
            self.problems.add(mark, f"variable {name!r} is {variable.kind} and cannot be inserted into text")
            return None
        return str(variable.data)

    def lookup(self, name: str, mark: Mark) -> Value | None:
        if name.startswith("env:"):
            return self.environment(name.removeprefix("env:"), mark)
        if name in self.raw:
            return self.value(name)
        hint = nearest(name, self.raw) or (f"; known: {', '.join(self.raw)}" if self.raw else "; `vars:` defines none")
        self.problems.add(mark, f"there is no variable {show(name)}{hint}")
        return None

    def environment(self, name: str, mark: Mark) -> Value | None:
        content = os.environ.get(name)
        if content is None:
            self.problems.add(
                mark, f"environment variable {show(name)} is not set; export it, or use a variable and --set"
            )
            return None
        if any("\ud800" <= c <= "\udfff" for c in content):
            self.problems.add(mark, f"environment variable {show(name)} is not UTF-8 text")
            return None
        return Value(content, mark)


# -- --set, and what programs give ------------------------------------------------------------------------------------


class FromProgram(dict[str, Any]):
    """Overrides that a program passed to ``function``, for messages in Python's terms. ``keywords`` are overrides
    passed as separate keyword arguments; ``known`` are the function's own arguments."""

    def __init__(
        self, function: str, overrides: Mapping[str, Any], keywords: Mapping[str, Any] | None = None,
        known: Iterable[str] = (),
    ) -> None:  # fmt: skip
        super().__init__({**(keywords or {}), **overrides})
        self.function = function
        self.keywords = set(keywords or {}) - set(overrides)
        self.known = tuple(known)

    def without(self, keys: Collection[str]) -> FromProgram:
        """Return the overrides without ``keys``."""
        remaining = FromProgram(self.function, {k: v for k, v in self.items() if k not in keys}, None, self.known)
        remaining.keywords = self.keywords
        return remaining


def mark_of(overrides: Mapping[str, Any], key: str) -> Mark:
    """Return the position of an override for messages: the option or argument as the user wrote it."""
    if not isinstance(overrides, FromProgram):
        return Mark(f"--set {key}", 1, 1)
    written = f"{key}=..." if key in overrides.keywords else f"overrides={{{key!r}: ...}}"
    return Mark(f"{overrides.function}({written})", 0, 0)


def override(
    root: Value, overrides: Mapping[str, Any], sections: Mapping[str, Sequence[str]], problems: Problems
) -> Value:
    """Return the document ``root`` with ``overrides`` applied. Their keys are names of variables, dotted paths, or
    ``graph.STEP.ARGUMENT``, where STEP is the step's name or operator."""
    for key, user_value in overrides.items():
        mark = mark_of(overrides, key)
        value = (
            _from_command_line(user_value, mark, problems)
            if isinstance(user_value, str)
            else from_python(user_value, mark)
        )
        before = len(problems.found)
        path = _in_step(root, key, mark, problems) or _path(root, key, sections)
        if len(problems.found) > before:
            continue
        if path is None:
            variables = f"; variables: {', '.join(_variables(root)) or 'none'}"
            if isinstance(overrides, FromProgram) and key in overrides.keywords:
                hint = nearest(key, [*_variables(root), *overrides.known]) or variables
                problems.add(mark, f"there is no such argument, and the spec has no variable {show(key)}{hint}")
                continue
            known = [*_variables(root), *sections, *(f"{s}.{k}" for s, keys in sections.items() for k in keys)]
            hint = nearest(key, known) or variables
            problems.add(mark, f"the spec has no variable or section named {show(key)}{hint}")
        else:
            root = _put(root, path, value)
    return root


def setting(text: str, name: str) -> Any:
    """Return the value of ``text``, which the user passed as ``name`` on the command line. Raises SpecErrors if it is
    invalid."""
    problems = Problems()
    value = _from_command_line(text, Mark(name, 1, 1), problems)
    problems.raise_any()
    return value.to_python()


def _from_command_line(text: str, mark: Mark, problems: Problems) -> Value:
    """Parse a value from the command line. Lists, mappings and quoted text are parsed as YAML; any other text is one
    scalar, whatever characters it contains."""
    if text[:1] in ("[", "{", '"', "'"):
        value = parse(text, mark.file, problems)
        return value if value is not None else Value(None, mark, broken=True)
    before = len(problems.found)
    data = resolve(text, mark, problems)
    return Value(data, mark, broken=len(problems.found) > before)


def _variables(root: Value) -> list[str]:
    assert isinstance(root.data, dict)
    values = root.data.get("vars")
    return list(values.data) if values is not None and isinstance(values.data, dict) else []


_Path = list[str | int]
"""Keys and list indices that lead from the document to a value inside it."""


def _in_step(root: Value, key: str, mark: Mark, problems: Problems) -> _Path | None:
    """Return the path of the argument that ``graph.STEP.ARGUMENT`` denotes; None if ``key`` has another form, or if not
    exactly one step matches."""
    assert isinstance(root.data, dict)
    section, _, rest = key.partition(".")
    step, _, argument = rest.rpartition(".")
    graph = root.data.get("graph")
    if section != "graph" or not step or not argument or graph is None or not isinstance(graph.data, tuple):
        return None
    steps = list(_steps(graph, ["graph"]))
    for names in ([name for _, name, _ in steps], [op for _, _, op in steps]):
        paths = [path for (path, _, _), name in zip(steps, names, strict=True) if name == step]
        if len(paths) == 1:
            return [*paths[0], argument]
        if paths:
            problems.add(mark, f"{len(paths)} steps match {show(step)}: give the intended one a unique `name:`")
            return None
    known = dict.fromkeys(name or op for _, name, op in steps)
    hint = nearest(step, known) or f"; steps: {', '.join(known) or 'none'}"
    problems.add(mark, f"there is no step {show(step)} in the graph{hint}")
    return None


def _steps(value: Value, path: _Path) -> Iterator[tuple[_Path, str, str]]:
    """Yield all steps of a graph, also those in branches: path, name ("" if it has none) and operator of each."""
    for i, step in enumerate(value.data if isinstance(value.data, tuple) else ()):
        if not isinstance(step.data, dict):
            continue
        if "op" in step.data:
            name, op = (step.data[k].data if k in step.data else "" for k in ("name", "op"))
            yield [*path, i], str(name or ""), str(op)
        for branch in ("then", "else"):
            if branch in step.data:
                yield from _steps(step.data[branch], [*path, i, branch])


def _path(root: Value, key: str, sections: Mapping[str, Sequence[str]]) -> _Path | None:
    """Return the path (keys and indices) of the value that the override ``key`` denotes; None if there is none."""
    assert isinstance(root.data, dict)
    if key in _variables(root):
        return ["vars", key]
    parts = key.split(".")
    if parts[0] == "vars" and len(parts) == 2:
        return [*parts] if parts[1] in _variables(root) else None
    if parts[0] not in sections or parts[0] in ("vars", "graph") or "" in parts:
        return None
    value: Value | None = root
    for part in parts[:-1]:
        value = value.data.get(part) if value is not None and isinstance(value.data, dict) else None
        if value is not None and not isinstance(value.data, dict) and value.data is not None:
            return None
    if len(parts) == 2 and sections[parts[0]] and parts[1] not in sections[parts[0]] and parts[0] != "write":
        return None
    return [*parts]


def _put(value: Value | None, path: _Path, new: Value) -> Value:
    if not path:
        return new
    if isinstance(path[0], int):
        assert value is not None
        assert isinstance(value.data, tuple)
        items = [*value.data]
        items[path[0]] = _put(items[path[0]], path[1:], new)
        return replace(value, data=tuple(items))
    old = value.data if value is not None and isinstance(value.data, dict) else {}
    marks = value.key_marks if value is not None else {}
    inner = _put(old.get(path[0]), path[1:], new)
    mark = value.mark if value is not None else new.mark
    return Value({**old, path[0]: inner}, mark, {**marks, path[0]: marks.get(path[0], new.mark)})
