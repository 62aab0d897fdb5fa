"""Port: findings about a program for DALI that differs or fails with dali-run, from its source alone; nothing is
executed."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Literal

from ...ops.base import Operator, find, parameters
from ...ops.dali_names import DALI_NAMES, MOVED, dali_run_name
from ...ops.errors import SpecError
from ..graph.arguments import check_argument, tensor_of
from ..python.functions import known_arguments, names, operator_behind, wraps
from ..python.pipeline import Pipeline

_DALI = "nvidia.dali"
_OURS = __name__.partition(".")[0]
Kind = Literal["unreadable", "missing", "refused", "no effect", "differs"]

_SETTINGS = (
    "bytes_per_sample",
    "max_streams",
    "default_cuda_stream_priority",
    "stream_policy",
    "concurrency",
    "set_affinity",
)
"""Arguments of DALI's Pipeline that have no effect in dali-run."""
_METHODS = {
    "serialize": "gives JSON, not DALI's protobuf",
    "executor_statistics": "has calls, samples, bytes and seconds of every operator besides DALI's sizes",
}
"""Methods of DALI's pipelines that work differently in dali-run, with the difference. A call is recognized by the
method's name alone, because types are unknown until the program runs."""
_PRIVATE = {
    "_batches_to_consume", "_build_graph", "_consumer_iter", "_feed_input", "_first_iter", "_get_checkpoint",
    "_get_params", "_iter_setup", "_last_iter", "_names_and_devices", "_py_graph_built", "_run_input_callbacks",
    "_schedule_py_workers", "_set_api_type",
}  # fmt: skip
"""Private members of DALI's Pipeline, used by some programs, that dali-run does not have."""
_FATAL: tuple[Kind, ...] = ("unreadable", "missing", "refused")
"""Kinds of findings due to which a program for DALI fails with dali-run."""
_DRAWS = "random numbers are not DALI's, unless the pipeline has rng='dali'"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One difference between DALI and dali-run at a position of a program."""

    line: int
    column: int
    """Column, counted from 1."""
    kind: Kind
    text: str


@dataclass(slots=True)
class Report:
    """The findings about one program for DALI."""

    path: Path
    findings: list[Finding] = field(default_factory=list)
    rewritten: str = ""
    """Text of the program with imports of dali-run instead of DALI; empty if there is nothing to change."""
    encoding: str = "utf-8"
    """The file's encoding, as declared in its first lines."""

    @property
    def runs(self) -> bool:
        """Whether the program should run: it can be parsed, uses nothing that is missing, and has valid arguments."""
        return all(f.kind not in _FATAL for f in self.findings)

    def described(self, rewritten: bool) -> dict[str, Any]:
        """Return the report as data for JSON; ``rewritten`` is whether the program's file was changed."""
        return {"path": str(self.path), "runs": self.runs, "rewritten": rewritten,
                "findings": [asdict(f) for f in self.findings]}  # fmt: skip


def examine(path: Path) -> Report:
    """Examine the program for DALI in the file ``path``. If it cannot be read or is not valid Python of this version,
    that is the only finding."""
    try:
        raw = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        source = raw.decode(encoding)  # without changing line ends
        tree = ast.parse(source, str(path))
    except OSError as e:
        return Report(path, [Finding(1, 1, "unreadable", f"cannot be read: {e.strerror}")])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        line, column = (e.lineno or 1, e.offset or 1) if isinstance(e, SyntaxError) else (1, 1)
        why = e.msg if isinstance(e, SyntaxError) else e
        return Report(path, [Finding(line, column, "unreadable", f"is not Python that this version reads: {why}")])
    bound = _bindings(tree)
    findings = sorted({*_imports(tree), *_uses(tree, bound), *_calls(tree, bound), *_private(tree)} if bound else set())
    return Report(path, findings, _rewritten(source, tree, bound), encoding)


def lines_of(reports: Iterable[Report]) -> Iterator[str]:
    """Yield lines of text about the findings: each once, at its first position, with the number of positions."""
    first: dict[tuple[Kind, str], str] = {}
    places: Counter[tuple[Kind, str]] = Counter()
    files: dict[tuple[Kind, str], set[Path]] = {}
    for report in reports:
        for f in report.findings:
            key = f.kind, f.text
            first.setdefault(key, f"{report.path}:{f.line}:{f.column}")
            places[key] += 1
            files.setdefault(key, set()).add(report.path)
            if f.kind == "unreadable":  # this text belongs to one file
                yield f"{report.path}:{f.line}:{f.column}: {f.kind}: {f.text}"
    for (kind, text), position in first.items():
        n, among = places[kind, text], len(files[kind, text])
        more = f" ({n} places{f' in {among} files' if among > 1 else ''})" if n > 1 else ""
        if kind != "unreadable":
            yield f"{position}: {kind}: {text}{more}"


def rewrite(report: Report) -> bool:
    """Write the program's file with imports of dali-run. Return False if nothing changes. Raises SpecError."""
    if not report.rewritten:
        return False
    try:
        report.path.write_text(report.rewritten, encoding=report.encoding, newline="")
    except OSError as e:
        raise SpecError(f"{report.path} cannot be written: {e.strerror}") from None
    return True


# -- what names stand for ---------------------------------------------------------------------------------------------


def _bindings(tree: ast.Module) -> dict[str, str]:
    """Return the full name of everything that the program imports from DALI, by its name there: ``fn`` ->
    ``nvidia.dali.fn``."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_dali(alias.name):
                    bound[alias.asname or "nvidia"] = alias.name if alias.asname else "nvidia"
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if _is_dali(full):
                    bound[alias.asname or alias.name] = full
    return bound


def _is_dali(name: str) -> bool:
    return f"{name}.".startswith(f"{_DALI}.")


def _dotted(node: ast.expr, bound: dict[str, str]) -> str:
    """Return the full name of an expression such as ``fn.readers.file`` (``nvidia.dali.fn.readers.file``); empty if it
    is not DALI's. ``bound``: full names of imports, from `_bindings`."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in bound:
        return ""
    full = ".".join([bound[node.id], *reversed(parts)])
    return full if _is_dali(full) else ""


def _missing(full: str) -> str:
    """Return the reason why dali-run lacks the member of DALI with the name ``full``; empty if dali-run has it."""
    module_name = _OURS
    module: Any = importlib.import_module(_OURS)
    parts = dali_run_name(full.removeprefix(_DALI).removeprefix(".")).split(".") if full != _DALI else []
    for k, part in enumerate(parts):
        module_name = f"{module_name}.{part}"
        try:
            module = getattr(module, part)
            continue
        except (AttributeError, ImportError):
            pass
        spec = _found(module_name)
        if spec is None:
            return f"{full}: {_whose(full)}"
        try:
            module = importlib.import_module(module_name)
        except ImportError:  # the framework is not installed: the module's source lists its names
            return "" if _is_in_source(Path(str(spec.origin)), parts[k + 1 :]) else f"{full}: {_whose(full)}"
    return ""


def _whose(full: str) -> str:
    room, _, name = full.removeprefix(f"{_DALI}.").partition(".")
    if room == "fn":
        return "DALI has it, dali-run does not" if name in DALI_NAMES else "neither DALI nor dali-run has it"
    return "dali-run has none"


def _found(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _is_in_source(origin: Path, names: Sequence[str]) -> bool:
    """Return whether the module in the file ``origin`` has the member ``names``, a path through submodules such as
    (readers, file)."""
    for name in names:
        below = (origin.parent / f"{name}.py", origin.parent / name / "__init__.py")
        inner = [p for p in below if origin.name == "__init__.py" and p.exists()]
        if not inner:
            return name in names_in(origin)
        origin = inner[0]
    return True


def names_in(origin: Path) -> set[str]:
    """Return the names that the module in the file ``origin`` defines and imports at its top level."""
    names_found: set[str] = set()
    for node in ast.parse(origin.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names_found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names_found |= {a.asname or a.name for a in node.names}
        elif isinstance(node, ast.Assign):
            names_found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return names_found


# -- what is looked for -----------------------------------------------------------------------------------------------


def _imports(tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full_names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            full_names = [f"{node.module}.{a.name}" for a in node.names]
        else:
            continue
        for full in full_names:
            if _is_dali(full) and (why := _missing(full.removesuffix(".*"))):
                yield Finding(node.lineno, node.col_offset + 1, "missing", why)


def _uses(tree: ast.Module, bound: dict[str, str]) -> Iterator[Finding]:
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if id(node) not in inner and (full := _dotted(node, bound)) and (why := _missing(full)):
                yield Finding(node.lineno, node.col_offset + 1, "missing", why)
            inner.add(id(node.value))


def _private(tree: ast.Module) -> Iterator[Finding]:
    own = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _PRIVATE - own and ast.unparse(node.value) != "self":
            yield Finding(node.lineno, node.col_offset + 1, "missing", f"Pipeline.{node.attr}: dali-run has none")


def _calls(tree: ast.Module, bound: dict[str, str]) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        at = node.lineno, node.col_offset + 1
        full = _dotted(node.func, bound)
        if full and not _missing(full):
            keywords = {k.arg: k.value for k in node.keywords if k.arg}
            for kind, text in _arguments(full.removeprefix(f"{_DALI}."), keywords):
                yield Finding(*at, kind, text)
        elif isinstance(node.func, ast.Attribute) and not full and node.func.attr in _METHODS:
            yield Finding(*at, "differs", f"Pipeline.{node.func.attr} {_METHODS[node.func.attr]}")


def _arguments(name: str, arguments: Mapping[str, ast.expr]) -> Iterator[tuple[Kind, str]]:
    """Yield (kind, text) of findings about the ``arguments`` in a call of DALI's function ``name``."""
    room, _, rest = name.partition(".")
    if name in ("Pipeline", "pipeline.Pipeline", "pipeline_def", "pipeline.pipeline_def"):
        yield from _pipeline_arguments(name, arguments)
    elif name.startswith("experimental.dynamic."):
        yield from _dynamic_arguments(name, arguments)
    elif room in ("fn", "ops") and (operator := operator_behind(room, rest)):
        yield from _operator_arguments(name, operator, arguments)


def _pipeline_arguments(name: str, arguments: Iterable[str]) -> Iterator[tuple[Kind, str]]:
    known = {*inspect.signature(Pipeline).parameters, "enable_conditionals", "debug", "fn"}
    for argument in arguments:
        if argument not in known:
            yield "missing", f"{name}: has no argument {argument!r}"
        elif argument in _SETTINGS:
            yield "no effect", f"{name}: argument {argument!r} has no effect"


def _operator_arguments(name: str, operator: str, arguments: Mapping[str, ast.expr]) -> Iterator[tuple[Kind, str]]:
    cls = find(names()[operator])
    known = known_arguments(operator)
    for argument in arguments:
        if argument not in known:
            yield "missing", f"{name}: has no argument {argument!r}"
        elif argument in parameters(cls) and (why := parameters(cls)[argument].arg.ignored):
            yield "no effect", f"{name}: argument {argument!r} has no effect: {why}"
    if cls.random and not wraps(operator) and cls.name.startswith("random."):
        yield "differs", _DRAWS
    if not wraps(operator):
        yield from (("refused", f"{name}: {why}") for why in _refused(cls, arguments))


def _refused(cls: type[Operator], arguments: Mapping[str, ast.expr]) -> Iterator[str]:
    """Yield the reasons for which operator ``cls`` rejects constants among ``arguments``."""
    known, constants = parameters(cls), {}
    for argument, value in arguments.items():
        plain = _constant(value) if argument in known else None
        if plain is not None and tensor_of(known[argument], plain) is None:
            try:
                name, constants[name] = check_argument(cls, argument, plain)
            except SpecError as e:
                yield str(e)
    required = {p.name: None for p in known.values() if p.default is dataclasses.MISSING}
    try:
        cls(**required | constants).check()
    except SpecError as e:
        if any(name in str(e) for name in constants):  # unknown values may make up for the error
            yield str(e)
    except (TypeError, AttributeError, ValueError):  # the value of a required argument is unknown
        pass


def _constant(value: ast.expr) -> Any:
    """Return the value of an expression that is a literal; None for other expressions."""
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _dynamic_arguments(name: str, arguments: Iterable[str]) -> Iterator[tuple[Kind, str]]:
    module, _, last = dali_run_name(name).rpartition(".")
    called = getattr(importlib.import_module(f"{_OURS}.{module}"), last, None)
    operator = getattr(called, "operator", None)  # attribute of a reader's class
    known = {*inspect.signature(called).parameters, *(parameters(operator) if operator else ())} if called else set()
    for argument in arguments:
        if argument not in known and not {"arguments", "kwargs"} & known - ({"arguments"} if operator else set()):
            yield "missing", f"{name}: has no argument {argument!r}"


# -- rewriting --------------------------------------------------------------------------------------------------------


def _rewritten(source: str, tree: ast.Module, bound: dict[str, str]) -> str:
    """Return the program ``source`` with ``nvidia.dali`` replaced by dali-run's name in imports and names of modules,
    and otherwise unchanged."""
    edits: list[tuple[int, int, str]] = []
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    done: set[int] = set()
    raw = source.encode()
    for node in ast.walk(tree):
        for part, old, new in _renames(node, bound) if id(node) not in done else ():
            done.update(id(n) for n in ast.walk(part))
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[(part.end_lineno or part.lineno) - 1] + (part.end_col_offset or 0)
            found_at = raw.find(old.encode(), start, end)
            if found_at >= 0:
                edits.append((found_at, found_at + len(old.encode()) if old else end, new))
    for a, b, new in sorted(edits, reverse=True):
        raw = raw[:a] + new.encode() + raw[b:]
    return raw.decode() if edits else ""


def _renames(node: ast.AST, bound: dict[str, str]) -> Iterator[tuple[ast.alias | ast.stmt | ast.expr, str, str]]:
    """Yield (part, old, new): the text ``old`` within ``part`` of this node becomes ``new``; the whole part if ``old``
    is empty."""
    if isinstance(node, ast.Import):
        yield from ((a, a.name, _renamed(a.name)) for a in node.names if _is_dali(a.name))
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        if _is_dali(node.module):
            above = {_renamed(f"{node.module}.{a.name}").rpartition(".")[0] for a in node.names}
            yield node, node.module, above.pop() if len(above) == 1 else _renamed(node.module)
        elif node.module == "nvidia" and [a.name for a in node.names] == ["dali"]:
            yield node, "", f"import {_OURS} as {node.names[0].asname or 'dali'}"
    elif isinstance(node, ast.Attribute):
        full = _dotted(node, bound)
        if full == _DALI or (full.removeprefix(f"{_DALI}.") in MOVED and ast.unparse(node) == full):
            yield node, full, _renamed(full)


def _renamed(name: str) -> str:
    """Return the dali-run name of ``name``, a module of DALI."""
    module_name = name.removeprefix(_DALI).removeprefix(".")
    return f"{_OURS}.{dali_run_name(module_name)}" if module_name else _OURS
